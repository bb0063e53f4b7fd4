"""Writes an examination of an episode store as one HTML page that loads nothing."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from robots.episodes.curation.examination import (
    EntryRange,
    Finding,
    StoreExamination,
    count_findings,
    faulty_episodes,
    worst,
)
from robots.html_page import FOOT, banner, head, heading, table, tiles
from robots.storage.durable import write_atomically

_MOST_EPISODES = 12
"""Largest number of episodes that a row of the table names."""
_MOST_RANGES = 120
"""Largest number of entries whose ranges are drawn."""
_SHOWN_LAGS = (-2, 10)
"""Lags that the histogram shows in any case [steps]."""
_MOST_BARS = 40
"""Largest number of bars of a histogram."""
_INK = "#1c1e21"
_SOFT = "#646b73"
_BAR = "#1769aa"
_LINE = "#c98a00"
_PLOT_WIDTH, _PLOT_HEIGHT = 860, 190
_MARGIN_LEFT = 50
_MARGIN_BOTTOM = 40
_MARGIN_TOP = 12
_ROW_HEIGHT = 20


def write_examination(examination: StoreExamination, out: Path) -> Path:
    """Writes the page of an examination.

    Args:
        examination: the findings.
        out: file of the page.

    Returns:
        `out`.
    """
    write_atomically(out, "\n".join(_page(examination)).encode())
    return out


def _page(examination: StoreExamination) -> Iterator[str]:
    yield head(f"Examination of {examination.name}")
    yield f"<h1>Examination of {html.escape(examination.name)}</h1>"
    yield (
        f"<p class='soft'>{examination.episodes} episodes of the stream {html.escape(examination.stream)}; every limit "
        "is relative to the other episodes of the set unless it has a unit</p>"
    )
    yield _verdict(examination)
    yield _counts(examination)
    if examination.findings:
        yield heading("Findings")
        yield table(
            ("severity", "check", "episodes", "what was found"),
            [_row(finding) for finding in examination.findings],
        )
        yield from _by_episode(examination)
    if examination.notes:
        yield heading("Not checked")
        yield "<ul>" + "".join(f"<li>{html.escape(note)}" for note in examination.notes) + "</ul>"
    yield heading("Lengths")
    yield _histogram(examination.lengths, "steps of an episode", "episodes")
    yield from _lags(examination)
    if examination.ranges:
        yield heading("Ranges")
        yield _range_plot(examination.ranges)
    yield from _limits(examination)
    yield FOOT


def _verdict(examination: StoreExamination) -> str:
    counts = count_findings(examination)
    match worst(examination):
        case "error":
            concerned = len(faulty_episodes(examination))
            where = (
                f"; {concerned} of {examination.episodes} episodes concerned" if concerned else ""
            )
            return banner(
                "bad",
                html.escape(f"The data have faults: {_number(counts['error'], 'error')}{where}."),
            )
        case "warning":
            warnings = _number(counts["warning"], "warning")
            return banner("warn", f"No errors; {warnings} to look at before training.")
        case _:
            return banner("good", "No findings: every check passed.")


def _number(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _counts(examination: StoreExamination) -> str:
    counts = count_findings(examination)
    minutes = examination.steps / examination.rate_hz / 60.0
    return tiles(
        [
            (f"{counts['error']}", "errors"),
            (f"{counts['warning']}", "warnings"),
            (f"{len(faulty_episodes(examination))}", "episodes with an error"),
            (f"{examination.episodes}", "episodes"),
            (f"{examination.steps}", "steps"),
            (f"{minutes:.1f} min", f"at {examination.rate_hz:g} Hz"),
        ]
    )


def _row(finding: Finding) -> tuple[str, str, str, str]:
    return (
        finding.severity,
        finding.check.replace("_", " "),
        _episodes_text(finding.episodes),
        finding.sentence,
    )


def _episodes_text(episodes: Sequence[int]) -> str:
    if not episodes:
        return "the whole set"
    named = ", ".join(str(episode) for episode in episodes[:_MOST_EPISODES])
    more = len(episodes) - _MOST_EPISODES
    return f"{named} and {more} more" if more > 0 else named


def _by_episode(examination: StoreExamination) -> Iterator[str]:
    """A folded table of the episodes with errors, for their removal."""
    faulty = faulty_episodes(examination)
    if faulty:
        rows = [
            (str(episode), ", ".join(name.replace("_", " ") for name in checks))
            for episode, checks in faulty.items()
        ]
        yield f"<details><summary>{_number(len(rows), 'episode')} with an error</summary>"
        yield table(("episode", "checks"), rows) + "</details>"


def _lags(examination: StoreExamination) -> Iterator[str]:
    """A histogram of the lags for every pair of fields."""
    pairs = dict.fromkeys((lag.action, lag.observation) for lag in examination.lags)
    if pairs:
        yield heading("Lags")
    for action, observation in pairs:
        steps = [
            lag.steps
            for lag in examination.lags
            if (lag.action, lag.observation) == (action, observation)
        ]
        yield f"<p>Steps from a motion of {html.escape(action)} to that of {html.escape(observation)}:</p>"
        yield _histogram(steps, "lag in steps", "episodes", _SHOWN_LAGS)


def _limits(examination: StoreExamination) -> Iterator[str]:
    rows = [
        (option.name.replace("_", " "), str(getattr(examination.config, option.name)))
        for option in fields(examination.config)
    ]
    yield "<details><summary>Limits of the checks</summary>"
    yield table(("limit", "value"), rows) + "</details>"


def _histogram(
    values: Sequence[int], across: str, up: str, shown: tuple[int, int] | None = None
) -> str:
    """Bars of the numbers of equal values, or of values in bins, as SVG; `shown` is a range that it
    covers in any case."""
    if not values:
        return "<p class='soft'>There is nothing to show.</p>"
    low, high = (edge([*values, *(shown or ())]) for edge in (min, max))
    width = max(1, -(-(high - low + 1) // _MOST_BARS))
    counts = Counter((value - low) // width for value in values)
    bins = (high - low) // width + 1
    tallest = max(counts.values())
    inner = _PLOT_WIDTH - _MARGIN_LEFT - 10
    step = inner / bins
    parts = [_open_svg(_PLOT_WIDTH, _PLOT_HEIGHT, f"{up} by {across}")]
    base = _PLOT_HEIGHT - _MARGIN_BOTTOM
    for number in range(bins):
        size = counts.get(number, 0) / tallest * (base - _MARGIN_TOP)
        first, last = low + number * width, low + (number + 1) * width - 1
        span = f"{first}" if width == 1 else f"{first} to {last}"
        parts.append(
            f"<rect x='{_MARGIN_LEFT + number * step:.1f}' y='{base - size:.1f}' width='{min(step * 0.85, 60):.1f}' "
            f"height='{size:.1f}' fill='{_BAR}'><title>{span}: {counts.get(number, 0)}</title></rect>"
        )
    for number in sorted({0, bins // 2, bins - 1}):
        x = _MARGIN_LEFT + number * step + min(step * 0.85, 60) / 2
        parts.append(_text(x, base + 16, str(low + number * width), "middle"))
    parts.append(_text(_MARGIN_LEFT + inner / 2, _PLOT_HEIGHT - 6, across, "middle", _SOFT))
    parts.append(_text(_MARGIN_LEFT - 8, _MARGIN_TOP + 8, str(tallest), "end"))
    parts.append(_text(_MARGIN_LEFT - 8, base, "0", "end"))
    return "".join([*parts, "</svg></figure>"])


def _range_plot(ranges: Sequence[EntryRange]) -> str:
    """A line from the smallest to the largest value of every entry, with its usual range as a bar:
    the scale of a row is its own."""
    shown = ranges[:_MOST_RANGES]
    label, number = 250, 90
    left, right = label + number, _PLOT_WIDTH - number
    height = len(shown) * _ROW_HEIGHT + 10
    parts = [_open_svg(_PLOT_WIDTH, height, "ranges of the entries")]
    for row, entry in enumerate(shown):
        y = 5 + (row + 0.5) * _ROW_HEIGHT
        span = max(entry.high - entry.low, 1e-30)
        start = left + (entry.usual_low - entry.low) / span * (right - left)
        end = left + (entry.usual_high - entry.low) / span * (right - left)
        start, end = np.clip([min(start, end), max(start, end)], left, right)
        unit = "" if entry.unit in ("", "1") else f" [{entry.unit}]"
        parts.append(_text(label, y + 4, _cut(f"{entry.entry}{unit}"), "end"))
        parts.append(_text(left - 8, y + 4, f"{entry.low:.4g}", "end", _SOFT))
        parts.append(_text(right + 8, y + 4, f"{entry.high:.4g}", "start", _SOFT))
        if entry.high > entry.low:
            parts.append(
                f"<line x1='{left}' x2='{right}' y1='{y}' y2='{y}' stroke='{_LINE}' stroke-width='2'/>"
                f"<rect x='{start:.1f}' y='{y - 5}' width='{max(end - start, 1.0):.1f}' height='10' fill='{_BAR}'/>"
            )
    more = len(ranges) - len(shown)
    rest = f" {more} further entries are not shown." if more else ""
    caption = (
        "The bar spans the median episode's smallest and largest value, the line those of all episodes; a short bar on "
        f"a long line is an outlier.{rest}"
    )
    return "".join([*parts, f"</svg><figcaption>{caption}</figcaption></figure>"])


def _open_svg(width: int, height: int, about: str) -> str:
    return (
        f"<figure><svg viewBox='0 0 {width} {height}' width='{width}' height='{height}' role='img' "
        f"aria-label='{html.escape(about)}' font-size='12' font-family='system-ui, sans-serif'>"
    )


def _text(x: float, y: float, text: str, anchor: str, fill: str = _INK) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{fill}'>{html.escape(text)}</text>"


def _cut(text: str) -> str:
    return text if len(text) <= 38 else f"..{text[-36:]}"
