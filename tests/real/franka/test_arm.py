from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

from real.arm import ArmFaultError, PoseTarget
from real.franka.arm import FrankaArm
from real.franka.config import FrankaConfig
from real.franka.connection import arm_state, error_names
from real.franka.impedance import ImpedanceConfig, cartesian_gains
from real.franka.kept_faults import kept_fault
from real.franka.state_recorder import StateRecorder
from robots.errors import HandoffError, SafetyError, error_text
from robots.franka import find_robot
from robots.franka.kinematics import batched_jacobian
from tests.real.fakes import FakeClock
from tests.robots.franka.urdfs import urdf_of

FR3 = find_robot("fr3")

franky = pytest.importorskip("franky")

IDLE, MOVE, REFLEX = franky.RobotMode.Idle, franky.RobotMode.Move, franky.RobotMode.Reflex


def flags(*names):
    members = [name for name, member in vars(franky.Errors).items() if isinstance(member, property)]
    readable = {name: property(lambda self, on=name in names: on) for name in members}
    return type(
        "Flags",
        (),
        {**readable, "__getstate__": lambda self: tuple(name in names for name in members)},
    )()


class FakeRobot:
    """Answers as `franky.Robot` does, obeying every motion at once; `faults` is what the next
    motion ends with."""

    def __init__(self, clock):
        self.clock, self.sent, self.moves = clock, {}, []
        self.mode, self.errors, self.is_in_control = IDLE, flags(), False
        self.tau_ext, self.q = np.zeros(7), FR3.q_home.copy()
        self.finish_after = 0
        self.model_urdf = urdf_of(FR3)

    @property
    def state(self):
        flange = FR3.chain.forward_kinematics(self.q)
        pose = flange @ np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.12], [0, 0, 0, 1.0]])
        nominal = np.eye(4)
        nominal[2, 3] = 0.1
        return SimpleNamespace(
            time=franky.Duration(self.clock.ticks),
            q=self.q,
            dq=np.zeros(7),
            q_d=self.q,
            tau_J=np.zeros(7),
            tau_J_d=np.zeros(7),
            tau_ext_hat_filtered=self.tau_ext,
            O_F_ext_hat_K=np.zeros(6),
            O_T_EE=franky.Affine(pose),
            F_T_NE=franky.Affine(nominal),
            control_command_success_rate=1.0,
            robot_mode=self.mode,
            current_errors=self.errors,
            last_motion_errors=self.errors,
        )

    def set_collision_behavior(self, *thresholds):
        self.sent["collision"] = thresholds

    def set_ee(self, matrix):
        self.sent["ee"] = matrix

    def set_load(self, mass, com, inertia):
        self.sent["load"] = (mass, com, inertia)

    def move(self, motion, asynchronous):
        assert asynchronous
        self.moves.append(motion)
        self.is_in_control, self.mode = True, MOVE
        self.finish_after = self.clock.ticks + 50

    def join_motion(self, timeout):
        if self.errors_raised():
            raise franky.ControlException("libfranka: some words that nobody parses")
        if isinstance(
            self.moves[-1] if self.moves else None, franky.CartesianImpedanceTrackingMotion
        ):
            return False
        if self.clock.ticks >= self.finish_after:
            self.is_in_control, self.mode = False, IDLE
        return not self.is_in_control

    def errors_raised(self):
        return self.mode == REFLEX and not self.is_in_control

    def reflex(self, name):
        self.errors, self.mode, self.is_in_control = flags(name), REFLEX, False

    def recover_from_errors(self):
        self.errors, self.mode = flags(), IDLE
        return True


@pytest.fixture
def arm(monkeypatch):
    clock = FakeClock()
    robot = FakeRobot(clock)
    monkeypatch.setattr("real.franka.arm.connect", lambda host, realtime: robot)
    with FrankaArm(FrankaConfig(realtime="ignore"), clock) as connected:
        yield connected, robot


def hold(robot):
    return PoseTarget(np.array(robot.state.O_T_EE.matrix), np.zeros(6), np.zeros(6))


def test_nobody_at_the_address_is_one_clear_error():
    with pytest.raises(HandoffError, match=r"no robot answers at 127\.0\.77\.77:1337"):
        FrankaArm(FrankaConfig(host="127.0.77.77", realtime="ignore")).__enter__()


class LostRobot(FakeRobot):
    """A robot whose connection breaks while it moves: only the question whether it moves fails."""

    broken = False

    @property
    def is_in_control(self):
        if self.broken:
            raise RuntimeError("Net Exception")
        return self.controlled

    @is_in_control.setter
    def is_in_control(self, value):
        self.controlled = value


