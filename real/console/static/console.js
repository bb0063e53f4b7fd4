// The page: connects to the server and shows its state. The server decides what a key means.

import { bind, cancel, refused, showBindings } from "./bindings.js";
import { gamepad, releaseAll, sendInputs } from "./inputs.js";
import { spoken } from "./keys.js";
import { $, page, send } from "./page.js";
import { drawLatency, drawStrip, drawTrend } from "./pictures.js";
import { reconnect } from "./spacemouse.js";
import { showInstruction } from "./telling.js";

const CANVAS_PERIOD = 100;   // ms between two drawings of a canvas
const OLD_IMAGE = 1000;      // ms after which a camera image counts as old
const SILENCE = 500;         // ms without a message after which the page reports it; the arm holds still after 150
const HINT_TONE = { pitch: 550, volume: 0.03 };   // quieter than the tone of a mode, which it must not hide
const RECONNECT = 3000;      // ms without a message after which the page opens a new connection

// ---------------------------------------------------------------- connection

const fragment = location.hash.slice(1);
if (fragment) {
  sessionStorage.setItem("handoff-token", fragment);
  history.replaceState(null, "", location.pathname);
}
page.token = sessionStorage.getItem("handoff-token") ?? "";
page.name = localStorage.getItem("handoff-name") ?? "";
const theme = localStorage.getItem("handoff-theme");
if (theme) document.documentElement.dataset.theme = theme;
if (page.token && page.name) connect(); else showLogin("");

function showLogin(trouble) {
  $("name").value = page.name;
  $("token").value = page.token;
  $("login-trouble").textContent = trouble;
  if (!$("login").open) $("login").showModal();
  (page.name ? $("token") : $("name")).focus();
}

$("login").addEventListener("cancel", (event) => event.preventDefault());
$("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  page.name = $("name").value.trim();
  page.token = $("token").value.trim();
  localStorage.setItem("handoff-name", page.name);
  sessionStorage.setItem("handoff-token", page.token);
  $("login").close();
  connect();
});

