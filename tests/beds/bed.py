"""Small vectorised worlds in NumPy: N of them, one class per problem, thousands of steps per second
and row.

Shape suffixes: N worlds, O observation, A action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from robots.errors import HandoffError
from robots.wire.steps import Steps, chosen, plain_steps

Act = Callable[[np.ndarray], np.ndarray]
"""(N, O) to (N, A): whoever acts."""


class Outcome(NamedTuple):
    """What N worlds answer to one action each; ended ones have already started anew."""

    observation: np.ndarray
    """(N, O) after an automatic reset."""
    reward: np.ndarray
    """(N,)."""
    terminated: np.ndarray
    """(N,) bool."""
    truncated: np.ndarray
    """(N,) bool."""
    final_observation: np.ndarray
    """(N, O) before an automatic reset."""
    success: np.ndarray
    """(N,) bool: solved at this step."""


class Bed(ABC):
    """N worlds of one problem, with episodes, time limit and automatic resets; a problem fills in
    five methods.

    Args:
        num_envs: N.
        seed: of all starts; world i draws from a stream of its own, so it does not depend on N.
    """

    observation_size: int
    action_size: int
    max_steps: int
    near: float
    """Distance to a target that counts as there [m]."""

    def __init__(self, num_envs: int = 1, seed: int = 0) -> None:
        self.num_envs = num_envs
        self.rngs = [np.random.default_rng([seed, i]) for i in range(num_envs)]
        self.steps = np.zeros(num_envs, np.int64)
        """(N,) steps made in the running episode."""
        self.episode = np.arange(num_envs, dtype=np.int64)
        """(N,) number of each world's running episode, different for all."""
        self.finished = 0
        """Episodes ended so far."""
        for row in range(num_envs):
            self.start(row, self.rngs[row])

    @abstractmethod
    def start(self, row: int, rng: np.random.Generator) -> None:
        """Draws a start of world `row`."""

    @abstractmethod
    def move(self, action_NA: np.ndarray) -> None:
        """One step of all worlds by actions in [-1, 1]."""

    @abstractmethod
    def observe(self) -> np.ndarray:
        """(N, O) float32."""

    @abstractmethod
    def solved(self) -> np.ndarray:
        """(N,) bool."""

    @abstractmethod
    def expert(self, misjudged_N2: np.ndarray | float = 0.0) -> np.ndarray:
        """(N, A) what a person does now; a function of the present.

        Args:
            misjudged_N2: by how much they misjudge where the point is [m]; with 0 they always
                succeed.
        """

    def remaining(self) -> np.ndarray:
        """(N,) way still to go until the problem is solved [m]; a problem that a person is to watch
        has one."""
        raise HandoffError(
            f"bed: {type(self).__name__} has no remaining way, so a person cannot see a stall in it."
        )

    def toggled(self, action_NA: np.ndarray) -> np.ndarray:
        """(N,) bool: the hand would be told to turn round; nowhere unless a problem has a hand."""
        return np.zeros(len(action_NA), bool)

    def reward(self) -> np.ndarray:
        """(N,) of the present; 1 where solved, unless a problem says otherwise."""
        return self.solved().astype(np.float32)

    def step(self, action_NA: np.ndarray) -> Outcome:
        """One step in every world; those that end start anew."""
        self.move(np.clip(action_NA, -1.0, 1.0))
        self.steps += 1
        success, reward = self.solved(), self.reward()
        truncated = ~success & (self.steps >= self.max_steps)
        final = self.observe()
        for row in np.flatnonzero(success | truncated):
            self.finished += 1
            self.steps[row] = 0
            self.episode[row] = self.num_envs + self.finished - 1
            self.start(int(row), self.rngs[row])
        return Outcome(self.observe(), reward, success, truncated, final, success)

    def transition(
        self,
        action_NA: np.ndarray,
        *,
        demo: bool = False,
        intervention: np.ndarray | None = None,
        proposed: np.ndarray | None = None,
        policy_version: int = -1,
    ) -> tuple[Steps, Outcome]:
        """Steps all worlds and returns what a learner is told of it; see `plain_steps` for the
        flags."""
        before, episode, number = self.observe(), self.episode.copy(), self.steps.copy()
        toggle = self.toggled(action_NA)
        outcome = self.step(action_NA)
        steps = plain_steps(
            episode,
            number,
            before,
            np.clip(action_NA, -1.0, 1.0),
            outcome.reward,
            outcome.final_observation,
            outcome.terminated,
            outcome.truncated,
            demo=demo,
            intervention=intervention,
            proposed=proposed,
            toggle=toggle,
            policy_version=policy_version,
        )
        return steps, outcome


def rollouts(bed: Bed, act: Act, episodes: int, *, demo: bool = False) -> list[Steps]:
    """The first `episodes` whole episodes of a fresh bed, one `Steps` per control step of all
    worlds.

    They are those that began first, whenever they ended, so short ones are not preferred. Episodes
    of different worlds are interleaved as they were made; unfinished ones are left out.

    Raises:
        HandoffError: the bed has been stepped.
    """
    if bed.finished or bed.steps.any():
        raise HandoffError(
            f"bed: {bed.finished} episodes have ended and others run, expected a fresh one. Make one per data set."
        )
    made: list[Steps] = []
    while bed.episode.min() < episodes:
        steps, _ = bed.transition(act(bed.observe()), demo=demo)
        wanted = steps.episode < episodes
        if wanted.any():
            made.append(chosen(steps, wanted))
    return made


def demonstrations(bed: Bed, episodes: int) -> list[Steps]:
    """`rollouts` of the expert."""
    return rollouts(bed, lambda _: bed.expert(), episodes, demo=True)


def success_rate(bed: Bed, act: Act, episodes: int) -> float:
    """Share of `episodes` solved by `act`; the first of every world, equally many of each.

    Raises:
        HandoffError: N does not divide `episodes`.
    """
    if episodes % bed.num_envs:
        raise HandoffError(
            f"bed: {episodes} episodes in {bed.num_envs} worlds, expected a multiple of their number."
        )
    solved = 0
    left = np.full(bed.num_envs, episodes // bed.num_envs)
    observation = bed.observe()
    while left.any():
        outcome = bed.step(act(observation))
        counted = (outcome.terminated | outcome.truncated) & (left > 0)
        solved += int((outcome.success & counted).sum())
        left -= counted
        observation = outcome.observation
    return solved / episodes
