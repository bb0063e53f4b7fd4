"""Capture times of a simulated environment's cameras."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from flows.session.capture import CapturingVecEnv
from robots.spec import FieldSpec
from sim.engine import EngineState
from sim.vec_env import VecEnvConfig
from tests.sim.walk import WalkEngine

PERIOD = 1.0 / WalkEngine.rate_hz


class WatchedWalk(WalkEngine):
    """A walk with one camera."""

    observation_spec: Mapping[str, FieldSpec] = {
        **WalkEngine.observation_spec,
        "image_side": FieldSpec(shape=(2, 2, 3), dtype="uint8", unit="u8"),
    }

    def read(self) -> EngineState:
        state = super().read()
        image = np.zeros((self.num_envs, 2, 2, 3), np.uint8)
        return state._replace(observation={**state.observation, "image_side": image})


def test_a_picture_has_the_time_of_its_step_since_the_first_observation() -> None:
    env = CapturingVecEnv(WatchedWalk(2), VecEnvConfig(on_end="freeze"))
    assert env.observation_spec["image_side_time"].unit == "s"
    assert env.reset([0, 1])["image_side_time"].tolist() == [0.0, 0.0]
    step = env.step(np.array([[9.0], [0.0]]))
    assert step.observation["image_side_time"].tolist() == [PERIOD, PERIOD]
    step = env.step(np.zeros((2, 1)))
    assert step.observation["image_side_time"].tolist() == [PERIOD, 2 * PERIOD], "one has ended"


def test_the_last_picture_belongs_to_the_episode_that_ended() -> None:
    env = CapturingVecEnv(WatchedWalk(1), VecEnvConfig(on_end="reset"))
    env.reset([0])
    env.step(np.zeros((1, 1)))
    step = env.step(np.array([[9.0]]))
    assert step.terminated[0]
    assert step.final_observation["image_side_time"].tolist() == [2 * PERIOD]
    assert step.observation["image_side_time"].tolist() == [0.0]


def test_a_restored_environment_goes_on_with_its_time() -> None:
    env = CapturingVecEnv(WatchedWalk(1), VecEnvConfig(on_end="freeze"))
    env.reset([0])
    env.step(np.zeros((1, 1)))
    state = env.save()
    env.step(np.zeros((1, 1)))
    assert env.restore(state)["image_side_time"].tolist() == [PERIOD]


def test_an_environment_without_a_camera_has_no_further_field() -> None:
    env = CapturingVecEnv(WalkEngine(1))
    assert set(env.reset([0])) == {"place"} == set(env.observation_spec)


def test_a_late_picture_has_the_time_at_which_it_was_taken_but_none_before_the_start() -> None:
    env = CapturingVecEnv(WatchedWalk(1), VecEnvConfig(on_end="freeze"), latency=1.5 * PERIOD)
    assert env.reset([0])["image_side_time"].tolist() == [0.0]
    assert env.step(np.zeros((1, 1))).observation["image_side_time"].tolist() == [0.0]
    third = env.step(np.zeros((1, 1))).observation["image_side_time"]
    assert third == pytest.approx([0.5 * PERIOD])
