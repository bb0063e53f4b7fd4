"""Writes one episode as a page with a slider: cameras, plots of every field, proposed beside
executed actions, and the steps at which something happened.

The page holds everything, asks no other machine for anything, and runs one script of its own.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.html_page import FOOT, head, heading, table
from robots.language.text import UNIT as TEXT
from robots.spec import FieldSpec, unit_words
from robots.storage.durable import write_atomically

MOST_PICTURES = 400
"""Largest number of pictures of one camera; longer episodes are thinned."""
MOST_ENTRIES = 128
"""Largest number of entries of a field that are plotted one by one; of a larger field, such as a
depth picture or a point cloud, the smallest, the mean and the largest entry of every step are
plotted."""
PROPOSED = ("action_policy", "action_proposed")
"""Fields of the action that the policy proposed, drawn beside `action`."""
PERSON = "intervention"
"""Field that is 1 where a person acted."""
_WIDTH, _HEIGHT = 1000, 120
"""Size of a plot [units of the drawing]."""
_COLOURS = (
    "light-dark(#1769aa, #6cb4ee)",
    "light-dark(#c2410c, #fb8c5a)",
    "light-dark(#1f7a45, #62c08a)",
    "light-dark(#7b46a6, #c39be8)",
    "light-dark(#8a6100, #e0b04a)",
    "light-dark(#7b4f2c, #cfa27c)",
    "light-dark(#a82d59, #f08fb4)",
    "light-dark(#55636f, #a9b7c4)",
)
"""Colours of the entries in light and dark, as text of the contrast that WCAG asks for."""

_STYLE = """
<style>
.bar { position: sticky; top: 0; background: var(--paper); padding: .6rem 0; z-index: 1;
       display: flex; flex-wrap: wrap; gap: .4rem 1rem; align-items: center; border-bottom: 1px solid var(--line); }
