"""Reaches the twin's gripper through the network: with the unmodified franky client, and with raw
bytes where franky cannot send an error."""

import re
import socket
import struct
from contextlib import suppress

import pytest

from robots.errors import HandoffError
from robots.franka import find_robot
from sim.twin import protocol
from sim.twin.protocol import Command, GripperCommand, GripperStatus, MoveStatus
from sim.twin.twin import TwinConfig, start_twin
from tests.sim.twin.loopback import address
from tests.sim.twin.still_world import GripperWorld, PusherWorld
from tests.sim.twin.test_clients import MOVE
from tests.sim.twin.test_clients import request as arm_request

FR3 = find_robot("fr3")


@pytest.fixture(scope="module")
def twin():
    with start_twin(TwinConfig(host=address(21)), GripperWorld) as running:
        yield running


@pytest.fixture
def franky():
    return pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")


@pytest.fixture
def gripper(twin, franky):
    twin.call("place", 0.05)
    gripper = franky.Gripper(twin.host)
    yield gripper
    gripper.stop()


def done(twin, future):
    """The result of an asynchronous franky call, after advancing the world as long as it needs."""
    for _ in range(100):
        twin.advance(0.05)
        if future.wait(0.02):
            return future.get()
    raise AssertionError("the action has not ended")


def begin(twin, act, *arguments):
    """Calls an asynchronous method of franky's and waits until the twin's gripper has received it."""
    count = twin.gripper_actions()
    future = act(*arguments)
    twin.wait_for_gripper(count + 1)
    return future


def test_the_client_reads_the_grippers_state(twin, gripper):
    state = gripper.state
    assert (state.width, state.max_width, state.is_grasped) == (0.05, FR3.gripper.width_max, False)
    assert state.temperature == 25
    assert gripper.server_version == 3
    assert gripper.state.time.to_msec() > state.time.to_msec()


def test_the_client_moves_the_fingers(twin, gripper):
    assert done(twin, begin(twin, gripper.move_async, 0.02, 0.1))
    assert gripper.width == pytest.approx(0.02, abs=1e-3)
    assert done(twin, begin(twin, gripper.open_async, 0.1))
    assert gripper.width == pytest.approx(FR3.gripper.width_max, abs=1e-3)


def test_the_client_grasps_an_object_and_loses_it(twin, gripper):
    twin.call("place", 0.05, 0.03)
    assert done(twin, begin(twin, gripper.grasp_async, 0.03, 0.1, 40.0))
    assert gripper.is_grasped
    assert gripper.state.width == 0.03
    twin.call("take")
    assert gripper.is_grasped
    twin.advance(0.5)
    assert not gripper.is_grasped


def test_the_client_grasps_nothing(twin, gripper):
    assert not done(twin, begin(twin, gripper.grasp_async, 0.03, 0.1, 40.0))
    assert not gripper.is_grasped
    assert gripper.width == 0.0


def test_stop_aborts_a_running_move(twin, gripper, franky):
    future = begin(twin, gripper.move_async, 0.0, 0.02)
    twin.advance(0.5)
    assert gripper.stop()
    with pytest.raises(franky.CommandException, match="aborted"):
        future.get()
    width = gripper.width
    assert 0.03 < width < 0.05
    twin.advance(0.5)
    assert gripper.width == pytest.approx(width, abs=1e-6)


def test_a_second_move_fails_while_the_first_runs(twin, gripper, franky):
    first = begin(twin, gripper.move_async, 0.02, 0.1)
    with pytest.raises(franky.CommandException, match="failed"):
        gripper.move(0.03, 0.1)
    assert done(twin, first)


def test_homing_ends_open(twin, gripper):
    assert done(twin, begin(twin, gripper.homing_async))
    assert gripper.width == pytest.approx(FR3.gripper.width_max, abs=1e-3)


