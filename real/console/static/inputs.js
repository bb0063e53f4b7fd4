// What is down now: keys, a gamepad, and what is touched on the screen; told to the server at every change, and thirty times a second.

import { asking, bind, cancel } from "./bindings.js";
import { belongsToControl, dialogOpen, isBound, leaveControl, presses, stops, writing } from "./keys.js";
import { $, page, say } from "./page.js";

const BEAT = 33;             // ms between two heartbeats, well below the watchdog's 150

export function gamepad() {
  for (const pad of navigator.getGamepads?.() ?? []) if (pad?.connected) return pad;
  return null;
}

// In an open dialog inputs are shown and not sent, those that stop excepted.
function inputs() {
  const pad = gamepad(), shut = dialogOpen();
  const counts = (n) => !shut || stops(page.bindings, `button ${n}`);
  return {
    kind: "inputs", sequence: ++page.sequence, visible: document.visibilityState === "visible",
    keys: [...page.keys].slice(0, 32), held: [...page.held], axes: pad && !shut ? [...pad.axes].slice(0, 16) : [],
    buttons: pad ? pad.buttons.slice(0, 32).map((button, n) => counts(n) ? button.value : 0) : [], stick: page.stick,
  };
}

export function beat() {
  if (page.socket?.readyState !== WebSocket.OPEN || page.socket.bufferedAmount > 65536) return;
  const word = inputs();
  page.sent.set(word.sequence, performance.now());
  if (page.sent.size > 300) page.sent.delete(page.sent.keys().next().value);
  say(word);
}
setInterval(beat, BEAT);

const taken = new Set();     // codes of keys whose own meaning in the browser the page has set aside until they are let go

function take(event) {
  event.preventDefault();
  taken.add(event.code);
}

function press(code) {
  if (page.keys.has(code)) return;
  page.keys.add(code);
  beat();
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
    // A key that is kept down presses a control once.
    if (event.repeat && presses(event.code) && !writing()) take(event);
  } else {
    if (isBound(page.bindings, name)) take(event);
    if (!event.repeat) press(event.code);
  }
}, true);
addEventListener("keyup", (event) => {
  page.down.delete(event.code);
  if (taken.delete(event.code)) event.preventDefault();
  if (page.keys.delete(event.code)) beat();
}, true);

// It has been told to the server; on the page it takes back what is asked, closes the dialog, or leaves the control.
function escape(event) {
  if ($("devices").open && !asking() && !event.repeat) return;
  take(event);
  if (asking()) cancel(); else leaveControl();
}

export function letGo() {
  page.keys.clear();
  page.down.clear();
  page.held.clear();
  page.stick = null;
  for (const pad of document.querySelectorAll(".pad")) centre(pad);
  beat();
}
addEventListener("blur", () => {
  letGo();
  // A click into the scene must not keep the keys from the arm.
  if (document.activeElement?.tagName === "IFRAME") requestAnimationFrame(() => { document.activeElement.blur(); window.focus(); });
});
document.addEventListener("visibilitychange", letGo);
addEventListener("pagehide", letGo);
addEventListener("gamepadconnected", () => { page.dirty = true; });

for (const button of document.querySelectorAll("[data-hold]")) {
  const action = button.dataset.hold;
  const begin = () => { page.held.add(action); beat(); };
  const end = () => { if (page.held.delete(action)) beat(); };
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
    from = [event.clientX, event.clientY];     // zero is where it was touched: nothing jumps
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
  beat();
}