function connect() {
  page.socket?.close();
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/page`);
  socket.binaryType = "blob";
  page.socket = socket;
  page.receivedAt = performance.now();
  socket.onopen = () => {
    page.tries = 0;
    page.sent.clear();
    send({ kind: "hello", token: page.token, name: page.name });
    sendInputs();
  };
  socket.onmessage = (event) => typeof event.data === "string" ? receive(JSON.parse(event.data)) : show(event.data);
  socket.onclose = (event) => {
    if (page.socket !== socket) return;
    disconnected(event.reason || "The console does not answer.");
    if (event.code === 4401) { sessionStorage.removeItem("handoff-token"); showLogin("Wrong token. Enter the token that the console printed."); return; }
    if (event.code === 4400 || event.code === 4429) return;   // a new connection would be closed again
    if (event.code === 4410) { ended(event.reason); return; }  // a later session has another token
    setTimeout(connect, Math.min(3000, 250 * 2 ** page.tries++));
  };
}

// ---------------------------------------------------------------- buttons

for (const button of document.querySelectorAll("[data-press]")) {
  button.addEventListener("click", () => send({ kind: "press", action: button.dataset.press }));
}
$("claim").onclick = () => send({ kind: "claim", force: false });
$("take").onclick = () => send({ kind: "claim", force: true });
$("answer").onclick = () => window.open(page.state.waiting.link, "_blank", "noopener");
$("give").onclick = () => send({ kind: "give" });

// A fault of a real arm is recovered with its cause, which is kept with it.
const recover = (cause) => send({ kind: "recover", cause });
$("recover").onclick = () => {
  if (!page.state.asks_cause) { recover(""); return; }
  releaseAll();
  $("cause-why").textContent = page.state.why;
  $("cause-text").value = "";
  $("cause").showModal();
};
$("cause-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const cause = $("cause-text").value.trim();
  if (!cause) return;
  recover(cause);
  $("cause").close();
});
$("cause-cancel").onclick = () => $("cause").close();

// ---------------------------------------------------------------- messages of the server

function receive(message) {
  if (message.kind !== "state") return;
  if (message.episode !== undefined) {
    page.steps = []; page.about = message.about; page.bindings = message.bindings; page.actions = message.actions;
    page.first = (message.total ?? 0) - (message.steps?.length ?? 0);
    if (!page.spacemouse) { page.spacemouse = message.spacemouse; reconnect(); }
    showKeys();
  }
  if (message.steps) {
    page.steps.push(...message.steps);
    const most = 4000;
    if (page.steps.length > most) { page.first += page.steps.length - most; page.steps.splice(0, page.steps.length - most); }
  }
  if (message.episodes) page.episodes = message.episodes;
  if (message.counters) showCounters(message.counters);
  if (message.refused) refused(message.refused);
  const executed = message.state?.sequence;
  if (message.controller === message.you && page.sent.has(executed)) {
    page.latencies.push(performance.now() - page.sent.get(executed));
    for (const number of page.sent.keys()) if (number <= executed) page.sent.delete(number);
    if (page.latencies.length > 500) page.latencies.shift();
  }
  page.you = message.you;
  page.state = message;
  page.receivedAt = performance.now();
  page.dirty = true;
}

// A pulled cable closes no connection; without this check the banner would show an old state.
function checkSilence() {
  if (page.socket?.readyState !== WebSocket.OPEN) return;
  const silent = performance.now() - page.receivedAt;
  if (silent > RECONNECT) { connect(); return; }
  if (silent > SILENCE) disconnected("No message from the console.");
}
setInterval(checkSilence, 100);

// How the person at this device takes the arm over.
const TAKE = matchMedia("(pointer: coarse)").matches ? "Touch the stick" : "Hold a key";

// What a policy does that does not simply act.
const MODES = {
  shadow: "The policy only thinks; nothing that it wants is carried out. ",
  "dry-run": "The policy acts slowed down. ",
  replay: "Recorded actions are repeated in place of the policy. ",
};

function showMode(name, why) {
  const person = page.state?.people?.[page.state.controller] ?? "";
  const mine = page.state && page.state.controller === page.you;
  const still = page.about.still === true, mode = page.about.mode;
  const titles = {
    policy: mode === "shadow" ? "SHADOW" : still ? "NOBODY" : mode === "replay" ? "REPLAY" : "POLICY", person: mine ? "YOU" : person.toUpperCase() || "PERSON", hold: "HOLD", home: "HOME", limp: "LIMP", fault: "FAULT", stop: "STOP", away: "DISCONNECTED", ended: "ENDED",
  };
  const hints = {
    policy: `${MODES[mode] ?? ""}${!mine ? "" : `${TAKE} to ${still ? "move" : "take over"} the arm.`}`.trim(),
    person: !mine ? "" : still ? "Release it and the arm stands still." : "Release it to give the arm back.", away: why,
  };
  $("mode").textContent = titles[name];
  document.title = `${titles[name]} · Handoff console`;
  $("why").textContent = why || hints[name] || "";
  document.body.dataset.mode = name === "away" || name === "ended" ? "hold" : name;
  if (name !== page.mode) { page.mode = name; beep(name); }
}

function disconnected(why) {
  showMode("away", why);
  showHint("");
  page.shownKey = null;   // the next state is shown even if it equals the last one
}

// The session is over, and its server with it.
function ended(why) {
  showMode("ended", `${why} Reload the page to join the next session.`);
  showHint("");
  for (const button of document.querySelectorAll("aside button, #end")) button.disabled = true;
  document.querySelector("aside").tabIndex = 0;   // nothing in it has the focus now, and it may need to be scrolled
  page.shownKey = null;
}

// The 3-D scene comes from its own process, through this server. Software rendering would delay
// the page's heartbeat, and a phone has no place for it, so there the scene is off until its button is pressed.
const PHONE = "(max-width: 700px), (max-height: 500px)";
function sceneEnabled() {
  page.sceneSetting ??= localStorage.getItem("handoff-scene") ?? (matchMedia(PHONE).matches || rendersInSoftware() ? "off" : "on");
  return page.sceneSetting === "on";
}
function rendersInSoftware() {
  const context = document.createElement("canvas").getContext("webgl2");
  const named = context?.getExtension("WEBGL_debug_renderer_info");
  return !named || /swiftshader|llvmpipe|software/i.test(context.getParameter(named.UNMASKED_RENDERER_WEBGL));
}
$("three").onclick = () => {
  page.sceneSetting = sceneEnabled() ? "off" : "on";
  localStorage.setItem("handoff-scene", page.sceneSetting);
  page.dirty = true;
};

// The scene is opened by the other name of this computer: as a page of another origin it cannot read
// this page's token. At a third name there is no other one, and no scene.
const OTHER_NAME = { "127.0.0.1": "localhost", "localhost": "127.0.0.1" };
function showScene() {
  const host = OTHER_NAME[location.hostname], box = $("scene");
  const path = sceneEnabled() && host ? page.state.scene : null;
  $("three").setAttribute("aria-pressed", String(sceneEnabled()));
  if (box.dataset.path === (path ?? "")) return;
  box.dataset.path = path ?? "";
  box.hidden = !path;
  box.replaceChildren();
  if (!path) return;
  const frame = document.createElement("iframe");
  frame.title = "3-D scene";
  frame.tabIndex = -1;
  frame.sandbox = "allow-scripts allow-same-origin";
  frame.src = `${location.protocol}//${host}:${location.port}/${path}${dark() ? "?darkMode" : ""}`;
  box.append(frame);
}

