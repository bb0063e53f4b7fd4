"""Learner and worlds in lockstep, in one process: every run repeats itself. The form in which learners are tested.

Between processes, where the actor never waits, the same learner runs in `policies.rl.learner`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from policies.rl.replay import Replay
from policies.rl.transitions import Transitions, concatenated
from robots.config import config
from robots.steps import Steps


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


@config
class OnlineConfig:
    """How acting and learning take turns."""

    batch_size: int = 256
    """Transitions per minibatch, those of demonstrations among them."""
    demo_share: float = 0.5
    """Share of every minibatch from the demonstration buffer (RLPD, HIL-SERL [C]); 0 does without."""
    updates_per_step: float = 1.0
    """Updates (each of `minibatches`) per step of the environment; fractions accumulate."""
    minibatches: int = 1
    """Critic steps per update: 20 in RLPD, 2 in HIL-SERL [C]."""
    training_starts: int = 100
    """Steps before the first update; HIL-SERL 100, RLPD 5,000 [C]."""
    random_steps: int = 0
    """Steps at the start whose actions are uniform; SERL 300, HIL-SERL 0 [C]."""


class Batches:
    """Draws minibatches, half of them (or as said) from the demonstration buffer.

    Args:
        config: sizes and shares.
        replay: all steps.
        demos: demonstrations and corrections; may be empty while `demo_share` is 0.
    """

    def __init__(self, config: OnlineConfig, replay: Replay, demos: Replay | None = None) -> None:
        self.config, self.replay, self.demos = config, replay, demos

    def __call__(self, draw: np.random.Generator) -> Transitions:
        """One minibatch; exactly `round(demo_share * batch_size)` rows come from the demonstrations."""
        config = self.config
        share = round(config.demo_share * config.batch_size) if self.demos is not None and len(self.demos) else 0
        parts = []
        if share < config.batch_size and len(self.replay):
            parts.append(self.replay.sample(config.batch_size - share, draw))
        if share:
            assert self.demos is not None
            parts.append(self.demos.sample(share, draw)._replace(demo_B=_all_true(share)))
        return parts[0] if len(parts) == 1 else concatenated(parts)


class Progressed(NamedTuple):
    """Where an online run stands."""

    steps: int
    """Of the environment, over all worlds."""
    updates: int


def store(steps: Steps, replay: Replay, demos: Replay | None) -> None:
    """All steps go to `replay`; those of a person go to `demos` as well (HIL-SERL)."""
    from robots.steps import chosen

    replay.append(steps)
    if demos is not None and steps.intervention.any():
        demos.append(chosen(steps, steps.intervention))


def learn(
    learner: Learner,
    batches: Batches,
    collect: Callable[[Learner, np.random.Generator], Steps],
    config: OnlineConfig,
    steps: int,
    seed: int = 0,
    watch: Callable[[Progressed, dict[str, Any]], None] = lambda progressed, metrics: None,
) -> Progressed:
    """Collects and learns in turn until `steps` steps of the environment have been made.

    Args:
        learner: acts and learns.
        batches: what it learns from; its replay is filled here.
        collect: makes one step in every world with the learner's (or a person's) actions and returns them.
        config: how often to learn.
        steps: of the environment, over all worlds.
        seed: of exploration and minibatches.
        watch: told after every step.
    """
    made, updates, owed = 0, 0, 0.0
    metrics: dict[str, Any] = {}
    while made < steps:
        new = collect(learner, np.random.default_rng([seed, 1, made]))
        store(new, batches.replay, batches.demos)
        made += new.rows
        if made >= config.training_starts:
            owed += config.updates_per_step * new.rows
            while owed >= 1.0:
                draw = np.random.default_rng([seed, 2, updates])
                metrics = learner.update([batches(draw) for _ in range(config.minibatches)])
                updates, owed = updates + 1, owed - 1.0
        watch(Progressed(made, updates), metrics)
    return Progressed(made, updates)


def _all_true(rows: int) -> Any:
    import torch

    return torch.ones(rows, dtype=torch.bool)
