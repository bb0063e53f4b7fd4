"""Exchanges states and commands with the client once per cycle of a motion, and loses or delays
packets in either direction where a test asks for it.

A robot drops a command that comes later than its cycle (FCI documentation, system requirements), so
a packet that is late by a cycle or more costs this cycle's command in either direction. Packets are
late by whole cycles of the robot's own time, and the same ones are lost in every run: neither
depends on the computer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from sim.twin.link import Link
from sim.twin.unit.checks import PERIOD

T = TypeVar("T")

SLICE = 0.05
"""Longest wait for a command after which a client that has died is noticed [s]."""


class PacketPath(Generic[T]):
    """One direction between robot and client, packet by packet."""

    def __init__(self) -> None:
        self.active = False
        """Whether packets are lost or late, or some are still under way."""
        self._share = 0.0
        self._delay = 0.0
        self._jitter = 0.0
        self._losses = np.random.default_rng(0)
        self._delays = np.random.default_rng(1)
        self._cycle = 0
        self._under_way: list[tuple[int, T]] = []
        """Cycle of arrival and packet, in the order of sending."""

    def lose(self, share: float) -> None:
        """Loses this share of the packets from now on, at random; the same ones in every run."""
        self._share = share
        self._losses = np.random.default_rng(0)
        self.active = True

    def delay(self, seconds: float, jitter: float) -> None:
        """Delays every packet from now on by `seconds`, and up to `jitter` [s] more at random; the
        same ones in every run."""
        self._delay = seconds
        self._jitter = jitter
        self._delays = np.random.default_rng(1)
        self.active = True

    def clear(self) -> None:
        """Forgets the packets that are under way."""
        self._under_way.clear()

    def carry(self, packet: T | None) -> T | None:
        """Sends the packet of this cycle; returns the newest one that arrives in it.

        What arrives after a newer packet is dropped, as its receiver would.
        """
        self._cycle += 1
        if packet is not None and (late := self._lateness()) is not None:
            self._under_way.append((self._cycle + late, packet))
        arrived = None
        for number, (due, sent) in enumerate(self._under_way):
            if due <= self._cycle:
                arrived = number, sent
        if arrived is not None:
            del self._under_way[: arrived[0] + 1]
        self.active = bool(self._share or self._delay or self._jitter or self._under_way)
        return None if arrived is None else arrived[1]

    def _lateness(self) -> int | None:
        """Cycles by which the next packet is late; None if it is lost."""
        if self._share and self._losses.random() < self._share:
            return None
        if not (self._delay or self._jitter):
            return 0
        # Up to the rounding of decimal fractions.
        return int((self._delay + self._jitter * self._delays.random()) / PERIOD + 1e-9)


class Exchange:
    """Both directions between a twin and its client.

    Args:
        link: the arm's connections.
        lockstep: whether the clock waits for the client.
        patience: wall time until a command counts as lost, lockstep only [s].
        serve: called while a command is awaited; returns whether the motion still runs.
    """

    def __init__(
        self, link: Link, lockstep: bool, patience: float, serve: Callable[[], bool]
    ) -> None:
        self.states: PacketPath[tuple[int, bytes]] = PacketPath()
        """From the robot to the client: message id and datagram."""
        self.commands: PacketPath[np.ndarray] = PacketPath()
        """From the client to the robot."""
        self._link = link
        self._lockstep = lockstep
        self._patience = patience
        self._serve = serve

    def clear(self) -> None:
        """Forgets the packets that are under way, between two motions."""
        self.states.clear()
        self.commands.clear()

    def send(self, message_id: int, datagram: memoryview) -> int | None:
        """Sends the state of this cycle.

        Returns:
            The message id of the state that the client receives in this cycle; None without one.
        """
        if not self.states.active:
            self._link.send_state(datagram)
            return message_id
        arrived = self.states.carry((message_id, bytes(datagram)))
        if arrived is None:
            return None
        self._link.send_state(arrived[1])
        return arrived[0]

    def reply(
        self, message_id: int, received_id: int | None, deadline: float, *, beginning: bool
    ) -> np.ndarray | None:
        """The command of this cycle.

        Args:
            message_id: id of this cycle's state.
            received_id: id of the state that the client has received, see `send`.
            deadline: wall time at which a real clock stops waiting [s].
            beginning: whether the motion has received no command yet.

        Returns:
            (1,) of `protocol.COMMAND`; None if it is lost or late.
        """
        command = None
        if received_id is not None:
            command = self._await(received_id, deadline, beginning)
        if not self.commands.active:
            return command if beginning or received_id == message_id else None
        arrived = self.commands.carry(None if command is None else command.copy())
        if arrived is None or (not beginning and arrived["message_id"][0] != message_id):
            return None
        return arrived

    def newest(self) -> np.ndarray | None:
        """The newest command that has arrived since the last call, for a client that sends one now
        and then; late ones count as well."""
        command = None
        while self._link.receive(0.0) is not None:
            command = self._link.command
        if not self.commands.active:
            return command
        return self.commands.carry(None if command is None else command.copy())

    def _await(self, message_id: int, deadline: float, beginning: bool) -> np.ndarray | None:
        """The command that echoes `message_id`; None if there is none in time."""
        if self._lockstep:
            deadline = time.perf_counter() + self._patience
        while True:
            # Waiting in slices detects a client that has died. A command that has arrived counts,
            # even if this process was stopped meanwhile.
            left = deadline - time.perf_counter()
            received = self._link.receive(max(0.0, min(left, SLICE)))
            if received == message_id or (beginning and received is not None):
                return self._link.command
            if received is None and self._lockstep and not self._serve():
                return None
            if left <= 0.0:
                return None
