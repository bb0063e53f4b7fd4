// Whose a key is: the arm's, or that of the control that has the focus.
//
// A control keeps the keys that it acts on: a button Enter and Space, a field all of them, an open dialog all of them.
// Keys that hold the arm still are told to the server whatever has the focus.

const STOP_KEY = "key Escape";
const PRESSED = "button:enabled, a[href], summary";
const WRITTEN = "input, select, textarea, [contenteditable]";
const PRESSING = new Set(["Enter", "NumpadEnter", "Space"]);

export const dialogOpen = () => document.querySelector("dialog[open]") !== null;
export const writing = () => document.activeElement?.matches(WRITTEN) ?? false;
export const presses = (code) => PRESSING.has(code);
export const stops = (bindings, name) => name === STOP_KEY || (bindings["hold still"] ?? []).includes(name);
export const isBound = (bindings, name) => Object.values(bindings).some((names) => names.includes(name));

/** Whether a key is for the control that has the focus, and so not for the arm. */
export function belongsToControl(code) {
  if (dialogOpen() || writing()) return true;
  return presses(code) && (document.activeElement?.matches(PRESSED) ?? false);
}

/** Gives the keys back to the arm. */
export function leaveControl() {
  if (document.activeElement?.matches(PRESSED)) document.activeElement.blur();
}

// A click takes no focus, so after it the keys are the arm's.
addEventListener("mousedown", (event) => {
  if (!event.target.closest?.(PRESSED)) return;
  event.preventDefault();
  leaveControl();
});

/** An input as it is shown: `S`, `↑`, `button 3`. */
export const spoken = (name) => name
  .replace(/^key (Key|Digit)?/, "").replace(/^Arrow(.*)/, (_, way) => ({ Up: "↑", Down: "↓", Left: "←", Right: "→" })[way]);
