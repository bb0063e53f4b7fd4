// The active inputs: keys, a gamepad and touches on the screen. They are sent to the server at every change, and
// thirty times per second.

import { asking, bind, cancel } from "./bindings.js";
import { belongsToControl, dialogOpen, isBound, leaveControl, presses, stops, writing } from "./keys.js";
import { $, page, send } from "./page.js";
import { onReport, spaceMouse } from "./spacemouse.js";

const HEARTBEAT = 33;        // ms between two messages with inputs, well below the watchdog's 150

// Some systems show a SpaceMouse as a gamepad as well, whose axes mean something else.
const SPACEMOUSE = /256f|3dconnexion|spacemouse|spacenavigator|spacepilot|spaceexplorer/i;

export function gamepad() {
  for (const pad of navigator.getGamepads?.() ?? []) if (pad?.connected && !SPACEMOUSE.test(pad.id)) return pad;
  return null;
}

// While a dialog is open, inputs are shown but not sent, except those that hold the arm still.
function inputs() {
  const pad = gamepad(), shut = dialogOpen();
  const counts = (n) => !shut || stops(page.bindings, `button ${n}`);
  return {
    kind: "inputs", sequence: ++page.sequence, visible: document.visibilityState === "visible",
    keys: [...page.keys].slice(0, 32), held: [...page.held], axes: pad && !shut ? [...pad.axes].slice(0, 16) : [],
    buttons: pad ? pad.buttons.slice(0, 32).map((button, n) => counts(n) ? button.value : 0) : [], stick: page.stick,
    spacemouse: shut ? null : spaceMouse(),
  };
}

export function sendInputs() {
  if (page.socket?.readyState !== WebSocket.OPEN || page.socket.bufferedAmount > 65536) return;
  const message = inputs();
  page.sent.set(message.sequence, performance.now());
  if (page.sent.size > 300) page.sent.delete(page.sent.keys().next().value);
  send(message);
}
setInterval(sendInputs, HEARTBEAT);
onReport(sendInputs);

const taken = new Set();     // codes of held keys whose default action in the browser is suppressed

function take(event) {
  event.preventDefault();
  taken.add(event.code);
}

function press(code) {
  if (page.keys.has(code)) return;
  page.keys.add(code);
  sendInputs();
}

addEventListener("keydown", (event) => {
  const name = `key ${event.code}`, stop = stops(page.bindings, name);
  page.down.add(event.code);
  if (stop && !event.repeat) press(event.code);
  if (event.code === "Escape") { escape(event); return; }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (page.listening && event.code === "Tab") cancel();
  if (page.listening) {
    take(event);
    if (!event.repeat) bind(name);
  } else if (stop) {
    if (!writing()) take(event);
  } else if (belongsToControl(event.code)) {
    // A held key presses a control only once.
    if (event.repeat && presses(event.code) && !writing()) take(event);
  } else {
    if (isBound(page.bindings, name)) take(event);
    if (!event.repeat) press(event.code);
  }
}, true);
addEventListener("keyup", (event) => {
  page.down.delete(event.code);
  if (taken.delete(event.code)) event.preventDefault();
  if (page.keys.delete(event.code)) sendInputs();
}, true);

// Escape was sent to the server already; on the page it cancels a question, closes the dialog or leaves the control.
function escape(event) {
  if (($("cause").open || $("telling").open || ($("devices").open && !asking())) && !event.repeat) return;
  take(event);
  if (asking()) cancel(); else leaveControl();
}

export function releaseAll() {
  page.keys.clear();
  page.down.clear();
  page.held.clear();
  page.stick = null;
  for (const pad of document.querySelectorAll(".pad")) centre(pad);
  sendInputs();
}
addEventListener("blur", () => {
  releaseAll();
  // After a click into the scene, keys must still move the arm.
  if (document.activeElement?.tagName === "IFRAME") requestAnimationFrame(() => { document.activeElement.blur(); window.focus(); });
});
document.addEventListener("visibilitychange", releaseAll);
addEventListener("pagehide", releaseAll);
addEventListener("gamepadconnected", () => { page.dirty = true; });

for (const button of document.querySelectorAll("[data-hold]")) {
  const action = button.dataset.hold;
  // Start and Home are buttons to press, unless the arm moves only while they are held.
  const begin = () => {
    if (["go on", "home"].includes(action) && !page.state?.hold_to_run) return;
    page.held.add(action);
    sendInputs();
  };
  const end = () => { if (page.held.delete(action)) sendInputs(); };
  button.addEventListener("pointerdown", (event) => { button.setPointerCapture(event.pointerId); begin(); });
  button.addEventListener("keydown", (event) => { if (presses(event.code) && !event.defaultPrevented) begin(); });
  button.addEventListener("keyup", (event) => { if (presses(event.code)) end(); });
  for (const over of ["pointerup", "pointercancel", "lostpointercapture", "blur"]) button.addEventListener(over, end);
}

const deflected = new Map();
for (const pad of document.querySelectorAll(".pad")) {
  let from = null;
  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    from = [event.clientX, event.clientY];     // the touched point is the centre, so that nothing jumps
    deflected.set(pad.id, [0, 0]);
    pad.classList.add("held");
    stick();
  });
  pad.addEventListener("pointermove", (event) => {
    if (!from) return;
    const reach = Math.min(pad.clientWidth, pad.clientHeight) / 2;
    const clip = (value) => Math.max(-1, Math.min(1, value / reach));
    deflected.set(pad.id, [clip(event.clientX - from[0]), clip(event.clientY - from[1])]);
    stick();
  });
  for (const over of ["pointerup", "pointercancel", "lostpointercapture"]) {
    pad.addEventListener(over, () => { if (from) { from = null; centre(pad); stick(); } });
  }
}
function centre(pad) {
  deflected.delete(pad.id);
  pad.classList.remove("held");
  pad.querySelector("i").style.transform = "";
}
function stick() {
  const at = (id) => deflected.get(id) ?? [0, 0];
  page.stick = deflected.size === 0 ? null : [-at("pad-plane")[1], -at("pad-plane")[0], -at("pad-up")[1], -at("pad-turn")[1]];
  for (const [id, [x, y]] of deflected) {
    const pad = $(id), reach = Math.min(pad.clientWidth, pad.clientHeight) / 2 - 15;
    pad.querySelector("i").style.transform = `translate(${id === "pad-plane" ? x * reach : 0}px, ${y * reach}px)`;
  }
  sendInputs();
}