def test_a_connection_that_is_lost_before_the_stop_of_a_motion_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    clock = FakeClock()
    robot = LostRobot(clock)
    monkeypatch.setattr("real.franka.arm.connect", lambda host, realtime: robot)
    arm = FrankaArm(FrankaConfig(host="127.0.77.1", realtime="ignore", latch="kept"), clock)
    arm.__enter__()
    arm.start()
    robot.broken = True
    with pytest.raises(HandoffError, match=r"127\.0\.77\.1: connection lost \(Net Exception\)"):
        arm.stop()
    assert "a lost connection (Net Exception)" in str(kept_fault("127.0.77.1"))


def test_errors_are_named_from_the_flags_of_the_real_class():
    assert error_names(franky.Errors()) == ()
    errors = franky.Errors.__new__(franky.Errors)
    errors.__setstate__(tuple(i in (3, 25) for i in range(41)))
    assert sorted(error_names(errors)) == [
        "communication_constraints_violation",
        "joint_velocity_violation",
    ]


def connect_to(monkeypatch, urdf, **options):
    clock = FakeClock()
    robot = FakeRobot(clock)
    robot.model_urdf = urdf
    monkeypatch.setattr("real.franka.arm.connect", lambda host, realtime: robot)
    with FrankaArm(FrankaConfig(realtime="ignore", **options), clock):
        return robot


def test_another_robot_than_the_configured_one_is_refused_before_anything_is_sent(monkeypatch):
    with pytest.raises(SafetyError, match="fr3: the connected arm is 'fr3v2'"):
        connect_to(monkeypatch, urdf_of(find_robot("fr3v2")))
    assert connect_to(monkeypatch, urdf_of(find_robot("fr3v2")), robot="fr3v2").sent


def test_an_arm_with_the_limits_of_older_firmware_is_refused(monkeypatch):
    old = urdf_of(FR3).replace('upper="2.9007"', 'upper="2.7437"')
    with pytest.raises(SafetyError, match=r"joint1 is 2\.7437 .* older firmware"):
        connect_to(monkeypatch, old)


def test_an_arm_that_sends_no_urdf_is_taken_with_a_note(monkeypatch, caplog):
    assert connect_to(monkeypatch, "", robot="panda").sent
    assert "could not be compared with those of 'panda'" in caplog.text


def test_collision_torques_of_another_number_of_joints_are_refused():
    with pytest.raises(HandoffError, match=r"arm\.collision_torque has 6 entries, expected 7"):
        FrankaArm(FrankaConfig(collision_torque=(40.0,) * 6))


def test_a_target_beyond_the_limits_of_its_own_robot_is_refused(monkeypatch):
    clock = FakeClock()
    robot = FakeRobot(clock)
    robot.model_urdf = urdf_of(find_robot("panda"))
    monkeypatch.setattr("real.franka.arm.connect", lambda host, realtime: robot)
    q = FR3.q_home.copy()
    q[1] = 1.8
    with (
        FrankaArm(FrankaConfig(realtime="ignore", robot="panda"), clock) as panda,
        pytest.raises(SafetyError, match=r"expected 7 numbers inside .*-1\.7628"),
    ):
        panda.move_to_joints(q)


def test_collision_thresholds_are_sent_explicitly(arm):
    _, robot = arm
    config = FrankaConfig()
    contact, collision = robot.sent["collision"][:2]
    np.testing.assert_array_equal(collision, config.collision_torque)
    np.testing.assert_array_equal(contact, np.array(config.collision_torque) / 2)
    np.testing.assert_array_equal(robot.sent["collision"][7], config.collision_force)


def test_end_effector_is_the_tip_whatever_desk_calls_nominal(arm):
    # The flange to tip distance is 0.12 m, of which the nominal end effector has 0.1 m already.
    np.testing.assert_allclose(
        np.reshape(arm[1].sent["ee"], (4, 4), order="F")[:3, 3], [0.0, 0.0, 0.02], atol=1e-12
    )


def test_start_holds_the_present_pose_and_stop_ramps_out(arm):
    connected, robot = arm
    connected.start()
    np.testing.assert_allclose(
        robot.moves[0].get_reference().target.matrix, robot.state.O_T_EE.matrix, atol=1e-9
    )
    connected.stop()
    assert isinstance(robot.moves[1], franky.TorqueStopMotion)
    assert not robot.is_in_control