def openings(host, franky):
    """What a client reads after each of a few grants."""
    with start_twin(TwinConfig(host=host), GripperWorld) as twin:
        gripper = franky.Gripper(host)
        twin.call("place", 0.08, 0.03)
        future = begin(twin, gripper.grasp_async, 0.03, 0.1, 40.0)
        widths = []
        for _ in range(20):
            twin.advance(0.033)
            widths.append(gripper.state.width)
        assert done(twin, future)
        return widths


def test_after_a_grant_the_opening_is_the_same_in_every_run(franky):
    first, second = openings(address(22), franky), openings(address(23), franky)
    assert first == second
    assert first[0] > first[5] > first[-1] == 0.03


def test_states_of_the_gripper_go_out_while_a_motion_of_the_arm_is_paused(twin, gripper, franky):
    robot = franky.Robot(twin.host, realtime_config=franky.RealtimeConfig.Ignore)
    motion = franky.JointImpedanceTrackingMotion()
    motion.set_reference(franky.JointReference(q=robot.current_joint_positions))
    robot.move(motion, asynchronous=True)
    twin.wait_for_motion()
    future = begin(twin, gripper.move_async, 0.02, 0.1)
    began = twin.now()
    assert [gripper.state.width for _ in range(30)] == [0.05] * 30
    assert done(twin, future)
    assert twin.now() > began
    assert gripper.width == pytest.approx(0.02, abs=1e-3)
    robot.stop()
    with pytest.raises(franky.ControlException, match="preempted"):
        robot.join_motion()


def test_the_grippers_states_keep_their_rate_while_the_arm_waits():
    with (
        start_twin(TwinConfig(host=address(28), patience=2.0), GripperWorld) as twin,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as states,
        call(twin.host) as client,
    ):
        states.bind(("", 0))
        states.settimeout(5.0)
        client.sendall(
            request(GripperCommand.CONNECT, 0, protocol.GRIPPER_VERSION, states.getsockname()[1])
        )
        assert states.recv(64)
        with socket.create_connection((twin.host, protocol.PORT), 5) as arm:
            arm.sendall(arm_request(Command.MOVE, 1, *MOVE))
            # The motion has begun, and ends for want of a first command after two seconds.
            answers = arm.recv(64)
            while len(answers) < 26:
                answers += arm.recv(64)
            assert answers[-1] == MoveStatus.REFLEX_ABORTED
            arm.sendall(arm_request(Command.AUTOMATIC_ERROR_RECOVERY, 2))
            assert arm.recv(64)[-1] == 0
        states.setblocking(False)
        received = []
        with suppress(BlockingIOError):
            while True:
                received.append(states.recv(64))
        assert len(received) > 30
        assert {len(state) for state in received} == {23}


def test_the_states_carry_the_time_in_milliseconds_while_the_fingers_move(twin, gripper):
    first = gripper.state
    future = begin(twin, gripper.move_async, 0.0, 0.05)
    twin.advance(0.4)
    # Of two states the first may have been sent before.
    moving = [gripper.state for _ in range(2)][-1]
    assert 0.02 < moving.width < 0.04
    passed = moving.time.to_msec() - first.time.to_msec()
    # Beside the motion, the time grows by 1 ms per state while the world stands.
    assert 400 <= passed < 600
    assert (moving.max_width, moving.temperature) == (first.max_width, first.temperature)
    assert done(twin, future)


def test_in_real_time_the_blocking_calls_return(franky):
    with start_twin(TwinConfig(host=address(24), clock="real"), GripperWorld) as twin:
        gripper = franky.Gripper(twin.host)
        assert gripper.move(0.04, 0.1)
        assert gripper.width == pytest.approx(0.04, abs=1e-3)
        assert not gripper.grasp(0.03, 0.1, 40.0)


def test_waiting_for_an_action_that_never_comes_names_the_counts(twin):
    count = twin.gripper_actions()
    with pytest.raises(
        HandoffError, match=f"received {count} actions within 0.05 s, expected {count + 1}"
    ):
        twin.wait_for_gripper(count + 1, timeout=0.05)


