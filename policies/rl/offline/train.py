"""Trains learners offline on a replay buffer; runs are reproducible and can be resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from policies.checkpoint import digest_file
from policies.random_streams import LearnerStream
from policies.rl.networks.ensemble import Features
from policies.rl.offline.config import OfflineRunConfig
from policies.rl.replay.buffer import Replay
from policies.rl.replay.transitions import Transitions
from policies.training.loggers import CURVE
from policies.training.loop import STATE
from policies.training.plots import LOSS, draw_entries
from policies.training.resumable_run import ResumableRun
from robots.config import Count, Whole, config
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress

_PLOTTED = {
    "critic_loss": "critic loss",
    "q": "Q of the data",
    "weight": "advantage weight",
    "denoising_loss": "denoising loss",
    "actor_loss": "actor loss",
    "conservatism": "conservative term",
    "value": "J by the dynamics",
    "best": "best J",
}
"""Metrics that are plotted where an algorithm reports them, with their labels."""


@config
class OfflineConfig:
    """Number and size of the updates of offline training."""

    updates: Whole = 100_000
    """Total number of updates, including those before a resume. 1,000,000 in IQL, 2,000,000 in EDP
    [C]."""
    batch_size: Count = 256
    """Transitions per minibatch; 1024 in f-DVL [C]."""
    minibatches: Count = 1
    """Minibatches per update; see `policies.rl.off_policy.online.Learner.update`."""


class OfflineLearner(Protocol):
    """A learner that is updated on minibatches of recorded transitions."""

    def update(self, minibatches: Sequence[Transitions]) -> dict[str, Any]:
        """One update on U minibatches; returns scalar metrics."""
        ...


class RecordedTransitions(Protocol):
    """Training data of an offline learner: `policies.rl.replay.buffer.Replay`, or the chunks of
    `policies.rl.offline.offline_dataset.RecordedChunks`."""

    def __len__(self) -> int: ...

    def drawable(self) -> np.ndarray:
        """Indices of the transitions that can be sampled, in ascending order."""
        ...

    def transitions(self, slot_B: np.ndarray) -> Transitions:
        """The transitions at these indices."""
        ...


def learn_offline(
    learner: OfflineLearner,
    replay: RecordedTransitions,
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


def run_updates(
    learner: Any,
    replay: RecordedTransitions,
    config: OfflineConfig,
    run: OfflineRunConfig,
    run_identity: str,
    out: Path,
    progress: Progress,
    *,
    probability: np.ndarray | None = None,
) -> dict[str, Any]:
    """Updates a learner with checkpoints and a curve, resuming from those in `out`.

    Raises:
        HandoffError: a metric is not finite; the last checkpoint is kept.
    """
    resumable = ResumableRun(
        out, run_identity, state=STATE, curve=CURVE, logging=run, step="update"
    )
    state = resumable.resume()
    if state is not None:
        learner.load_state_dict(state["learner"])
    saved_at, text = time.monotonic(), ""

    def watch(update: int, metrics: dict[str, Any]) -> None:
        nonlocal saved_at, text
        if update % run.log_every and update != config.updates:
            return
        entry = {name: float(value) for name, value in metrics.items()}
        if not np.isfinite(list(entry.values())).all():
            raise HandoffError(
                f"offline: metrics after {update} updates are {entry}, expected finite numbers. Is a learning rate "
                "too high, or a temperature too small for the rewards?"
            )
        resumable.entries.append({"update": float(update), **entry})
        text = f"critic loss {entry['critic_loss']:.3g}"
        if time.monotonic() - saved_at >= run.checkpoint_seconds or update == config.updates:
            resumable.save({"learner": learner.state_dict()})
            saved_at = time.monotonic()

    def report(done: int, total: int, note: str = "") -> None:
        progress(done, total, text)

    with resumable.timed():
        learn_offline(
            learner,
            replay,
            config,
            probability=probability,
            seed=run.seed,
            start=learner.updates,
            progress=report,
            watch=watch,
        )
    resumable.close()
    last = resumable.entries[-1]
    return {
        "updates": config.updates,
        "cpu_seconds": round(resumable.cpu_seconds(), 3),
        **{name: value for name, value in last.items() if name != "update"},
    }


def finish_curve(out: Path, horizontal: tuple[str, str] = ("update", "update")) -> None:
    """Plots the curve in `out` to `loss.png`, and removes the checkpoint of the finished run."""
    entries = [json.loads(line) for line in (out / CURVE).read_text().splitlines()]
    vertical = {name: text for name, text in _PLOTTED.items() if name in entries[-1]}
    draw_entries(entries, out / LOSS, horizontal, vertical)
    (out / STATE).unlink(missing_ok=True)


def identity(settings: str, demos: Path, *others: Path) -> str:
    """Identity that a checkpoint must have to be resumed: options and data."""
    index = digest_file(demos / "store.zarr" / "index.json")
    return " ".join([settings, index, *(digest_file(path) for path in others)])


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
