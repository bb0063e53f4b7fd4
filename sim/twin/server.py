"""Runs the twin's main loop, which advances time and serves the connections.

Lockstep clock. The world advances only while ticks are granted. Two activities use wall time but no
world time, so that a client can connect, read states and begin motions without granted ticks: at
rest the robot streams states at 1 kHz while the world is frozen, and when a motion begins it sends
states until the first command arrives. The robot's clock (`message_id`) counts these states and the
ticks; the twin's own clock counts only ticks.

Real clock. One tick per millisecond of wall time; after a stall the clock skips time instead of
sending a burst.

A world with a gripper has a second service in addition to the arm's (`sim.twin.gripper`). Its
fingers move in the same ticks; its states are sent by the wall clock with either clock and report
the current opening.
"""

from __future__ import annotations

import select
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from robots.errors import HandoffError
from sim.twin import commands
from sim.twin.exchange import Exchange
from sim.twin.gripper import GripperServer
from sim.twin.link import Link
from sim.twin.motion_log import MotionLog
from sim.twin.protocol import VERSION, ErrorBit, MoveStatus
from sim.twin.state import StateWriter
from sim.twin.unit.checks import PERIOD
from sim.twin.unit.control_unit import ControlUnit
from sim.twin.world import World

PAUSE = 0.3
"""Longest time for which a motion without granted ticks waits for an event [s]. Meanwhile
`sim.twin.keep_alive` repeats its last state."""
FIRST_COMMAND_PAUSES = (0.002, 0.05, 0.1, 0.2, 0.5)
"""Pauses between the states at the beginning of a motion [s]. The client replies to the second one
that it reads, so the first pause only lets it read the first; the longer ones are for a client that
its computer delays. The last one recurs until the patience is over."""


