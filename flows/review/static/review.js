// The page of a review: the list, one episode, and what a person changes. The server keeps every change.

import { belongsToControl } from "../console/keys.js";
import { curveFigures, drawStrip, seekable } from "./curves.js";
import { openSteps, player, seek, showCameras, stop, toggle } from "./player.js";
import { $, Refused, enter, get, person, post } from "./server.js";

const POLL = 2000;           // ms between two looks at what others have changed
const POLL_COPY = 400;       // ms while a store is written
const FAR = 10;              // steps of an arrow with shift
const MOST_LISTED = 50;      // changes that the question before writing lists
const WORDS = { success: "success", failure: "failure", discard: "left out" };
const FLAGS = {
  unlabelled: "no label", contradicted: "label against the simulator", faults: "fault", dropped: "dropped", short: "short",
};
const state = { data: null, changes: null, episode: null, signals: null, curves: [], rows: new Map() };
window.handoff = { state, player };   // for tests and debugging

const say = (text, trouble = false) => { $("message").textContent = text; $("message").classList.toggle("trouble", trouble); };
player.trouble = (text) => say(text, true);

/** Runs what asks the server, and says in words what it refuses. */
async function trying(work) {
  try { return await work(); } catch (error) {
    if (!(error instanceof Refused)) throw error;
    say(error.message, true);
    return null;
  }
}

const decision = (episode, aspect) => state.changes.decisions[episode]?.[aspect]?.value ?? null;
const row = (episode) => state.data.episodes[episode];
const kept = (episode) => decision(episode, "trim") ?? [0, row(episode).steps];
const recorded = (about) => about.success === undefined ? "none" : about.success ? "success" : "failure";
const verdict = (episode) => decision(episode, "verdict") ?? recorded(row(episode));
const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

// ---------------------------------------------------------------- list

function listed(episode) {
  const shown = $("filter").value, changed = state.changes.decisions[episode] !== undefined;
  if (shown === "all") return true;
  if (shown === "changed") return changed;
  return shown === "unreviewed" ? !changed : row(episode).flags.includes(shown);
}

function showList() {
  $("episodes").replaceChildren(...state.data.episodes.map((about) => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.onclick = () => trying(() => open(about.episode));
    item.append(button);
    state.rows.set(about.episode, item);
    return item;
  }));
  state.data.episodes.forEach((about) => showRow(about.episode));
  showCounts();
}

function showRow(episode) {
  const item = state.rows.get(episode), about = row(episode), button = item.firstChild;
  const label = verdict(episode), number = document.createElement("b"), words = document.createElement("small");
  const length = about.seconds === null ? plural(about.steps, "step") : `${about.seconds.toFixed(1)} s`;
  number.textContent = `${episode} · ${label === "none" ? "no label" : WORDS[label]} · ${length}`;
  const parts = about.flags.filter((flag) => FLAGS[flag]).map((flag) => FLAGS[flag]);
  if (about.takeovers) parts.push(plural(about.takeovers, "takeover"));
  if (decision(episode, "trim")) parts.push("shortened");
  const note = decision(episode, "note") ?? about.note;
  if (note) parts.push(`“${note}”`);
  words.textContent = parts.join(" · ");
  button.className = label;
  button.setAttribute("aria-current", String(episode === state.episode));
  button.replaceChildren(number, words);
  if (state.changes.pending.includes(episode)) {
    const mark = document.createElement("small");
    mark.className = "pending";
    mark.textContent = "not written yet";
    button.append(mark);
  }
  item.hidden = !listed(episode);
}

function showCounts() {
  const visible = state.data.episodes.filter((about) => listed(about.episode)).length;
  $("count").textContent = `${visible} of ${state.data.episodes.length}`;
  $("none").hidden = visible > 0;
}

function neighbour(direction) {
  for (let next = state.episode + direction; next >= 0 && next < state.data.episodes.length; next += direction) {
    if (listed(next)) return next;
  }
  return null;
}

async function go(direction) {
  const next = neighbour(direction);
  if (next === null) { say(direction > 0 ? "This is the last episode of the list." : "This is the first episode of the list."); return; }
  say("");
  await trying(() => open(next));
}

// ---------------------------------------------------------------- one episode