.bar input { flex: 1; } .bar button { font: inherit; min-width: 5rem; }
.bar output { min-width: 9rem; font-variant-numeric: tabular-nums; }
.cameras { display: flex; flex-wrap: wrap; gap: 1rem; } .cameras figure { margin: .6rem 0; }
.cameras img { max-height: 300px; image-rendering: auto; }
.plot { width: 100%; height: 120px; background: var(--card); border-radius: .4rem; cursor: crosshair; }
.plot .cursor { stroke: var(--ink); stroke-width: 1; vector-effect: non-scaling-stroke; }
.plot polyline { fill: none; stroke-width: 1.4; vector-effect: non-scaling-stroke; }
.plot .proposed { stroke-dasharray: 4 3; } .plot .person { fill: #c98a00; opacity: .18; }
.legend { font-size: .82rem; color: var(--soft); margin: .1rem 0 1rem; } .legend b { font-weight: 600; }
.legend span { font-weight: 600; margin-right: .4rem; white-space: nowrap; }
button.step { font: inherit; color: var(--accent); background: none; border: 0; padding: 0; min-height: 24px;
              cursor: pointer; text-decoration: underline; }
</style>
"""
_SCRIPT = """
<script>
const data = JSON.parse(document.getElementById('data').textContent);
const slider = document.querySelector('.bar input'), clock = document.querySelector('.bar output');
const button = document.querySelector('.bar button');
let timer = null;
function show(step) {
  step = Math.max(0, Math.min(data.steps - 1, Math.round(step)));
  slider.value = step;
  clock.textContent = `step ${step} of ${data.steps - 1}` + (data.rate ? `, ${(step / data.rate).toFixed(2)} s` : '');
  for (const image of document.querySelectorAll('.cameras img')) {
    const frames = data.pictures[image.dataset.name];
    image.src = frames[Math.min(frames.length - 1, Math.floor(step / data.every))];
  }
  const x = data.steps > 1 ? WIDTH * step / (data.steps - 1) : 0;
  for (const line of document.querySelectorAll('.cursor')) { line.setAttribute('x1', x); line.setAttribute('x2', x); }
}
function stop() { clearInterval(timer); timer = null; button.textContent = 'Play'; }
button.onclick = () => {
  if (timer) { stop(); return; }
  if (+slider.value >= data.steps - 1) show(0);
  button.textContent = 'Pause';
  const pace = data.rate || 10, skip = Math.max(1, Math.round(pace / 30));
  timer = setInterval(() => { if (+slider.value >= data.steps - 1) stop(); else show(+slider.value + skip); },
                      1000 * skip / pace);
};
slider.oninput = () => show(+slider.value);
for (const plot of document.querySelectorAll('.plot')) plot.onclick = event => {
  const box = plot.getBoundingClientRect();
  show((data.steps - 1) * (event.clientX - box.left) / box.width);
};
for (const link of document.querySelectorAll('button.step')) link.onclick = () => show(+link.dataset.step);
show(0);
</script>
""".replace("WIDTH", str(_WIDTH))


class EpisodeEvent(NamedTuple):
    """Something that happened at a step."""

    step: int
    what: str


def write_episode(schema: SourceSchema, number: int, episode: SourceEpisode, out: Path) -> Path:
    """Writes the page of one episode.

    Args:
        schema: fields of the data set.
        number: number of the episode.
        episode: its arrays, `(T, ...)` each.
        out: file of the page.

    Returns:
        `out`.
    """
    write_atomically(out, "\n".join(_page(schema, number, episode)).encode())
    return out


def events(fields: Mapping[str, FieldSpec], episode: SourceEpisode) -> list[EpisodeEvent]:
    """Steps at which a flag of the outcome, or the person's part, changes, in their order."""
    found = []
    for name, spec in fields.items():
        values = episode.arrays[name]
        whole = values.dtype.kind in "biu" and prod(spec.shape) == 1
        if not whole or not (spec.role == "outcome" or name in (PERSON, "segment", "reason")):
            continue
        flat = values.reshape(-1).astype(np.int64)
        if flat[0]:
            found.append(EpisodeEvent(0, f"{name} is {flat[0]}"))
        found += [
            EpisodeEvent(int(step), f"{name} becomes {flat[step]}")
            for step in np.flatnonzero(np.diff(flat)) + 1
        ]
    return sorted(found)


def _page(schema: SourceSchema, number: int, episode: SourceEpisode) -> Iterator[str]:
    lengths = [len(array) for array in episode.arrays.values()]
    steps = max(lengths)
    every = max(1, -(-steps // MOST_PICTURES))
    fields = {name: schema.fields[name] for name in episode.arrays}
    cameras = [name for name, spec in fields.items() if spec.unit == "u8"]
    pictures = {
        name: [_picture(frame) for frame in episode.arrays[name][::every]] for name in cameras
    }
    yield head(f"{schema.task}, episode {number}")
    yield _STYLE
    yield f"<h1>{html.escape(schema.task)}, episode {number}</h1>"
    yield f"<p class='soft'>{html.escape(schema.form)}; {steps} steps</p>"
    yield (
        "<div class='bar'><button>Play</button>"
        f"<input type='range' min='0' max='{steps - 1}' value='0' aria-label='step'><output></output></div>"
    )
    if cameras:
        images = [
            f"<figure><img data-name='{html.escape(name)}' alt='camera {html.escape(name)}'>"
            f"<figcaption>{html.escape(name)}</figcaption></figure>"
            for name in cameras
        ]
        yield f"<div class='cameras'>{''.join(images)}</div>"
    yield from _events(events(fields, episode))
    yield heading("Signals")
    yield from _plots(fields, episode)
    yield heading("Metadata")
    rows = [(key, json.dumps(value)[:400]) for key, value in episode.metadata.items()]
    yield table(("entry", "value"), rows) if rows else "<p>None.</p>"
    data = {"steps": steps, "rate": schema.rate_hz, "every": every, "pictures": pictures}
    # A script's content ends at the first "</", whatever it is part of.
    text = json.dumps(data).replace("</", "<\\/")
    yield f"<script type='application/json' id='data'>{text}</script>"
    yield _SCRIPT + FOOT


def _events(found: list[EpisodeEvent]) -> Iterator[str]:
    if not found:
        return
    yield heading("Events")
    items = [
        f"<li><button class='step' data-step='{event.step}'>step {event.step}</button>: {html.escape(event.what)}"
        for event in found
    ]
    yield f"<ul>{''.join(items)}</ul>"


def _plots(fields: Mapping[str, FieldSpec], episode: SourceEpisode) -> Iterator[str]:
    """Drawings of every field of numbers, each of as many entries as there are colours; those of
    the action with the proposed one."""
    person = episode.arrays.get(PERSON)
    proposed = next((each for each in PROPOSED if each in fields), None)
    for name, spec in fields.items():
        if spec.unit in ("u8", TEXT) or name in PROPOSED:
            continue
        values, names = plotted_entries(spec, episode.arrays[name])
        constant = episode.arrays[name].dtype.kind in "biu" and np.ptp(values, axis=0).max() == 0
        if values.shape[1] == 0 or constant:
            # A counter or flag that never changes; the events name its value.
            continue
        other = None
        if name == "action" and proposed is not None:
            other, _ = plotted_entries(fields[proposed], episode.arrays[proposed])
        remark = f"; dashed: {proposed}" if other is not None else ""
        remark += "; shaded: a person acted" if person is not None and name == "action" else ""
        panels = np.array_split(np.arange(values.shape[1]), -(-values.shape[1] // len(_COLOURS)))
        for number, shown in enumerate(panels, start=1):
            part = values[:, shown]
            yield _plot(part, None if other is None else other[:, shown], person)
            place = f", {number} of {len(panels)}" if len(panels) > 1 else ""
            span = f"; {np.nanmin(part):.4g} to {np.nanmax(part):.4g}"
            yield _legend(name + place, spec, [names[entry] for entry in shown], span + remark)


def plotted_entries(spec: FieldSpec, array: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """(T, entries) of a field, and the names of the entries; see `MOST_ENTRIES`."""
    values = array.reshape(len(array), -1).astype(np.float64)
    count = values.shape[1]
    if count > MOST_ENTRIES:
        found = [values.min(axis=1), values.mean(axis=1), values.max(axis=1)]
        return np.stack(found, axis=1), ["smallest", "mean", f"largest of {count} entries"]
    if spec.names and [len(names) for names in spec.names] == list(spec.shape):
        return values, [".".join(names) for names in product(*spec.names)]
    indices = np.ndindex(spec.shape) if spec.shape else [(0,)]
    return values, [".".join(map(str, index)) for index in indices]


def _plot(values: np.ndarray, other: np.ndarray | None, person: np.ndarray | None) -> str:
    shown = values if other is None else np.concatenate([values, other])
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    span = (high - low) or 1.0
    lines = []
    for kind, columns in (("", values), ("proposed", other)):
        if columns is None:
            continue
        x = np.linspace(0.0, _WIDTH, len(columns)) if len(columns) > 1 else np.zeros(1)
        y = _HEIGHT - 8 - (columns - low) / span * (_HEIGHT - 16)
        for entry in range(columns.shape[1]):
            points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y[:, entry], strict=True))
            colour = _COLOURS[entry]
            lines.append(f"<polyline class='{kind}' style='stroke: {colour}' points='{points}'/>")
    return (
        f"<svg class='plot' viewBox='0 0 {_WIDTH} {_HEIGHT}' preserveAspectRatio='none'>{_bands(person)}"
        f"{''.join(lines)}<line class='cursor' x1='0' x2='0' y1='0' y2='{_HEIGHT}'/></svg>"
    )


def _bands(person: np.ndarray | None) -> str:
    """Shaded steps at which a person acted."""
    if person is None or len(person) < 2:
        return ""
    acted = np.concatenate([[0], person.reshape(-1) > 0, [0]]).astype(np.int8)
    starts, stops = np.flatnonzero(np.diff(acted) == 1), np.flatnonzero(np.diff(acted) == -1)
    scale = _WIDTH / (len(person) - 1)
    return "".join(
        f"<rect class='person' x='{start * scale:.1f}' y='0' height='{_HEIGHT}' "
        f"width='{max(stop - start, 1) * scale:.1f}'/>"
        for start, stop in zip(starts, stops, strict=True)
    )


def _legend(name: str, spec: FieldSpec, names: list[str], remark: str) -> str:
    labels = " ".join(
        f"<span style='color:{colour}'>{html.escape(label)}</span>"
        for colour, label in zip(_COLOURS, names, strict=False)
    )
    shown = "" if spec.unit == "1" else f" [{html.escape(unit_words(spec))}]"
    return f"<p class='legend'><b>{html.escape(name)}</b>{shown} {labels}{html.escape(remark)}</p>"


def jpeg(frame: np.ndarray) -> bytes:
    """A picture (height, width, 3) uint8 RGB as JPEG."""
    from PIL import Image

    content = BytesIO()
    Image.fromarray(frame).save(content, "JPEG", quality=80)
    return content.getvalue()


def _picture(frame: np.ndarray) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg(frame)).decode()}"
