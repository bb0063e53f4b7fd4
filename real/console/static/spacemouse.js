// A SpaceMouse at this computer, read by WebHID. The page sends the counts of its reports; the server maps and scales
// them (real/teleop/spacemouse.py).

import { $, page } from "./page.js";

const PERIOD = 10;           // ms, shortest time between two messages because of a report
const COUNTS = ["right", "towards you", "down", "tilt", "roll", "turn"];
const TRANSLATION = 1, ROTATION = 2, BUTTONS = 3;      // numbers of the reports; TRANSLATION may hold both

let device = null;
let state = null;            // counts and buttons of the newest reports, and when the newest came
let changed = () => {};      // called after a report, at most every PERIOD
let due = 0, calledAt = 0;

/** What the page sends of the SpaceMouse; null without one, and while another window has the keys. */
export function spaceMouse() {
  if (!state || !document.hasFocus()) return null;
  return { counts: state.counts, buttons: state.buttons, age: (performance.now() - state.at) / 1000 };
}

/** Calls `then` after reports of the SpaceMouse, and when it is gone. */
export function onReport(then) { changed = then; }

function report({ reportId, data }) {
  if (reportId === BUTTONS) {
    state.buttons = Array.from({ length: 8 * Math.min(4, data.byteLength) }, (_, bit) => data.getUint8(bit >> 3) >> (bit & 7) & 1);
  } else if (reportId === TRANSLATION || reportId === ROTATION) {
    const first = reportId === ROTATION ? 3 : 0;
    for (let n = 0; first + n < 6 && 2 * n + 1 < data.byteLength; n++) state.counts[first + n] = data.getInt16(2 * n, true);
  } else return;
  state.at = performance.now();
  due ||= setTimeout(notify, Math.max(0, calledAt + PERIOD - state.at));
}

function notify() {
  due = 0;
  calledAt = performance.now();
  changed();
}

async function use(found) {
  const next = found.find((each) => each.collections.some(isCap));
  if (!next || device) return;
  device = next;
  try {
    if (!next.opened) await next.open();
  } catch (error) {
    device = null;
    show(`The SpaceMouse cannot be opened: ${error.message} Another program may have it, or this user may not read it (udev rule).`);
    return;
  }
  state = { counts: [0, 0, 0, 0, 0, 0], buttons: [], at: performance.now() };
  next.addEventListener("inputreport", report);
  show();
}

// One device of a SpaceMouse may have several parts for the browser, such as its keys.
const isCap = ({ usagePage, usage }) => (page.spacemouse?.filters ?? []).some((each) => each.usagePage === usagePage && each.usage === usage);
const isKnown = ({ vendorId }) => page.spacemouse.filters.some((each) => each.vendorId === vendorId);

function release() {
  device?.removeEventListener("inputreport", report);
  device = state = null;
  changed();
  show();
}

/** Why this browser cannot read a SpaceMouse; empty if it can. */
function trouble() {
  if (!isSecureContext) return "A SpaceMouse at this computer needs https, or the address 127.0.0.1 or localhost, such as through an ssh tunnel.";
  if (!navigator.hid) return "This browser cannot read a SpaceMouse (no WebHID, as Firefox and Safari). Use Chromium, Chrome or Edge, or plug it into the robot's computer and start with --spacemouse.";
  return "";
}

function show(words = "") {
  const why = trouble();
  $("spacemouse-words").textContent = why || words || (device ? `${device.productName || "SpaceMouse"} moves the arm while it is deflected; its buttons close and open the gripper.` : "No SpaceMouse connected.");
  $("spacemouse-connect").hidden = Boolean(why);
  $("spacemouse-connect").textContent = device ? "Disconnect SpaceMouse" : "Connect a SpaceMouse";
  showCounts();
}

function showCounts() {
  const counts = state?.counts ?? [];
  const lines = [...$("spacemouse-counts").children];
  if (lines.length !== counts.length) {
    $("spacemouse-counts").replaceChildren(...counts.map((_, n) => {
      const line = document.createElement("label"), meter = document.createElement("meter");
      line.className = "meter";
      Object.assign(meter, { min: -page.spacemouse.full, max: page.spacemouse.full });
      line.append(COUNTS[n], meter);
      return line;
    }));
  }
  counts.forEach((count, n) => { $("spacemouse-counts").children[n].querySelector("meter").value = count; });
}

$("spacemouse-connect").onclick = async () => {
  if (device) {
    await device.close();
    release();
    return;
  }
  // The answer is empty if the person closes the browser's list.
  use(await navigator.hid.requestDevice({ filters: page.spacemouse.filters }).catch(() => []));
};

/** Reads the SpaceMouse that this page may read since an earlier visit; called with the first message of the server. */
export async function reconnect() {
  show();
  if (trouble()) return;
  use((await navigator.hid.getDevices()).filter(isKnown));
}

if (!trouble()) {
  navigator.hid.addEventListener("connect", (event) => { if (page.spacemouse && isKnown(event.device)) use([event.device]); });
  navigator.hid.addEventListener("disconnect", (event) => { if (event.device === device) release(); });
}
setInterval(() => { if ($("devices").open && state) showCounts(); }, 100);