function draw() {
  requestAnimationFrame(draw);
  const now = performance.now();
  for (const [name, camera] of page.cameras) if (!name.startsWith(STILL)) camera.figure.classList.toggle("old", now - camera.at > OLD_IMAGE && page.mode !== "hold");
  if (!page.dirty || !page.state) return;
  page.dirty = false;
  showState();
  showHint(page.socket?.readyState === WebSocket.OPEN && page.hints ? page.state.hint : "");
  showEpisode();
  showScene();
  if (now - page.drawn < CANVAS_PERIOD) { page.dirty = true; return; }
  page.drawn = now;
  if ($("devices").open) { showDevices(); return; }
  drawStrip($("strip"), page.steps, page.first, page.about.rate_hz ?? 10);
  drawTrend($("trend"), page.episodes);
}
requestAnimationFrame(draw);

// A question is another page of this server, which a cookie opens.
async function enter(socket) {
  const answer = await fetch("enter", { method: "POST", body: page.token }).catch(() => null);
  if (!answer?.ok) return;
  page.entered = socket;
  page.shownKey = null;
}
function showWaiting(waiting) {
  const socket = page.socket;
  if (waiting && page.entering !== socket) { page.entering = socket; enter(socket); }
  $("waiting-names").textContent = waiting?.names.join(", ") ?? "";
  $("waiting").hidden = !waiting || page.entered !== socket;
}

// A hint is text and a tone, and nothing else: the server sends one only while the policy has the arm.
function showHint(text) {
  const first = text && !$("hint").textContent;
  write("hint", text);
  if (first && page.hintTone) playTone(HINT_TONE);
}

// Shows all text; elements change only if the state has changed.
function showState() {
  const state = page.state;
  if (state.pending !== null) $("undo-left").value = state.undo_left / state.undo;
  if (state.ending !== null) $("ending").value = state.ending;
  $("ending").hidden = state.ending === null;
  if (state.progress !== null) $("home-done").value = state.progress;
  const key = JSON.stringify([
    state.mode, state.why, state.trouble, state.controller, state.asking, state.people, state.robot, state.pending, state.labels, state.waiting, state.reset,
    page.steps.length > 0, page.about, page.socket?.readyState,
  ]);
  if (key === page.shownKey) return;
  page.shownKey = key;
  keepAwake();
  showKeys();
  showWaiting(state.waiting);
  const mine = state.controller === state.you, focused = document.activeElement;
  if (page.socket?.readyState === WebSocket.OPEN) showMode(state.mode, state.why);
  $("task").textContent = [page.about.stage, page.about.task].filter(Boolean).join(": ");
  $("robot").textContent = state.robot ? `${state.people[state.controller] ?? "nobody"} has control` : "no robot connected";
  const list = Object.entries(state.people).map(([number, name]) => {
    const item = document.createElement("li");
    item.textContent = Number(number) === state.you ? `${name} (you)` : name;
    item.className = Number(number) === state.controller ? "has" : Number(number) === state.asking ? "asks" : "";
    return item;
  });
  $("present").replaceChildren(...list);
  $("claim").hidden = $("take").hidden = mine;
  $("give").hidden = !mine;
  $("give").textContent = state.asking === null ? "Give up control" : `Hand over to ${state.people[state.asking]}`;
  const fault = state.mode === "fault";
  $("go").hidden = fault;
  $("recover").hidden = !fault;
  $("recover").disabled = !mine || !state.robot;
  if (!fault && $("cause").open) $("cause").close();
  const running = state.hold_to_run && page.held.has("go on");
  showReset(state, mine);
  showQuestion(state, mine);
  $("go").disabled = !running && (!mine || !["hold", "home", "limp"].includes(state.mode) || !state.robot || state.pending !== null || state.trouble);
  $("go-word").textContent = state.mode === "home" ? "Stop" : state.mode === "limp" ? "Stiffen" : state.hold_to_run ? "Hold to run" : page.steps.length && state.labels ? "Resume" : "Start";
  for (const button of document.querySelectorAll("#say .labels button")) {
    button.disabled = !mine || !state.robot || !state.labels || fault;
    button.classList.toggle("pending", button.dataset.press === state.pending);
  }
  $("end").disabled = !mine || !state.robot;
  $("grips").hidden = !moves("gripper");
  $("pad-turn").hidden = !moves("yaw");
  $("pad-up").hidden = !moves("z");
  $("undo").hidden = state.pending === null;
  // If the focused control disappears, the next Enter must not mean `go on`.
  const gone = focused?.matches("main button, footer button") && (focused.disabled || focused.offsetParent === null);
  if (gone && focused !== $("go")) $("halt").focus();
}

