// The page: comes in, and shows what it is told. What a key means, the server decides.

import { bind, cancel, refused, showBindings } from "./bindings.js";
import { beat, gamepad, letGo } from "./inputs.js";
import { spoken } from "./keys.js";
import { $, page, say } from "./page.js";
import { drawLatency, drawStrip, drawTrend } from "./pictures.js";

const CANVAS = 100;          // ms between two drawings of a canvas
const OLD_PICTURE = 1000;    // ms after which a picture counts as old
const SILENCE = 500;         // ms without a word of the server after which the page says so: at the arm it holds since 150
const GIVEN_UP = 3000;       // ms after which a silent connection is thrown away for a new one

// ---------------------------------------------------------------- coming in

const fragment = location.hash.slice(1);
if (fragment) {
  sessionStorage.setItem("handoff-token", fragment);
  history.replaceState(null, "", location.pathname);
}
page.token = sessionStorage.getItem("handoff-token") ?? "";
page.name = localStorage.getItem("handoff-name") ?? "";
const theme = localStorage.getItem("handoff-theme");
if (theme) document.documentElement.dataset.theme = theme;
if (page.token && page.name) connect(); else askWho("");

function askWho(trouble) {
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
  page.heard = performance.now();
  socket.onopen = () => {
    page.tries = 0;
    page.sent.clear();
    say({ kind: "hello", token: page.token, name: page.name });
    beat();
  };
  socket.onmessage = (event) => typeof event.data === "string" ? hear(JSON.parse(event.data)) : show(event.data);
  socket.onclose = (event) => {
    if (page.socket !== socket) return;
    away(event.reason || "the console does not answer");
    if (event.code === 4401) { sessionStorage.removeItem("handoff-token"); askWho("That token is not the console's."); return; }
    if (event.code === 4400 || event.code === 4429) return;   // it would happen again
    setTimeout(connect, Math.min(3000, 250 * 2 ** page.tries++));
  };
}

// ---------------------------------------------------------------- what is pressed

for (const button of document.querySelectorAll("[data-press]")) {
  button.addEventListener("click", () => say({ kind: "press", action: button.dataset.press }));
}
$("claim").onclick = () => say({ kind: "claim", force: false });
$("take").onclick = () => say({ kind: "claim", force: true });
$("give").onclick = () => say({ kind: "give" });

// ---------------------------------------------------------------- what is told

function hear(word) {
  if (word.kind !== "state") return;
  if (word.episode !== undefined) {
    page.steps = []; page.about = word.about; page.bindings = word.bindings; page.actions = word.actions;
    page.first = (word.total ?? 0) - (word.steps?.length ?? 0);
    showKeys();
  }
  if (word.steps) {
    page.steps.push(...word.steps);
    const most = 4000;
    if (page.steps.length > most) { page.first += page.steps.length - most; page.steps.splice(0, page.steps.length - most); }
  }
  if (word.episodes) page.episodes = word.episodes;
  if (word.counters) showCounters(word.counters);
  if (word.refused) refused(word.refused);
  const executed = word.state?.sequence;
  if (word.controller === word.you && page.sent.has(executed)) {
    page.latencies.push(performance.now() - page.sent.get(executed));
    for (const number of page.sent.keys()) if (number <= executed) page.sent.delete(number);
    if (page.latencies.length > 500) page.latencies.shift();
  }
  page.you = word.you;
  page.told = word;
  page.heard = performance.now();
  page.dirty = true;
}

// A cable that was pulled closes nothing: what the banner said last would stand there for ever.
function listen() {
  if (page.socket?.readyState !== WebSocket.OPEN) return;
  const silent = performance.now() - page.heard;
  if (silent > GIVEN_UP) { connect(); return; }
  if (silent > SILENCE) away("the console is silent");
}
setInterval(listen, 100);

