"""The twin, driven by the unmodified franky client; each has its own loopback address, so tests can
run in parallel."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from xml.etree import ElementTree

import numpy as np
import pytest

from real.franka.arm import FrankaArm
from real.franka.config import FrankaConfig
from real.franka.realtime import Scheduling
from robots.errors import HandoffError
from robots.franka import find_robot
from sim.twin import protocol
from sim.twin.push_t_world import PushTWorld
from sim.twin.twin import TwinConfig, start_twin
from tests.sim.twin.loopback import address

FR3 = find_robot("fr3")

franky = pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")

LIFT = np.array([0.05, -0.25, 0.05, 0.05, 0.05, 0.05, 0.05])
"""A small joint motion that raises the pusher from the table [rad]."""


def connect(twin):
    robot = franky.Robot(twin.host, realtime_config=franky.RealtimeConfig.Ignore)
    robot.relative_dynamics_factor = 0.3
    return robot


def lift(robot, twin):
    target = robot.state.q_d + LIFT
    robot.move(franky.JointMotion(target), asynchronous=True)
    finish(robot, twin)
    return target


def finish(robot, twin):
    """Advances time until the motion that has just begun is finished."""
    twin.wait_for_motion()
    twin.advance(3.0)
    robot.join_motion()


def begin_tracking(robot, twin):
    """A Cartesian impedance motion that holds the current pose; returns the motion and the pose."""
    motion = franky.CartesianImpedanceTrackingMotion(
        translational_stiffness=800.0, rotational_stiffness=50.0
    )
    pose = robot.current_pose.end_effector_pose
    motion.set_reference(franky.CartesianReference(target=pose))
    robot.move(motion, asynchronous=True)
    twin.wait_for_motion()
    return motion, pose


def stop(robot, twin):
    robot.move(franky.TorqueStopMotion(), asynchronous=True)
    twin.advance(1.0)
    robot.join_motion()


def track(motion, pose, twin, steps=150):
    """4 ms steps along 5 cm in base x, smoothly; returns the final target position."""
    end = pose.translation + np.array([0.05, 0.0, 0.0])
    for i in range(1, steps + 1):
        share = 0.5 * (1.0 - np.cos(np.pi * i / steps))
        target = franky.Affine((1.0 - share) * pose.translation + share * end, pose.quaternion)
        motion.set_reference(franky.CartesianReference(target=target))
        twin.advance(0.004)
    twin.advance(0.4)
    return end


@pytest.fixture(scope="module")
def twin():
    with start_twin(TwinConfig(host=address(1)), PushTWorld) as running:
        yield running


@pytest.fixture
def robot(twin):
    robot = connect(twin)
    robot.recover_from_errors()
    twin.call("reset", np.array([0.256, 0.400]), np.array([0.256, 0.300, 0.0]))
    return robot


def test_the_client_computes_the_pose_that_the_twin_reports(twin, robot):
    state = robot.state
    client = robot.model.pose(franky.Frame.EndEffector, state).matrix
    np.testing.assert_allclose(client, state.O_T_EE.matrix, atol=1e-6)
    flange = robot.model.pose(franky.Frame.Flange, state).matrix
    np.testing.assert_allclose(flange, FR3.chain.forward_kinematics(state.q), atol=1e-9)
    assert robot.state.robot_mode == franky.RobotMode.Idle


def test_the_clients_gravity_is_the_twins_joint_torque_at_rest(twin, robot):
    twin.advance(0.2)
    state = robot.state
    np.testing.assert_allclose(robot.model.gravity(state), state.tau_J, atol=1e-3)


def test_the_client_reads_limits_and_payload_from_the_twin(twin, robot):
    # franky's own `joint_velocity_limit` is a table for the older arm; the robot's URDF is what
    # counts.
    limits = ElementTree.fromstring(robot.model_urdf).findall("joint/limit")
    for name, expected in {
        "lower": FR3.limits.q_min,
        "upper": FR3.limits.q_max,
        "velocity": FR3.limits.dq_max,
    }.items():
        np.testing.assert_array_equal([float(limit.attrib[name]) for limit in limits], expected)
    robot.set_load(0.5, [0.0, 0.0, 0.05], np.eye(3).ravel() * 1e-3)
    assert robot.state.m_load == pytest.approx(0.5)


def test_the_world_is_frozen_while_the_robot_rests(twin, robot):
    before = twin.now()
    first = robot.state.time.to_sec()
    time.sleep(0.02)
    assert robot.state.time.to_sec() > first
    assert twin.advance(0.003) == pytest.approx(before + 0.003)


def test_a_joint_motion_reaches_its_target(twin, robot):
    target = lift(robot, twin)
    np.testing.assert_allclose(robot.state.q, target, atol=1e-3)


def test_tracking_follows_its_reference_without_losing_a_packet(twin, robot):
    lift(robot, twin)
    motion, pose = begin_tracking(robot, twin)
    began = twin.now()
    target = track(motion, pose, twin)
    assert twin.now() - began == pytest.approx(1.0)
    np.testing.assert_allclose(robot.state.O_T_EE.translation, target, atol=4e-3)
    assert robot.state.control_command_success_rate == 1.0
    stop(robot, twin)
    assert robot.state.robot_mode == franky.RobotMode.Idle
    assert twin.stats()["lost_packets"] == 0


def test_robot_stop_preempts_a_motion_that_is_not_granted_time(twin, robot):
    begin_tracking(robot, twin)
    robot.stop()
    with pytest.raises(franky.ControlException, match="preempted"):
        robot.join_motion()
    assert robot.state.robot_mode == franky.RobotMode.Idle


def test_pressing_into_the_table_is_a_reflex_and_recovery_ends_it(twin, robot):
    into_the_table = franky.JointMotion(robot.state.q_d + 0.2 * np.eye(7)[1])
    robot.move(into_the_table, asynchronous=True)
    with pytest.raises(franky.ControlException, match="joint_reflex"):
        finish(robot, twin)
    assert robot.state.robot_mode == franky.RobotMode.Reflex
    assert robot.recover_from_errors()
    assert not robot.has_errors
    # The arm rests where it was stopped, and the table's push fades as the robot's hold yields.
    twin.advance(0.3)
    lift(robot, twin)


def test_the_user_stop_aborts_a_motion(twin, robot):
    begin_tracking(robot, twin)
    twin.press_user_stop()
    with pytest.raises(franky.ControlException, match="User Stop pressed"):
        robot.join_motion()
    assert robot.state.robot_mode == franky.RobotMode.UserStopped
    twin.press_user_stop(False)
    assert robot.state.robot_mode == franky.RobotMode.Idle


def test_waiting_for_a_motion_that_does_not_begin_is_an_error(twin):
    with pytest.raises(HandoffError, match="no motion began"):
        twin.wait_for_motion(timeout=0.05)


def test_time_passes_in_whole_milliseconds(twin):
    with pytest.raises(HandoffError, match=r"0\.0015"):
        twin.advance(0.0015)


def test_a_method_that_the_world_lacks_is_an_error_and_the_twin_keeps_running(twin):
    with pytest.raises(HandoffError, match="fly_away"):
        twin.call("fly_away")
    assert twin.call("tee_pose").shape == (3,)


def run_script(host):
    """One connect, home, track, stop; the states of every tick and the block's pose."""
    with start_twin(TwinConfig(host=host, log_seconds=10.0), PushTWorld) as twin:
        robot = connect(twin)
        lift(robot, twin)
        motion, pose = begin_tracking(robot, twin)
        track(motion, pose, twin, steps=50)
        stop(robot, twin)
        return twin.recorded(), twin.call("tee_pose"), twin.now()