// Between two episodes: the drive to the start, and the arm in the person's hand.
function showReset(state, mine) {
  const refusals = state.reset.refusals, at = ["home", "limp"].includes(state.mode);
  $("reset").hidden = !resets() || state.mode === "fault";
  for (const name of ["home", "limp"]) {
    const held = state.hold_to_run && page.held.has(name);
    $(name).title = refusals?.[name] ?? "";
    $(name).disabled = !held && !at && (!mine || !state.robot || !state.reset.open || state.mode !== "hold" || state.pending !== null || Boolean(refusals?.[name]));
  }
  $("home-word").textContent = state.mode === "home" ? "Stop" : state.hold_to_run ? "Hold to drive home" : "Home";
  $("limp-word").textContent = state.mode === "limp" ? "Stiffen" : "Limp";
  $("home-done").hidden = state.mode !== "home";
}

// A question between two episodes, which may be answered until the next one starts.
function showQuestion(state, mine) {
  const question = state.reset.question, box = $("choices"), asked = JSON.stringify(question?.choices ?? []);
  $("question").hidden = !question;
  $("question-text").textContent = question?.text ?? "";
  if (box.dataset.asked !== asked) {
    box.dataset.asked = asked;
    box.replaceChildren(...(question?.choices ?? []).map((words, choice) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = words;
      button.onclick = () => send({ kind: "answer", choice });
      return button;
    }));
  }
  [...box.children].forEach((button, choice) => {
    button.disabled = !mine || !state.robot;
    button.setAttribute("aria-pressed", String(question?.answer === choice));
  });
}

// The task, the running episode and the arm, as words.
function showEpisode() {
  const { about, state } = page, rate = about.rate_hz ?? 10;
  $("episode").hidden = !about.task;
  if (!about.task) return;
  write("brief", about.brief || about.task);
  showInstruction(about, state);
  const seconds = (page.first + page.steps.length) / rate, limit = about.seconds;
  const number = about.episode === undefined ? "" : `Episode ${about.episode + 1} · `;
  write("time", number + (limit ? `${seconds.toFixed(1)} of ${limit.toFixed(0)} s` : `${seconds.toFixed(1)} s`));
  $("time-left").hidden = !limit;
  if (limit) $("time-left").value = Math.min(1, seconds / limit);
  write("facts", [...Object.entries(state.facts ?? {}).map(([name, value]) => `${name}: ${value}`), ...armFacts(state.state ?? {}, about, state.mode)].join(" · "));
}

