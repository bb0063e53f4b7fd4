import numpy as np
import pytest

from robots.franka import find_robot
from sim.twin import commands
from sim.twin.protocol import COMMAND, Controller, ErrorBit, Generator, MoveStatus, RobotMode
from sim.twin.push_t_world import PushTWorld
from sim.twin.unit.control_unit import ControlUnit

FR3 = find_robot("fr3")


@pytest.fixture(scope="module")
def world():
    return PushTWorld()


@pytest.fixture
def unit(world):
    world.reset(np.array([0.256, 0.400]), np.array([0.256, 0.300, 0.0]), FR3.q_home)
    return ControlUnit(world)


def command(**fields):
    record = np.zeros(1, COMMAND)
    for name, value in fields.items():
        record[name] = value
    return record


def errors(unit):
    return [ErrorBit(int(bit)) for bit in np.flatnonzero(unit.errors)]


def test_at_rest_the_arm_holds_its_place(unit):
    for _ in range(200):
        unit.cycle(None)
    np.testing.assert_allclose(unit.world.q, FR3.q_home, atol=1e-6)


def test_a_torque_within_1_nm_per_cycle_is_obeyed(unit):
    unit.begin(1, Controller.EXTERNAL, Generator.NONE)
    unit.cycle(command(tau_J_d=unit.tau_d + 1.0 * np.eye(7)[0]))
    assert unit.moving
    assert unit.tau_d[0] == pytest.approx(1.0, abs=1e-3)


def test_a_torque_jump_is_a_controller_torque_discontinuity(unit):
    unit.begin(8, Controller.EXTERNAL, Generator.NONE)
    unit.cycle(command(tau_J_d=unit.tau_d))
    unit.cycle(command(tau_J_d=unit.tau_d + 1.1 * np.eye(7)[1]))
    assert errors(unit) == [ErrorBit.TORQUE_DISCONTINUITY]
    assert unit.robot_mode is RobotMode.REFLEX
    assert unit.replies == [(8, MoveStatus.REFLEX_ABORTED)]


def test_a_nan_torque_is_refused(unit):
    unit.begin(1, Controller.EXTERNAL, Generator.NONE)
    unit.cycle(command(tau_J_d=np.nan))
    assert errors(unit) == [ErrorBit.TORQUE_RANGE]


def test_a_position_motion_must_start_where_the_arm_is(unit):
    unit.begin(1, Controller.JOINT_IMPEDANCE, Generator.JOINT_POSITION)
    unit.cycle(command(q_c=FR3.q_home + 0.01))
    assert errors(unit) == [ErrorBit.START_POSITION_INVALID]


@pytest.mark.parametrize("beside", [1e-6, 1e-5, 1e-4, 9e-4])
def test_a_position_motion_may_start_a_little_beside_and_is_then_at_rest(unit, beside):
    unit.begin(1, Controller.JOINT_IMPEDANCE, Generator.JOINT_POSITION)
    for _ in range(5):
        unit.cycle(command(q_c=FR3.q_home + beside))
    assert errors(unit) == []
    np.testing.assert_allclose(unit.reference[0], FR3.q_home + beside)
    np.testing.assert_allclose(unit.reference[1:], 0.0, atol=1e-9)


def test_a_position_step_is_a_discontinuity(unit):
    # 2e-5 rad in the second millisecond is 0.02 rad/s from rest: 20 rad/s^2, twice the limit.
    unit.begin(1, Controller.JOINT_IMPEDANCE, Generator.JOINT_POSITION)
    unit.cycle(command(q_c=FR3.q_home))
    unit.cycle(command(q_c=FR3.q_home + 2e-5))
    assert errors(unit) == [ErrorBit.COMMANDED_VELOCITY_DISCONTINUITY]


def test_a_jump_in_acceleration_is_a_discontinuity(unit):
    # 8e-6 rad in the second millisecond is 8 rad/s^2 at once; 5000 rad/s^3 permits 5.
    unit.begin(1, Controller.JOINT_IMPEDANCE, Generator.JOINT_POSITION)
    unit.cycle(command(q_c=FR3.q_home))
    unit.cycle(command(q_c=FR3.q_home + 8e-6))
    assert errors(unit) == [ErrorBit.COMMANDED_ACCELERATION_DISCONTINUITY]


def test_a_position_beyond_the_range_is_refused(unit, world):
    world.reset(
        np.array([0.256, 0.400]),
        np.array([0.256, 0.300, 0.0]),
        np.append(FR3.q_home[:6], FR3.limits.q_max[6] - 1e-5),
    )
    unit.rest()
    unit.begin(1, Controller.JOINT_IMPEDANCE, Generator.JOINT_POSITION)
    unit.cycle(command(q_c=world.q + 2e-5 * np.eye(7)[6]))
    assert errors(unit) == [ErrorBit.COMMANDED_POSITION_LIMITS]


