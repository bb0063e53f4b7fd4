"""Joint friction, pushes and payloads of the simulated arm, against numbers by hand."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import replace
from functools import partial

import mujoco
import numpy as np
import pytest

from robots.config import validate
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.friction import PANDA_FRICTION
from sim.scene.deviations import Deviations
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


def deviations(*arm: tuple[str, float]) -> Deviations:
    return validate(
        Deviations, {"arm": [{"what": what, "value": value} for what, value in arm]}, ""
    )


def test_a_deviating_payload_is_between_the_fingertips_and_outlasts_that_of_a_fault(
    world: TaskWorld,
):
    unit = ControlUnit(world)
    world.deviate(deviations(("payload", 0.8)))
    settle(unit)
    np.testing.assert_allclose(unit.F_ext[:3], [0.0, 0.0, -0.8 * G], atol=0.05)
    # Another 1.2 kg at the same place: 2 kg there.
    world.load(1.2, (0.0, 0.0, FR3.gripper.tcp_offset))
    settle(unit)
    np.testing.assert_allclose(unit.F_ext[:3], [0.0, 0.0, -2.0 * G], atol=0.1)
    world.load(0.0)
    settle(unit)
    np.testing.assert_allclose(unit.F_ext[:3], [0.0, 0.0, -0.8 * G], atol=0.05)


def test_two_masses_act_at_their_common_centre(world: TaskWorld):
    world.deviate(deviations(("payload", 1.0)))
    world.load(3.0, (0.1, 0.0, FR3.gripper.tcp_offset))
    body = world.model.body("payload")
    assert body.mass[0] == pytest.approx(4.0)
    np.testing.assert_allclose(body.ipos, [0.075, 0.0, FR3.gripper.tcp_offset])


def test_dry_friction_holds_a_joint_and_is_no_external_torque(world: TaskWorld):
    world.deviate(deviations(("friction", 0.6)))
    for _ in range(200):
        world.step(np.array([0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    assert np.abs(world.dq[0]) < 1e-4
    np.testing.assert_allclose(world.tau_ext, 0.0, atol=1e-6)
    for _ in range(200):
        world.step(np.array([2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    assert world.dq[0] > 0.05
    np.testing.assert_allclose(world.tau_ext, 0.0, atol=1e-6)


def test_viscous_friction_is_proportional_to_the_velocity(world: TaskWorld):
    """Two equal arms, of which one has 3 Nm s/rad more: its joint 1 loses 3 * 0.5 Nm more."""
    lost = []
    for viscous in (0.1, 3.1):
        world.reset(0)
        world.deviate(deviations(("viscous", viscous)))
        world.dq[0] = 0.5
        # The forces of a state are computed at the end of the step before.
        world.step(np.zeros(7))
        before = float(world.dq[0])
        world.step(np.zeros(7))
        lost.append(before - float(world.dq[0]))
    world.reset(0)
    unit = np.zeros((1, world.model.nv))
    unit[0, 0] = 1.0
    answer = np.zeros_like(unit)
    mujoco.mj_solveM(world.model, world.data, answer, unit)
    apparent = 1.0 / answer[0, 0]
    assert lost[1] - lost[0] == pytest.approx(3.0 * 0.5 * 1e-3 / apparent, rel=0.02)


def test_the_twin_has_the_deviations_of_its_options_and_others_move_as_before():
    ends = []
    for host, config in (
        (43, Deviations()),
        (44, Deviations()),
        (45, deviations(("viscous", 5.0), ("friction", 1.0))),
    ):
        settings = TwinConfig(host=address(host), deviations=config)
        with start_twin(settings, partial(TaskWorld, "reach")) as twin:
            twin.call("push", (0.0, 30.0, 0.0), 0.1)
            twin.advance(0.1)
            ends.append(twin.call("scene")[0])
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.abs(ends[0] - ends[2]).max() > 1e-5
