"""Worlds that go on after success, on a walk that ends where it arrives."""

from __future__ import annotations

import numpy as np

from sim.ignore_success import Endless
from sim.vec_env import Worlds, WorldsConfig
from tests.sim.walk import FAR, WalkEngine


def test_success_is_told_and_ends_nothing_before_the_time_limit() -> None:
    worlds = Worlds(Endless(WalkEngine(1)), WorldsConfig(on_end="freeze", max_steps=8))
    worlds.reset([0])
    steps = [worlds.step(np.ones((1, 1))) for _ in range(8)]
    solved = [bool(step.info["success"][0]) for step in steps]
    assert solved.index(True) < 6, f"a walk of {FAR} m at 1 m per step"
    assert [bool(step.terminated[0]) for step in steps] == [False] * 8
    assert [bool(step.truncated[0]) for step in steps] == [False] * 7 + [True]


def test_without_it_success_ends_the_episode() -> None:
    worlds = Worlds(WalkEngine(1), WorldsConfig(on_end="freeze", max_steps=8))
    worlds.reset([0])
    assert any(worlds.step(np.ones((1, 1))).terminated[0] for _ in range(8))


def test_it_saves_and_restores_like_the_engine_behind_it() -> None:
    worlds = Worlds(Endless(WalkEngine(2)), WorldsConfig(on_end="freeze"))
    worlds.reset([0, 1])
    state = worlds.save()
    first = worlds.step(np.ones((2, 1))).observation["place"]
    worlds.restore(state)
    assert np.array_equal(worlds.step(np.ones((2, 1))).observation["place"], first)