function mode(name, why) {
  const person = page.told?.people?.[page.told.controller] ?? "";
  const mine = page.told && page.told.controller === page.you;
  const words = { policy: "POLICY", person: mine ? "YOU" : person.toUpperCase() || "PERSON", hold: "HOLD", stop: "STOP", away: "NO LINE" };
  const because = {
    policy: mine ? "Hold a key and the arm is yours." : "", person: mine ? "Let go and the policy has the arm again." : "", away: why,
  };
  $("mode").textContent = words[name];
  $("why").textContent = why || because[name] || "";
  document.body.dataset.mode = name === "away" ? "hold" : name;
  if (name !== page.mode) { page.mode = name; beep(name); }
}

function away(why) {
  mode("away", why);
  page.shown = null;   // whatever is told next is shown, be it what was told last
}

// The scene in three dimensions comes from a process of its own, through this server.
// Drawn by software it takes the processor that this page's heartbeat needs, so there it waits to be asked for.
function sceneWanted() {
  page.wanted ??= localStorage.getItem("handoff-scene") ?? (drawnBySoftware() ? "off" : "on");
  return page.wanted === "on";
}
function drawnBySoftware() {
  const context = document.createElement("canvas").getContext("webgl2");
  const named = context?.getExtension("WEBGL_debug_renderer_info");
  return !named || /swiftshader|llvmpipe|software/i.test(context.getParameter(named.UNMASKED_RENDERER_WEBGL));
}
$("three").onclick = () => {
  page.wanted = sceneWanted() ? "off" : "on";
  localStorage.setItem("handoff-scene", page.wanted);
  page.dirty = true;
};

function showScene() {
  const path = sceneWanted() ? page.told.scene : null, box = $("scene");
  $("three").setAttribute("aria-pressed", String(sceneWanted()));
  if (box.dataset.path === (path ?? "")) return;
  box.dataset.path = path ?? "";
  box.hidden = !path;
  box.replaceChildren();
  if (!path) return;
  const frame = document.createElement("iframe");
  frame.title = "The scene in three dimensions";
  frame.tabIndex = -1;
  frame.src = dark() ? `${path}?darkMode` : path;
  box.append(frame);
}

function draw() {
  requestAnimationFrame(draw);
  const now = performance.now();
  for (const camera of page.cameras.values()) camera.figure.classList.toggle("old", now - camera.at > OLD_PICTURE && page.mode !== "hold");
  if (!page.dirty || !page.told) return;
  page.dirty = false;
  showTold();
  showScene();
  if (now - page.drawn < CANVAS) { page.dirty = true; return; }
  page.drawn = now;
  if ($("devices").open) { showDevices(); return; }
  drawStrip($("strip"), page.steps, page.first, page.about.rate_hz ?? 10);
  drawTrend($("trend"), page.episodes);
}
requestAnimationFrame(draw);

// Everything that is words; an element is touched only where something has changed.
function showTold() {
  const told = page.told;
  if (told.pending !== null) $("undo-left").value = told.undo_left / told.undo;
  const key = JSON.stringify([told.mode, told.why, told.controller, told.asking, told.people, told.robot, told.pending, page.about, page.socket?.readyState]);
  if (key === page.shown) return;
  page.shown = key;
  showKeys();
  const mine = told.controller === told.you, focused = document.activeElement;
  if (page.socket?.readyState === WebSocket.OPEN) mode(told.mode, told.why);
  $("task").textContent = [page.about.stage, page.about.task].filter(Boolean).join(": ");
  $("robot").textContent = told.robot ? `${told.people[told.controller] ?? "nobody"} has control` : "no robot connected";
  const list = Object.entries(told.people).map(([number, name]) => {
    const item = document.createElement("li");
    item.textContent = Number(number) === told.you ? `${name} (you)` : name;
    item.className = Number(number) === told.controller ? "has" : Number(number) === told.asking ? "asks" : "";
    return item;
  });
  $("present").replaceChildren(...list);
  $("claim").hidden = $("take").hidden = mine;
  $("give").hidden = !mine;
  $("give").textContent = told.asking === null ? "Give control up" : `Hand over to ${told.people[told.asking]}`;
  $("go").disabled = !mine || told.mode !== "hold" || !told.robot || told.pending !== null;
  for (const button of document.querySelectorAll("#say .labels button, [data-press='end session']")) button.disabled = !mine || !told.robot;
  $("undo").hidden = told.pending === null;
  // Where the control in focus goes, the next Enter must not become `go on`.
  const gone = focused?.matches("main button, footer button") && (focused.disabled || focused.offsetParent === null);
  if (gone && focused !== $("go")) $("halt").focus();
}

