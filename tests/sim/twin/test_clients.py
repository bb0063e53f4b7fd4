"""One client after another, byte for byte: replies to the first must not reach the
second."""

import os
import signal
import socket

import numpy as np
import pytest

from sim.twin import protocol
from sim.twin.link import Link
from sim.twin.protocol import Command, Controller, Generator, MoveStatus
from sim.twin.push_t_world import PushTWorld
from sim.twin.twin import TwinConfig, start_twin
from tests.sim.twin.loopback import address


def request(command: Command, command_id: int, *values: float) -> bytes:
    payload = protocol.PAYLOAD[command].pack(*values)
    return protocol.HEADER.pack(command, command_id, protocol.HEADER.size + len(payload)) + payload


def connect(host: str, states: socket.socket) -> socket.socket:
    """A client that has asked for states at `states`; the answer is still to come."""
    client = socket.create_connection((host, protocol.PORT), 5)
    states.bind(("", 0))
    client.sendall(request(Command.CONNECT, 0, protocol.VERSION, states.getsockname()[1]))
    return client


CONNECTED = protocol.response(Command.CONNECT, 0, 0, protocol.VERSION.to_bytes(2, "little"))
MOVE = (Controller.EXTERNAL, Generator.NONE - 1, *[0.0] * 6, 0, *[0.0] * 7)
"""A torque motion."""


def test_the_next_client_gets_no_reply_to_the_motion_of_the_last_one():
    with (
        start_twin(TwinConfig(host=address(11)), PushTWorld) as twin,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as first_states,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as second_states,
    ):
        first = connect(twin.host, first_states)
        assert first.recv(64) == CONNECTED
        first.sendall(request(Command.MOVE, 1, *MOVE))
        assert first.recv(64) == protocol.response(Command.MOVE, 1, MoveStatus.MOTION_STARTED)
        pid = twin._process.pid
        assert pid is not None
        # Both happen before the twin looks: the first client goes in the middle of its motion, the
        # second one calls.
        os.kill(pid, signal.SIGSTOP)
        first.close()
        with connect(twin.host, second_states) as second:
            os.kill(pid, signal.SIGCONT)
            second.settimeout(5.0)
            assert second.recv(64) == CONNECTED
            second.settimeout(0.2)
            with pytest.raises(TimeoutError):
                second.recv(64)
            second.sendall(request(Command.MOVE, 1, *MOVE))
            second.settimeout(5.0)
            assert second.recv(64) == protocol.response(Command.MOVE, 1, MoveStatus.MOTION_STARTED)


def test_commands_of_the_last_client_are_not_taken_for_the_next_ones():
    link = Link(address(12))
    try:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as first_states,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as second_states,
        ):
            with connect(address(12), first_states):
                _serve(link)
                command = np.zeros(1, protocol.COMMAND)
                command["message_id"] = 7
                first_states.sendto(command.tobytes(), link.udp_socket().getsockname())
                assert link.receive(1.0) == 7
                first_states.sendto(command.tobytes(), link.udp_socket().getsockname())
            with connect(address(12), second_states):
                _serve(link)
                assert link.receive(0.1) is None
    finally:
        link.close()


def _serve(link: Link) -> None:
    """Answers until a client has asked to be connected."""
    while True:
        for asked in link.requests():
            assert asked.command == Command.CONNECT
            link.open_udp(protocol.PAYLOAD[Command.CONNECT].unpack(asked.payload)[1])
            return