function write(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

// Joint limits, external torques and the lead of the target, of the newest step. While no step is made they are out of date.
function armFacts(state, about, mode) {
  const facts = [], { q, tau_ext: torques, target_offset: lead, wrench_ext: wrench, tank_energy: energy } = state, limits = about.joint_limits;
  if (q && limits) {
    const margins = q.map((angle, n) => Math.min(angle - limits[0][n], limits[1][n] - angle) * 180 / Math.PI);
    const nearest = margins.indexOf(Math.min(...margins));
    if (margins[nearest] < 15) facts.push(`joint ${nearest + 1} is ${margins[nearest].toFixed(0)}° from its limit`);
  }
  if (torques) facts.push(`external torque ${Math.max(...torques.map(Math.abs)).toFixed(1)} N m`);
  if (wrench) facts.push(`external force ${Math.hypot(...wrench.slice(0, 3)).toFixed(1)} N`);
  if (energy) facts.push(`${energy[0].toFixed(1)} J in the energy tank`);
  if (lead) facts.push(`arm ${(1000 * Math.hypot(...lead.slice(0, 3))).toFixed(0)} mm behind its target`);
  if (facts.length && !["policy", "person"].includes(mode)) facts[0] = `at the last step: ${facts[0]}`;
  return facts;
}

function showCounters(counters) {
  const percent = (share) => `${Math.round(100 * share)} %`;
  const cells = counters.episodes ? [
    [percent(counters.success), `success of the last ${counters.of} (${percent(counters.low)} to ${percent(counters.high)})`],
    [counters.takeovers.toFixed(1), "takeovers per episode"],
    [percent(counters.corrected), "of the steps corrected"],
    [counters.cycle === null ? "–" : `${counters.cycle.toFixed(1)} s`, `per success · ${counters.episodes} ${counters.episodes === 1 ? "episode" : "episodes"}, ${counters.dropped} discarded`],
  ] : [["–", "no episode has ended yet"]];
  $("counters").replaceChildren(...cells.map(([figure, about]) => {
    const cell = document.createElement("div"), b = document.createElement("b"), small = document.createElement("small");
    b.textContent = figure;
    small.textContent = about;
    cell.append(b, small);
    return cell;
  }));
}

// Pictures of this name are of the past, and do not grow old.
const STILL = "start: ";

// The person's own camera comes first and is the largest; the others follow by name, whichever came first.
const before = (name, other) => other !== "shoulder" && (name === "shoulder" || name < other);

// A frame: one byte with the length of the name, the name, then a JPEG.
async function show(blob) {
  const head = new Uint8Array(await blob.slice(0, 64).arrayBuffer());
  const name = new TextDecoder().decode(head.slice(1, 1 + head[0]));
  if (blob.size <= 1 + head[0]) {   // a still picture that is taken away
    page.cameras.get(name)?.figure.remove();
    page.cameras.delete(name);
    return;
  }
  const bitmap = await createImageBitmap(blob.slice(1 + head[0], blob.size, "image/jpeg"));
  let camera = page.cameras.get(name);
  if (!camera) {
    $("no-camera")?.remove();
    const figure = document.createElement("figure"), canvas = document.createElement("canvas"), caption = document.createElement("figcaption");
    caption.textContent = figure.dataset.name = name;
    figure.append(canvas, caption);
    $("cameras").insertBefore(figure, [...$("cameras").children].find((other) => before(name, other.dataset.name)) ?? null);
    camera = { figure, canvas, context: canvas.getContext("2d"), at: 0, frames: 0 };
    page.cameras.set(name, camera);
  }
  if (camera.canvas.width !== bitmap.width || camera.canvas.height !== bitmap.height) {
    camera.canvas.width = bitmap.width;
    camera.canvas.height = bitmap.height;
  }
  camera.context.drawImage(bitmap, 0, 0);
  bitmap.close();
  camera.at = performance.now();
  camera.frames += 1;
}

// ---------------------------------------------------------------- devices and keys

function showKeys() {
  for (const button of document.querySelectorAll("[data-press], [data-hold]")) {
    const names = page.bindings[button.dataset.press ?? button.dataset.hold] ?? [];
    const key = names.find((name) => name.startsWith("key "));
    button.querySelector("kbd").textContent = key ? spoken(key) : "";
  }
  $("legend").textContent = legend();
  showBindings();
}

// The keys that move the arm, in one line per kind: what they do, the entry of an action that they need, the actions.
const LEGEND = [["move", "x", "forward", "back", "left", "right"], ["up, down", "z", "up", "down"], ["turn", "yaw", "turn left", "turn right"], ["slow", null, "slow"], ["home, limp", "reset", "home", "limp"]];
const moves = (name) => !page.about.actions || page.about.actions.includes(name);
const resets = () => Object.values(page.state?.reset?.refusals ?? { none: "none" }).some((why) => !why);
function legend() {
  const key = (action) => (page.bindings[action] ?? []).find((name) => name.startsWith("key "));
  const offered = (entry) => entry === null || (entry === "reset" ? resets() : moves(entry));
  return LEGEND.filter(([, entry]) => offered(entry)).map(([what, , ...actions]) => [what, actions.map(key).filter(Boolean).map(spoken)])
    .filter(([, keys]) => keys.length).map(([what, keys]) => `${what} ${keys.join(" ")}`).join(" · ");
}

function showDevices() {
  $("keys-down").textContent = page.down.size ? [...page.down].join(", ") : "Press a key.";
  const pad = gamepad();
  if (pad) {
    if (page.listening) {
      const button = pad.buttons.findIndex((each) => each.value > 0.6), axis = pad.axes.findIndex((value) => Math.abs(value) > 0.7);
      if (button >= 0) bind(`button ${button}`); else if (axis >= 0) bind(`axis ${axis}${pad.axes[axis] > 0 ? "+" : "-"}`);
    }
    const meters = [...pad.axes.map((value, n) => [`axis ${n}`, value, -1]), ...pad.buttons.map((each, n) => [`button ${n}`, each.value, 0])];
    $("pads-found").replaceChildren(document.createTextNode(pad.id), ...meters.map(([name, value, low]) => {
      const line = document.createElement("div"), meter = document.createElement("meter");
      line.className = "meter";
      Object.assign(meter, { min: low, max: 1, value });
      line.append(name, meter);
      return line;
    }));
  }
  $("latency-text").textContent = drawLatency($("latency"), page.latencies);
}
$("open-devices").onclick = () => {
  // A person who reads this dialog does not watch the arm.
  if (page.state?.controller === page.you) send({ kind: "press", action: "hold still" });
  releaseAll();
  cancel();
  $("devices").showModal();
  showKeys();
};
setInterval(() => { if ($("devices").open) page.dirty = true; }, 100);

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
$("theme").onclick = () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  localStorage.setItem("handoff-theme", document.documentElement.dataset.theme);
  page.dirty = true;
};

