"""How a session went: success with its interval, corrections and cycle time, from the recorded
episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.store import EpisodeStore
from robots.proportions import wilson

WINDOW = 20
"""Episodes over which a rate is told."""


class History(NamedTuple):
    """Episodes of a training, E of them, in their order; dropped ones are left out."""

    steps: np.ndarray
    """(E,) control steps made until the episode's end."""
    length: np.ndarray
    """(E,) control steps."""
    success: np.ndarray
    """(E,) bool: told by the reward or the person."""
    true: np.ndarray
    """(E,) bool: the world's own opinion."""
    corrected: np.ndarray
    """(E,) share of the steps at which a person acted."""
    rate_hz: float


def read_history(path: Path) -> History:
    """The episodes of the store at `path`."""
    store = EpisodeStore.open(path)
    length = np.diff(store.ends("policy"), prepend=0)
    about = [store.metadata(episode) for episode in range(store.num_episodes)]
    kept = np.array([one["discard_reason"] is None for one in about], dtype=bool)

    def column(name: str, kind: type) -> np.ndarray:
        return np.array([one[name] for one in about], dtype=kind)[kept]

    return History(
        steps=np.cumsum(length)[kept],
        length=length[kept],
        success=column("success", bool),
        true=column("true_success", bool),
        corrected=column("interventions", float),
        rate_hz=store.schema.stream("policy").rate_hz,
    )


def learning_figures(path: Path, demonstrations: Path) -> dict[str, Any]:
    """The last 20 episodes of the training in the store at `path`, and what its reward's word was
    worth."""
    history, shown = read_history(path), read_history(demonstrations)
    last = slice(-WINDOW, None)
    solved, count = int(history.success[last].sum()), len(history.success[last])
    low, high = wilson(solved, count) if count else (0.0, 1.0)
    told, true = history.success, history.true
    return {
        "episodes": len(history.steps),
        "recent_success": {"k": solved, "n": count, "low": low, "high": high},
        "recent_corrected": _mean(_weighted(history, last)),
        "cycle_seconds": _mean(history.length[last][history.success[last]]) / history.rate_hz,
        "demonstrated_seconds": _mean(shown.length) / shown.rate_hz,
        "false_successes": int((told & ~true).sum()),
        "missed_successes": int((~told & true).sum()),
    }


def draw_learning(path: Path, demonstrations: Path, picture: Path) -> None:
    """Three panels over the control steps: success of the last 20 episodes, corrections, cycle
    time."""
    from matplotlib.figure import Figure

    history, shown = read_history(path), read_history(demonstrations)
    figure = Figure(figsize=(8.0, 8.0), layout="constrained")
    success, corrected, cycle = figure.subplots(3, 1, sharex=True)
    windows = [slice(max(0, end - WINDOW), end) for end in range(1, len(history.steps) + 1)]
    counts = [(int(history.success[part].sum()), len(history.success[part])) for part in windows]
    bounds = np.array([wilson(k, n) for k, n in counts]).reshape(-1, 2)
    success.plot(history.steps, [k / n for k, n in counts], color="#1769aa")
    success.fill_between(history.steps, bounds[:, 0], bounds[:, 1], alpha=0.2, color="#1769aa")
    success.set(ylabel=f"success, last {WINDOW}\n(95 % Wilson interval)", ylim=(-0.02, 1.02))
    corrected.plot(
        history.steps, [_mean(_weighted(history, part)) for part in windows], color="#e4572e"
    )
    corrected.axhline(0.05, color="black", linestyle="--", linewidth=1)
    corrected.set(ylabel=f"share of steps corrected,\nlast {WINDOW} episodes", ylim=(-0.02, 1.02))
    solved = history.success
    cycle.plot(
        history.steps[solved],
        history.length[solved] / history.rate_hz,
        ".",
        markersize=4,
        color="#1769aa",
    )
    demonstrated = _mean(shown.length) / shown.rate_hz
    cycle.axhline(demonstrated, color="black", linestyle="--", linewidth=1, label="demonstrations")
    cycle.set(ylabel="time to success [s]", xlabel="control steps", ylim=(0.0, None))
    cycle.legend(frameon=False)
    figure.savefig(picture, dpi=120)


def _weighted(history: History, part: slice) -> np.ndarray:
    """Mean share of corrected steps, each episode by its length, as an array of one; empty of
    nothing."""
    length = history.length[part]
    return (
        np.array([np.average(history.corrected[part], weights=length)])
        if len(length)
        else np.empty(0)
    )


def _mean(values: np.ndarray) -> float:
    """NaN has no place in JSON: of nothing it is 0."""
    return float(np.mean(values)) if len(values) else 0.0
