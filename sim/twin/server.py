"""The twin's main loop: when time passes, and who hears of it.

Lockstep clock. The world advances only while ticks are granted. Two things need wall time but no
world time, so that a client can connect, read states and begin motions although nothing is granted:
at rest the robot streams states at 1 kHz with the world frozen, and when a motion begins it sends
states until the first command arrives. The robot's clock (`message_id`) counts both these states
and the ticks; the twin's own clock counts ticks.

Real clock. One tick per millisecond of wall time; after a stall the clock slips instead of sending
a burst.

A world with a hand has a second service beside the arm's (`sim.twin.gripper`). Its fingers move in
the same ticks; its states go out by the wall clock in either clock and show the fingers as they
are.
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
from sim.twin.checks import PERIOD
from sim.twin.control_unit import ControlUnit
from sim.twin.gripper import HandServer
from sim.twin.link import Link
from sim.twin.protocol import STATE, ErrorBit, MoveStatus
from sim.twin.state import StateWriter
from sim.twin.world import World

KEEP_ALIVE = 0.3
"""Interval at which a paused motion repeats its last state [s]; libfranka gives up after 1 s of
silence."""
FIRST_COMMAND_PAUSES = (0.002, 0.05, 0.1, 0.2, 0.5)
"""Waits between the states of a beginning motion [s]. The client answers the second one it reads,
so the first wait only lets it read the first; a client held up by its computer needs one of the
longer ones."""


class Server:
    """Serves one world over the FCI, driven through a pipe by the process that owns it."""

    def __init__(
        self,
        link: Link,
        world: World,
        hand: HandServer | None,
        pipe: Connection,
        *,
        lockstep: bool,
        patience: float,
        log: int,
    ) -> None:
        """Prepares to serve; `run` does it.

        Args:
            link: where the client will call.
            world: what is served.
            hand: serves the world's hand; None when the world has none.
            pipe: receives (number, request, arguments...) and returns (number, whether it
                succeeded, result or reason).
            lockstep: the clock.
            patience: wall time until a command counts as lost, lockstep only [s].
            log: ticks of motion that `recorded` keeps.
        """
        self.link = link
        self.world = world
        self.hand = hand
        self.pipe = pipe
        self.unit = ControlUnit(world)
        self.state = StateWriter(self.unit)
        self.lockstep = lockstep
        self.patience = patience
        self.ticks = 0
        self.granted = 0
        self.profile = dict.fromkeys(
            ("motion_ticks", "motion_s", "wait_s", "world_s", "state_s"), 0.0
        )
        self._log = np.zeros(log, STATE)
        self._logged = 0
        self._message_id = 0
        self._pending: np.ndarray | None = None
        self._beginning_sent = 0
        self._next_send = 0.0
        self._stale = True
        self._question = self._grant_question = self._await_question = 0
        self._awaiting_until = 0.0
        self._hand_question = self._hand_count = 0
        self._hand_awaited_until = 0.0
        self._motion_began = 0.0
        self._closed = False

    def run(self) -> None:
        """Serves until the pipe closes."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        registered: set[int] = set()
        while not self._closed:
            wanted = {sock.fileno() for sock in self._sockets()}
            if wanted != registered:
                for number in registered - wanted:
                    poll.unregister(number)
                for number in wanted - registered:
                    poll.register(number, select.POLLIN)
                registered = wanted
            if not self._pass_time():
                self._wait()
            if poll.poll(0):
                self._serve_events()
            if self.hand is not None:
                self._serve_hand(self.hand)

    def _sockets(self) -> list[socket.socket]:
        """What to wait on for TCP events."""
        if self.hand is None:
            return self.link.sockets()
        return [*self.link.sockets(), *self.hand.link.sockets()]

    # Time.

    def _pass_time(self) -> bool:
        """Does what the clock allows now; False when there is nothing to do but wait."""
        now = time.perf_counter()
        unit = self.unit
        if not self.lockstep:
            if now < self._next_send:
                return False
            self._next_send = max(self._next_send + PERIOD, now + 0.9 * PERIOD)
            self._tick()
            return True
        if self._inviting():
            return self._invite_first_command(now)
        if unit.moving:
            if self.granted:
                self._tick()
                return True
            if now >= self._next_send:
                self._next_send = now + KEEP_ALIVE
                self.link.send_state(self.state.datagram)
            return False
        if now >= self._next_send:
            self._next_send = now + PERIOD
            self._send_next_state()
        if self.granted:
            self._tick()
            return True
        return False

    def _inviting(self) -> bool:
        """Whether a motion has begun whose first command is still to come."""
        return (
            self.lockstep and self.unit.moving and not self.unit.answered and self._pending is None
        )

    def _answer_await(self) -> None:
        """Tells an owner that waits for a motion whether it runs."""
        runs = self.unit.moving and (self.unit.answered or self._pending is not None)
        if self._awaiting_until and (runs or time.perf_counter() > self._awaiting_until):
            self._awaiting_until = 0.0
            self._reply(runs, self._await_question)

    def _wait(self) -> None:
        self._answer_await()
        if self._stale and self.lockstep:
            self._refresh()
        waiting_on = [self.pipe, *self._sockets()]
        if self._inviting():
            waiting_on.append(self.link.udp_socket())
        until = self._next_send if self.hand is None else min(self._next_send, self.hand.due)
        select.select(waiting_on, [], [], max(0.0, until - time.perf_counter()))

    def _invite_first_command(self, now: float) -> bool:
        """Sends states until the client, busy switching to the new mode, has answered one. The
        world waits."""
        received = self.link.receive(0.0)
        if received is not None and received > self._message_id - self._beginning_sent:
            self._pending = self.link.command
            self._motion_began = now
            self._next_send = now + KEEP_ALIVE
            self._answer_await()
            return True
        if now < self._next_send:
            return False
        if self._beginning_sent > len(FIRST_COMMAND_PAUSES):
            self.unit.trip(ErrorBit.COMMUNICATION_CONSTRAINTS)
            self._after_change()
            return True
        self._send_next_state()
        self._next_send = now + (*FIRST_COMMAND_PAUSES, self.patience)[self._beginning_sent]
        self._beginning_sent += 1
        return False

    def _tick(self) -> None:
        """One millisecond of world time; in a motion, one exchange with the client."""
        unit, clock = self.unit, time.perf_counter
        began = sent = answered = clock()
        moving, command = unit.moving, self._pending
        self._pending = None
        if command is None and (moving or not self.lockstep):
            self._send_next_state()
            sent = clock()
            command = self._await_command() if moving else None
            answered = clock()
        elif not moving:
            # At rest states go out by the wall clock; the robot's clock counts the silent ticks
            # too.
            self._message_id += 1
        if moving and len(self._log):
            self._log[self._logged % len(self._log)] = self.state.record[0]
            self._logged += 1
        unit.cycle(command)
        if self.hand is not None:
            self.hand.tick()
        self.ticks += 1
        self._stale = True
        if moving:
            self._account(began, sent, answered, clock())
        if unit.replies:
            self._after_change()
        if self.granted:
            self.granted -= 1
            if not self.granted:
                self._reply(self.ticks, self._grant_question)

    def _await_command(self) -> np.ndarray | None:
        """The command that echoes the state just sent; None when it is lost."""
        beginning = not self.unit.answered
        deadline = (
            time.perf_counter() + self.patience if self.lockstep else self._next_send - 0.1 * PERIOD
        )
        while (left := deadline - time.perf_counter()) > 0.0:
            # Waiting in slices notices a client that has died.
            received = self.link.receive(min(left, 0.05))
            if received == self._message_id or (beginning and received is not None):
                return self.link.command
            if received is None and self.lockstep:
                if self.hand is not None:
                    self._serve_hand(self.hand)
                if select.select(self._sockets(), [], [], 0.0)[0]:
                    self._serve_requests()
                if not self.unit.moving:
                    return None
        return None

    # States.

    def _send_next_state(self) -> None:
        if self._stale:
            self._refresh()
        self._message_id += 1
        self.state.record["message_id"] = self._message_id
        self.link.send_state(self.state.datagram)

    def _refresh(self) -> None:
        self.state.write()
        self._stale = False

    def _show(self) -> None:
        self.state.write_tool()
        if not self.unit.moving:
            self._after_change()

    def _after_change(self) -> None:
        """The mode has changed outside a tick or at its end: show it, then answer the Move
        request."""
        self._stale = True
        self._send_next_state()
        for command_id, status in self.unit.replies:
            commands.reply_to_move(self.link, command_id, status)
        self.unit.replies.clear()
        if not self.unit.moving:
            self._pending = None
            self._next_send = 0.0

    def _account(self, began: float, sent: float, answered: float, ended: float) -> None:
        profile = self.profile
        profile["motion_ticks"] += 1
        profile["state_s"] += sent - began
        profile["wait_s"] += answered - sent
        profile["world_s"] += ended - answered
        if not self.unit.moving:
            profile["motion_s"] += ended - self._motion_began

    # Events.

    def _serve_events(self) -> None:
        self._serve_requests()
        while not self._closed and self.pipe.poll():
            try:
                message = self.pipe.recv()
            except (EOFError, ConnectionResetError):
                # The owner has gone, and its robot with it.
                self._closed = True
                return
            self._question, *request = message
            self._serve_owner(*request)

    def _serve_requests(self) -> None:
        if self.hand is not None:
            self.hand.serve_requests()
        for request in self.link.requests():
            was_moving = self.unit.moving
            commands.handle(request, self.unit, self.link, self._show)
            if not (was_moving and self.unit.moving):
                self._after_change()
            if self.unit.moving and not was_moving:
                self._beginning_sent, self._motion_began = 1, time.perf_counter()
                if self.lockstep:
                    self._next_send = self._motion_began + FIRST_COMMAND_PAUSES[0]
        if self.link.lost_client:
            self.link.lost_client = False
            if self.unit.moving:
                self.unit.end(MoveStatus.ABORTED)
            # Nobody is left to hear it: the next client, who may be there by now, has not asked.
            self.unit.replies.clear()
            self._after_change()

    def _serve_hand(self, hand: HandServer) -> None:
        """Sends its states, and tells an owner that waits for an action whether it has come."""
        now = time.perf_counter()
        hand.stream(now)
        actions = hand.unit.actions
        if self._hand_awaited_until and (
            actions >= self._hand_count or now > self._hand_awaited_until
        ):
            self._hand_awaited_until = 0.0
            self._reply(actions, self._hand_question)

    def _serve_owner(self, what: str, *arguments: Any) -> None:
        match what:
            case "grant":
                self.granted, self._grant_question = arguments[0], self._question
                if not self.granted:
                    self._reply(self.ticks)
            case "await_motion":
                self._awaiting_until = time.perf_counter() + arguments[0]
                self._await_question = self._question
                self._answer_await()
            case "await_hand":
                if self.hand is None:
                    self._refuse("twin: this world's arm carries no hand.")
                    return
                self._hand_question, self._hand_count = self._question, arguments[0]
                self._hand_awaited_until = time.perf_counter() + arguments[1]
            case "call":
                self._call(*arguments)
            case "user_stop":
                self.unit.press_user_stop(arguments[0])
                self._after_change()
                self._reply(None)
            case "stats":
                self._reply(self._stats())
            case "recorded":
                kept = min(self._logged, len(self._log))
                self._reply(
                    np.roll(self._log, -self._logged)[len(self._log) - kept :]
                    if kept
                    else self._log[:0]
                )

    def _call(self, name: str, arguments: tuple) -> None:
        q, hand = self.world.q.copy(), self.hand
        opening = 0.0 if hand is None else hand.hand.width
        try:
            result = getattr(self.world, name)(*arguments)
        except (HandoffError, AttributeError, TypeError, ValueError, IndexError, KeyError) as error:
            self._refuse(f"twin: {name}{arguments!r} of the world failed: {error}")
            return
        if not self.unit.moving and not np.array_equal(q, self.world.q):
            self.unit.rest()
        if hand is not None and hand.hand.width != opening:
            hand.rest()
        self._stale = True
        self._reply(result)

    def _reply(self, result: Any, question: int | None = None) -> None:
        self.pipe.send((self._question if question is None else question, True, result))

    def _refuse(self, reason: str) -> None:
        self.pipe.send((self._question, False, reason))

    def _stats(self) -> dict[str, float]:
        wall = self.profile["motion_s"]
        if self.unit.moving and self.unit.answered:
            wall += time.perf_counter() - self._motion_began
        motion_ticks = self.profile["motion_ticks"]
        return {
            **self.profile,
            "ticks": self.ticks,
            "motion_s": wall,
            "lost_packets": self.unit.lost_packets,
            "success_rate": self.unit.success_rate,
            "realtime_factor": motion_ticks * PERIOD / wall if wall > 0.0 else 0.0,
        }
