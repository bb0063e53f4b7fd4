"""A task without a gripper's entry in its actions gets one, so that one policy does it beside
others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.config.protocols import read_protocol
from robots.errors import HandoffError
from sim.evaluation.protocol import vector_fields
from sim.make import EnvConfig, find_task, make_vec_env
from sim.recording.config import ExpertDemonstrationsConfig
from sim.recording.demonstrations import demonstrate


def test_actions_and_observations_are_those_of_tasks_with_the_gripper() -> None:
    plain, pick = (make_vec_env(EnvConfig(task=task), 2) for task in ("reach", "pick_cube"))
    env = make_vec_env(EnvConfig(task="reach", gripper_entry=True), 2)
    assert env.action_spec.names == (*plain.action_spec.names, "gripper")
    for name in ("width", "width_target"):
        assert env.observation_spec[name] == pick.observation_spec[name]
    # The start is the same, and the gripper follows its entry.
    start, widened = plain.reset([5, 6]), env.reset([5, 6])
    for name, values in start.items():
        np.testing.assert_array_equal(widened[name], values)
    actions = np.array([[0.0, 0.0, 0.0, -1.0], [0.0, 0.0, 0.0, 1.0]])
    *_, step = [env.step(actions) for _ in range(20)]
    closed, opened = step.observation["width"][:, 0]
    assert closed < 0.01
    assert opened > 0.07
    for each in (plain, pick, env):
        each.close()


def test_tasks_that_have_the_entry_stay_and_tools_are_refused() -> None:
    assert find_task("pick_cube", gripper_entry=True) is find_task("pick_cube")
    with pytest.raises(HandoffError, match=r"'push_t' has no gripper\. Remove gripper_entry"):
        make_vec_env(EnvConfig(task="push_t", gripper_entry=True), 1)
    with pytest.raises(HandoffError, match=r"ignores \['gripper_entry'\]"):
        make_vec_env(EnvConfig(engine="gym", task="CartPole-v1", gripper_entry=True), 1)


def test_the_expert_demonstrates_with_it(tmp_path: Path) -> None:
    task = find_task("reach", gripper_entry=True)
    recorded = demonstrate(task, range(4), tmp_path / "s.zarr", ExpertDemonstrationsConfig())
    assert recorded.success_rate == 1.0


def test_a_protocol_knows_the_fields() -> None:
    protocol = replace(read_protocol("reach"), options={"gripper_entry": True})
    fields = vector_fields(protocol)
    assert fields is not None
    assert {"width", "goal"} <= fields.keys()
