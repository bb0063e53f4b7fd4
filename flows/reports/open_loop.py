"""Summarises the errors of a policy's actions against recorded ones, as figures, plots and a page.

Intervals are percentile bootstraps over episodes, because the steps of one episode are not
independent. Shape suffixes: E episodes, K steps ahead, A action.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.html_page import FOOT, banner, contents, head, heading, picture, table, tiles
from robots.storage.durable import write_atomically
from sim.evaluation.intervals import bootstrap_mean

if TYPE_CHECKING:
    from policies.card import PolicyCard
    from policies.imitation.open_loop import OpenLoopErrors

FIGURES = "open_loop.json"
REPORT = "report.html"
_AHEAD, _EPISODES = "ahead.png", "episodes.png"
_MOST_ENTRIES = 8
"""Largest number of action entries in the plot of episodes."""
_RECORDED = "#16324f"
_PREDICTED = "#e4572e"
_CONTROL = "#8a94a0"
"""Colours."""


def summarize(errors: OpenLoopErrors, card: PolicyCard, seed: int) -> dict[str, Any]:
    """JSON-ready figures: errors with intervals, of the policy and of repeating the last action.

    `normalised` are errors in standard deviations of each action entry, averaged over the entries
    that vary; `relative` is the policy's normalised error over the control's, per episode.

    Args:
        errors: errors per episode.
        card: card of the policy, for names and units.
        seed: seed of the resampling.
    """
    compared_E = errors.windows_E > 0
    policy_EKA, control_EKA = errors.policy_EKA[compared_E], errors.control_EKA[compared_E]
    varying_A = errors.deviation_A > 1e-9
    scale_A = np.where(varying_A, errors.deviation_A, 1.0)
    policy_E, control_E = (
        np.nanmean((error_EKA / scale_A)[..., varying_A], axis=(1, 2))
        if varying_A.any()
        else np.zeros(len(error_EKA))
        for error_EKA in (policy_EKA, control_EKA)
    )
    relative_E = policy_E / np.maximum(control_E, 1e-12)
    names, unit = _entry_names(card), card.action.unit
    return {
        "episodes": int(compared_E.sum()),
        "chunks": int(errors.windows_E.sum()),
        "normalised": _interval(policy_E, seed),
        "control": _interval(control_E, seed),
        "difference": _interval(policy_E - control_E, seed),
        "relative": _interval(relative_E, seed),
        "unit": unit,
        "entries": {
            name: {
                "error": _interval(np.nanmean(policy_EKA[:, :, entry], axis=1), seed),
                "control": _interval(np.nanmean(control_EKA[:, :, entry], axis=1), seed),
            }
            for entry, name in enumerate(names)
        },
        "ahead": [
            {
                "steps": steps,
                "normalised": _interval(_at(policy_EKA, scale_A, varying_A, steps), seed),
                "control": _interval(_at(control_EKA, scale_A, varying_A, steps), seed),
            }
            for steps in range(policy_EKA.shape[1])
        ],
    }


def write_open_loop(
    errors: OpenLoopErrors, metrics: dict[str, Any], card: PolicyCard, out: Path
) -> None:
    """Writes `open_loop.json`, two plots and `report.html` to the folder `out`."""
    write_atomically(out / FIGURES, (json.dumps(metrics, indent=2) + "\n").encode())
    _draw_ahead(metrics, card.rate_hz, out / _AHEAD)
    _draw_episodes(errors, card, out / _EPISODES)
    write_atomically(out / REPORT, "\n".join(_page(metrics, card)).encode())


def _entry_names(card: PolicyCard) -> list[str]:
    if card.action.names:
        return list(card.action.names[-1])
    return [f"entry {entry}" for entry in range(card.action_size)]


def _at(
    error_EKA: np.ndarray, scale_A: np.ndarray, varying_A: np.ndarray, ahead: int
) -> np.ndarray:
    """Normalised errors per episode, so many steps ahead; without episodes that end before."""
    error_EA = (error_EKA[:, ahead] / scale_A)[:, varying_A]
    return error_EA[~np.isnan(error_EA).any(axis=1)].mean(axis=1)


def _interval(values: np.ndarray, seed: int) -> dict[str, float] | None:
    """Mean with its interval; None without values."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    low, high = bootstrap_mean(values, seed)
    return {"mean": float(values.mean()), "low": low, "high": high}