def request(command, command_id, *values):
    payload = protocol.GRIPPER_PAYLOAD[command].pack(*values)
    return (
        protocol.GRIPPER_HEADER.pack(
            command, command_id, protocol.GRIPPER_HEADER.size + len(payload)
        )
        + payload
    )


def call(host):
    return socket.create_connection((host, protocol.GRIPPER_PORT), 5)


def test_a_second_client_is_turned_away_while_the_first_is_connected(twin, gripper):
    with call(twin.host) as second:
        assert second.recv(1) == b""
    assert gripper.width == 0.05


def test_another_version_is_rejected_with_the_grippers_own(twin):
    with call(twin.host) as client:
        client.sendall(request(GripperCommand.CONNECT, 4, 2, 40000))
        assert client.recv(64) == struct.pack("<HIIHH", 0, 4, 14, 1, 3)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 100,
        struct.pack("<HII", GripperCommand.MOVE, 1, 12) + b"ab",
        struct.pack("<HII", 77, 1, 10),
        struct.pack("<HII", GripperCommand.STOP, 1, 4),
    ],
)
def test_garbage_ends_the_connection_and_the_twin_serves_the_next_client(twin, garbage):
    with call(twin.host) as client:
        client.sendall(garbage)
        assert client.recv(64) == b""
    with call(twin.host) as client:
        client.sendall(request(GripperCommand.STOP, 9))
        assert client.recv(64) == struct.pack(
            "<HIIH", GripperCommand.STOP, 9, 12, GripperStatus.SUCCESS
        )


def test_after_its_client_has_disconnected_the_fingers_stay_where_they_are(twin):
    twin.call("place", 0.05)
    count = twin.gripper_actions()
    with call(twin.host) as client:
        client.sendall(request(GripperCommand.MOVE, 1, 0.0, 0.02))
        twin.wait_for_gripper(count + 1)
        twin.advance(0.5)
    # The next client is answered after the twin has detected the disconnection of the last one.
    with call(twin.host) as client:
        client.sendall(request(GripperCommand.CONNECT, 2, 2, 40000))
        assert len(client.recv(64)) == 14
        target, _ = twin.call("servo")
        twin.advance(0.5)
        assert twin.call("servo")[0] == target
        assert 0.03 < target < 0.05


def test_a_world_that_places_the_fingers_overrides_their_servo(twin):
    count = twin.gripper_actions()
    twin.call("place", 0.05)
    with call(twin.host) as client:
        client.sendall(request(GripperCommand.MOVE, 1, 0.0, 0.02))
        twin.wait_for_gripper(count + 1)
        twin.advance(0.1)
        twin.call("place", 0.06)
        assert client.recv(64) == struct.pack(
            "<HIIH", GripperCommand.MOVE, 1, 12, GripperStatus.ABORTED
        )
        twin.advance(0.1)
    assert twin.call("servo")[0] == 0.06


def test_an_arm_with_another_tool_has_no_service_for_a_gripper():
    with start_twin(TwinConfig(host=address(25)), PusherWorld) as twin:
        with pytest.raises(ConnectionRefusedError):
            call(twin.host)
        with pytest.raises(HandoffError, match="carries no gripper"):
            twin.wait_for_gripper(1)
        assert twin.advance(0.01) == pytest.approx(0.01)


def test_a_twin_frees_the_grippers_port():
    host = address(26)
    for _ in range(2):
        with start_twin(TwinConfig(host=host), GripperWorld), call(host):
            pass


def test_a_port_of_the_gripper_in_use_is_named():
    with socket.create_server((address(27), protocol.GRIPPER_PORT)):
        expected = re.escape(f"{address(27)}:1338: the port is in use")
        with (
            pytest.raises(HandoffError, match=expected),
            start_twin(TwinConfig(host=address(27)), GripperWorld),
        ):
            pass
