"""Joint friction, pushes and payloads of the simulated arm, against numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.friction import PANDA_FRICTION
from sim.twin.task_world import TaskWorld
from sim.twin.twin import TwinConfig, _published_friction, start_twin
from sim.twin.unit.control_unit import ControlUnit
from tests.sim.twin.loopback import address

FR3 = find_robot("fr3")
G = 9.81


@pytest.fixture
def world() -> TaskWorld:
    return TaskWorld("reach")


def settle(unit: ControlUnit, cycles: int = 1500) -> None:
    for _ in range(cycles):
        unit.cycle(None)


def test_friction_is_zero_at_rest_and_a_sigmoid_elsewhere():
    # Joint 1 at 1 rad/s: 0.54615 / (1 + exp(-5.1181 * 1.039533)), less 0.54615 / (1 + exp(-0.202334)).
    torque = PANDA_FRICTION.torque(np.array([np.zeros(7), np.ones(7), -np.ones(7)]))
    np.testing.assert_array_equal(torque[0], 0.0)
    expected = 0.54615 / (1 + np.exp(-5.320436)) - 0.54615 / (1 + np.exp(-0.202334))
    assert torque[1, 0] == pytest.approx(expected, abs=1e-6)
    assert (torque[1] > 0.0).all()
    assert (torque[2] < 0.0).all()


def test_friction_slows_a_moving_joint_and_is_no_external_torque(world: TaskWorld):
    speeds = []
    for friction in (None, PANDA_FRICTION):
        world.reset(0)
        world.rub(friction)
        world.dq[3] = 0.5
        world.step(np.zeros(7))
        speeds.append(float(world.dq[3]))
        np.testing.assert_array_equal(world.tau_ext, 0.0)
    # 0.5 Nm more or less brake the 0.3 to 1 kg m^2 of joint 4 by about a milliradian per second.
    assert 2e-4 < speeds[0] - speeds[1] < 3e-3


def test_a_world_without_friction_again_moves_as_before(world: TaskWorld):
    torque = np.array([0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0])

    def moved() -> np.ndarray:
        world.reset(0)
        for _ in range(50):
            world.step(torque)
        return world.q.copy()

    before = moved()
    world.rub(PANDA_FRICTION)
    with_friction = moved()
    world.rub(None)
    assert np.abs(with_friction - before).max() > 1e-5
    np.testing.assert_array_equal(moved(), before)


def test_a_payload_pulls_the_arm_down_and_shows_as_an_external_force(world: TaskWorld):
    unit = ControlUnit(world)
    settle(unit, 200)
    height = world.base_T_ee[2, 3]
    world.load(1.5, (0.0, 0.0, 0.05))
    settle(unit)
    np.testing.assert_allclose(unit.F_ext[:3], [0.0, 0.0, -1.5 * G], atol=0.05)
    sagged = height - world.base_T_ee[2, 3]
    assert 1e-3 < sagged < 0.05
    world.load(0.0)
    settle(unit)
    assert world.base_T_ee[2, 3] == pytest.approx(height, abs=1e-4)
    np.testing.assert_array_equal(unit.F_ext, 0.0)


def test_a_falling_payload_weighs_nothing(world: TaskWorld):
    """An arm that falls with its payload feels less of it than one that is held."""
    world.load(1.0)
    world.step(np.zeros(7))
    held = np.abs(world.tau_ext).max()
    for _ in range(20):
        world.step(np.zeros(7))
    assert np.abs(world.tau_ext).max() < 0.9 * held


def test_a_reset_is_no_acceleration_of_the_payload(world: TaskWorld):
    world.load(1.0)
    world.step(np.zeros(7))
    at_rest = world.tau_ext.copy()
    for _ in range(200):
        world.step(np.array([20.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    world.reset(0)
    world.step(np.zeros(7))
    np.testing.assert_allclose(world.tau_ext, at_rest, atol=1e-9)


@pytest.mark.parametrize("mass", [-1.0, float("nan")])
def test_an_impossible_payload_is_refused(world: TaskWorld, mass: float):
    with pytest.raises(HandoffError, match="payload of"):
        world.load(mass)


def test_a_push_ends(world: TaskWorld):
    world.push((0.0, 0.0, -10.0), 0.002)
    felt = []
    for _ in range(4):
        world.step(np.zeros(7))
        felt.append(bool(world.tau_ext.any()))
    assert felt == [True, True, False, False]


def test_the_twin_has_friction_only_where_it_is_chosen():
    ends = []
    for config in (
        TwinConfig(host=address(41), friction="none"),
        TwinConfig(host=address(42), friction="published"),
    ):
        with start_twin(config, partial(TaskWorld, "reach")) as twin:
            twin.call("push", (0.0, 30.0, 0.0), 0.1)
            twin.advance(0.1)
            ends.append(twin.call("scene")[0])
    assert np.abs(ends[0] - ends[1]).max() > 1e-5


def test_a_robot_without_published_friction_is_named():
    with pytest.raises(HandoffError, match="fr3 states none"):
        _published_friction(replace(FR3, friction=None))