def _text(interval: dict[str, float] | None) -> str:
    if interval is None:
        return "-"
    return f"{interval['mean']:.3g} [{interval['low']:.3g}, {interval['high']:.3g}]"


def _page(metrics: dict[str, Any], card: PolicyCard) -> list[str]:
    better = metrics["difference"]["high"] < 0.0
    worse = metrics["difference"]["low"] > 0.0
    verdict = (
        "The policy predicts held-out actions better than repeating the last action."
        if better
        else "Repeating the last action predicts held-out actions better than the policy."
        if worse
        else "The policy is not shown to predict held-out actions better than repeating the last action."
    )
    unit = f" [{metrics['unit']}]" if metrics["unit"] != "1" else ""
    rows = [
        (name, _text(entry["error"]), _text(entry["control"]))
        for name, entry in metrics["entries"].items()
    ]
    sections = ("Errors by action entry", "Errors by steps ahead", "Episodes", "How to read it")
    return [
        head(f"Open-loop errors of {card.task}"),
        f"<h1>Open-loop errors: {card.task}</h1>",
        banner("good" if better else "bad" if worse else "warn", verdict),
        tiles(
            [
                (_text(metrics["normalised"]), "error of the policy [standard deviations]"),
                (_text(metrics["control"]), "error of repeating the last action"),
                (_text(metrics["relative"]), "policy over control"),
                (f"{metrics['episodes']}", f"episodes, {metrics['chunks']:,} chunks"),
            ]
        ),
        contents(sections),
        heading(sections[0]),
        table(
            (
                f"action entry{unit}",
                "mean absolute error [95 %]",
                "repeating the last action [95 %]",
            ),
            rows,
        ),
        heading(sections[1]),
        picture(_AHEAD, "Error against the number of steps ahead, with 95 % intervals."),
        heading(sections[2]),
        picture(
            _EPISODES,
            "Recorded actions (dark), and chunks that were predicted from recorded observations, over seconds.",
        ),
        heading(sections[3]),
        "<p>The policy sees recorded observations, so its errors do not add up as they do when it acts. A policy may "
        "also follow another way than the person and still succeed: only episodes that it plays tell how often it "
        "does. Errors are averaged per episode; intervals resample episodes.</p>",
        FOOT,
    ]


def _draw_ahead(metrics: dict[str, Any], rate_hz: float, file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for key, label, colour in (
        ("normalised", "policy", _PREDICTED),
        ("control", "repeating the last action", _CONTROL),
    ):
        points = [entry for entry in metrics["ahead"] if entry[key] is not None]
        seconds = [entry["steps"] / rate_hz for entry in points]
        axes.plot(seconds, [entry[key]["mean"] for entry in points], color=colour, label=label)
        low, high = ([entry[key][side] for entry in points] for side in ("low", "high"))
        axes.fill_between(seconds, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="ahead [s]", ylabel="error [standard deviations]")
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=120)


def _draw_episodes(errors: OpenLoopErrors, card: PolicyCard, file: Path) -> None:
    from matplotlib.figure import Figure

    names = _entry_names(card)[:_MOST_ENTRIES]
    columns = max(len(errors.examples), 1)
    figure = Figure(figsize=(4.2 * columns, 1.6 * len(names)), layout="constrained")
    for column, example in enumerate(errors.examples):
        for row, name in enumerate(names):
            axes = figure.add_subplot(len(names), columns, row * columns + column + 1)
            seconds = np.arange(len(example.recorded_TA)) / card.rate_hz
            axes.plot(seconds, example.recorded_TA[:, row], color=_RECORDED, linewidth=1.2)
            for start in range(0, len(example.predicted_TA), card.model.n_action_steps):
                chunk = slice(start, start + card.model.n_action_steps)
                times = seconds[: len(example.predicted_TA)][chunk]
                axes.plot(times, example.predicted_TA[chunk, row], color=_PREDICTED, linewidth=1.0)
            if column == 0:
                axes.set_ylabel(name, fontsize=8)
            if row == 0:
                axes.set_title(f"episode {example.episode}", fontsize=9)
            axes.tick_params(labelsize=7)
            axes.grid(alpha=0.25)
    figure.savefig(file, dpi=110)
