"""Trains off-policy learners online, with environments and learner in lockstep in one process.

Runs are reproducible, so learners are tested in this form. With an asynchronous actor in another
process, the same learners run in `policies.rl.hil.learner`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from policies.random_streams import LearnerStream
from policies.rl.off_policy.config import OnlineConfig, updates_due
from policies.rl.replay.buffer import Replay
from policies.rl.replay.transitions import Transitions, concatenated
from robots.errors import HandoffError
from robots.wire.steps import Steps, select_steps


class Learner(Protocol):
    """Interface of off-policy learners: act, update, save and restore."""

    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observation vectors (N, O); deterministic without `rng`."""
        ...

    def update(self, minibatches: Sequence[Transitions]) -> dict[str, Any]:
        """One update on U minibatches; returns scalar metrics."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Complete state of the learner."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        ...


class MinibatchSampler:
    """Samples minibatches with a fixed fraction from the demonstration buffer.

    Args:
        config: batch size and `demo_share`.
        replay: buffer of all steps.
        demos: buffer of demonstrations and corrections; may be empty or None.

    Raises:
        HandoffError: batch_size, minibatches or demo_share is out of range.
    """

    def __init__(self, config: OnlineConfig, replay: Replay, demos: Replay | None = None) -> None:
        if config.batch_size < 1 or config.minibatches < 1 or not 0.0 <= config.demo_share <= 1.0:
            raise HandoffError(
                f"online: batch_size {config.batch_size}, minibatches {config.minibatches}, demo_share "
                f"{config.demo_share}; expected at least 1, at least 1, and from 0 to 1."
            )
        self.config = config
        self.replay = replay
        self.demos = demos

    def __call__(self, rng: np.random.Generator) -> Transitions:
        """One minibatch, with exactly `round(demo_share * batch_size)` rows from the
        demonstrations.

        While one buffer is empty, all rows come from the other.

        Raises:
            HandoffError: both buffers are empty, or the replay is empty and `demo_share` is 0.
        """
        size = self.config.batch_size
        demo_rows = round(self.config.demo_share * size)
        if self.demos is None or not len(self.demos):
            return self.replay.sample(size, rng)
        if demo_rows and not len(self.replay):
            demo_rows = size
        parts = []
        if demo_rows < size:
            parts.append(self.replay.sample(size - demo_rows, rng))
        if demo_rows:
            parts.append(
                self.demos.sample(demo_rows, rng)._replace(
                    demo_B=torch.ones(demo_rows, dtype=torch.bool)
                )
            )
        return parts[0] if len(parts) == 1 else concatenated(parts)


class OnlineProgress(NamedTuple):
    """Progress of an online run; together with learner, replay and environments, its complete
    state."""

    steps: int = 0
    """Environment steps, summed over all environments."""
    updates: int = 0
    """Updates of the learner."""


def store(steps: Steps, replay: Replay, demos: Replay | None) -> None:
    """Appends all steps to `replay`, and interventions also to `demos` (HIL-SERL)."""
    replay.append(steps)
    if demos is not None and steps.intervention.any():
        demos.append(select_steps(steps, steps.intervention))


def learn_online(
    learner: Learner,
    batches: MinibatchSampler,
    collect: Callable[[Learner, np.random.Generator], Steps],
    config: OnlineConfig,
    steps: int,
    seed: int = 0,
    watch: Callable[[OnlineProgress, dict[str, Any]], None] = lambda progressed, metrics: None,
    begin: OnlineProgress | None = None,
    *,
    random_steps: int = 0,
) -> OnlineProgress:
    """Alternates between environment steps and updates until `steps` environment steps are made.

    Random numbers depend only on the seed and the counts. A run that is resumed from the
    `state_dict` of learner and buffers, the same environment states and `begin` is therefore
    bit-identical to an uninterrupted one.

    Args:
        learner: acts and is trained.
        batches: minibatch sampler; steps are appended to its buffers.
        collect: makes one step in every environment with the actions of the given learner (or of a
            person) and returns the steps.
        config: ratio of updates to steps.
        steps: total number of environment steps over all environments, including those before
            `begin`.
        seed: seed of exploration and minibatches.
        watch: called after every step with the progress and the metrics of the last update, which
            are empty before the first update.
        begin: progress returned by an earlier call; None starts at 0.
        random_steps: environment steps at the start with uniform random actions; SERL 300, HIL-SERL
            0 [C].

    Returns:
        Progress at the end; with several environments, slightly more than `steps`.
    """

    def collected(done: int) -> int:
        actor = _UniformActions(learner) if done < random_steps else learner
        new = collect(actor, np.random.default_rng([seed, LearnerStream.EXPLORATION, done]))
        store(new, batches.replay, batches.demos)
        return new.rows

    def updated(updates: int) -> dict[str, Any]:
        rng = np.random.default_rng([seed, LearnerStream.REPLAY, updates])
        return learner.update([batches(rng) for _ in range(config.minibatches)])

    return alternate(collected, updated, config, steps, watch, begin)


def alternate(
    collect: Callable[[int], int],
    update: Callable[[int], dict[str, Any]],
    config: OnlineConfig,
    steps: int,
    watch: Callable[[OnlineProgress, dict[str, Any]], None],
    begin: OnlineProgress | None = None,
) -> OnlineProgress:
    """Alternates between environment steps and updates, wherever both are made.

    Args:
        collect: makes and stores one step in every environment, given the number of steps before,
            and returns how many steps that were.
        update: makes the update with this number, and returns metrics.
        config: ratio of updates to steps.
        steps: see `learn_online`.
        watch: see `learn_online`.
        begin: see `learn_online`.

    Returns:
        Progress at the end.
    """
    done, updates = begin or OnlineProgress()
    metrics: dict[str, Any] = {}
    while done < steps:
        done += collect(done)
        while updates < updates_due(config, done):
            metrics = update(updates)
            updates += 1
        watch(OnlineProgress(done, updates), metrics)
    return OnlineProgress(done, updates)


class _UniformActions:
    """Wraps a learner so that its exploration actions are uniformly random."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.update = learner.update
        self.state_dict = learner.state_dict
        self.load_state_dict = learner.load_state_dict

    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """Uniform actions in [-1, 1]; without `rng`, those of the learner."""
        action_NA = self.learner.act(vector_NO, rng)
        return (
            action_NA if rng is None else rng.uniform(-1.0, 1.0, action_NA.shape).astype(np.float32)
        )
