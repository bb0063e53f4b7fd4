// The table of bindings: an action waits for its new input, two actions that want one input may swap, all may go back to the defaults.

import { spoken } from "./keys.js";
import { $, page, say } from "./page.js";

const rows = new Map();      // of an action: its cells and its button
let wished = null;           // what the server was asked for last
let yes = null;              // what the question's first button does

/** Whether the page waits for a new input, or for an answer. */
export const asking = () => page.listening !== null || !$("bind-ask").hidden;

export function showBindings() {
  if (rows.size !== page.actions.length) build();
  const may = page.told?.mode === "hold" && page.told.controller === page.you;
  for (const [action, { row, how, button }] of rows) {
    const listening = page.listening === action;
    row.classList.toggle("listening", listening);
    how.textContent = listening ? "press a key, Esc cancels" : page.bindings[action].map(spoken).join(", ");
    button.textContent = listening ? "Cancel" : "Change";
    button.setAttribute("aria-label", `${button.textContent} ${action}`);
    button.disabled = !may;
  }
  $("restore").disabled = !may;
}

// Rows are made once: a button that was made anew would lose the focus.
function build() {
  rows.clear();
  for (const action of page.actions) {
    const row = document.createElement("tr"), what = document.createElement("td"), how = document.createElement("td"), change = document.createElement("td");
    const button = document.createElement("button");
    what.textContent = action;
    button.type = "button";
    button.onclick = () => listenFor(page.listening === action ? null : action);
    change.append(button);
    row.append(what, how, change);
    rows.set(action, { row, how, button });
  }
  $("bindings").tBodies[0].replaceChildren(...[...rows.values()].map(({ row }) => row));
}

function listenFor(action) {
  close();
  page.listening = action;
  showBindings();
}

/** The action that waits gets this input, if the server agrees. */
export function bind(name) {
  wished = { kind: "bind", action: page.listening, input: name };
  page.listening = null;
  say(wished);
  showBindings();
}

/** The server's answer where it does not agree. */
export function refused({ why, swap }) {
  ask(why, swap ? "Swap" : "", () => say({ ...wished, swap: true }));
}

/** Waits for nothing any more; nothing has changed. */
export function cancel() {
  const from = page.listening ?? wished?.action;
  const back = $("bind-ask").contains(document.activeElement);
  close();
  page.listening = null;
  showBindings();
  if (back) (rows.get(from)?.button ?? $("restore")).focus();
}

function ask(words, answer, then) {
  page.listening = null;
  yes = then;
  $("bind-why").textContent = words;
  $("bind-yes").textContent = answer;
  $("bind-yes").hidden = !answer;
  $("bind-ask").hidden = false;
  $("bind-no").focus();
  showBindings();
}

function close() {
  $("bind-ask").hidden = true;
  yes = null;
}

$("bind-yes").onclick = () => { const then = yes; cancel(); then?.(); };
$("bind-no").onclick = () => cancel();
$("restore").onclick = () => {
  wished = null;
  ask("All keys and buttons go back to the defaults.", "Restore", () => say({ kind: "restore" }));
};
$("devices").addEventListener("close", () => cancel());
