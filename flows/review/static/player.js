// The shown step: pictures, clock, cursors, and playing.

import { $, Refused, getBlob } from "./server.js";

const KEPT = 240;     // pictures that are kept in memory
const AHEAD = 6;      // steps whose pictures are fetched while playing

export const player = { episode: -1, steps: 1, rate: 10, cameras: [], step: 0, playing: false, trouble: () => {} };
const pictures = new Map();   // "episode/camera/step" -> address of a blob, the oldest first
const wanted = new Map();     // camera -> episode and step that are to be shown
const busy = new Set();       // cameras that a picture is being fetched for

export function showCameras(names) {
  player.cameras = names;
  $("cameras").replaceChildren(...names.map((name) => {
    const figure = document.createElement("figure"), image = document.createElement("img"), caption = document.createElement("figcaption");
    image.alt = `Camera ${name}`;
    caption.textContent = name;
    figure.append(image, caption);
    return figure;
  }));
}

export function openSteps(episode, steps, rate) {
  stop();
  Object.assign(player, { episode, steps, rate: rate ?? 10, step: 0 });
  $("step").max = String(steps - 1);
  for (const image of document.querySelectorAll("#cameras img")) image.removeAttribute("src");
  showStep(0);
}

export function showStep(step) {
  player.step = Math.max(0, Math.min(player.steps - 1, Math.round(step)));
  const seconds = `${(player.step / player.rate).toFixed(2)} s`;
  $("step").value = String(player.step);
  $("step").setAttribute("aria-valuetext", `step ${player.step} of ${player.steps - 1}, ${seconds}`);
  $("clock").textContent = `step ${player.step} of ${player.steps - 1} · ${seconds}`;
  const share = player.steps > 1 ? player.step / (player.steps - 1) : 0;
  for (const cursor of document.querySelectorAll(".cursor")) cursor.style.left = `${100 * share}%`;
  player.cameras.forEach((_, camera) => { wanted.set(camera, { episode: player.episode, step: player.step }); fetchWanted(camera); });
}

async function fetched(episode, camera, step) {
  const name = `${episode}/${camera}/${step}`;
  if (pictures.has(name)) return pictures.get(name);
  const address = URL.createObjectURL(await getBlob(`picture/${name}`));
  pictures.set(name, address);
  while (pictures.size > KEPT) {
    const [oldest, url] = pictures.entries().next().value;
    pictures.delete(oldest);
    URL.revokeObjectURL(url);
  }
  return address;
}

/** The next step ahead whose picture is missing while the episode is played; null if none is. */
function missingAhead({ episode, step }, camera) {
  if (!player.playing) return null;
  for (let next = step + 1; next <= Math.min(player.steps - 1, step + AHEAD); next++) {
    if (!pictures.has(`${episode}/${camera}/${next}`)) return next;
  }
  return null;
}

// One request per camera at a time; the shown step comes before those ahead of it.
async function fetchWanted(camera) {
  if (busy.has(camera)) return;
  busy.add(camera);
  try {
    for (let shown = null; ;) {
      const want = wanted.get(camera);
      if (want !== shown) {
        const address = await fetched(want.episode, camera, want.step);
        if (want.episode === player.episode) document.querySelectorAll("#cameras img")[camera].src = address;
        shown = want;
        continue;
      }
      const next = missingAhead(want, camera);
      if (next === null) return;
      await fetched(want.episode, camera, next);
    }
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    player.trouble(error.message);
  } finally {
    busy.delete(camera);
  }
}

// ---------------------------------------------------------------- playing

let began = 0, from = 0;

export function play() {
  if (player.step >= player.steps - 1) showStep(0);
  player.playing = true;
  began = performance.now();
  from = player.step;
  $("play-word").textContent = "Pause";
  requestAnimationFrame(advance);
}

export function stop() {
  player.playing = false;
  $("play-word").textContent = "Play";
}

function advance(now) {
  if (!player.playing) return;
  const step = from + Math.floor((now - began) / 1000 * player.rate * Number($("speed").value));
  if (step !== player.step) showStep(step);
  if (player.step >= player.steps - 1) stop(); else requestAnimationFrame(advance);
}

/** Goes to a step by hand, which ends playing. */
export function seek(step) { stop(); showStep(step); }
export function toggle() { if (player.playing) stop(); else play(); }
$("speed").addEventListener("change", () => { began = performance.now(); from = player.step; $("speed").blur(); });