def test_joint_velocities_are_integrated(unit):
    unit.begin(1, Controller.JOINT_IMPEDANCE, Generator.JOINT_VELOCITY)
    for i in range(1, 101):
        unit.cycle(command(dq_c=[0, 0, 0, 0, 0, 0, 0.001 * i]))
    # 1e-3 rad/s per ms: sum of 1e-6 i over 100 cycles.
    assert unit.reference[0, 6] - FR3.q_home[6] == pytest.approx(1e-6 * 5050)
    assert unit.moving


def test_a_lost_torque_command_holds_the_last_torque_and_twenty_end_the_motion(unit):
    unit.begin(1, Controller.EXTERNAL, Generator.NONE)
    unit.cycle(command(tau_J_d=unit.tau_d))
    held = unit.tau_d.copy()
    for _ in range(19):
        unit.cycle(None)
    assert unit.moving
    np.testing.assert_array_equal(unit.tau_d, held)
    assert unit.success_rate == pytest.approx(0.81)
    unit.cycle(None)
    assert errors(unit) == [ErrorBit.COMMUNICATION_CONSTRAINTS]
    assert unit.lost_packets == 20


def test_a_lost_position_command_is_extrapolated_with_constant_acceleration(unit):
    unit.begin(1, Controller.JOINT_IMPEDANCE, Generator.JOINT_POSITION)
    unit.cycle(command(q_c=FR3.q_home))
    unit.cycle(command(q_c=FR3.q_home + 4e-6))
    unit.cycle(None)
    # 4 rad/s^2 from rest: 4e-3 rad/s after one cycle, 8e-3 rad/s after two, so 4e-6 + 8e-6 rad.
    np.testing.assert_allclose(unit.reference[0] - FR3.q_home, 12e-6, atol=1e-12)


def test_a_finished_motion_succeeds_and_the_arm_rests(unit):
    unit.begin(5, Controller.EXTERNAL, Generator.NONE)
    unit.cycle(command(tau_J_d=unit.tau_d))
    unit.cycle(command(tau_J_d=unit.tau_d, torque_command_finished=1, motion_generation_finished=1))
    assert unit.replies == [(5, MoveStatus.SUCCESS)]
    assert (unit.robot_mode, unit.controller, unit.generator) == (
        RobotMode.IDLE,
        Controller.OTHER,
        Generator.IDLE,
    )


def test_contact_beyond_the_clients_threshold_is_a_joint_reflex(unit, world):
    unit.tau_ext_max = np.full(7, 1e-3)
    world.reset(np.array([0.256, 0.400]), np.array([0.256, 0.300, 0.0]))
    unit.rest()
    unit.begin(1, Controller.EXTERNAL, Generator.NONE)
    tau = unit.tau_d.copy()
    for _ in range(300):
        # 20 Nm on joint 2 press the pusher into the table 4 mm below.
        tau[1] = min(tau[1] + 1.0, 20.0)
        unit.cycle(command(tau_J_d=tau))
        if not unit.moving:
            break
    assert errors(unit) == [ErrorBit.JOINT_REFLEX]


def test_the_estimated_wrench_explains_the_joint_torques(unit):
    # A force of 3 N along base x at the flange of the home posture, height h: about the shoulder (z
    # = 0.333) its moment on joint 2, whose axis is base y, is 3 (h - 0.333).
    h = float(unit.world.base_T_ee[2, 3]) + 0.120
    J_force = _flange_jacobian(unit)[0]
    F = unit.arm.external_wrench(FR3.q_home, 3.0 * J_force, np.zeros(3))
    np.testing.assert_allclose(F, [3, 0, 0, 0, 0, 0], atol=1e-3)
    assert J_force[1] == pytest.approx(h - 0.333, abs=1e-6)


def _flange_jacobian(unit):

    return FR3.chain.jacobian(FR3.q_home)


def test_recovery_is_refused_while_the_user_stop_is_pressed(unit):
    unit.begin(2, Controller.EXTERNAL, Generator.NONE)
    unit.press_user_stop(True)
    assert unit.replies == [(2, MoveStatus.EMERGENCY_ABORTED)]
    assert commands._recover(unit) == commands.RECOVERY_EMERGENCY
    unit.press_user_stop(False)
    assert unit.robot_mode is RobotMode.IDLE


def test_recovery_clears_a_reflex_but_not_its_reason(unit):
    unit.begin(2, Controller.EXTERNAL, Generator.NONE)
    unit.trip(ErrorBit.JOINT_REFLEX)
    assert commands._recover(unit) == 0
    assert unit.robot_mode is RobotMode.IDLE
    assert not unit.errors.any()
    assert unit.reflex_reason[ErrorBit.JOINT_REFLEX]