async function open(episode) {
  const before = state.episode;
  state.episode = episode;
  const signals = await get(`episode/${episode}`);
  if (state.episode !== episode) return;
  state.signals = signals;
  if (before !== null) showRow(before);
  showRow(episode);
  state.rows.get(episode).scrollIntoView({ block: "nearest" });
  const about = row(episode);
  $("title").textContent = `Episode ${episode} of ${state.data.episodes.length - 1}`;
  $("facts").textContent = [
    about.instruction && `“${about.instruction}”`, about.operator && `by ${about.operator}`, about.began,
    about.ended_by && `ended by ${about.ended_by}`, about.discard_reason && `dropped: ${about.discard_reason}`,
    about.takeovers !== null && about.takeovers !== undefined && `${plural(about.takeovers, "takeover")}, ${Math.round(100 * about.corrected)} % of the steps by a person`,
    about.true_success !== undefined && `the simulator says ${about.true_success ? "success" : "failure"}`, about.fault,
  ].filter(Boolean).join(" · ");
  showSignals();
  openSteps(episode, about.steps, state.data.rate_hz);
  showDecisions();
}

function showSignals() {
  const { signals } = state;
  $("events").replaceChildren(...signals.events.map((event) => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.textContent = `step ${event.step}: ${event.what}`;
    button.onclick = () => seek(event.step);
    item.append(button);
    return item;
  }));
  state.curves = [];
  const places = { main: [], more: [] };
  for (const curve of signals.curves) {
    for (const [figure, draw] of curveFigures(curve, signals)) {
      places[curve.main ? "main" : "more"].push(figure);
      state.curves.push([draw, curve.main]);
    }
  }
  $("main-curves").replaceChildren(...places.main);
  $("more-curves").replaceChildren(...places.more);
  if (signals.left_out.length) $("more-curves").append(`Not drawn, as too large: ${signals.left_out.join(", ")}.`);
  $("more").hidden = places.more.length === 0 && signals.left_out.length === 0;
  $("metadata").tBodies[0].replaceChildren(...signals.metadata.map(([name, value]) => {
    const line = document.createElement("tr"), head = document.createElement("th"), cell = document.createElement("td");
    head.scope = "row";
    head.textContent = name;
    cell.textContent = value;
    line.append(head, cell);
    return line;
  }));
}

function draw() {
  if (state.signals === null || state.changes === null) return;
  const steps = kept(state.episode);
  drawStrip(state.signals, steps);
  for (const [drawn, main] of state.curves) if (main || $("more").open) drawn(steps);
}

/** Shows what holds of the open episode: label, kept steps, note and who changed it. */
function showDecisions() {
  const episode = state.episode, about = row(episode), [first, end] = kept(episode);
  const by = about.labelled_by ? ` by ${about.labelled_by}` : "";
  $("recorded").textContent = `Recorded: ${recorded(about) === "none" ? "no label" : recorded(about) + by}.`;
  for (const button of document.querySelectorAll("[data-verdict]")) {
    button.setAttribute("aria-pressed", String(button.dataset.verdict === verdict(episode)));
  }
  const whole = decision(episode, "trim") === null;
  $("kept").textContent = whole ? `All ${plural(about.steps, "step")}.` : `Steps ${first} to ${end - 1} of ${about.steps - 1}, ${plural(end - first, "step")}.`;
  $("whole").disabled = whole || Boolean(state.data.unedited);
  if (document.activeElement !== $("note")) $("note").value = decision(episode, "note") ?? about.note ?? "";
  $("changes").replaceChildren(...Object.entries(state.changes.decisions[episode] ?? {}).map(([aspect, change]) => {
    const item = document.createElement("li"), when = document.createElement("small");
    item.textContent = `${change.by}: ${changeWords(aspect, change.value)} `;
    when.textContent = new Date(change.when).toLocaleString();
    item.append(when);
    return item;
  }));
  draw();
}

function changeWords(aspect, value) {
  if (aspect === "verdict") return WORDS[value];
  if (aspect === "trim") return `keeps the steps ${value[0]} to ${value[1] - 1}`;
  return value ? `“${value}”` : "no note";
}

// ---------------------------------------------------------------- changes

async function change(aspect, value) {
  const episode = state.episode;
  const answer = await trying(() => post("change", { episode, what: aspect, value }));
  if (answer === null) return false;
  await refresh();
  if (answer.changed) say(`Episode ${episode}: ${value === null ? "as it was recorded" : changeWords(aspect, value)}.`);
  return answer.changed;
}