def test_two_runs_give_bit_identical_states():
    (first, first_tee, first_now), (second, second_tee, second_now) = (
        run_script(address(2)),
        run_script(address(3)),
    )
    assert len(first) > 1000
    assert first_now == second_now
    # The robot's clock also counts states sent while nobody moved; every increment within the
    # motions is the same.
    for states in (first, second):
        states["message_id"] = 0
    assert first.tobytes() == second.tobytes()
    np.testing.assert_array_equal(first_tee, second_tee)


def test_the_real_clock_passes_by_itself():
    with start_twin(TwinConfig(host=address(4), clock="real"), PushTWorld) as twin:
        robot = connect(twin)
        began = twin.now()
        assert twin.advance(0.05) >= began + 0.05
        # Two noisy cores lose packets in real time: this checks only that the robot responds.
        assert robot.state.robot_mode == franky.RobotMode.Idle


def test_another_protocol_version_is_rejected():
    with (
        start_twin(TwinConfig(host=address(5)), PushTWorld),
        socket.create_connection((address(5), 1337), 5) as client,
    ):
        client.sendall(struct.pack("<IIIHH", protocol.Command.CONNECT, 0, 16, 9, 40000))
        assert client.recv(64) == struct.pack("<IIIBH", 0, 0, 15, 1, 10)


def test_a_second_twin_on_the_same_address_names_the_port():
    with (
        start_twin(TwinConfig(host=address(6)), PushTWorld),
        pytest.raises(HandoffError, match=re.escape(f"{address(6)}:1337") + ".*in use"),
        start_twin(TwinConfig(host=address(6)), PushTWorld),
    ):
        pass


def test_a_dead_twin_is_an_error_with_its_signal():
    with start_twin(TwinConfig(host=address(7)), PushTWorld) as twin:
        twin._process.kill()
        with pytest.raises(HandoffError, match=re.escape(address(7)) + ".*SIGKILL"):
            twin.advance(0.001)


