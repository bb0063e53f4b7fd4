"""Reads from recorded episodes how a training went: success with its interval, corrections and
cycle time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.store import EpisodeStore
from robots.proportions import wilson

WINDOW = 20
"""Episodes over which a rate is told."""


class TrainingHistory(NamedTuple):
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


class Curve(NamedTuple):
    """Rates over the last `WINDOW` episodes, at the end of each of E episodes."""

    success: np.ndarray
    """(E,) success rate."""
    bounds: np.ndarray
    """(E, 2) its 95 % Wilson interval."""
    corrected: np.ndarray
    """(E,) share of the steps at which a person acted."""


def read_history(path: Path) -> TrainingHistory:
    """The episodes of the store at `path`."""
    store = EpisodeStore.open(path)
    length = np.diff(store.ends("policy"), prepend=0)
    about = [store.metadata(episode) for episode in range(store.num_episodes)]
    kept = np.array([one["discard_reason"] is None for one in about], dtype=bool)

    def column(name: str, kind: type) -> np.ndarray:
        return np.array([one[name] for one in about], dtype=kind)[kept]

    return TrainingHistory(
        steps=np.cumsum(length)[kept],
        length=length[kept],
        success=column("success", bool),
        true=column("true_success", bool),
        corrected=column("interventions", float),
        rate_hz=store.schema.stream("policy").rate_hz,
    )


def learning_figures(history: TrainingHistory, demonstrations: TrainingHistory) -> dict[str, Any]:
    """The last 20 episodes of the training, and what its reward's word was worth."""
    last = slice(-WINDOW, None)
    solved, count = int(history.success[last].sum()), len(history.success[last])
    low, high = wilson(solved, count) if count else (0.0, 1.0)
    told, true = history.success, history.true
    return {
        "episodes": len(history.steps),
        "recent_success": {"k": solved, "n": count, "low": low, "high": high},
        "recent_corrected": _mean(_weighted(history, last)),
        "cycle_seconds": _mean(history.length[last][history.success[last]]) / history.rate_hz,
        "demonstrated_seconds": episode_seconds(demonstrations),
        "false_successes": int((told & ~true).sum()),
        "missed_successes": int((~told & true).sum()),
    }


def episode_seconds(history: TrainingHistory) -> float:
    """Mean length of the episodes [s]."""
    return _mean(history.length) / history.rate_hz


def learning_curve(history: TrainingHistory) -> Curve:
    """Rates over the last 20 episodes, at the end of each."""
    windows = [slice(max(0, end - WINDOW), end) for end in range(1, len(history.steps) + 1)]
    counts = [(int(history.success[part].sum()), len(history.success[part])) for part in windows]
    return Curve(
        success=np.array([k / n for k, n in counts]),
        bounds=np.array([wilson(k, n) for k, n in counts]).reshape(-1, 2),
        corrected=np.array([_mean(_weighted(history, part)) for part in windows]),
    )


def _weighted(history: TrainingHistory, part: slice) -> np.ndarray:
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