def test_target_reaches_the_controller_with_its_twist(arm):
    connected, robot = arm
    connected.start()
    twist = np.array([0.1, -0.2, 0.0, 0.0, 0.0, 0.0])
    connected.set_target(hold(robot)._replace(twist=twist))
    np.testing.assert_allclose(robot.moves[0].get_reference().target_twist.linear, twist[:3])


def test_damping_of_the_end_effector_and_the_nullspace_is_that_of_the_joints():
    chain, q = FR3.chain, FR3.q_home
    point = chain.forward_kinematics(q)[:3, 3]
    J = batched_jacobian(*chain.batched_joint_frames(q[None]), point[None])[0]
    config = ImpedanceConfig(posture_damping=2.0)
    added = cartesian_gains(config, FR3, q, point).damping - np.diag(config.damping)
    nullspace = np.eye(7) - np.linalg.pinv(J) @ J
    np.testing.assert_allclose(J.T @ added @ J + 2.0 * nullspace, 2.0 * np.eye(7), atol=0.1)


def test_gains_follow_the_joints(arm):
    connected, robot = arm
    connected.start()
    with patch.object(franky.CartesianImpedanceTrackingMotion, "set_gains") as sent:
        robot.q = robot.q + 0.09
        connected.state()
        assert not sent.called
        robot.q = robot.q + 0.09
        state = connected.state()
        connected.state()
    (gains,) = (call.args[0] for call in sent.call_args_list)
    expected = cartesian_gains(ImpedanceConfig(), FR3, state.q, state.base_T_ee[:3, 3])
    np.testing.assert_allclose(gains.damping, expected.damping)


def test_joint_controller_gets_the_joint_positions_of_the_pose(monkeypatch):
    clock = FakeClock()
    robot = FakeRobot(clock)
    monkeypatch.setattr("real.franka.arm.connect", lambda host, realtime: robot)
    config = FrankaConfig(realtime="ignore", impedance=ImpedanceConfig(controller="joint"))
    with FrankaArm(config, clock) as connected:
        connected.start()
        connected.set_target(hold(robot))
        np.testing.assert_allclose(robot.moves[0].get_reference().q, FR3.q_home, atol=1e-4)


def test_fault_is_typed_latched_and_needs_recovery_on_purpose(arm):
    connected, robot = arm
    connected.start()
    robot.reflex("joint_reflex")
    with pytest.raises(ArmFaultError) as raised:
        connected.state()
    assert raised.value.errors == ("joint_reflex",)
    assert raised.value.mode == "Reflex"
    robot.errors, robot.mode = flags(), IDLE
    for command in (connected.state, connected.start, lambda: connected.set_target(hold(robot))):
        with pytest.raises(ArmFaultError):
            command()
    connected.recover()
    connected.start()
    assert connected.state().mode == "Move"


def test_fault_during_a_joint_motion_is_named_from_the_flags(arm):
    connected, robot = arm
    robot.clock.on_tick.append(
        lambda: robot.reflex("power_limit_violation") if robot.clock.ticks == 20 else None
    )
    with pytest.raises(ArmFaultError, match="power_limit_violation"):
        connected.move_to_joints(FR3.q_home + 0.1)


def test_user_stop_is_said_in_words(arm):
    connected, robot = arm
    connected.start()
    robot.mode, robot.is_in_control = franky.RobotMode.UserStopped, False
    with pytest.raises(ArmFaultError, match="the user stop was pressed"):
        connected.state()


@pytest.mark.parametrize("value", [np.full(7, np.nan), np.zeros(6), FR3.q_home + 9.0])
def test_joint_target_that_is_no_reachable_posture_is_refused(arm, value):
    connected, robot = arm
    with pytest.raises(SafetyError, match="joint target"):
        connected.move_to_joints(value)
    assert robot.moves == []


def test_non_finite_target_is_refused(arm):
    connected, robot = arm
    connected.start()
    with pytest.raises(SafetyError, match="is not finite"):
        connected.set_target(hold(robot)._replace(twist=np.full(6, np.nan)))


def test_target_without_control_is_refused(arm):
    connected, robot = arm
    with pytest.raises(SafetyError, match="not under control"):
        connected.set_target(hold(robot))


def test_joint_motion_under_impedance_control_is_refused(arm):
    connected, _ = arm
    connected.start()
    with pytest.raises(SafetyError, match="Call `stop` first"):
        connected.move_to_joints(FR3.q_home)


