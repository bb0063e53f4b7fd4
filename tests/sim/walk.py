"""A tiny engine with everything that can go wrong between environments: noise of its own, an end,
and states to save."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import EnvState, VecEnv
from robots.spec import ActionSpec, FieldSpec
from sim.engine import EngineState
from sim.vec_env import EngineVecEnv, VecEnvConfig

OnEnd = Literal["reset", "freeze"]
FAR = 4.0
"""Where a walk ends."""


class WalkEngine:
    """Walks on a line: a start from the seed, a little noise of each environment's own, and an end
    at `FAR`."""

    name = "walk"
    rate_hz = 20.0
    max_steps = 50
    observation_spec: Mapping[str, FieldSpec] = {
        "place": FieldSpec(shape=(1,), dtype="float64", unit="m")
    }
    action_spec = ActionSpec(low=(-1.0,), high=(1.0,), unit="m")

    def __init__(self, num_envs: int, *, steps_all: bool = False, can_save: bool = True):
        """`steps_all` moves environments that do not run as well, as batched GPU engines do."""
        self.num_envs, self.steps_all, self.can_save = num_envs, steps_all, can_save
        self.place, self.reward = np.zeros(num_envs), np.zeros(num_envs)
        self.seed, self.count = (
            np.zeros(num_envs, dtype=np.int64),
            np.zeros(num_envs, dtype=np.int64),
        )
        self.closed = 0

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        self.seed[env_ids], self.count[env_ids], self.reward[env_ids] = seeds, 0, 0.0
        self.place[env_ids] = [self._noise(int(i)) for i in env_ids]

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        for i in range(self.num_envs) if self.steps_all else np.flatnonzero(running).tolist():
            self.count[i] += 1
            self.place[i] += action[i, 0] + 0.01 * self._noise(i)
            self.reward[i] = self.place[i]
            if action[i, 0] > 100.0:
                self.place[i] = np.nan

    def read(self) -> EngineState:
        over = self.place >= FAR
        return EngineState(
            observation={"place": self.place[:, None].copy()},
            reward=self.reward.copy(),
            terminated=over,
            success=over.copy(),
            info={"count": self.count.copy()},
        )

    def save(self) -> EnvState:
        if not self.can_save:
            raise HandoffError("walk: cannot save.")
        # The episodes' own state has a "seed".
        fields = {name: getattr(self, name).copy() for name in ("place", "reward", "count")}
        return {**fields, "start": self.seed.copy()}

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        for name in ("place", "reward", "count"):
            getattr(self, name)[env_ids] = state[name]
        self.seed[env_ids] = state["start"]

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        return {"place": self.place[env_id : env_id + 1]}

    def close(self) -> None:
        self.closed += 1

    def _noise(self, env_id: int) -> float:
        return float(
            np.random.default_rng([self.seed[env_id], self.count[env_id]]).uniform(-1.0, 1.0)
        )


def make_walk(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    return EngineVecEnv(WalkEngine(num_envs), VecEnvConfig(on_end=on_end, max_steps=max_steps))


def make_walk_of_all(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    return EngineVecEnv(
        WalkEngine(num_envs, steps_all=True), VecEnvConfig(on_end=on_end, max_steps=max_steps)
    )


def make_walk_specified(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    """Rewarded by a specification, so with a history that is part of the state."""
    # The other side of an environment server, which reads this module, has no pydantic.
    from sim.specified_reward import SpecifiedReward, SpecifiedRewardConfig

    config = SpecifiedRewardConfig(
        specifications={"ahead": "eventually always[0, 0.1] (place[0] > 1)"}
    )
    rewarded = SpecifiedReward(WalkEngine(num_envs), config, max_steps)
    return EngineVecEnv(rewarded, VecEnvConfig(on_end=on_end, max_steps=max_steps))


def make_walk_in_workers(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    from sim.processes.vec_env import worker_vec_env

    make = partial(make_walk, on_end=on_end, max_steps=max_steps)
    return worker_vec_env(make, num_envs, min(2, num_envs))


def engine(task: str, num_envs: int, options: Mapping[str, Any]) -> WalkEngine:
    """The engine of an environment server: `engine: tests.sim.walk`."""
    return WalkEngine(num_envs, **options)


def make_walk_in_server(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    from tests.sim.servers.served import served_walk

    return served_walk(num_envs, on_end=on_end, max_steps=max_steps)
