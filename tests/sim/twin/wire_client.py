"""A client of the robot that sends and reads single messages, for what no released client sends."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from sim.twin.protocol import (
    COMMAND,
    HEADER,
    PAYLOAD,
    PORT,
    STATE,
    VERSION,
    Command,
    Controller,
    Generator,
    MoveStatus,
)

TIMEOUT = 20.0
"""Longest wait for an answer [s]; a busy computer may delay it by seconds."""


class WireClient:
    """One connection to the robot, as libfranka has it."""

    def __init__(self, host: str, version: int = VERSION) -> None:
        self._tcp = socket.create_connection((host, PORT), TIMEOUT)
        self._tcp.settimeout(TIMEOUT)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("", 0))
        self._udp.settimeout(TIMEOUT)
        self._robot: Any = None
        self._next_id = 0
        self.state = np.zeros(1, STATE)[0]
        """The newest state that was read."""
        request = self.request(Command.CONNECT, version, self._udp.getsockname()[1])
        self.connected, reply = self.answer(request)
        """Status of the reply to the handshake: 0 for a version that the robot speaks."""
        self.robot_version = struct.unpack("<H", reply)[0]

    def close(self) -> None:
        self._tcp.close()
        self._udp.close()

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, command: Command, *values: float) -> int:
        """Sends a request; returns its id."""
        payload = PAYLOAD[command].pack(*values)
        number = self._next_id
        self._next_id += 1
        self._tcp.sendall(HEADER.pack(command, number, HEADER.size + len(payload)) + payload)
        return number

    def answer(self, number: int) -> tuple[int, bytes]:
        """Status and payload of the next reply, which must be that to the request `number`."""
        header = self._exactly(HEADER.size)
        _, replied, size = HEADER.unpack(header)
        assert replied == number
        body = self._exactly(size - HEADER.size)
        return body[0], body[1:]

    def move(
        self,
        generator: Generator,
        controller: Controller = Controller.JOINT_IMPEDANCE,
        maximum_velocity: list[float] | None = None,
    ) -> tuple[int, int]:
        """Begins a motion, one that the robot plans where `maximum_velocity` [rad/s] is given.

        Returns:
            The id of the request and the status of the first reply.
        """
        velocity = maximum_velocity or [0.0] * 7
        planned = maximum_velocity is not None
        number = self.request(
            Command.MOVE, controller, generator - 1, *[0.0] * 6, planned, *velocity
        )
        status = self.answer(number)[0]
        if status == MoveStatus.MOTION_STARTED:
            while self.state["motion_generator_mode"] != generator:
                self.read()
        return number, status

    def fresh(self) -> np.void:
        """A state that is sent after this call, at rest or in a motion that the robot plans."""
        self.read()
        return self.read()

    def read(self) -> np.void:
        """The newest state; waits for one that is newer than the last."""
        last = int(self.state["message_id"])
        while int(self.state["message_id"]) <= last:
            datagram, self._robot = self._udp.recvfrom(4096)
            newest = np.frombuffer(datagram, STATE)[0]
            if newest["message_id"] > self.state["message_id"]:
                self.state = newest
        self._udp.setblocking(False)
        try:
            while True:
                newest = np.frombuffer(self._udp.recv(4096), STATE)[0]
                if newest["message_id"] > self.state["message_id"]:
                    self.state = newest
        except BlockingIOError:
            self._udp.settimeout(TIMEOUT)
        return self.state

    def send(self, **fields: Any) -> None:
        """Sends a command that echoes the newest state."""
        command = np.zeros(1, COMMAND)
        command["message_id"] = self.state["message_id"]
        for name, value in fields.items():
            command[name] = value
        self._udp.sendto(command.tobytes(), self._robot)

    def follow(
        self, commands: Callable[[int], dict[str, Any]], cycles: int, ends: list[int]
    ) -> threading.Thread:
        """Answers the next states in a thread, with the fields of `commands` in cycle n; whoever
        calls advances the robot meanwhile. Adds the number of answered states to `ends`, also if
        the connection is closed before."""

        def answer_states() -> None:
            cycle = 0
            with suppress(OSError):
                while cycle < cycles:
                    self.read()
                    self.send(**commands(cycle))
                    cycle += 1
            ends.append(cycle)

        thread = threading.Thread(target=answer_states, daemon=True)
        thread.start()
        return thread

    def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            part = self._tcp.recv(size - len(received))
            assert part, "the robot has closed the connection"
            received += part
        return received
