"""Scripts a person who acts with a given skill, watches a learner, and takes over when it is about
to fail.

Shape suffixes: N environments, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policies.rl.off_policy.online import Learner
from robots.config import config
from robots.wire.steps import Steps
from tests.toy_envs.toy_env import Act, ToyEnv


def expert_with(toy_env: ToyEnv, skill: float, seed: int = 0) -> Act:
    """The toy environment's expert with an error in its estimate of the point's position.

    The error is drawn for every episode around a bias to the right; both grow with 1 - skill, in
    units of the success distance. Measured over 1,000 episodes, skill 1, 0.7 and 0.4 solve
    100, 77 and 36 % of PointMaze and 100, 70 and 29 % of PointReach.

    Args:
        toy_env: environment in which it acts.
        skill: skill in [0, 1].
        seed: seed of the errors; environment i has its own random generator.
    """
    rngs = [np.random.default_rng([seed, row, 1]) for row in range(toy_env.num_envs)]
    misjudged_N2 = np.zeros((toy_env.num_envs, 2))
    size = 1.85 * (1.0 - skill) * toy_env.near

    def act(observation_NO: np.ndarray) -> np.ndarray:
        for row in np.flatnonzero(toy_env.steps == 0):
            misjudged_N2[row] = size * (rngs[row].standard_normal(2) + np.array([0.5, 0.0]))
        return toy_env.expert(misjudged_N2)

    return act


def uniform(toy_env: ToyEnv, seed: int = 0) -> Act:
    """Uniform actions; environment i has its own random generator."""
    rngs = [np.random.default_rng([seed, row, 2]) for row in range(toy_env.num_envs)]
    return lambda observation_NO: np.stack(
        [rng.uniform(-1.0, 1.0, toy_env.action_size) for rng in rngs]
    )


@config
class PersonConfig:
    """Options of takeovers."""

    hold: int = 5
    """Steps of a takeover."""
    probability: float = 0.5
    """Initial probability of a takeover per step with predicted failure."""
    half_life: int = 10_000
    """Steps over all environments after which that probability halves."""
    patience: int = 5
    """Steps without progress, or with actions far from the expert's, after which failure is
    predicted."""
    progress: float = 0.01
    """Decrease of the remaining distance that counts as progress [m]."""
    far: float = 1.0
    """Largest difference to the expert's action, over its entries, that is not far."""


class Person:
    """Watches N environments and takes over; environment i has its own random generator.

    Args:
        toy_env: the watched environments.
        config: options of takeovers.
        seed: seed of the random takeovers.
        act: policy of the person; None takes the toy environment's expert.
    """

    def __init__(
        self,
        toy_env: ToyEnv,
        config: PersonConfig | None = None,
        seed: int = 0,
        act: Act | None = None,
    ) -> None:
        self.toy_env, self.config = toy_env, config or PersonConfig()
        self.policy = act
        self.rngs = [np.random.default_rng([seed, row, 3]) for row in range(toy_env.num_envs)]
        self.made = 0
        """Steps watched, over all environments."""
        self.left = np.zeros(toy_env.num_envs, np.int64)
        """(N,) steps of the running takeover still to come."""
        self.best = np.full(toy_env.num_envs, np.inf)
        """(N,) least remaining way in which there was progress [m]."""
        self.stalled, self.astray = (
            np.zeros(toy_env.num_envs, np.int64),
            np.zeros(toy_env.num_envs, np.int64),
        )
        """(N,) steps without progress; steps in a row with actions far from the expert's."""

    def act(self, proposed_NA: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The executed actions (N, A), and where the person overrides `proposed_NA`, (N,) bool."""
        config, toy_env = self.config, self.toy_env
        expert_NA = toy_env.expert() if self.policy is None else self.policy(toy_env.observe())
        self._watch(proposed_NA, expert_NA)
        failing = (self.stalled >= config.patience) | (self.astray >= config.patience)
        probability = config.probability * 0.5 ** (self.made / config.half_life)
        starting = (
            failing
            & (self.left == 0)
            & (np.array([rng.random() for rng in self.rngs]) < probability)
        )
        self.left[starting] = config.hold
        acts = self.left > 0
        # After a takeover the learner's stall counters restart.
        self.stalled[acts], self.astray[acts] = 0, 0
        self.left[acts] -= 1
        self.made += toy_env.num_envs
        return np.where(acts[:, None], expert_NA, proposed_NA), acts

    def _watch(self, proposed_NA: np.ndarray, expert_NA: np.ndarray) -> None:
        started = self.toy_env.steps == 0
        self.left[started], self.stalled[started], self.astray[started] = 0, 0, 0
        self.best[started] = np.inf
        remaining = self.toy_env.remaining()
        progress = remaining < self.best - self.config.progress
        self.best = np.where(progress, remaining, self.best)
        self.stalled = np.where(progress, 0, self.stalled + 1)
        away = np.abs(proposed_NA - expert_NA).max(axis=1) > self.config.far
        self.astray = np.where(away, self.astray + 1, 0)


Collect = Callable[[Learner, np.random.Generator], Steps]


def collector(toy_env: ToyEnv, person: Person | None = None) -> Collect:
    """A collect function for `policies.rl.off_policy.online.learn_online`: one step in every
    environment, by the learner or the person."""

    def collect(learner: Learner, rng: np.random.Generator) -> Steps:
        proposed_NA = learner.act(toy_env.observe(), rng)
        if person is None:
            return toy_env.transition(proposed_NA)[0]
        executed_NA, acts = person.act(proposed_NA)
        return toy_env.transition(executed_NA, intervention=acts, proposed=proposed_NA)[0]

    return collect
