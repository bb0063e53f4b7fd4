"""Draws charts of evaluations as SVG text; the same numbers give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#4878a8", "#c44e52", "#55a868", "#8172b3", "#ccb974", "#64b5cd")


class Point(NamedTuple):
    """One checkpoint of a learning curve."""

    step: int
    """Training steps."""
    score: float
    low: float
    high: float


class TimedSuccess(NamedTuple):
    """One policy with its inference time."""

    name: str
    role: Literal["teacher", "student", "control", ""]
    """Part of the policy in distillation; empty for one without."""
    milliseconds: float
    rate: float
    """Share of episodes that were solved."""
    low: float
    high: float


def histogram(scores: Mapping[str, Sequence[float]]) -> str:
    """Histogram of the episodes' scores, one outline per agent."""
    values = np.concatenate([np.asarray(each, dtype=float) for each in scores.values()])
    low, high = min(0.0, float(values.min())), max(1.0, float(values.max()))
    figure = _figure()
    axes = figure.subplots()
    for index, (name, each) in enumerate(scores.items()):
        axes.hist(
            each,
            bins=np.linspace(low, high, 41).tolist(),
            histtype="stepfilled" if len(scores) == 1 else "step",
            color=COLOURS[index % len(COLOURS)],
            label=name,
        )
    axes.set_xlabel("score of an episode")
    axes.set_ylabel("episodes")
    if len(scores) > 1:
        axes.legend(loc="upper left")
    return _svg(figure)


def learning_curve(points: Sequence[Point]) -> str:
    """Score over training steps, with the interval of each checkpoint."""
    ordered = sorted(points)
    steps, scores = [point.step for point in ordered], [point.score for point in ordered]
    figure = _figure()
    axes = figure.subplots()
    axes.fill_between(
        steps, [p.low for p in ordered], [p.high for p in ordered], color=COLOURS[0], alpha=0.25
    )
    axes.plot(steps, scores, marker="o", color=COLOURS[0])
    axes.set_xlabel("training steps")
    axes.set_ylabel("score")
    return _svg(figure)


def intervals_chart(
    groups: Mapping[str, tuple[Sequence[float], float, float, float]], label: str
) -> str:
    """One row per group: a dot per evaluation, and the mean with its interval.

    Args:
        groups: per name the figures of the evaluations, the mean, and the interval's ends.
        label: label of the axis.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.9 + 0.45 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for row, (values, mean, low, high) in enumerate(groups.values()):
        colour = COLOURS[row % len(COLOURS)]
        axes.plot([low, high], [row, row], color=colour, lw=2)
        axes.plot([mean], [row], "D", color=colour, ms=6)
        axes.plot(values, np.full(len(values), row + 0.18), "o", color=colour, ms=3, alpha=0.7)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
    return _svg(figure)


def success_against_time(points: Sequence[TimedSuccess]) -> str:
    """Success, with its interval, over the time of one inference; teachers, students and negative
    controls have markers of their own."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    markers = {"teacher": "s", "student": "o", "control": "X", "": "D"}
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for index, point in enumerate(points):
        error = np.maximum([[point.rate - point.low], [point.high - point.rate]], 0.0)
        axes.errorbar(
            [point.milliseconds],
            [point.rate],
            yerr=error,
            fmt=markers[point.role],
            markersize=8,
            capsize=3,
            color=COLOURS[index % len(COLOURS)],
            label=point.name,
        )
    axes.set(
        xscale="log", ylim=(-0.03, 1.03), xlabel="time of one inference [ms]", ylabel="success"
    )
    # Whole decades have labels that never overlap.
    times = [point.milliseconds for point in points]
    low, high = np.floor(np.log10([min(times), max(times)]))
    axes.set_xlim(10.0**low, 10.0 ** (high + 1.0))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return _svg(figure)


def _figure() -> Figure:
    # The object-oriented interface: pyplot would choose a window system and keep global state.
    from matplotlib.figure import Figure

    return Figure(figsize=(6, 3), layout="constrained")


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "handoff", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    # Without the XML header the text can be embedded in an HTML page.
    return text[text.index("<svg") :]
