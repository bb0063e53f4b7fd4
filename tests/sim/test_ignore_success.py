"""Environments that go on after success, on a walk that ends where it arrives."""

from __future__ import annotations

import numpy as np

from sim.ignore_success import IgnoreSuccess
from sim.vec_env import EngineVecEnv, VecEnvConfig
from tests.sim.walk import FAR, WalkEngine


def test_success_is_reported_and_does_not_end_the_episode() -> None:
    env = EngineVecEnv(IgnoreSuccess(WalkEngine(1)), VecEnvConfig(on_end="freeze", max_steps=8))
    env.reset([0])
    steps = [env.step(np.ones((1, 1))) for _ in range(8)]
    solved = [bool(step.info["success"][0]) for step in steps]
    assert solved.index(True) < 6, f"a walk of {FAR} m at 1 m per step"
    assert [bool(step.terminated[0]) for step in steps] == [False] * 8
    assert [bool(step.truncated[0]) for step in steps] == [False] * 7 + [True]


def test_without_it_success_ends_the_episode() -> None:
    env = EngineVecEnv(WalkEngine(1), VecEnvConfig(on_end="freeze", max_steps=8))
    env.reset([0])
    assert any(env.step(np.ones((1, 1))).terminated[0] for _ in range(8))


def test_it_saves_and_restores_like_the_engine_behind_it() -> None:
    env = EngineVecEnv(IgnoreSuccess(WalkEngine(2)), VecEnvConfig(on_end="freeze"))
    env.reset([0, 1])
    state = env.save()
    first = env.step(np.ones((2, 1))).observation["place"]
    env.restore(state)
    assert np.array_equal(env.step(np.ones((2, 1))).observation["place"], first)
