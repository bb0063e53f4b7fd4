"""A scripted person: acts well or badly, watches a learner, takes over when it is about to fail.

Shape suffixes: N worlds, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policies.rl.off_policy.online import Learner
from robots.config import config
from robots.wire.steps import Steps
from tests.beds.bed import Act, Bed


def expert_with(bed: Bed, skill: float, seed: int = 0) -> Act:
    """The bed's expert, who misjudges where the point is; what they observe is the bed itself.

    In every episode the error is drawn anew around the same bias to the right: both grow with 1 -
    skill, in units of what counts as near. Measured over 1,000 episodes, skill 1, 0.7 and 0.4 solve
    100, 77 and 36 % of PointMaze and 100, 70 and 29 % of PointReach.

    Args:
        bed: it acts in.
        skill: in [0, 1].
        seed: of the errors; world i draws from a stream of its own.
    """
    rngs = [np.random.default_rng([seed, row, 1]) for row in range(bed.num_envs)]
    misjudged_N2 = np.zeros((bed.num_envs, 2))
    size = 1.85 * (1.0 - skill) * bed.near

    def act(observation_NO: np.ndarray) -> np.ndarray:
        for row in np.flatnonzero(bed.steps == 0):
            misjudged_N2[row] = size * (rngs[row].standard_normal(2) + np.array([0.5, 0.0]))
        return bed.expert(misjudged_N2)

    return act


def uniform(bed: Bed, seed: int = 0) -> Act:
    """Uniform actions; world i draws from a stream of its own."""
    rngs = [np.random.default_rng([seed, row, 2]) for row in range(bed.num_envs)]
    return lambda observation_NO: np.stack(
        [rng.uniform(-1.0, 1.0, bed.action_size) for rng in rngs]
    )


@config
class PersonConfig:
    """When a person takes over, and for how long."""

    hold: int = 5
    """Steps of a takeover."""
    probability: float = 0.5
    """Per step at which failure is predicted, at the start."""
    half_life: int = 10_000
    """Steps of the environment, over all worlds, in which that probability halves."""
    patience: int = 5
    """Steps without progress, or with actions far from the expert's, after which failure is
    predicted."""
    progress: float = 0.01
    """Way [m] by which the remaining one must shrink to count as progress."""
    far: float = 1.0
    """Largest difference from the expert's action, over its entries, that is not far."""


class Person:
    """Watches N worlds and takes over; world i draws from a stream of its own.

    Args:
        bed: it watches, and acts in as the bed's expert.
        config: when it takes over.
        seed: of its chance.
        act: how it acts; None acts as the bed's expert.
    """

    def __init__(
        self, bed: Bed, config: PersonConfig | None = None, seed: int = 0, act: Act | None = None
    ) -> None:
        self.bed, self.config = bed, config or PersonConfig()
        self.hand = act
        self.rngs = [np.random.default_rng([seed, row, 3]) for row in range(bed.num_envs)]
        self.made = 0
        """Steps watched, over all worlds."""
        self.left = np.zeros(bed.num_envs, np.int64)
        """(N,) steps of the running takeover still to come."""
        self.best = np.full(bed.num_envs, np.inf)
        """(N,) least remaining way in which there was progress [m]."""
        self.stalled, self.astray = (
            np.zeros(bed.num_envs, np.int64),
            np.zeros(bed.num_envs, np.int64),
        )
        """(N,) steps without progress; steps in a row with actions far from the expert's."""

    def act(self, proposed_NA: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is executed instead of `proposed_NA`, (N, A), and where the person does it, (N,)
        bool."""
        config, bed = self.config, self.bed
        expert_NA = bed.expert() if self.hand is None else self.hand(bed.observe())
        self._watch(proposed_NA, expert_NA)
        fails = (self.stalled >= config.patience) | (self.astray >= config.patience)
        probability = config.probability * 0.5 ** (self.made / config.half_life)
        begins = (
            fails & (self.left == 0) & (np.array([rng.random() for rng in self.rngs]) < probability)
        )
        self.left[begins] = config.hold
        acts = self.left > 0
        # Whom they have just helped is given time again.
        self.stalled[acts], self.astray[acts] = 0, 0
        self.left[acts] -= 1
        self.made += bed.num_envs
        return np.where(acts[:, None], expert_NA, proposed_NA), acts

    def _watch(self, proposed_NA: np.ndarray, expert_NA: np.ndarray) -> None:
        began = self.bed.steps == 0
        self.left[began], self.stalled[began], self.astray[began] = 0, 0, 0
        self.best[began] = np.inf
        remaining = self.bed.remaining()
        progress = remaining < self.best - self.config.progress
        self.best = np.where(progress, remaining, self.best)
        self.stalled = np.where(progress, 0, self.stalled + 1)
        away = np.abs(proposed_NA - expert_NA).max(axis=1) > self.config.far
        self.astray = np.where(away, self.astray + 1, 0)


Collect = Callable[[Learner, np.random.Generator], Steps]


def collector(bed: Bed, person: Person | None = None) -> Collect:
    """What `policies.rl.off_policy.online.learn_online` collects with: one step in every world, by
    the learner or the person."""

    def collect(learner: Learner, draw: np.random.Generator) -> Steps:
        proposed_NA = learner.act(bed.observe(), draw)
        if person is None:
            return bed.transition(proposed_NA)[0]
        executed_NA, acts = person.act(proposed_NA)
        return bed.transition(executed_NA, intervention=acts, proposed=proposed_NA)[0]

    return collect
