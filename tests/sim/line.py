"""Environments whose course is known beforehand: a place that counts steps, solved after a number
of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from robots.spec import ActionSpec, FieldSpec
from sim.engine import EngineState
from sim.vec_env import EngineVecEnv, VecEnvConfig


class LineEngine:
    """An environment started from `seed` is at 100 seed + (steps taken) and is solved after
    `lengths(seed)` steps."""

    name = "line"
    rate_hz = 10.0
    max_steps = 1000
    observation_spec: Mapping[str, FieldSpec] = {"place": FieldSpec(shape=(1,))}
    action_spec = ActionSpec(low=(-1.0,), high=(1.0,))

    def __init__(
        self, num_envs: int, lengths: Callable[[int], int], coverage: Callable[[int], float]
    ) -> None:
        self.num_envs, self.lengths, self.coverage = num_envs, lengths, coverage
        self.seed, self.count = np.zeros(num_envs, dtype=int), np.zeros(num_envs, dtype=int)
        self.actions: list[np.ndarray] = []

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        self.seed[env_ids], self.count[env_ids] = seeds, 0

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        self.actions.append(action[:, 0].copy())
        self.count += running

    def read(self) -> EngineState:
        solved = self.count >= np.array([self.lengths(int(seed)) for seed in self.seed])
        coverage = np.array([self.coverage(int(count)) for count in self.count])
        place = (100.0 * self.seed + self.count)[:, None]
        return EngineState({"place": place}, 2.0 * coverage, solved, solved, {"coverage": coverage})

    def save(self) -> dict[str, np.ndarray]:
        return {"place": self.seed.copy(), "count": self.count.copy()}

    def restore(self, env_ids: np.ndarray, state: dict[str, np.ndarray]) -> None:
        self.seed[env_ids], self.count[env_ids] = state["place"], state["count"]

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        return {"count": self.count[env_id]}

    def close(self) -> None:
        """Nothing is open."""


class Line(EngineVecEnv):
    """Frozen when solved; draws a picture as bright as its count."""

    def __init__(
        self,
        num_envs: int,
        lengths: Callable[[int], int] = lambda seed: 1000,
        coverage: Callable[[int], float] = lambda step: step / 10.0,
    ) -> None:
        self.line = LineEngine(num_envs, lengths, coverage)
        super().__init__(self.line, VecEnvConfig(on_end="freeze", guard_steps=0))

    def render(self, env_id: int) -> np.ndarray:
        return np.full((16, 16, 3), 10 * self.line.count[env_id], dtype=np.uint8)


def even_seeds_after_three(seed: int) -> int:
    """Lengths for environments of which half are solved."""
    return 1000 if seed % 2 else 3


def make_line(num_envs: int, pictures: bool = False) -> Line:
    """Environments whose even seeds are solved after 3 steps, the odd ones never."""
    return Line(num_envs, even_seeds_after_three)
