"""Learner and worlds in lockstep, in one process: every run repeats itself. The form in which
learners are tested.

Between processes, where the actor never waits, the same learner runs in `policies.rl.hil.learner`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from policies.random_streams import LearnerStream
from policies.rl.off_policy.config import OnlineConfig
from policies.rl.replay.buffer import Replay
from policies.rl.replay.transitions import Transitions, concatenated
from robots.errors import HandoffError
from robots.wire.steps import Steps, chosen


class Learner(Protocol):
    """What learns online: acts, updates, and can be saved whole."""

    def act(self, vector_NO: np.ndarray, draw: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1]; without `draw` the deterministic ones."""
        ...

    def update(self, minibatches: Sequence[Transitions]) -> dict[str, Any]:
        """One update on U minibatches; returns scalars."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        ...


def due(config: OnlineConfig, steps: int) -> int:
    """Updates that ought to have been made after `steps` steps of the environment.

    A function of the count alone, so that neither rounding nor a resumed run can gain or lose one.
    """
    return math.floor(config.updates_per_step * max(0, steps - config.training_starts) + 1e-9)


class Batches:
    """Draws minibatches, half of them (or as said) from the demonstration buffer.

    Args:
        config: sizes and shares.
        replay: all steps.
        demos: demonstrations and corrections; may be empty or missing.

    Raises:
        HandoffError: sizes or shares out of range.
    """

    def __init__(self, config: OnlineConfig, replay: Replay, demos: Replay | None = None) -> None:
        if config.batch_size < 1 or config.minibatches < 1 or not 0.0 <= config.demo_share <= 1.0:
            raise HandoffError(
                f"online: batch_size {config.batch_size}, minibatches {config.minibatches}, demo_share "
                f"{config.demo_share}; the first two must be at least 1, the share between 0 and 1."
            )
        self.config = config
        self.replay = replay
        self.demos = demos

    def __call__(self, draw: np.random.Generator) -> Transitions:
        """One minibatch; exactly `round(demo_share * batch_size)` rows come from the
        demonstrations.

        While one of the buffers is empty the other gives all rows.

        Raises:
            HandoffError: both are empty, or the one that must give all rows is.
        """
        size = self.config.batch_size
        share = round(self.config.demo_share * size)
        if self.demos is None or not len(self.demos):
            return self.replay.sample(size, draw)
        if share and not len(self.replay):
            share = size
        parts = []
        if share < size:
            parts.append(self.replay.sample(size - share, draw))
        if share:
            parts.append(
                self.demos.sample(share, draw)._replace(demo_B=torch.ones(share, dtype=torch.bool))
            )
        return parts[0] if len(parts) == 1 else concatenated(parts)


class Progressed(NamedTuple):
    """Where an online run stands: with learner, replay and worlds all that its next step depends
    on."""

    steps: int = 0
    """Of the environment, over all worlds."""
    updates: int = 0


def store(steps: Steps, replay: Replay, demos: Replay | None) -> None:
    """All steps go to `replay`; those of a person go to `demos` as well (HIL-SERL)."""
    replay.append(steps)
    if demos is not None and steps.intervention.any():
        demos.append(chosen(steps, steps.intervention))


def learn_online(
    learner: Learner,
    batches: Batches,
    collect: Callable[[Learner, np.random.Generator], Steps],
    config: OnlineConfig,
    steps: int,
    seed: int = 0,
    watch: Callable[[Progressed, dict[str, Any]], None] = lambda progressed, metrics: None,
    begin: Progressed | None = None,
) -> Progressed:
    """Collects and learns in turn until `steps` steps of the environment have been made.

    Chance comes from the seed and the counts alone, so a run that goes on from its learner's and
    buffers' `state_dict`, the worlds as they were and `begin` repeats bit by bit what it would have
    done.

    Args:
        learner: acts and learns.
        batches: what it learns from; its replay is filled here.
        collect: makes one step in every world with the learner's (or a person's) actions and
            returns them.
        config: how often to learn.
        steps: of the environment, over all worlds, those before `begin` among them.
        seed: of exploration and minibatches.
        watch: told after every step how far the run is, and what the last update said (nothing
            before the first).
        begin: what an earlier call returned; None begins anew.

    Returns:
        Where the run stands; with several worlds a little over `steps`.
    """
    made, updates = begin or Progressed()
    metrics: dict[str, Any] = {}
    while made < steps:
        actor = _Uniform(learner) if made < config.random_steps else learner
        new = collect(actor, np.random.default_rng([seed, LearnerStream.EXPLORATION, made]))
        store(new, batches.replay, batches.demos)
        made += new.rows
        while updates < due(config, made):
            draw = np.random.default_rng([seed, LearnerStream.REPLAY, updates])
            metrics = learner.update([batches(draw) for _ in range(config.minibatches)])
            updates += 1
        watch(Progressed(made, updates), metrics)
    return Progressed(made, updates)


class _Uniform:
    """A learner as it is, but for its actions, which are uniform."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.update = learner.update
        self.state_dict = learner.state_dict
        self.load_state_dict = learner.load_state_dict

    def act(self, vector_NO: np.ndarray, draw: np.random.Generator | None = None) -> np.ndarray:
        """See `Learner.act`; without `draw` the learner's own."""
        action_NA = self.learner.act(vector_NO, draw)
        return (
            action_NA
            if draw is None
            else draw.uniform(-1.0, 1.0, action_NA.shape).astype(np.float32)
        )
