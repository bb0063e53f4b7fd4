// The table of bindings: binds an input to an action, swaps the inputs of two actions, restores the defaults.

import { label, spoken } from "./keys.js";
import { $, page, send } from "./page.js";

const rows = new Map();      // table row and button of every action
let request = null;          // the last request to the server
let accept = null;           // action of the first button of a question

/** Whether the page waits for a new input, or for an answer. */
export const asking = () => page.listening !== null || !$("bind-ask").hidden;

export function showBindings() {
  if (rows.size !== page.actions.length) build();
  const may = page.state?.mode === "hold" && page.state.controller === page.you;
  for (const [action, { row, how, button }] of rows) {
    const listening = page.listening === action;
    row.classList.toggle("listening", listening);
    how.textContent = listening ? "Press a key; Esc cancels" : page.bindings[action].map(spoken).join(", ");
    button.textContent = listening ? "Cancel" : "Change";
    button.setAttribute("aria-label", `${button.textContent} ${label(action)}`);
    button.disabled = !may;
  }
  $("restore").disabled = !may;
}

// Rows are created once, because a new button would lose the focus.
function build() {
  rows.clear();
  for (const action of page.actions) {
    const row = document.createElement("tr"), what = document.createElement("td"), how = document.createElement("td"), change = document.createElement("td");
    const button = document.createElement("button");
    what.textContent = label(action);
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

/** Binds this input to the waiting action, if the server allows it. */
export function bind(name) {
  request = { kind: "bind", action: page.listening, input: name };
  page.listening = null;
  send(request);
  showBindings();
}

/** Shows why the server refused a binding. */
export function refused({ why, swap }) {
  ask(why, swap ? "Swap" : "", () => send({ ...request, swap: true }));
}

/** Cancels waiting for an input or an answer; no binding changes. */
export function cancel() {
  const from = page.listening ?? request?.action;
  const back = $("bind-ask").contains(document.activeElement);
  close();
  page.listening = null;
  showBindings();
  if (back) (rows.get(from)?.button ?? $("restore")).focus();
}

function ask(question, answer, then) {
  page.listening = null;
  accept = then;
  $("bind-why").textContent = question;
  $("bind-yes").textContent = answer;
  $("bind-yes").hidden = !answer;
  $("bind-ask").hidden = false;
  $("bind-no").focus();
  showBindings();
}

function close() {
  $("bind-ask").hidden = true;
  accept = null;
}

$("bind-yes").onclick = () => { const then = accept; cancel(); then?.(); };
$("bind-no").onclick = () => cancel();
$("restore").onclick = () => {
  request = null;
  ask("Restore the default bindings of all keys, buttons and axes?", "Restore", () => send({ kind: "restore" }));
};
$("devices").addEventListener("close", () => cancel());
