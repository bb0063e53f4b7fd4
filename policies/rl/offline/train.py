"""Learning from stored steps alone, without a world; every run repeats itself and can be taken up
again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from policies.random_streams import LearnerStream
from policies.rl.networks.ensemble import Features
from policies.rl.off_policy.online import Learner
from policies.rl.replay.buffer import Replay
from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress


@config
class OfflineConfig:
    """How much is learned."""

    updates: int = 100_000
    """Total updates, those before an interruption included. 1,000,000 in IQL, 2,000,000 in EDP
    [C]."""
    batch_size: int = 256
    """Transitions per minibatch; 1024 in f-DVL [C]."""
    minibatches: int = 1
    """Minibatches per update; see `Learner.update`."""


def learn_offline(
    learner: Learner,
    replay: Replay,
    config: OfflineConfig,
    *,
    probability: np.ndarray | None = None,
    seed: int = 0,
    start: int = 0,
    progress: Progress = no_progress,
    watch: Callable[[int, dict[str, Any]], None] = lambda updates, metrics: None,
) -> dict[str, Any]:
    """Updates `learner` on `replay` until it has made `config.updates`.

    Minibatch k is drawn with chance of its own, so that a run that goes on from a saved learner at
    `start` ends exactly where an uninterrupted one does.

    Args:
        learner: with the weights that it had after `start` updates.
        replay: what it learns from; must not change meanwhile.
        config: how much.
        probability: (len(replay),) of every slot, such as a trajectory weighting; None is uniform.
        seed: of the minibatches.
        start: updates made before.
        progress: told after every update.
        watch: told the number of updates and the metrics after each; the place to save.

    Returns:
        The metrics of the last update.

    Raises:
        HandoffError: nothing is stored, or `probability` is no probability of the stored steps.
    """
    if not len(replay):
        raise HandoffError(
            "offline: the replay is empty, nothing can be learned. Were no episodes appended?"
        )
    whole = replay.drawable()
    if not len(whole):
        raise HandoffError(f"offline: {len(replay)} steps are stored, no chunk of which is whole.")
    cumulative = None if probability is None else _cumulative(probability, len(replay), whole)
    metrics: dict[str, Any] = {}
    for update in range(start, config.updates):
        draw = np.random.default_rng([seed, LearnerStream.OFFLINE_REPLAY, update])
        drawn = [
            _drawn(cumulative, len(whole), config.batch_size, draw)
            for _ in range(config.minibatches)
        ]
        metrics = learner.update([replay.transitions(whole[drawn_B]) for drawn_B in drawn])
        progress(update + 1, config.updates)
        watch(update + 1, metrics)
    return metrics


def fit_features(features: Features, replay: Replay) -> None:
    """Fits a new learner's features to the range of the stored observations: each entry's extremes
    become -1 and 1.

    Raises:
        HandoffError: nothing is stored.
    """
    if not len(replay):
        raise HandoffError(
            "offline: the replay is empty, there is no range to fit to. Were no episodes appended?"
        )
    seen = replay.columns["observation"][: len(replay)]
    features.fit(torch.from_numpy(seen.min(axis=0)), torch.from_numpy(seen.max(axis=0)))


def _drawn(
    cumulative: np.ndarray | None, whole: int, size: int, draw: np.random.Generator
) -> np.ndarray:
    if cumulative is None:
        return draw.integers(whole, size=size)
    return np.searchsorted(cumulative, draw.random(size), side="right")


def _cumulative(probability: np.ndarray, stored: int, whole: np.ndarray) -> np.ndarray:
    values = np.asarray(probability, np.float64)
    if values.shape != (stored,) or (values < 0.0).any() or not np.isclose(values.sum(), 1.0):
        raise HandoffError(
            f"offline: probabilities of shape {values.shape} with sum {values.sum():.6g}, expected {stored} "
            "numbers from 0 on with sum 1. Was the weighting made for another replay?"
        )
    # Divided by its own end, it leaves no number in [0, 1) beyond the last slot.
    cumulative = np.cumsum(values[whole])
    if cumulative[-1] <= 0.0:
        raise HandoffError(
            "offline: all probability lies on steps whose chunk is not whole, so nothing can be drawn."
        )
    return cumulative / cumulative[-1]
