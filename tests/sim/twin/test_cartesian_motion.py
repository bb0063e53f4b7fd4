"""Motions of the end effector at the twin, with the unmodified franky client, and its limits."""

from __future__ import annotations

import numpy as np
import pytest

from robots.franka import find_robot
from robots.franka.kinematics import rotation_matrix
from sim.twin.protocol import COMMAND, Controller, ErrorBit, Generator, MoveStatus, RobotMode
from sim.twin.push_t_world import PushTWorld
from sim.twin.twin import TwinConfig, start_twin
from sim.twin.unit.checks import PERIOD
from sim.twin.unit.control_unit import ControlUnit
from tests.sim.twin.loopback import address
from tests.sim.twin.test_twin import connect, finish, franky, lift

FR3 = find_robot("fr3")
STEPS = 800


@pytest.fixture(scope="module")
def world() -> PushTWorld:
    return PushTWorld()


@pytest.fixture
def unit(world: PushTWorld) -> ControlUnit:
    world.reset(np.array([0.256, 0.400]), np.array([0.256, 0.300, 0.0]), FR3.q_home)
    return ControlUnit(world)


def command(pose: np.ndarray | None = None, **fields: object) -> np.ndarray:
    record = np.zeros(1, COMMAND)
    if pose is not None:
        record["O_T_EE_c"] = pose.T.ravel()
    for name, value in fields.items():
        record[name] = value
    return record


def errors(unit: ControlUnit) -> list[ErrorBit]:
    return [ErrorBit(int(bit)) for bit in np.flatnonzero(unit.errors)]


def begun(unit: ControlUnit, generator: Generator = Generator.CARTESIAN_POSITION) -> np.ndarray:
    """Begins a motion; returns the pose from which it does."""
    unit.begin(1, Controller.JOINT_IMPEDANCE, generator)
    return unit.cartesian.pose.copy()


def share(step: int) -> float:
    """A smooth rise from 0 to 1 in `STEPS` steps, with bounded jerk."""
    t = step / STEPS
    return t**3 * (10.0 - 15.0 * t + 6.0 * t**2)


def test_the_end_effector_follows_a_line_and_a_turn(unit: ControlUnit):
    start = begun(unit)
    line, turn = np.array([0.03, -0.05, 0.04]), np.array([0.1, 0.05, -0.2])
    target = start
    for step in range(STEPS + 1):
        target = start.copy()
        target[:3, 3] += share(step) * line
        target[:3, :3] = rotation_matrix(share(step) * turn) @ start[:3, :3]
        unit.cycle(command(target))
    assert errors(unit) == []
    reached, _ = unit.arm.pose_and_jacobian(unit.reference[0], unit.world.flange_T_ee)
    np.testing.assert_allclose(reached, target, atol=1e-5)
    np.testing.assert_allclose(unit.world.base_T_ee, target, atol=2e-3)
    unit.cycle(command(target, motion_generation_finished=1))
    assert unit.replies == [(1, MoveStatus.SUCCESS)]


def test_an_elbow_that_is_commanded_is_reached_and_one_that_is_not_moves_little(unit: ControlUnit):
    start = begun(unit)
    q3 = float(unit.reference[0][2])
    for step in range(STEPS + 1):
        elbow = (q3 + 0.1 * share(step), -1.0)
        unit.cycle(command(start, elbow_c=elbow, valid_elbow=1))
    assert errors(unit) == []
    assert unit.reference[0][2] == pytest.approx(q3 + 0.1, abs=1e-6)
    reached, _ = unit.arm.pose_and_jacobian(unit.reference[0], unit.world.flange_T_ee)
    np.testing.assert_allclose(reached, start, atol=1e-6)


def test_a_twist_is_integrated_and_has_to_end_at_rest(unit: ControlUnit):
    begun(unit, Generator.CARTESIAN_VELOCITY)
    start = unit.cartesian.pose.copy()
    for step in range(2 * STEPS + 1):
        rise = share(step if step <= STEPS else 2 * STEPS - step)
        unit.cycle(command(O_dP_EE_c=[0.05 * rise, 0.0, 0.0, 0.0, 0.0, 0.1 * rise]))
    assert errors(unit) == []
    moved = unit.cartesian.pose[:3, 3] - start[:3, 3]
    np.testing.assert_allclose(moved, [0.05 * STEPS * PERIOD, 0.0, 0.0], atol=1e-6)
    unit.cycle(command(motion_generation_finished=1))
    assert unit.replies == [(1, MoveStatus.SUCCESS)]


def test_a_motion_that_is_finished_while_it_moves_is_a_discontinuity(unit: ControlUnit):
    begun(unit, Generator.CARTESIAN_VELOCITY)
    for step in range(STEPS + 1):
        unit.cycle(command(O_dP_EE_c=[0.05 * share(step), 0.0, 0.0, 0.0, 0.0, 0.0]))
    unit.cycle(command(O_dP_EE_c=[0.05, 0.0, 0.0, 0.0, 0.0, 0.0], motion_generation_finished=1))
    assert errors(unit) == [ErrorBit.CARTESIAN_VELOCITY_DISCONTINUITY]


