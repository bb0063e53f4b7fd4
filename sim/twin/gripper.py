"""The twin's Franka Hand: `HandUnit` moves the fingers, 1 ms at a time, and `HandServer` serves it
to one client.

What the real hand answers is documented by libfranka (`franka::Gripper`). How it moves is not
published; here the target of the fingers' servo runs at the commanded speed, and an action has
ended when the servo pulls as it is meant to and the fingers rest. The hand commands nothing until
its first action: a world may begin with a thing in hand.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import inf, isfinite

from robots.franka.robot import Gripper
from sim.scene.scene import GRIPPER_STIFFNESS
from sim.twin.checks import PERIOD
from sim.twin.link import Request, Service
from sim.twin.protocol import (
    HAND_HEADER,
    HAND_PAYLOAD,
    HAND_PORT,
    HAND_STATE,
    HAND_VERSION,
    HandCommand,
    HandStatus,
    hand_response,
)
from sim.twin.world import Hand

REACHED = 0.001
"""Largest distance from the commanded opening at which a move has succeeded [m]; ours."""
LEAD_MARGIN = 0.001
"""By so much more than the force needs the servo's target may lie ahead of the fingers [m];
ours."""
HOMING_SHARE = 0.5
"""Share of the gripper's highest speed at which it is homed; ours."""
STILL_TICKS = 50
"""The fingers rest when for so many ticks they have moved less than a tenth of what they would at
their speed; ours."""
STILL_SPEED = 0.02
"""They must rest as well as after a motion at this speed, however fast theirs was [m/s]; ours."""
STATE_PERIOD = 0.01
"""Wall time between two states [s]. The real hand's rate is not published; clients have seen 10 to
50 Hz."""
TEMPERATURE = 25
"""[degrees C]; the twin stays cool."""


@dataclass(frozen=True)
class Course:
    """Where the target of the fingers' servo runs."""

    end: float
    """Opening [m]; infinite: on and on, as far as `force` needs."""
    speed: float
    """[m/s]."""
    force: float
    """Most that a finger presses with [N]."""


class HandUnit:
    """What the hand does, without its network. One action runs at a time; its answers collect in
    `replies`.

    Fingers that rest before their course is done press against something: then the target runs on
    at the hand's full speed until they press with the whole force, so that a slow grasp does not
    last for seconds.
    """

    def __init__(self, hand: Hand, gripper: Gripper) -> None:
        """Begins where the fingers of `hand` are; `gripper` has its limits."""
        self.hand, self._limits = hand, gripper
        self.is_grasped = False
        """Whether the last action was a grasp that succeeded and the thing is still there."""
        self.actions = 0
        """How many the hand was asked for, refused ones too."""
        self.replies: list[tuple[HandCommand, int, HandStatus]] = []
        """(command, its id, status) of actions that have ended, to be sent."""
        self._action: tuple[HandCommand, int] | None = None
        self._courses: list[Course] = []
        self._window = (-inf, inf)
        self._target = hand.width
        self._arrived = False
        self._mark, self._still_ticks = self._target, 0

    @property
    def running(self) -> bool:
        """Whether an action runs."""
        return self._action is not None

    def act(self, command: HandCommand, command_id: int, values: tuple[float, ...]) -> None:
        """Begins an action, or answers FAIL: another one runs, or a value is outside what
        the gripper's limits allow.

        Args:
            command: HOMING, GRASP or MOVE.
            command_id: the client's.
            values: those of `protocol.HAND_PAYLOAD`, SI units.
        """
        self.actions += 1
        if self.running or not _valid(command, values, self._limits):
            self.replies.append((command, command_id, HandStatus.FAIL))
            return
        opening = target = self.hand.width
        match command:
            case HandCommand.MOVE:
                width, speed = values
                courses = [Course(width, speed, self._limits.force_max)]
                window = width - REACHED, width + REACHED
            case HandCommand.GRASP:
                width, inner, outer, speed, force = values
                # What is wider than the fingers are open is grasped from within. From where they
                # press already they go on pressing: a firmer grip does not let go first.
                if width > opening:
                    end, target = inf, max(self._target, opening)
                else:
                    end, target = -inf, min(self._target, opening)
                courses, window = [Course(end, speed, force)], (width - inner, width + outer)
            case _:
                speed, force = HOMING_SHARE * self._limits.speed_max, self._limits.force_max
                courses = [Course(end, speed, force) for end in (0.0, self._limits.width_max)]
                window = -inf, inf
        self._action, self._courses, self._window = (command, command_id), courses, window
        self._target, self.is_grasped = target, False
        self._begin_course(opening)

    def stop(self) -> None:
        """Ends the running action, if there is one, as ABORTED. The fingers press no more: they
        stay where they are."""
        self._end(HandStatus.ABORTED)
        self.is_grasped = False
        self._hold(self.hand.width)

    def rest(self) -> None:
        """As `stop`, but the world has placed the fingers: until the next action its own word to
        the servo holds."""
        self._end(HandStatus.ABORTED)
        self.is_grasped = False
        self._courses, self._target = [], self.hand.width

    def tick(self) -> None:
        """1 ms: looks at the fingers, sends the servo's target on, ends the action that is done."""
        if not self._courses:
            return
        opening = self.hand.width
        self._follow(opening)
        if not self.running:
            self.is_grasped = self.is_grasped and self._within(opening)
        elif self._arrived and self._still_ticks >= STILL_TICKS:
            self._conclude(opening)

    def _follow(self, opening: float) -> None:
        course = self._courses[0]
        allowed = 0.1 * min(course.speed, STILL_SPEED) * STILL_TICKS * PERIOD
        if abs(opening - self._mark) > allowed:
            self._mark, self._still_ticks = opening, 0
        else:
            self._still_ticks += 1
        rests = self._still_ticks >= STILL_TICKS
        step = PERIOD * (self._limits.speed_max if rests else course.speed)
        # A finger's servo is off by half of what the opening is. A target further ahead would press
        # no harder, and the release would wait for its return.
        leash = 2.0 * course.force / GRIPPER_STIFFNESS + LEAD_MARGIN
        lowest, highest = opening - leash, opening + leash
        self._target = _clip(
            _clip(course.end, self._target - step, self._target + step), lowest, highest
        )
        self._arrived = self._target == _clip(course.end, lowest, highest)
        self.hand.press(self._target, course.force)

    def _conclude(self, opening: float) -> None:
        if len(self._courses) > 1:
            del self._courses[0]
            self._begin_course(opening)
            return
        assert self._action is not None
        command, good = self._action[0], self._within(opening)
        self.is_grasped = command is HandCommand.GRASP and good
        if command is HandCommand.MOVE and not good:
            self._hold(opening)
        self._end(HandStatus.SUCCESS if good else HandStatus.UNSUCCESSFUL)

    def _end(self, status: HandStatus) -> None:
        if self._action is not None:
            self.replies.append((*self._action, status))
        self._action = None

    def _hold(self, opening: float) -> None:
        self._courses = [Course(opening, self._limits.speed_max, self._limits.force_max)]
        self._target = opening
        self.hand.press(opening, self._limits.force_max)

    def _begin_course(self, opening: float) -> None:
        self._mark, self._still_ticks, self._arrived = opening, 0, False

    def _within(self, opening: float) -> bool:
        return self._window[0] < opening < self._window[1]


