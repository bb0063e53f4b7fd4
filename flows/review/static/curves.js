// Draws the strip of who acted, and the curves of an episode.

import { colour, prepared } from "../console/pictures.js";
import { seek } from "./player.js";
import { $ } from "./server.js";

const COLOURS = 8;   // entries of one drawing, as many as there are colours

/** Goes to the step at which a drawing is touched, also while it is dragged. */
export function seekable(box, steps) {
  const go = (event) => {
    const place = box.getBoundingClientRect();
    seek((steps() - 1) * (event.clientX - place.left) / place.width);
  };
  box.addEventListener("pointerdown", (event) => { box.setPointerCapture(event.pointerId); go(event); });
  box.addEventListener("pointermove", (event) => { if (event.buttons) go(event); });
}

/** Shades the steps that are not kept. */
function shadeCut(context, width, height, steps, kept) {
  const x = (step) => steps > 1 ? width * step / (steps - 1) : 0;
  context.globalAlpha = 0.75;
  context.fillStyle = colour("--line");
  if (kept[0] > 0) context.fillRect(0, 0, x(kept[0]), height);
  if (kept[1] < steps) context.fillRect(x(kept[1] - 1), 0, width, height);
  context.globalAlpha = 1;
}

export function drawStrip(signals, kept) {
  const [context, width, height] = prepared($("strip")), steps = signals.steps;
  for (const [first, stop, name] of signals.acted) {
    context.fillStyle = colour(name === null ? "--policy" : "--person");
    context.fillRect(width * first / steps, 0, Math.max(1, width * (stop - first) / steps), height);
  }
  context.fillStyle = colour("--ink");
  for (const event of signals.events) context.fillRect(steps > 1 ? width * event.step / (steps - 1) : 0, 0, 2, height);
  shadeCut(context, width, height, steps, kept);
  const people = [...new Set(signals.acted.map(([, , name]) => name).filter((name) => name !== null))];
  const policy = signals.acted.some(([, , name]) => name === null);
  $("legend").textContent = signals.acted.length
    ? [policy ? "blue: the policy" : "", people.length ? `amber: ${people.join(", ")}` : ""].filter(Boolean).join(" · ")
    : "Who acted is not recorded.";
}

/** One figure for every eight entries of a field; returns functions that draw them. */
export function curveFigures(curve, signals) {
  const figures = [];
  for (let start = 0; start < curve.values.length; start += COLOURS) {
    const values = curve.values.slice(start, start + COLOURS), proposed = curve.proposed?.slice(start, start + COLOURS) ?? [];
    const names = curve.entries.slice(start, start + COLOURS);
    const numbers = [...values, ...proposed].flat().filter((value) => value !== null);
    const low = numbers.reduce((a, b) => Math.min(a, b), Infinity), high = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
    const figure = document.createElement("figure"), caption = document.createElement("figcaption"), box = document.createElement("div");
    const canvas = document.createElement("canvas"), cursor = document.createElement("i"), title = document.createElement("b");
    figure.className = "curve";
    cursor.className = "cursor";
    cursor.setAttribute("aria-hidden", "true");
    title.textContent = curve.name;
    caption.append(title, curve.unit ? ` [${curve.unit}] ` : " ");
    if (curve.entries.length > 1) names.forEach((name, entry) => {
      const label = document.createElement("span");
      label.textContent = name;
      label.style.color = `var(--c${entry})`;
      caption.append(label);
    });
    const span = numbers.length ? `${low.toPrecision(4) * 1} to ${high.toPrecision(4) * 1}` : "no finite value";
    caption.append(span, curve.proposed_name ? `; dashed: ${curve.proposed_name}` : "", signals.every > 1 ? `; every ${signals.every}th step` : "");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${curve.name} over the episode${names.length > 1 ? `, ${names.join(", ")}` : ""}, ${span}`);
    box.append(canvas, cursor);
    seekable(box, () => signals.steps);
    figure.append(caption, box);
    figures.push([figure, (kept) => drawCurves(canvas, values, proposed, [low, high], signals, kept)]);
  }
  return figures;
}

function drawCurves(canvas, values, proposed, [low, high], signals, kept) {
  const [context, width, height] = prepared(canvas), steps = signals.steps, range = high - low || 1;
  const x = (point) => steps > 1 ? width * Math.min(steps - 1, point * signals.every) / (steps - 1) : 0;
  const y = (value) => height - 6 - (value - low) / range * (height - 12);
  context.fillStyle = colour("--person");
  context.globalAlpha = 0.16;
  for (const [first, stop, name] of signals.acted) if (name !== null) context.fillRect(width * first / steps, 0, width * (stop - first) / steps, height);
  context.globalAlpha = 1;
  context.lineWidth = 1.5;
  for (const [rows, dashes] of [[proposed, [4, 3]], [values, []]]) {
    context.setLineDash(dashes);
    rows.forEach((row, entry) => {
      context.strokeStyle = colour(`--c${entry}`);
      context.beginPath();
      let down = false;
      row.forEach((value, point) => {
        if (value === null) { down = false; return; }
        if (down) context.lineTo(x(point), y(value)); else context.moveTo(x(point), y(value));
        down = true;
      });
      context.stroke();
    });
  }
  context.setLineDash([]);
  shadeCut(context, width, height, steps, kept);
}