def displaced(start: np.ndarray, metres: float) -> np.ndarray:
    pose = start.copy()
    pose[0, 3] += metres
    return pose


def test_a_pose_has_to_begin_where_the_end_effector_is(unit: ControlUnit):
    start = begun(unit)
    unit.cycle(command(displaced(start, 0.002)))
    assert errors(unit) == [ErrorBit.CARTESIAN_START_POSE_INVALID]


def test_a_pose_may_begin_a_little_beside(unit: ControlUnit):
    start = displaced(begun(unit), 0.0005)
    for _ in range(3):
        unit.cycle(command(start))
    assert errors(unit) == []


@pytest.mark.parametrize(
    ("metres", "error"),
    [
        # 1e-5 m in a millisecond from rest is 10 m/s^2, limit 9; 6e-6 m is 6000 m/s^3, limit 4500.
        (1e-5, ErrorBit.CARTESIAN_VELOCITY_DISCONTINUITY),
        (6e-6, ErrorBit.CARTESIAN_ACCELERATION_DISCONTINUITY),
        (4e-3, ErrorBit.CARTESIAN_VELOCITY_LIMITS),
    ],
)
def test_a_step_of_the_pose_is_a_discontinuity(unit: ControlUnit, metres: float, error: ErrorBit):
    start = begun(unit)
    unit.cycle(command(start))
    unit.cycle(command(displaced(start, metres)))
    assert errors(unit) == [error]


def test_a_matrix_that_is_no_rotation_is_refused(unit: ControlUnit):
    start = begun(unit)
    mirrored = start.copy()
    mirrored[:3, 0] *= -1.0
    unit.cycle(command(mirrored))
    assert errors(unit) == [ErrorBit.CARTESIAN_INVALID_FRAME]


def test_the_wrong_side_of_the_elbow_is_refused(unit: ControlUnit):
    start = begun(unit)
    unit.cycle(command(start, elbow_c=(float(unit.reference[0][2]), 1.0), valid_elbow=1))
    assert errors(unit) == [ErrorBit.ELBOW_SIGN_INCONSISTENT]


def test_a_lost_command_goes_on_and_the_next_one_fits(unit: ControlUnit):
    begun(unit, Generator.CARTESIAN_VELOCITY)
    for step in range(STEPS + 1):
        lost = step in (100, 400)
        twist = [0.05 * share(step), 0.0, 0.0, 0.0, 0.0, 0.0]
        unit.cycle(None if lost else command(O_dP_EE_c=twist))
    assert errors(unit) == []
    assert unit.lost_packets == 2
    assert unit.robot_mode is RobotMode.MOVE


# With franky


def test_frankys_cartesian_motion_reaches_its_target_in_simulated_time():
    with start_twin(TwinConfig(host=address(16)), PushTWorld) as twin:
        robot = connect(twin)
        lift(robot, twin)
        # Faster motions of the end effector ask more of the joints than they can.
        robot.relative_dynamics_factor = 0.05
        start = robot.current_pose.end_effector_pose
        target = franky.Affine(start.translation + np.array([0.05, -0.04, 0.03]), start.quaternion)
        robot.move(franky.CartesianMotion(target), asynchronous=True)
        finish(robot, twin)
        state = robot.state
        np.testing.assert_allclose(state.O_T_EE.translation, target.translation, atol=1e-3)
        assert state.robot_mode == franky.RobotMode.Idle
        back = franky.Affine(np.array([-0.05, 0.04, -0.03]))
        robot.move(franky.CartesianMotion(back, franky.ReferenceType.Relative), asynchronous=True)
        finish(robot, twin)
        assert robot.state.control_command_success_rate == 1.0


def test_frankys_cartesian_velocities_move_the_arm_and_end_at_rest():
    with start_twin(TwinConfig(host=address(17)), PushTWorld) as twin:
        robot = connect(twin)
        lift(robot, twin)
        # Faster motions of the end effector ask more of the joints than they can.
        robot.relative_dynamics_factor = 0.05
        start = robot.state.O_T_EE.translation
        up = franky.Twist([0.0, 0.0, 0.05], [0.0, 0.0, 0.0])
        motion = franky.CartesianVelocityWaypointMotion(
            [
                franky.CartesianVelocityWaypoint(up, hold_target_duration=franky.Duration(500)),
                franky.CartesianVelocityWaypoint(franky.Twist()),
            ]
        )
        robot.move(motion, asynchronous=True)
        finish(robot, twin)
        moved = robot.state.O_T_EE.translation - start
        assert moved[2] > 0.02
        np.testing.assert_allclose(moved[:2], 0.0, atol=2e-3)