async function label(value) {
  const changed = await change("verdict", decision(state.episode, "verdict") === value ? null : value);
  if (changed && $("advance").checked && decision(state.episode, "verdict") !== null && neighbour(1) !== null) await trying(() => open(neighbour(1)));
}

function begin() {
  const end = kept(state.episode)[1];
  if (player.step >= end) { say("The first kept step must be before the last one.", true); return; }
  change("trim", [player.step, end]);
}

function end() {
  const first = kept(state.episode)[0];
  if (player.step < first) { say("The last kept step must be behind the first one.", true); return; }
  change("trim", [first, player.step + 1]);
}

async function undo() {
  const answer = await trying(() => post("undo", {}));
  if (answer === null) return;
  if (answer.undone === null) { say("You have no change that can be undone."); return; }
  await refresh();
  const { episode, what } = answer.undone;
  if (episode !== state.episode) await trying(() => open(episode));
  say(`Undone: the ${{ verdict: "label", trim: "kept steps", note: "note" }[what]} of episode ${episode}.`);
}

function saveNote() {
  const text = $("note").value.trim(), before = decision(state.episode, "note") ?? row(state.episode).note ?? "";
  if (text !== before) change("note", text);
}

// ---------------------------------------------------------------- writing

function ask() {
  const { pending, decisions } = state.changes;
  if (!pending.length) { say("There is no change that is not written."); return; }
  stop();
  const words = (episode) => Object.entries(decisions[episode] ?? {}).map(([aspect, each]) => `${changeWords(aspect, each.value)} (${each.by})`).join(", ") || "as it was recorded";
  $("write-about").textContent = `A new store in ${state.data.folder} gets all changes so far; ${state.data.name} stays as it is. Not written yet:`;
  const lines = pending.slice(0, MOST_LISTED).map((episode) => `episode ${episode}: ${words(episode)}`);
  if (pending.length > MOST_LISTED) lines.push(`and ${pending.length - MOST_LISTED} more`);
  $("write-list").replaceChildren(...lines.map((line) => { const item = document.createElement("li"); item.textContent = line; return item; }));
  $("write-dialog").showModal();
  $("write-yes").focus();
}

async function write() {
  $("write-dialog").close();
  if (await trying(() => post("write", {}))) say("The store is being written.");
  await refresh();
}

function showCopy() {
  const { copy, pending, written } = state.changes, running = copy?.running === true;
  $("write").disabled = Boolean(state.data.unedited) || running || !pending.length;
  $("write-word").textContent = pending.length ? `Write ${plural(pending.length, "change")}` : "Nothing to write";
  $("copies").hidden = copy === null && written === null;
  $("copy-progress").hidden = !running;
  if (running) {
    $("copy").textContent = `${copy.store}: episode ${copy.done} of ${copy.total}, for ${copy.by}`;
    $("copy-progress").value = copy.total ? copy.done / copy.total : 0;
  } else if (copy?.trouble) {
    $("copy").textContent = `${copy.store} was not written: ${copy.trouble}`;
  } else if (written !== null) {
    const place = `${state.data.folder}/${written}`;
    $("copy").textContent = copy?.store === written ? `${place}. ${copy.summary}` : place;
  }
}

// ---------------------------------------------------------------- the server's state

async function refresh() {
  const before = state.changes;
  const changes = await trying(() => get("changes"));
  if (changes === null) return;
  state.changes = changes;
  if (changes.count !== state.data.episodes.length) {
    state.data = await get("data");
    showList();
    say(`${plural(changes.count, "episode")} by now.`);
  }
  const finished = before?.copy?.running && !changes.copy.running;
  if (finished) say(changes.copy.trouble ? `Not written: ${changes.copy.trouble}` : `Written: ${changes.copy.store}. ${changes.copy.summary}`, Boolean(changes.copy.trouble));
  if (before?.revision !== changes.revision || finished) {
    const touched = new Set([before, changes].flatMap((each) => each ? [...Object.keys(each.decisions), ...each.pending] : []).map(Number));
    for (const episode of touched) showRow(episode);
    if (state.episode !== null) showDecisions();
    showCounts();
  }
  showCopy();
}

