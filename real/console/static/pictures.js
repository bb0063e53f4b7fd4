// Canvases: the running episode, the ended episodes, and the latency from a key to the arm and back.

/** The context of a canvas at the resolution of the screen, cleared, with its width and height. */
export function prepared(canvas) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return [context, width, height];
}

const probe = document.createElement("i");

/** The present value of a custom property that is a colour; only a real property resolves light-dark(). */
export function colour(name) {
  if (!probe.isConnected) { probe.hidden = true; document.body.append(probe); }
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** Steps are [who, reward, probability, gripper opening]; the newest is at the right once the strip is full. */
export function drawStrip(canvas, steps, first, rate) {
  const [context, width, height] = prepared(canvas);
  const left = 76, shown = steps.slice(-Math.max(60, Math.floor((width - left - 10) / 3)));
  const from = first + steps.length - shown.length;
  const each = (width - left - 10) / Math.max(60, shown.length);
  const rows = [["control", 10, 22], ["reward", 40, 20], ["P(success)", 66, 20], ["gripper", 92, 14]];
  context.fillStyle = colour("--faint");
  for (const [name, y, tall] of rows) context.fillText(name, 12, y + tall / 2 + 4);
  const largest = (entry) => Math.max(1e-9, ...shown.map((step) => Math.abs(step[entry] ?? 0)));
  const [reward, opening] = [largest(1), largest(3)];
  shown.forEach((step, n) => {
    const x = left + n * each, wide = Math.max(1, each - 0.4);
    context.fillStyle = colour(step[0] ? "--person" : "--policy");
    context.fillRect(x, 10, Math.max(1, each), 22);
    const bar = (value, y, tall, name) => {
      if (value === null || value === undefined) return;
      context.fillStyle = colour(name);
      context.fillRect(x, y + tall - Math.max(1, tall * value), wide, Math.max(1, tall * value));
    };
    bar(Math.max(0, (step[1] ?? 0) / reward), 40, 20, "--good");
    bar(step[2], 66, 20, "--policy");
    bar(step[3] === null ? null : step[3] / opening, 92, 14, "--faint");
  });
  context.fillStyle = colour("--faint");
  const second = Math.ceil(from / rate);
  for (let t = second; (t * rate - from) * each < width - left - 20; t += Math.max(1, Math.round(60 / (rate * each)))) {
    const x = left + (t * rate - from) * each;
    context.fillRect(x, 108, 1, 4);
    context.fillText(`${t} s`, x + 3, 120);
    if (!shown.length) break;
  }
}

/** One column per episode: green for success, red for failure, amber for the share of corrected steps. */
export function drawTrend(canvas, episodes) {
  const [context, width, height] = prepared(canvas);
  const shown = episodes.slice(-Math.floor((width - 20) / 6));
  context.fillStyle = colour("--faint");
  const words = shown.length ? ["episodes: outcome,", "share of corrected steps"] : ["no episode", "has ended yet"];
  if (context.measureText(words.join(" ")).width < width - 24) words.splice(0, 2, words.join(" "));
  words.forEach((line, n) => context.fillText(line, 12, 18 + 15 * n));
  shown.forEach((episode, n) => {
    const x = 10 + n * 6, tall = height - 36 - 15 * words.length;
    context.fillStyle = colour(episode.dropped ? "--line" : episode.success ? "--good" : "--bad");
    context.fillRect(x, height - 20, 5, 12);
    context.fillStyle = colour("--person");
    context.fillRect(x, height - 24 - tall * (episode.corrected / Math.max(1, episode.steps)), 5, tall * (episode.corrected / Math.max(1, episode.steps)));
  });
}

/** Draws a histogram; returns a line with the median and the 95th percentile. */
export function drawLatency(canvas, latencies) {
  const [context, width, height] = prepared(canvas);
  const sorted = [...latencies].sort((a, b) => a - b), bins = new Array(42).fill(0);
  for (const value of sorted) bins[Math.min(41, Math.floor(value / 5))] += 1;
  const most = Math.max(1, ...bins);
  context.fillStyle = colour("--policy");
  bins.forEach((count, n) => context.fillRect(n * width / 42, (height - 18) * (1 - count / most), width / 42 - 1, (height - 18) * count / most));
  context.fillStyle = colour("--faint");
  for (const value of [0, 50, 100, 150, 200]) context.fillText(`${value} ms`, value / 210 * width, height - 4);
  if (!sorted.length) return "No action was executed yet.";
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))].toFixed(0);
  return `${sorted.length} steps: median ${at(0.5)} ms, 95 % within ${at(0.95)} ms.`;
}
