"""Small vectorised worlds in NumPy: N of them, one class per problem, thousands of steps per second and row.

Shape suffixes: N worlds, O observation, A action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from robots.steps import Steps, plain_steps


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
    """N worlds of one problem, with episodes, time limit and automatic resets; a problem fills in five methods.

    Args:
        num_envs: N.
        seed: of all starts; world i draws from a stream of its own.
    """

    observation_size: int
    action_size: int
    max_steps: int

    def __init__(self, num_envs: int = 1, seed: int = 0) -> None:
        self.num_envs = num_envs
        self.rngs = [np.random.default_rng([seed, i]) for i in range(num_envs)]
        self.steps = np.zeros(num_envs, np.int64)
        self.episode = np.arange(num_envs, dtype=np.int64)
        """(N,) number of each world's running episode, different for all."""
        self.finished = 0
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
    def expert(self) -> np.ndarray:
        """(N, A) what a person who can do it does now; a function of the present."""

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

    def transition(self, action_NA: np.ndarray, *, demo: bool = False, **flags: np.ndarray) -> tuple[Steps, Outcome]:
        """Steps all worlds and returns what a learner is told of it; `flags` are `plain_steps`' keyword arguments."""
        before, episode, index = self.observe(), self.episode.copy(), self.steps.copy()
        outcome = self.step(action_NA)
        steps = plain_steps(
            episode,
            index,
            before,
            action_NA,
            outcome.reward,
            outcome.final_observation,
            outcome.terminated,
            outcome.truncated,
            demo=demo,
            **flags,  # type: ignore[arg-type]
        )
        return steps, outcome


def demonstrations(bed: Bed, episodes: int) -> list[Steps]:
    """The first `episodes` whole episodes of the expert, one `Steps` per control step of all worlds.

    Episodes of different worlds are interleaved as they were made; unfinished ones are left out.
    """
    from robots.steps import chosen

    taken = set(range(episodes))
    made: list[Steps] = []
    while min((*bed.episode.tolist(), 10**9)) < episodes:
        steps, _ = bed.transition(bed.expert(), demo=True)
        keep = np.isin(steps.episode, list(taken))
        if keep.any():
            made.append(chosen(steps, keep))
    return made


def success_rate(bed: Bed, act, episodes: int) -> float:
    """Share of `episodes` solved by `act`, a function from (N, O) to (N, A); N divides `episodes`."""
    results: list[bool] = []
    counted = np.zeros(bed.num_envs, np.int64)
    observation = bed.observe()
    each = episodes // bed.num_envs
    while (counted < each).any():
        outcome = bed.step(act(observation))
        for row in np.flatnonzero(outcome.terminated | outcome.truncated):
            if counted[row] < each:
                results.append(bool(outcome.success[row]))
                counted[row] += 1
        observation = outcome.observation
    return float(np.mean(results))
