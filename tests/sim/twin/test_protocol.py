import re
import socket
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robots.errors import HandoffError
from sim.twin import protocol
from sim.twin.commands import handle
from sim.twin.link import Link, Request
from sim.twin.push_t_world import PushTWorld
from sim.twin.unit.control_unit import ControlUnit
from tests.sim.twin.loopback import address


@pytest.fixture(scope="module")
def unit():
    return ControlUnit(PushTWorld())


class FakeLink:
    """Records what would have been sent."""

    def __init__(self):
        self.replies, self.closed, self.udp_port = [], False, 0

    def reply(self, message):
        self.replies.append(message)

    def close_client(self):
        self.closed = True

    def open_udp(self, port):
        self.udp_port = port


def test_a_state_has_1377_bytes_and_a_command_371():
    assert (protocol.STATE.itemsize, protocol.COMMAND.itemsize) == (1377, 371)


@pytest.mark.parametrize(
    ("field", "offset"),
    [
        ("message_id", 0),
        ("O_T_EE", 8),
        ("m_ee", 392),
        ("I_load", 448),
        ("elbow", 496),
        ("tau_J", 512),
        ("tau_J_d", 540),
        ("q", 596),
        ("q_d", 624),
        ("dq", 652),
        ("ddq_d", 708),
        ("tau_ext_hat_filtered", 840),
        ("O_ddP_O", 940),
        ("O_T_EE_c", 976),
        ("theta", 1088),
        ("accelerometer_top", 1144),
        ("motion_generator_mode", 1288),
        ("controller_mode", 1289),
        ("errors", 1290),
        ("reflex_reason", 1331),
        ("robot_mode", 1372),
        ("control_command_success_rate", 1373),
    ],
)
def test_state_fields_lie_where_libfranka_reads_them(field, offset):
    assert protocol.STATE.fields is not None
    assert protocol.STATE.fields[field][1] == offset


@pytest.mark.parametrize(
    ("field", "offset"),
    [
        ("q_c", 8),
        ("dq_c", 64),
        ("O_T_EE_c", 120),
        ("valid_elbow", 312),
        ("tau_J_d", 314),
        ("torque_command_finished", 370),
    ],
)
def test_command_fields_lie_where_libfranka_writes_them(field, offset):
    assert protocol.COMMAND.fields is not None
    assert protocol.COMMAND.fields[field][1] == offset


def test_request_payloads_have_the_documented_sizes():
    sizes = [protocol.PAYLOAD[command].size for command in protocol.Command]
    assert sizes == [4, 113, 0, 416, 56, 48, 7, 128, 128, 104, 0, 0]


def test_a_response_carries_the_request_id_its_own_size_and_the_status():
    message = protocol.response(protocol.Command.CONNECT, 7, 1, b"\x0a\x00")
    assert message == struct.pack("<IIIBH", 0, 7, 15, 1, 10)


def nothing() -> None:
    """Sends no state."""


def test_connect_with_another_version_is_rejected_with_ours(unit):
    link = FakeLink()
    handle(Request(protocol.Command.CONNECT, 0, struct.pack("<HH", 9, 50000)), unit, link, nothing)  # type: ignore[arg-type]
    assert link.replies == [struct.pack("<IIIBH", 0, 0, 15, 1, 10)]
    assert link.udp_port == 0


def test_targets_that_the_robot_plans_itself_begin_a_motion_that_waits_for_none(unit):
    link = FakeLink()
    modes = struct.pack("<II", protocol.Controller.JOINT_IMPEDANCE, 0)
    payload = modes + struct.pack("<3d3dB7d", *np.zeros(6), 1, *np.ones(7))
    handle(Request(protocol.Command.MOVE, 3, payload), unit, link, nothing)  # type: ignore[arg-type]
    assert link.replies == [struct.pack("<IIIB", 1, 3, 13, protocol.MoveStatus.MOTION_STARTED)]
    for _ in range(30):
        unit.cycle(None)
    assert unit.asynchronous
    assert unit.lost_packets == 0
    unit.end(protocol.MoveStatus.ABORTED)
    unit.replies.clear()


def test_a_load_of_negative_mass_is_an_invalid_argument(unit):
    link = FakeLink()
    payload = struct.pack("<13d", -1.0, *np.zeros(3), *np.eye(3).ravel())
    handle(Request(protocol.Command.SET_LOAD, 4, payload), unit, link, nothing)  # type: ignore[arg-type]
    assert link.replies[0][-1] == protocol.SetterStatus.INVALID_ARGUMENT