class Server:
    """Serves one world over the FCI, controlled through a pipe by the owner's process."""

    def __init__(
        self,
        link: Link,
        world: World,
        gripper_server: GripperServer | None,
        pipe: Connection,
        *,
        lockstep: bool,
        patience: float,
        log: int,
    ) -> None:
        """Prepares the server; `run` starts it.

        Args:
            link: the arm's connections.
            world: the simulated robot.
            gripper_server: serves the world's gripper; None without one.
            pipe: receives (request id, request, arguments...) and returns (request id, whether it
                succeeded, result or reason).
            lockstep: whether the clock is lockstep or real.
            patience: wall time until a command counts as lost, lockstep only [s].
            log: number of motion ticks that `recorded` keeps.
        """
        self.link = link
        self.world = world
        self.gripper_server = gripper_server
        self.pipe = pipe
        self.unit = ControlUnit(world)
        self.state = StateWriter(self.unit)
        self.lockstep = lockstep
        self.patience = patience
        self.version = VERSION
        """Protocol version that the robot states and accepts."""
        self.exchange = Exchange(link, lockstep, patience, self._serve_while_waiting)
        self.ticks = 0
        self.granted = 0
        self._motions = MotionLog(log)
        self._message_id = 0
        self._pending: np.ndarray | None = None
        self._beginning_sent = 0
        self._next_send = 0.0
        self._state_outdated = True
        self._request_id = 0
        self._grant_request = 0
        self._motion_request = 0
        self._motion_deadline = 0.0
        self._gripper_request = 0
        self._gripper_count = 0
        self._gripper_deadline = 0.0
        self._motion_began = 0.0
        self._closed = False

    def run(self) -> None:
        """Serves until the pipe closes."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        registered: set[int] = set()
        while not self._closed:
            # Poll exactly the sockets that are open now.
            current = {sock.fileno() for sock in self._sockets()}
            if current != registered:
                for number in registered - current:
                    poll.unregister(number)
                for number in current - registered:
                    poll.register(number, select.POLLIN)
                registered = current
            if not self._pass_time():
                self._wait()
            if poll.poll(0):
                self._serve_events()
            if self.gripper_server is not None:
                self._serve_gripper(self.gripper_server)

    def _sockets(self) -> list[socket.socket]:
        """Sockets that become readable on TCP events."""
        if self.gripper_server is None:
            return self.link.sockets()
        return [*self.link.sockets(), *self.gripper_server.link.sockets()]

    # Time.

    def _pass_time(self) -> bool:
        """Does what the clock allows now; returns False if the loop should wait."""
        now = time.perf_counter()
        unit = self.unit
        if not self.lockstep:
            if now < self._next_send:
                return False
            self._next_send = max(self._next_send + PERIOD, now + 0.9 * PERIOD)
            self._tick()
            return True
        if self._awaiting_first_command():
            return self._request_first_command(now)
        if unit.moving and not unit.asynchronous:
            if self.granted:
                self._tick()
                return True
            self._next_send = now + PAUSE
            return False
        if now >= self._next_send:
            self._next_send = now + PERIOD
            self._send_next_state()
        if self.granted:
            self._tick()
            return True
        return False

    def _awaiting_first_command(self) -> bool:
        """Whether a motion has begun but its first command has not arrived."""
        return (
            self.lockstep
            and self.unit.moving
            and not self.unit.command_received
            and self._pending is None
        )

    def _reply_to_await_motion(self) -> None:
        """Replies to `await_motion` once the motion runs or the time is up."""
        runs = self.unit.moving and (self.unit.command_received or self._pending is not None)
        if self._motion_deadline and (runs or time.perf_counter() > self._motion_deadline):
            self._motion_deadline = 0.0
            self._reply(runs, self._motion_request)

    def _wait(self) -> None:
        self._reply_to_await_motion()
        if self._state_outdated and self.lockstep:
            self._refresh()
        waiting_on = [self.pipe, *self._sockets()]
        if self._awaiting_first_command():
            waiting_on.append(self.link.udp_socket())
        until = self._next_send
        if self.gripper_server is not None:
            until = min(until, self.gripper_server.due)
        select.select(waiting_on, [], [], max(0.0, until - time.perf_counter()))

    def _request_first_command(self, now: float) -> bool:
        """Sends states until the client, which is switching to the new mode, replies to one. The
        world waits."""
        received = self.link.receive(0.0)
        if received is not None and received > self._message_id - self._beginning_sent:
            self._pending = self.link.command
            self._motion_began = now
            self._next_send = now + PAUSE
            self._reply_to_await_motion()
            return True
        if now < self._next_send:
            return False
        if now > self._motion_began + self.patience:
            self.unit.trip(ErrorBit.COMMUNICATION_CONSTRAINTS)
            self._after_change()
            return True
        self._send_next_state()
        pause = min(self._beginning_sent, len(FIRST_COMMAND_PAUSES) - 1)
        self._next_send = now + FIRST_COMMAND_PAUSES[pause]
        self._beginning_sent += 1
        return False

    def _tick(self) -> None:
        """Advances the world by one millisecond; in a motion this is one exchange with the
        client."""
        unit = self.unit
        clock = time.perf_counter
        began = sent = received = clock()
        moving = unit.moving
        command = self._pending
        self._pending = None
        if unit.asynchronous:
            command = self.exchange.newest()
        if unit.asynchronous or not moving:
            # In lockstep, states that nobody replies to are sent by the wall clock; the robot's
            # clock also counts the ticks without a state.
            self._advance_robot_clock()
        elif command is None:
            self._next_state()
            arrived = self.exchange.send(self._message_id, self.state.datagram)
            sent = clock()
            command = self.exchange.reply(
                self._message_id,
                arrived,
                self._next_send - 0.1 * PERIOD,
                beginning=not unit.command_received,
            )
            received = clock()
        if moving:
            self._motions.add_state(self.state.record[0])
        unit.cycle(command)
        if self.gripper_server is not None:
            self.gripper_server.tick()
        self.ticks += 1
        self._state_outdated = True
        if moving:
            self._motions.add_tick(began, sent, received, clock())
        if unit.replies:
            self._after_change()
        if self.granted:
            self.granted -= 1
            if not self.granted:
                self._reply(self.ticks, self._grant_request)

    def _advance_robot_clock(self) -> None:
        """Counts a tick in which no reply is expected; in real time its state is sent as well."""
        if not self.lockstep:
            self._send_next_state()
            return
        self._message_id += 1
        if self.unit.moving and self._state_outdated:
            self._refresh()

    def _serve_while_waiting(self) -> bool:
        """Serves everything but the arm's commands; returns whether the motion still runs."""
        if self.gripper_server is not None:
            self._serve_gripper(self.gripper_server)
        if select.select(self._sockets(), [], [], 0.0)[0]:
            self._serve_requests()
        return self.unit.moving

    # States.

    def _next_state(self) -> None:
        if self._state_outdated:
            self._refresh()
        self._message_id += 1
        self.state.record["message_id"] = self._message_id

    def _send_next_state(self) -> None:
        self._next_state()
        self.link.send_state(self.state.datagram)

    def _refresh(self) -> None:
        self.state.write()
        self._state_outdated = False

    def _send_settings(self) -> None:
        self.state.write_tool()
        if not self.unit.moving:
            self._after_change()

    def _after_change(self) -> None:
        """Sends the state after a change of mode outside a tick or at its end, then replies to the
        Move request."""
        self._state_outdated = True
        self._send_next_state()
        for command_id, status in self.unit.replies:
            commands.reply_to_move(self.link, command_id, status)
        self.unit.replies.clear()
        if not self.unit.moving:
            self._pending = None
            self._next_send = 0.0

    # Events.

    def _serve_events(self) -> None:
        self._serve_requests()
        while not self._closed and self.pipe.poll():
            try:
                message = self.pipe.recv()
            except (EOFError, ConnectionResetError):
                # The owner has exited, so the robot stops, too.
                self._closed = True
                return
            self._request_id, *request = message
            self._serve_owner(*request)

    def _serve_requests(self) -> None:
        if self.gripper_server is not None:
            self.gripper_server.serve_requests()
        for request in self.link.requests():
            was_moving = self.unit.moving
            commands.handle(request, self.unit, self.link, self._send_settings, self.version)
            if not (was_moving and self.unit.moving):
                self._after_change()
            if self.unit.moving and not was_moving:
                self.exchange.clear()
                self._beginning_sent = 1
                self._motion_began = time.perf_counter()
                self._motions.begin()
                if self.lockstep:
                    self._next_send = self._motion_began + FIRST_COMMAND_PAUSES[0]
        if self.link.lost_client:
            self.link.lost_client = False
            if self.unit.moving:
                self.unit.end(MoveStatus.ABORTED)
            # Drop the replies: the next client may have connected already but sent no request.
            self.unit.replies.clear()
            self._after_change()

    def _serve_gripper(self, server: GripperServer) -> None:
        """Sends the gripper's state, and replies to `await_gripper` once enough actions have
        arrived or the time is up."""
        now = time.perf_counter()
        server.stream(now)
        actions = server.unit.actions
        if self._gripper_deadline and (
            actions >= self._gripper_count or now > self._gripper_deadline
        ):
            self._gripper_deadline = 0.0
            self._reply(actions, self._gripper_request)

    def _serve_owner(self, request: str, *arguments: Any) -> None:
        match request:
            case "grant":
                self.granted = arguments[0]
                self._grant_request = self._request_id
                if not self.granted:
                    self._reply(self.ticks)
            case "await_motion":
                self._motion_deadline = time.perf_counter() + arguments[0]
                self._motion_request = self._request_id
                self._reply_to_await_motion()
            case "await_gripper":
                if self.gripper_server is None:
                    self._refuse("twin: this world's arm carries no gripper.")
                    return
                self._gripper_request = self._request_id
                self._gripper_count = arguments[0]
                self._gripper_deadline = time.perf_counter() + arguments[1]
            case "call":
                self._call(*arguments)
            case "reset":
                self._reset(*arguments)
            case "user_stop":
                self.unit.press_user_stop(arguments[0])
                self._after_change()
                self._reply(None)
            case "version":
                self.version = arguments[0]
                self._reply(None)
            case "lose" | "delay":
                direction, *amounts = arguments
                path = self.exchange.states if direction == "states" else self.exchange.commands
                getattr(path, request)(*amounts)
                self._reply(None)
            case "stats":
                self._reply(self._stats())
            case "recorded":
                self._reply(self._motions.states())

    def _call(self, name: str, arguments: tuple) -> None:
        q = self.world.q.copy()
        server = self.gripper_server
        opening = 0.0 if server is None else server.gripper.width
        try:
            result = getattr(self.world, name)(*arguments)
        except (HandoffError, AttributeError, TypeError, ValueError, IndexError, KeyError) as error:
            self._refuse(f"twin: the world's method {name}{arguments!r} failed: {error}")
            return
        if not self.unit.moving and not np.array_equal(q, self.world.q):
            self.unit.rest()
        if server is not None and server.gripper.width != opening:
            server.rest()
        self._state_outdated = True
        self._reply(result)

    def _reset(self, arguments: tuple) -> None:
        if self.unit.moving:
            self._refuse("twin: the world cannot be reset during a motion. Stop the arm first.")
            return
        self.ticks = 0
        self._call("reset", arguments)
        self.unit.forget()
        if self.gripper_server is not None:
            self.gripper_server.rest()

    def _reply(self, result: Any, request_id: int | None = None) -> None:
        self.pipe.send((self._request_id if request_id is None else request_id, True, result))

    def _refuse(self, reason: str) -> None:
        self.pipe.send((self._request_id, False, reason))

    def _stats(self) -> dict[str, float]:
        return {
            **self._motions.stats(self.unit.moving),
            "ticks": self.ticks,
            "lost_packets": self.unit.lost_packets,
            "success_rate": self.unit.success_rate,
        }