def test_a_killed_client_leaves_the_twin_ready_for_the_next():
    client = textwrap.dedent("""
        import franky, sys, time
        robot = franky.Robot(sys.argv[1], realtime_config=franky.RealtimeConfig.Ignore)
        motion = franky.JointImpedanceTrackingMotion()
        motion.set_reference(franky.JointReference(q=robot.current_joint_positions))
        robot.move(motion, asynchronous=True)
        print("moving", flush=True)
        time.sleep(60)
    """)
    with start_twin(TwinConfig(host=address(8)), PushTWorld) as twin:
        process = subprocess.Popen(
            [sys.executable, "-c", client, twin.host], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"moving\n"
        twin.wait_for_motion()
        twin.advance(0.05)
        process.kill()
        process.wait()
        robot = connect(twin)
        assert robot.state.robot_mode == franky.RobotMode.Idle
        np.testing.assert_allclose(lift(robot, twin), robot.state.q, atol=1e-3)


def test_only_the_control_thread_keeps_the_priority_that_connecting_gives():
    """Against the priority of the thread which franky's constructor runs in, whatever this computer
    allows."""
    with start_twin(TwinConfig(host=address(10)), PushTWorld) as twin:
        before = Scheduling.current()
        franky.Robot(twin.host, realtime_config=franky.RealtimeConfig.Ignore)
        given = Scheduling.current()
        before.take()
        config = FrankaConfig(host=twin.host, realtime="ignore")
        with FrankaArm(config, twin, twin.wait_for_motion) as arm:
            assert Scheduling.current() == before
            at_rest = set(os.listdir("/proc/self/task"))
            arm.start()
            control = set(os.listdir("/proc/self/task")) - at_rest
            assert given in [scheduling_of(thread) for thread in control]
            assert Scheduling.current() == before
            arm.stop()
        assert Scheduling.current() == before


def scheduling_of(thread):
    return Scheduling(
        os.sched_getscheduler(int(thread)), os.sched_getparam(int(thread)).sched_priority
    )


def test_a_twin_ends_with_its_owner():
    owner = textwrap.dedent("""
        import os, sys
        from sim.twin.twin import TwinConfig, start_twin
        from sim.twin.push_t_world import PushTWorld
        if __name__ == "__main__":
            with start_twin(TwinConfig(host=sys.argv[1]), PushTWorld) as twin:
                print(twin._process.pid, flush=True)
                os.kill(os.getpid(), 9)
    """)
    done = subprocess.run(
        [sys.executable, "-c", owner, address(9)], stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    assert any(_is_gone(pid) or time.sleep(0.05) for _ in range(100))


def _is_gone(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_a_move_that_is_halted_stops_on_its_way_and_can_be_continued():
    with start_twin(TwinConfig(host=address(9)), PushTWorld) as twin:
        twin.call("reset", np.array([0.256, 0.400]), np.array([0.100, 0.100, 0.0]))
        config = FrankaConfig(host=twin.host, realtime="ignore", move_dynamics=0.2)
        with FrankaArm(config, twin, twin.wait_for_motion) as arm:
            begin = arm.preflight().q
            goal = begin + np.array([0.4, -0.2, 0.0, 0.0, 0.0, 0.0, 0.0])
            started = twin.now()
            assert not arm.move_to_joints(goal, lambda: twin.now() > started + 0.5)
            twin.advance(0.1)
            # The first of two states after an idle gap may be an old one.
            state = [arm.state() for _ in range(2)][-1]
            assert 0.01 < np.linalg.norm(state.q - begin) < 0.9 * np.linalg.norm(goal - begin)
            assert np.abs(state.dq).max() < 1e-3
            assert state.mode == "Idle"
            assert arm.move_to_joints(goal, lambda: False)
            twin.advance(0.1)
            state = [arm.state() for _ in range(2)][-1]
            np.testing.assert_allclose(state.q, goal, atol=1e-3)


def test_the_wall_time_of_motions_is_that_of_the_motions_alone(twin, robot):
    for _ in range(2):
        before, began = twin.stats(), time.monotonic()
        time.sleep(0.3)
        begin_tracking(robot, twin)
        twin.advance(0.2)
        running = twin.stats()
        stop(robot, twin)
        after, passed = twin.stats(), time.monotonic() - began
        spent = after["motion_s"] - before["motion_s"]
        assert 0.0 < running["motion_s"] - before["motion_s"] <= spent < passed - 0.25
        ticks = after["motion_ticks"] - before["motion_ticks"]
        assert ticks >= 200
        assert after["realtime_factor"] == pytest.approx(
            after["motion_ticks"] * 1e-3 / after["motion_s"]
        )