def test_a_setting_is_sent_before_it_is_acknowledged(unit):
    link, states = FakeLink(), []
    payload = struct.pack("<13d", 0.5, *np.zeros(3), *np.eye(3).ravel())
    request = Request(protocol.Command.SET_LOAD, 4, payload)
    handle(request, unit, link, lambda: states.append((unit.m_load, len(link.replies))))  # type: ignore[arg-type]
    assert states == [(0.5, 0)]
    assert link.replies[0][-1] == protocol.SetterStatus.SUCCESS


def test_a_mirrored_tool_frame_is_an_invalid_argument(unit):
    link = FakeLink()
    payload = struct.pack("<16d", *np.diag([1.0, 1.0, -1.0, 1.0]).ravel())
    handle(Request(protocol.Command.SET_NE_TO_EE, 5, payload), unit, link, nothing)  # type: ignore[arg-type]
    assert link.replies[0][-1] == protocol.SetterStatus.INVALID_ARGUMENT


@settings(max_examples=200, deadline=None)
@given(command=st.integers(0, 14), data=st.data())
def test_no_request_of_the_right_size_breaks_the_control_unit(unit, command, data):
    size = protocol.PAYLOAD[protocol.Command(command)].size if command <= 11 else 0
    payload = data.draw(st.binary(min_size=size, max_size=size) | st.binary(max_size=450))
    handle(Request(command, 1, payload), unit, FakeLink(), nothing)  # type: ignore[arg-type]
    unit.cycle(None)
    unit.end(protocol.MoveStatus.ABORTED)


@settings(max_examples=50, deadline=None)
@given(floats=st.lists(st.floats(), min_size=47, max_size=47), mode=st.sampled_from([0, 1, 4]))
def test_no_command_datagram_breaks_the_control_unit(unit, floats, mode):
    unit.recover()
    controller = protocol.Controller.EXTERNAL if mode == 4 else protocol.Controller.JOINT_IMPEDANCE
    unit.begin(0, controller, protocol.Generator(mode + 1))
    command = np.zeros(1, protocol.COMMAND)
    with np.errstate(all="ignore"):
        command["q_c"], command["dq_c"], command["tau_J_d"] = (
            floats[:7],
            floats[7:14],
            floats[14:21],
        )
        unit.cycle(command)
    assert np.isfinite(unit.world.q).all()


@settings(max_examples=30, deadline=None)
@given(garbage=st.binary(min_size=1, max_size=600))
def test_garbage_on_the_wire_leaves_the_link_able_to_serve_the_next_client(garbage):
    link = Link(address(11))
    try:
        with socket.create_connection((address(11), protocol.PORT)) as client:
            _take(link, 1)
            client.sendall(garbage)
            _take(link, 2)
        _take(link, 2)
        with socket.create_connection((address(11), protocol.PORT)) as client:
            _take(link, 1)
            client.sendall(protocol.HEADER.pack(protocol.Command.STOP_MOVE, 9, 12))
            assert Request(protocol.Command.STOP_MOVE, 9, b"") in _take(link, 50)
    finally:
        link.close()


def test_a_second_client_is_turned_away_while_the_first_is_connected():
    link = Link(address(12))
    try:
        with socket.create_connection((address(12), protocol.PORT)):
            _take(link, 1)
            with socket.create_connection((address(12), protocol.PORT)) as second:
                _take(link, 1)
                assert second.recv(1) == b""
    finally:
        link.close()


def test_a_port_in_use_is_named_with_its_likely_cause():
    link = Link(address(13))
    try:
        with pytest.raises(
            HandoffError,
            match=re.escape(f"{address(13)}:1337: the port is in use. Is another twin"),
        ):
            Link(address(13))
    finally:
        link.close()


def test_the_address_of_a_twin_that_is_ending_is_waited_for():
    """As after a kill, when a run is started again before its twin has noticed."""
    ending = Link(address(164))
    threading.Timer(0.5, ending.close).start()
    began = time.monotonic()
    Link(address(164)).close()
    assert time.monotonic() - began >= 0.4


def test_a_foreign_address_is_refused():
    with pytest.raises(HandoffError, match=r"192\.0\.2\.1:1337.*address of this computer"):
        Link("192.0.2.1")


def _take(link, rounds):
    """The requests that the link yields in a few rounds; loopback delivers within one or
    two."""
    import select

    requests = []
    for _ in range(rounds):
        if not select.select(link.sockets(), [], [], 0.02)[0]:
            break
        requests += list(link.requests())
    return requests
