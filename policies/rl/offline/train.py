"""Trains learners offline on a replay buffer; runs are reproducible and can be resumed."""

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
    """Number and size of the updates of offline training."""

    updates: int = 100_000
    """Total number of updates, including those before a resume. 1,000,000 in IQL, 2,000,000 in EDP
    [C]."""
    batch_size: int = 256
    """Transitions per minibatch; 1024 in f-DVL [C]."""
    minibatches: int = 1
    """Minibatches per update; see `policies.rl.off_policy.online.Learner.update`."""


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
    """Updates a learner on a replay buffer up to a total of `config.updates` updates.

    The random numbers of each update depend only on the seed and its number, so a run resumed from
    a saved learner at `start` ends in the same state as an uninterrupted one.

    Args:
        learner: learner after `start` updates.
        replay: training data; must not change during training.
        config: number and size of the updates.
        probability: sampling probability of each slot, (len(replay),), such as a trajectory
            weighting; None is uniform.
        seed: seed of the minibatches.
        start: number of updates made before.
        progress: called after every update.
        watch: called after every update with the number of updates and the metrics, for instance to
            save the learner.

    Returns:
        The metrics of the last update.

    Raises:
        HandoffError: the replay is empty or has no complete chunk, or `probability` is invalid.
    """
    if not len(replay):
        raise HandoffError(
            "offline: the replay is empty, so there is nothing to train on. Were no episodes appended?"
        )
    slots = replay.drawable()
    if not len(slots):
        raise HandoffError(
            f"offline: {len(replay)} steps are stored, but no complete chunk. Has no episode ended?"
        )
    cumulative = None if probability is None else _cumulative(probability, len(replay), slots)
    metrics: dict[str, Any] = {}
    for update in range(start, config.updates):
        rng = np.random.default_rng([seed, LearnerStream.OFFLINE_REPLAY, update])
        indices = [
            _sample(cumulative, len(slots), config.batch_size, rng)
            for _ in range(config.minibatches)
        ]
        metrics = learner.update([replay.transitions(slots[index_B]) for index_B in indices])
        progress(update + 1, config.updates)
        watch(update + 1, metrics)
    return metrics


def fit_features(features: Features, replay: Replay) -> None:
    """Fits the normalisation of features to the stored observations, so that the minimum and
    maximum of each entry are mapped to -1 and 1.

    Raises:
        HandoffError: the replay is empty.
    """
    if not len(replay):
        raise HandoffError(
            "offline: the replay is empty, so features cannot be fitted. Were no episodes appended?"
        )
    obs = replay.columns["observation"][: len(replay)]
    features.fit(torch.from_numpy(obs.min(axis=0)), torch.from_numpy(obs.max(axis=0)))


def _sample(
    cumulative: np.ndarray | None, slots: int, size: int, rng: np.random.Generator
) -> np.ndarray:
    if cumulative is None:
        return rng.integers(slots, size=size)
    return np.searchsorted(cumulative, rng.random(size), side="right")


def _cumulative(probability: np.ndarray, stored: int, slots: np.ndarray) -> np.ndarray:
    values = np.asarray(probability, np.float64)
    if values.shape != (stored,) or (values < 0.0).any() or not np.isclose(values.sum(), 1.0):
        raise HandoffError(
            f"offline: probabilities of shape {values.shape} with sum {values.sum():.6g}, expected {stored} "
            "non-negative numbers with sum 1. Was the weighting computed for another replay?"
        )
    # Division by the last entry keeps every index from a number in [0, 1) within range.
    cumulative = np.cumsum(values[slots])
    if cumulative[-1] <= 0.0:
        raise HandoffError(
            "offline: only steps without a complete chunk have a probability above 0, so nothing can be sampled."
        )
    return cumulative / cumulative[-1]