class HandServer:
    """Serves one hand on TCP port 1338 to one client at a time, with states at 100 Hz of wall
    time."""

    def __init__(self, host: str, hand: Hand, gripper: Gripper) -> None:
        """Binds the hand's ports on `host`.

        Args:
            host: address.
            hand: of the world.
            gripper: its limits.

        Raises:
            HandoffError: the port is in use, or `host` is no address of this computer.
        """
        self.hand, self.unit = hand, HandUnit(hand, gripper)
        self._width_max = gripper.width_max
        self.link = Service(host, HAND_PORT, HAND_HEADER)
        self.due = 0.0
        """When the next state goes out, on the clock of `time.perf_counter` [s]."""
        self._message_id = 0

    def serve_requests(self) -> None:
        """Answers what the client asks; when it has gone, the action that it began ends."""
        for request in self.link.requests():
            self._handle(request)
        if self.link.lost_client:
            self.link.lost_client = False
            if self.unit.running:
                self.unit.stop()
            # Nobody is left to hear it: the next client, who may be there by now, has not asked.
            self.unit.replies.clear()

    def tick(self) -> None:
        """1 ms of world time has passed."""
        self.unit.tick()
        if self.unit.replies:
            self._answer_actions()

    def rest(self) -> None:
        """The world has placed the fingers elsewhere."""
        self.unit.rest()
        self._answer_actions()

    def stream(self, now: float) -> None:
        """Sends the state as it is, if the time for it has come."""
        if now < self.due:
            return
        self.due = max(self.due + STATE_PERIOD, now)
        # The client takes this number for a time that only grows.
        self._message_id = (self._message_id + 1) % 2**32
        state = HAND_STATE.pack(
            self._message_id,
            self.hand.width,
            self._width_max,
            self.unit.is_grasped,
            TEMPERATURE,
        )
        self.link.send_state(state)

    def close(self) -> None:
        """Frees all ports."""
        self.link.close()

    def _handle(self, request: Request) -> None:
        """Answers one request; one that no client would send ends the connection."""
        try:
            command = HandCommand(request.command)
            values = HAND_PAYLOAD[command].unpack(request.payload)
        except (ValueError, struct.error):
            self.link.close_client()
            return
        match command:
            case HandCommand.CONNECT:
                version, udp_port = values
                same = version == HAND_VERSION and udp_port > 0
                status = HandStatus.SUCCESS if same else HandStatus.FAIL
                self._reply(command, request.command_id, status, HAND_VERSION.to_bytes(2, "little"))
                if same:
                    self.link.open_udp(udp_port)
            case HandCommand.STOP:
                self.unit.stop()
                self._answer_actions()
                self._reply(command, request.command_id, HandStatus.SUCCESS)
            case _:
                self.unit.act(command, request.command_id, values)
                self._answer_actions()

    def _answer_actions(self) -> None:
        for command, command_id, status in self.unit.replies:
            self._reply(command, command_id, status)
        self.unit.replies.clear()

    def _reply(
        self, command: HandCommand, command_id: int, status: HandStatus, payload: bytes = b""
    ) -> None:
        self.link.reply(hand_response(command, command_id, status, payload))


def _valid(command: HandCommand, values: tuple[float, ...], gripper: Gripper) -> bool:
    """Whether the hand would begin this action."""
    if not all(isfinite(value) for value in values):
        return False
    match command:
        case HandCommand.MOVE:
            width, speed = values
            force = gripper.force_max
        case HandCommand.GRASP:
            width, _, _, speed, force = values
        case _:
            return True
    return (
        0.0 <= width <= gripper.width_max
        and 0.0 < speed <= gripper.speed_max
        and 0.0 < force <= gripper.force_max
    )


def _clip(value: float, lowest: float, highest: float) -> float:
    return min(max(value, lowest), highest)
