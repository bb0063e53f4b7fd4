"""Environments whose every number is known."""

from collections.abc import Mapping, Sequence

import numpy as np

from robots.interfaces import Observation, Step
from robots.spec import ActionSpec, FieldSpec

LIMIT = 7
"""Steps after which the counting environments run into their time limit."""


class Counting:
    """Environments that observe their seed and their steps, are paid the step's number, and freeze
    when they end.

    Environment 0 is solved at step 3 of every episode, the others never.
    """

    rate_hz = 10.0

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.observation_spec: Mapping[str, FieldSpec] = {
            "seed": FieldSpec(shape=(1,)),
            "step": FieldSpec(shape=(1,)),
        }
        self.action_spec = ActionSpec(low=(-9.0,), high=(9.0,))
        self.seeds, self.steps = np.zeros(num_envs), np.zeros(num_envs)
        self.done: list[tuple[int, list[float]]] = []

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> Observation:
        rows = list(range(self.num_envs)) if env_ids is None else list(env_ids)
        self.seeds[rows], self.steps[rows] = seeds, 0
        return self._obs()

    def step(self, action: np.ndarray) -> Step:
        assert action.ndim == 3
        rewards, executed = np.zeros(action.shape[:2]), np.zeros(self.num_envs, np.int64)
        for h in range(action.shape[1]):
            running = ~self._over()
            self.steps += running
            rewards[:, h] = np.where(running, self.steps, 0.0)
            executed += running
            self.done.append((h, action[:, h, 0].tolist()))
        solved = self._solved()
        return Step(
            observation=self._obs(),
            reward=rewards,
            terminated=solved,
            truncated=(self.steps >= LIMIT) & ~solved,
            final_observation=self._obs(),
            info={"success": solved},
            executed=executed,
        )

    def save(self):
        raise NotImplementedError

    def restore(self, state, env_ids=None):
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to free."""

    def _solved(self) -> np.ndarray:
        return (np.arange(self.num_envs) == 0) & (self.steps >= 3)

    def _over(self) -> np.ndarray:
        return self._solved() | (self.steps >= LIMIT)

    def _obs(self) -> Observation:
        return {"seed": self.seeds[:, None].copy(), "step": self.steps[:, None].copy()}


EDGE = 20
CAMERA = FieldSpec(shape=(EDGE, EDGE, 3), dtype="uint8", unit="u8")


def picture(seed: float, step: float) -> np.ndarray:
    """What a camera shows of a counting environment."""
    image = np.zeros((EDGE, EDGE, 3), np.uint8)
    image[: 2 + int(step)] = 200
    image[:, : 1 + int(seed) % 9, 1] = 90
    return image


class SeeingCounting(Counting):
    """Counting environments with a camera."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.observation_spec: Mapping[str, FieldSpec] = {
            **self.observation_spec,
            "camera": CAMERA,
        }

    def _obs(self) -> Observation:
        pictures = map(picture, self.seeds, self.steps)
        return {**super()._obs(), "camera": np.stack([*pictures])}
