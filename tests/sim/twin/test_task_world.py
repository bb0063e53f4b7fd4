"""A task's table behind the twin's joint torques: the scene, the starts and the fields of the
simulated engine."""

from __future__ import annotations

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.franka import find_robot
from sim.engines.mujoco import MujocoEngine
from sim.make import TASKS, find_task
from sim.twin.task_world import ROBOT_FIELDS, TaskWorld

FR3 = find_robot("fr3")

WITH_GRIPPER = [name for name in TASKS if name != "push_t"]


@pytest.mark.parametrize("name", WITH_GRIPPER)
def test_a_seed_begins_as_in_the_simulated_environments(name: str) -> None:
    world, engine = TaskWorld(name), MujocoEngine(find_task(name), 1)
    world.reset(100_003)
    engine.reset(np.array([0]), np.array([100_003]))
    qpos, goal = world.scene()
    np.testing.assert_array_equal(qpos, engine.qpos[0])
    np.testing.assert_array_equal(goal, engine.view.goal[0])
    observed, objects = engine.read().observation, world.object_observations()
    assert objects.keys() == observed.keys() - set(ROBOT_FIELDS)
    for field, value in objects.items():
        np.testing.assert_array_equal(value, observed[field][0], err_msg=field)
    assert world.outcome() == (False, False)


def test_the_arm_rests_without_torques_beyond_gravity_compensation() -> None:
    world = TaskWorld("pick_cube")
    before = world.q.copy()
    for _ in range(200):
        world.step(np.zeros(7))
    np.testing.assert_allclose(world.q, before, atol=1e-4)
    assert world.time == pytest.approx(0.2)


def test_end_effector_is_the_gripper_with_its_fingers() -> None:
    world = TaskWorld("flip_switch")
    assert world.ee_mass == pytest.approx(FR3.gripper.mass)
    assert world.flange_T_ee[2, 3] == pytest.approx(FR3.gripper.tcp_offset)
    np.testing.assert_allclose(
        world.base_T_ee, FR3.chain.forward_kinematics(world.q) @ world.flange_T_ee, atol=1e-9
    )


@pytest.mark.parametrize(("target", "expected"), [(-0.1, 0.0), (0.2, FR3.gripper.width_max)])
def test_fingers_that_press_their_stops_stay_there(target: float, expected: float) -> None:
    world = TaskWorld("pick_cube")
    world.gripper.press(target, FR3.gripper.force_max)
    for _ in range(1500):
        world.step(np.zeros(7))
    assert world.gripper.width == pytest.approx(expected, abs=1e-3)


def test_a_peg_is_held_from_the_start() -> None:
    world = TaskWorld("peg_insert")
    world.reset(100_000)
    begun = world.gripper.width
    for _ in range(500):
        world.step(np.zeros(7))
    assert world.gripper.width == pytest.approx(begun, abs=2e-3)
    assert world.outcome() == (False, False)


def test_a_task_without_a_gripper_is_refused() -> None:
    with pytest.raises(HandoffError, match="push_t: its arm carries no gripper"):
        TaskWorld("push_t")