async function poll() {
  await refresh();
  setTimeout(poll, state.changes?.copy?.running ? POLL_COPY : POLL);
}

// ---------------------------------------------------------------- keys and buttons

const KEYS = {
  j: () => go(1), k: () => go(-1), s: () => label("success"), f: () => label("failure"), d: () => label("discard"),
  "[": begin, i: begin, "]": end, o: end, z: undo, n: () => { $("note").focus(); $("note").select(); },
  " ": toggle, enter: ask, home: () => seek(0), end: () => seek(player.steps - 1),
};
const EDITS = new Set(["s", "f", "d", "[", "]", "i", "o", "z", "n", "enter"]);

function belongs(event) {
  const active = document.activeElement;
  if (active === $("step")) return /^(Arrow|Home|End|Page)/.test(event.code);
  if (active?.type === "checkbox") return event.code === "Space";
  return belongsToControl(event.code);
}

addEventListener("keydown", (event) => {
  if (state.signals === null || belongs(event)) return;
  // A bracket is typed with AltGr on some keyboards, which browsers report as Control and Alt.
  const bracket = event.key === "[" || event.key === "]";
  if (!bracket && (event.ctrlKey || event.metaKey || event.altKey)) return;
  const key = event.key.toLowerCase();
  if (key === "arrowleft" || key === "arrowright") {
    seek(player.step + (key === "arrowleft" ? -1 : 1) * (event.shiftKey ? FAR : 1));
  } else if (KEYS[key]) {
    if (event.repeat && EDITS.has(key)) return;
    if (EDITS.has(key) && state.data.unedited) say(state.data.unedited, true); else KEYS[key]();
  } else return;
  event.preventDefault();
});

$("step").addEventListener("input", () => seek(Number($("step").value)));
$("filter").addEventListener("change", () => {
  state.data.episodes.forEach((about) => showRow(about.episode));
  showCounts();
  $("filter").blur();
  const first = state.data.episodes.find((about) => listed(about.episode));
  if (first && !listed(state.episode)) trying(() => open(first.episode));
});
$("note").addEventListener("change", saveNote);
// Enter keeps the note, and is no command then.
$("note").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.stopPropagation();
  $("note").blur();
});
for (const button of document.querySelectorAll("[data-verdict]")) button.onclick = () => label(button.dataset.verdict);
$("previous").onclick = () => go(-1);
$("next").onclick = () => go(1);
$("back").onclick = () => seek(player.step - 1);
$("ahead").onclick = () => seek(player.step + 1);
$("play").onclick = toggle;
$("first").onclick = begin;
$("last").onclick = end;
$("whole").onclick = () => change("trim", null);
$("undo").onclick = undo;
$("write").onclick = ask;
$("write-no").onclick = () => $("write-dialog").close();
$("write-form").addEventListener("submit", (event) => { event.preventDefault(); write(); });
$("more").addEventListener("toggle", draw);
addEventListener("resize", draw);
$("theme").onclick = () => {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("handoff-theme", root.dataset.theme);
  draw();
};
seekable($("timeline"), () => state.signals?.steps ?? 1);

// ---------------------------------------------------------------- start

async function start() {
  await enter();
  const data = await trying(() => get("data")), changes = data && await trying(() => get("changes"));
  if (!changes) { setTimeout(start, POLL); return; }
  state.data = data;
  state.changes = changes;
  document.title = `Review of ${data.name}`;
  $("name").textContent = `Review of ${data.name}`;
  $("about").textContent = [data.task, data.format, data.rate_hz === null ? "rate not stated, played at 10 Hz" : `${data.rate_hz} Hz`, `you are ${person.name}`].join(" · ");
  $("unedited").textContent = data.unedited;
  $("unedited").hidden = !data.unedited;
  for (const id of ["first", "last", "whole", "undo", "note"]) $(id).disabled = Boolean(data.unedited);
  for (const button of document.querySelectorAll("[data-verdict]")) button.disabled = Boolean(data.unedited);
  $("note").maxLength = data.longest_note;
  $("filter").value = data.shown;
  $("list-box").open = innerWidth > 1100;
  showCameras(data.cameras);
  showList();
  const first = data.episodes.find((about) => listed(about.episode)) ?? data.episodes[0];
  await trying(() => open(first.episode));
  showCopy();
  setTimeout(poll, POLL);
}

start();