function showCounters(counters) {
  const percent = (share) => `${Math.round(100 * share)} %`;
  const cells = counters.episodes ? [
    [percent(counters.success), `success of the last ${counters.of} (${percent(counters.low)} to ${percent(counters.high)})`],
    [counters.takeovers.toFixed(1), "takeovers per episode"],
    [percent(counters.corrected), "of the steps corrected"],
    [counters.cycle === null ? "–" : `${counters.cycle.toFixed(1)} s`, `per success; ${counters.episodes} episodes, ${counters.dropped} dropped`],
  ] : [["–", "no episode has ended yet"]];
  $("counters").replaceChildren(...cells.map(([figure, about]) => {
    const cell = document.createElement("div"), b = document.createElement("b"), small = document.createElement("small");
    b.textContent = figure;
    small.textContent = about;
    cell.append(b, small);
    return cell;
  }));
}

// A frame: one byte length of the name, the name, then a JPEG.
async function show(blob) {
  const head = new Uint8Array(await blob.slice(0, 64).arrayBuffer());
  const name = new TextDecoder().decode(head.slice(1, 1 + head[0]));
  const bitmap = await createImageBitmap(blob.slice(1 + head[0], blob.size, "image/jpeg"));
  let camera = page.cameras.get(name);
  if (!camera) {
    $("no-camera")?.remove();
    const figure = document.createElement("figure"), canvas = document.createElement("canvas"), caption = document.createElement("figcaption");
    caption.textContent = name;
    figure.append(canvas, caption);
    $("cameras").append(figure);
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
  showBindings();
}

function showDevices() {
  $("keys-down").textContent = page.down.size ? [...page.down].join(", ") : "Press a key.";
  const pad = gamepad();
  if (pad) {
    if (page.listening) {
      const button = pad.buttons.findIndex((one) => one.value > 0.6), axis = pad.axes.findIndex((one) => Math.abs(one) > 0.7);
      if (button >= 0) bind(`button ${button}`); else if (axis >= 0) bind(`axis ${axis}${pad.axes[axis] > 0 ? "+" : "-"}`);
    }
    const meters = [...pad.axes.map((value, n) => [`axis ${n}`, value, -1]), ...pad.buttons.map((one, n) => [`button ${n}`, one.value, 0])];
    $("pads-found").replaceChildren(document.createTextNode(pad.id), ...meters.map(([name, value, low]) => {
      const line = document.createElement("div"), meter = document.createElement("meter");
      line.className = "meter";
      Object.assign(meter, { min: low, max: 1, value });
      line.append(name, meter);
      return line;
    }));
  }
  $("latency-told").textContent = drawLatency($("latency"), page.latencies);
}
$("open-devices").onclick = () => {
  // Who reads about keys does not watch the arm.
  if (page.told?.controller === page.you) say({ kind: "press", action: "hold still" });
  letGo();
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

$("sound").onclick = () => {
  page.sound = !page.sound;
  $("sound").setAttribute("aria-pressed", String(page.sound));
  $("sound").textContent = page.sound ? "Sound" : "Sound is off";
};
// One tone per mode: high when the arm is a person's, low when it holds still.
function beep(name) {
  const pitch = { policy: 440, person: 660, hold: 220, stop: 165 }[name];
  if (!page.sound || !pitch || !navigator.userActivation?.hasBeenActive) return;
  page.audio ??= new AudioContext();
  const tone = page.audio.createOscillator(), gain = page.audio.createGain(), now = page.audio.currentTime;
  tone.frequency.value = pitch;
  gain.gain.setValueAtTime(0.08, now);
  gain.gain.exponentialRampToValueAtTime(0.001, now + 0.18);
  tone.connect(gain).connect(page.audio.destination);
  tone.start(now);
  tone.stop(now + 0.2);
}
