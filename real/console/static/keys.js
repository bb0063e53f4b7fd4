// Decides whether a key is for the arm or for the focused control.
//
// A control receives the keys that it reacts to: a button Enter and Space, a text field and an open dialog all keys.
// Keys that hold the arm still are always sent to the server.

const STOP_KEY = "key Escape";
const PRESSED = "button:enabled, a[href], summary";
const WRITTEN = "input, select, textarea, [contenteditable]";
const PRESSING = new Set(["Enter", "NumpadEnter", "Space"]);

export const dialogOpen = () => document.querySelector("dialog[open]") !== null;
export const writing = () => document.activeElement?.matches(WRITTEN) ?? false;
export const presses = (code) => PRESSING.has(code);
export const stops = (bindings, name) => name === STOP_KEY || (bindings["hold still"] ?? []).includes(name);
export const isBound = (bindings, name) => Object.values(bindings).some((names) => names.includes(name));

/** Whether a key is for the focused control, and therefore not for the arm. */
export function belongsToControl(code) {
  if (dialogOpen() || writing()) return true;
  return presses(code) && (document.activeElement?.matches(PRESSED) ?? false);
}

/** Removes the focus from a control, so that keys move the arm again. */
export function leaveControl() {
  if (document.activeElement?.matches(PRESSED)) document.activeElement.blur();
}

// A click does not focus the control, so that keys move the arm afterwards.
addEventListener("mousedown", (event) => {
  if (!event.target.closest?.(PRESSED)) return;
  event.preventDefault();
  leaveControl();
});

/** The displayed name of an action; stored maps have older names. */
const NAMES = { "open hand": "open gripper", "close hand": "close gripper", "hold still": "hold", "go on": "start, resume", limp: "limp (hand guiding)" };
export const label = (action) => NAMES[action] ?? action;

/** The displayed name of an input: `S`, `↑`, `button 3`. */
export const spoken = (name) => name
  .replace(/^key (Key|Digit)?/, "").replace(/^(Shift|Control|Alt)(Left|Right)$/, "$1").replace(/^Arrow(.*)/, (_, direction) => ({ Up: "↑", Down: "↓", Left: "←", Right: "→" })[direction]);
