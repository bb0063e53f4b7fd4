"""Defines small vectorised environments in NumPy, one class per problem, with thousands of steps
per second and environment.

Shape suffixes: N environments, O observation, A action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from robots.errors import HandoffError
from robots.wire.steps import Steps, plain_steps, select_steps

Act = Callable[[np.ndarray], np.ndarray]
"""A policy: maps observations (N, O) to actions (N, A)."""


class Outcome(NamedTuple):
    """Results of one action in each of N environments; ended ones are already reset."""

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


class ToyEnv(ABC):
    """N environments of one problem, with episodes, time limit and automatic resets; a problem
    fills in five methods.

    Args:
        num_envs: N.
        seed: seed of all initial states; environment i has its own random generator, so its states
            do not depend on N.
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
        """(N,) number of each environment's running episode, different for all."""
        self.finished = 0
        """Episodes ended so far."""
        for row in range(num_envs):
            self.start(row, self.rngs[row])

    @abstractmethod
    def start(self, row: int, rng: np.random.Generator) -> None:
        """Draws an initial state of environment `row`."""

    @abstractmethod
    def move(self, action_NA: np.ndarray) -> None:
        """One step of all environments by actions in [-1, 1]."""

    @abstractmethod
    def observe(self) -> np.ndarray:
        """(N, O) float32."""

    @abstractmethod
    def solved(self) -> np.ndarray:
        """(N,) bool."""

    @abstractmethod
    def expert(self, misjudged_N2: np.ndarray | float = 0.0) -> np.ndarray:
        """(N, A) actions of an expert; a function of the current state.

        Args:
            misjudged_N2: error of the expert's estimate of the point's position [m]; with 0 it
                always succeeds.
        """

    def remaining(self) -> np.ndarray:
        """(N,) remaining distance until the problem is solved [m]; needed by problems that a person
        watches."""
        raise HandoffError(
            f"toy env: {type(self).__name__} has no remaining distance, so a person cannot detect a stall."
        )

    def toggled(self, action_NA: np.ndarray) -> np.ndarray:
        """(N,) bool, whether the action toggles the gripper; false without a gripper."""
        return np.zeros(len(action_NA), bool)

    def reward(self) -> np.ndarray:
        """(N,) current reward; 1 where solved, unless a problem overrides it."""
        return self.solved().astype(np.float32)

    def step(self, action_NA: np.ndarray) -> Outcome:
        """One step in every environment; those whose episode ends are reset."""
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
        """Steps all environments and returns the steps for a learner; see `plain_steps` for the
        flags."""
        obs, episode, number = self.observe(), self.episode.copy(), self.steps.copy()
        toggle = self.toggled(action_NA)
        outcome = self.step(action_NA)
        steps = plain_steps(
            episode,
            number,
            obs,
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


def rollouts(toy_env: ToyEnv, act: Act, episodes: int, *, demo: bool = False) -> list[Steps]:
    """The first `episodes` whole episodes of a fresh toy environment, one `Steps` per control step
    of all environments.

    They are the first to begin, regardless of when they ended, so short ones are not preferred.
    Episodes of different environments are interleaved; unfinished ones are left out.

    Raises:
        HandoffError: the toy environment has been stepped.
    """
    if toy_env.finished or toy_env.steps.any():
        raise HandoffError(
            f"toy env: {toy_env.finished} episodes have ended, expected a fresh one. Make one per dataset."
        )
    steps_made: list[Steps] = []
    while toy_env.episode.min() < episodes:
        steps, _ = toy_env.transition(act(toy_env.observe()), demo=demo)
        selected = steps.episode < episodes
        if selected.any():
            steps_made.append(select_steps(steps, selected))
    return steps_made


def demonstrations(toy_env: ToyEnv, episodes: int) -> list[Steps]:
    """`rollouts` of the expert."""
    return rollouts(toy_env, lambda _: toy_env.expert(), episodes, demo=True)


def success_rate(toy_env: ToyEnv, act: Act, episodes: int) -> float:
    """Share of `episodes` solved by `act`; the first of every environment, equally many of each.

    Raises:
        HandoffError: N does not divide `episodes`.
    """
    if episodes % toy_env.num_envs:
        raise HandoffError(
            f"toy env: {episodes} episodes in {toy_env.num_envs} environments, expected a multiple of their number."
        )
    solved = 0
    left = np.full(toy_env.num_envs, episodes // toy_env.num_envs)
    observation = toy_env.observe()
    while left.any():
        outcome = toy_env.step(act(observation))
        counted = (outcome.terminated | outcome.truncated) & (left > 0)
        solved += int((outcome.success & counted).sum())
        left -= counted
        observation = outcome.observation
    return solved / episodes