def test_preflight_passes_an_idle_arm_and_refuses_others(arm):
    connected, robot = arm
    assert connected.preflight().mode == "Idle"
    robot.tau_ext = np.array([0, 0, 5.0, 0, 0, 0, 0])
    with pytest.raises(SafetyError, match=r"joint3 feels 5\.00 Nm at rest, limit 4\.0 Nm"):
        connected.preflight()
    robot.tau_ext = np.zeros(7)
    robot.q[3] = -0.13
    with pytest.raises(SafetyError, match=r"joint4 is 0\.013 rad from its limit"):
        connected.preflight()
    robot.mode = REFLEX
    with pytest.raises(SafetyError, match="mode is Reflex"):
        connected.preflight()
    robot.mode, robot.q = IDLE, FR3.q_home.copy()
    robot.clock.advance = lambda seconds: 0.0
    with pytest.raises(SafetyError, match="its time stopped"):
        connected.preflight()


def test_leaving_the_context_stops_the_arm_even_on_an_error(monkeypatch):
    clock = FakeClock()
    robot = FakeRobot(clock)
    monkeypatch.setattr("real.franka.arm.connect", lambda host, realtime: robot)
    with pytest.raises(KeyboardInterrupt), FrankaArm(FrankaConfig(), clock) as connected:  # noqa: PT012
        connected.start()
        raise KeyboardInterrupt
    assert isinstance(robot.moves[-1], franky.TorqueStopMotion)
    assert not robot.is_in_control


def test_a_stop_that_ctrl_c_interrupts_is_made_again_on_leaving_the_context(monkeypatch):
    clock = FakeClock()
    robot = FakeRobot(clock)
    move, interrupted = robot.move, []

    def interrupt(motion, asynchronous):
        if isinstance(motion, franky.TorqueStopMotion) and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        move(motion, asynchronous)

    robot.move = interrupt
    monkeypatch.setattr("real.franka.arm.connect", lambda host, realtime: robot)
    with pytest.raises(KeyboardInterrupt), FrankaArm(FrankaConfig(), clock) as connected:  # noqa: PT012
        connected.start()
        connected.stop()
    assert isinstance(robot.moves[-1], franky.TorqueStopMotion)
    assert not robot.is_in_control


def test_an_error_in_leaving_the_context_is_noted_on_the_one_before(monkeypatch):
    clock = FakeClock()
    robot = FakeRobot(clock)
    monkeypatch.setattr("real.franka.arm.connect", lambda host, realtime: robot)
    with pytest.raises(KeyboardInterrupt) as raised, FrankaArm(FrankaConfig(), clock) as connected:  # noqa: PT012
        connected.start()
        robot.join_motion = lambda timeout: False
        raise KeyboardInterrupt
    assert (
        "interrupted. Stopping the arm failed: arm: the motion did not end within 4.0 s"
        in error_text(raised.value)
    )


def test_recorder_tells_what_has_arrived_of_an_interval_and_at_least_its_newest_state():
    clock = FakeClock()
    robot, recorder = FakeRobot(clock), StateRecorder(0.02, FR3.num_joints)
    assert recorder.arrived(0.0, 1.0)["q"].shape == (0, 7)
    for _ in range(8):
        clock.advance(0.001)
        recorder(robot.state, None, None, None, None)
    np.testing.assert_allclose(recorder.arrived(0.005, 1.0)["time"], [0.006, 0.007, 0.008])
    np.testing.assert_allclose(recorder.arrived(0.005, 0.005)["time"], [0.005])
    np.testing.assert_allclose(recorder.arrived(0.5, 1.0)["time"], [0.008])


def test_recorder_keeps_the_states_of_an_interval():
    clock = FakeClock()
    robot, recorder = FakeRobot(clock), StateRecorder(0.02, FR3.num_joints)
    for _ in range(25):
        clock.advance(0.001)
        recorder(robot.state, None, None, None, None)
    rows = recorder.between(0.005, 0.010)
    np.testing.assert_allclose(rows["time"], [0.006, 0.007, 0.008, 0.009, 0.010])
    assert rows["base_T_ee"].shape == (5, 4, 4)
    assert recorder.dropped == 5
    with pytest.raises(
        HandoffError, match=r"has states up to 0\.020 s, expected up to 0\.025 s \(5 dropped"
    ):
        recorder.between(0.0, 0.025, patience=0.01)


def test_arm_state_copies_what_franky_gives():
    state = arm_state(FakeRobot(FakeClock()).state)
    assert state.mode == "Idle"
    assert state.errors == ()
    np.testing.assert_array_equal(state.q, FR3.q_home)