// A button that turns something of the page on and off; the browser keeps it under the name `stored`, if there is one.
function toggle(id, property, on, off, stored) {
  const show = () => {
    $(id).setAttribute("aria-pressed", String(page[property]));
    $(id).textContent = page[property] ? on : off;
    page.dirty = true;
  };
  if (stored) page[property] = localStorage.getItem(stored) !== "off";
  $(id).onclick = () => {
    page[property] = !page[property];
    if (stored) localStorage.setItem(stored, page[property] ? "on" : "off");
    show();
  };
  show();
}
toggle("sound", "sound", "Sound", "Sound is off");
toggle("hints", "hints", "Hints", "Hints are off", "handoff-hints");
toggle("hint-tone", "hintTone", "Tone of hints", "Tone of hints is off", "handoff-hint-tone");

// A screen that goes dark hides the page, and a hidden page holds the arm. Browsers end the lock of a hidden page.
let screenLock = null;
async function keepAwake() {
  const wanted = page.state?.robot === true && document.visibilityState === "visible";
  if (!wanted || screenLock || !navigator.wakeLock) return;
  screenLock = {};
  screenLock = await navigator.wakeLock.request("screen").catch(() => null);
  screenLock?.addEventListener("release", () => { screenLock = null; });
}
document.addEventListener("visibilitychange", keepAwake);

// One tone per mode: high while a person moves the arm, low while it holds still.
const MODE_VOLUME = 0.08;
function beep(name) {
  const pitch = { policy: 440, person: 660, home: 550, limp: 550, hold: 220, fault: 165, stop: 165, ended: 165 }[name];
  if (pitch) playTone({ pitch, volume: MODE_VOLUME });
}

function playTone({ pitch, volume }) {
  if (!page.sound || !navigator.userActivation?.hasBeenActive) return;
  page.audio ??= new AudioContext();
  const tone = page.audio.createOscillator(), gain = page.audio.createGain(), now = page.audio.currentTime;
  tone.frequency.value = pitch;
  gain.gain.setValueAtTime(volume, now);
  gain.gain.exponentialRampToValueAtTime(0.001, now + 0.18);
  tone.connect(gain).connect(page.audio.destination);
  tone.start(now);
  tone.stop(now + 0.2);
}
