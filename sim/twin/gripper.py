"""Simulates the twin's Franka Hand: `GripperUnit` moves the fingers in steps of 1 ms, and
`GripperServer` serves it to one client.

The replies follow libfranka's documentation (`franka::Gripper`). The real gripper's motion is not
published; here the target of the fingers' servo moves at the commanded speed, and an action ends
when the servo has reached its target and the fingers are at rest. The gripper sends no command
before its first action, so that a world may begin with a grasped object.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import inf, isfinite

from robots.franka.robot import Gripper
from sim.scene.scene import GRIPPER_STIFFNESS
from sim.twin.link import Request, Service
from sim.twin.protocol import (
    GRIPPER_HEADER,
    GRIPPER_PAYLOAD,
    GRIPPER_PORT,
    GRIPPER_STATE,
    GRIPPER_VERSION,
    GripperCommand,
    GripperStatus,
    gripper_response,
)
from sim.twin.unit.checks import PERIOD
from sim.twin.world import TwinGripper

REACHED = 0.001
"""Tolerance of the opening for a successful move [m]; our choice."""
LEAD_MARGIN = 0.001
"""Margin by which the servo's target may lead the fingers beyond what the force requires [m]; our
choice."""
HOMING_SHARE = 0.5
"""Homing speed as a fraction of the gripper's maximum speed; our choice."""
STILL_TICKS = 50
"""Number of ticks after which the fingers count as at rest, if they have moved less than a tenth of
the distance at the commanded speed; our choice."""
STILL_SPEED = 0.02
"""Maximum speed for which the rest criterion is computed [m/s], even if the commanded one is
higher; our choice."""
STATE_PERIOD = 0.01
"""Wall time between two states [s]. The real gripper's rate is not published; clients have measured
10 to 50 Hz."""
TEMPERATURE = 25
"""Constant temperature in the state [degrees C]."""


@dataclass(frozen=True)
class GripperMotion:
    """Motion of the servo target of the fingers."""

    end: float
    """Final opening [m]; infinite: as far as needed to reach `force`."""
    speed: float
    """Speed of the opening [m/s]."""
    force: float
    """Maximum force per finger [N]."""


class GripperUnit:
    """Behaviour of the gripper without its network. One action runs at a time; replies are
    collected in `replies`.

    If the fingers come to rest before the motion is finished, they are in contact: then the target
    moves at the gripper's maximum speed until the full force is reached, so that a slow grasp does
    not take seconds.
    """

    def __init__(self, gripper: TwinGripper, limits: Gripper) -> None:
        """Starts at the current opening of `gripper`; `limits` are those of the robot's gripper."""
        self.gripper = gripper
        self._limits = limits
        self.is_grasped = False
        """Whether the last action was a successful grasp and the object is still held."""
        self.actions = 0
        """Number of actions received, including refused ones."""
        self.replies: list[tuple[GripperCommand, int, GripperStatus]] = []
        """(command, command id, status) of completed actions, to be sent."""
        self._action: tuple[GripperCommand, int] | None = None
        self._motions: list[GripperMotion] = []
        self._window = (-inf, inf)
        self._target = gripper.width
        self._arrived = False
        self._mark = self._target
        self._still_ticks = 0

    @property
    def running(self) -> bool:
        """Whether an action runs."""
        return self._action is not None

    def act(self, command: GripperCommand, command_id: int, values: tuple[float, ...]) -> None:
        """Begins an action, or replies FAIL if another one runs or a value is outside the gripper's
        limits.

        Args:
            command: HOMING, GRASP or MOVE.
            command_id: the client's.
            values: those of `protocol.HAND_PAYLOAD`, SI units.
        """
        self.actions += 1
        if self.running or not _valid(command, values, self._limits):
            self.replies.append((command, command_id, GripperStatus.FAIL))
            return
        opening = target = self.gripper.width
        match command:
            case GripperCommand.MOVE:
                width, speed = values
                motions = [GripperMotion(width, speed, self._limits.force_max)]
                window = width - REACHED, width + REACHED
            case GripperCommand.GRASP:
                width, inner, outer, speed, force = values
                # An object wider than the opening is grasped from inside. A target that already
                # presses is kept, so that a firmer grasp does not release the object first.
                if width > opening:
                    end, target = inf, max(self._target, opening)
                else:
                    end, target = -inf, min(self._target, opening)
                motions = [GripperMotion(end, speed, force)]
                window = width - inner, width + outer
            case _:
                speed, force = HOMING_SHARE * self._limits.speed_max, self._limits.force_max
                motions = [
                    GripperMotion(end, speed, force) for end in (0.0, self._limits.width_max)
                ]
                window = -inf, inf
        self._action = (command, command_id)
        self._motions = motions
        self._window = window
        self._target = target
        self.is_grasped = False
        self._begin_motion(opening)

    def stop(self) -> None:
        """Ends the running action, if any, as ABORTED. The fingers hold their position without
        pressing."""
        self._end(GripperStatus.ABORTED)
        self.is_grasped = False
        self._hold(self.gripper.width)

    def rest(self) -> None:
        """Ends the running action like `stop` after the world has placed the fingers: until the
        next action, the world's own servo command remains in effect."""
        self._end(GripperStatus.ABORTED)
        self.is_grasped = False
        self._motions = []
        self._target = self.gripper.width

    def tick(self) -> None:
        """Advances by 1 ms: reads the opening, moves the servo's target, and ends a completed
        action."""
        if not self._motions:
            return
        opening = self.gripper.width
        self._follow(opening)
        if not self.running:
            self.is_grasped = self.is_grasped and self._within(opening)
        elif self._arrived and self._still_ticks >= STILL_TICKS:
            self._conclude(opening)

    def _follow(self, opening: float) -> None:
        motion = self._motions[0]
        # The fingers are at rest if they have not left a small interval for long enough.
        tolerance = 0.1 * min(motion.speed, STILL_SPEED) * STILL_TICKS * PERIOD
        if abs(opening - self._mark) > tolerance:
            self._mark = opening
            self._still_ticks = 0
        else:
            self._still_ticks += 1
        at_rest = self._still_ticks >= STILL_TICKS
        step = PERIOD * (self._limits.speed_max if at_rest else motion.speed)
        # A finger's position error is half of the opening's. A target further ahead would not
        # increase the force, and would delay the release.
        max_lead = 2.0 * motion.force / GRIPPER_STIFFNESS + LEAD_MARGIN
        lowest, highest = opening - max_lead, opening + max_lead
        self._target = _clip(
            _clip(motion.end, self._target - step, self._target + step), lowest, highest
        )
        self._arrived = self._target == _clip(motion.end, lowest, highest)
        self.gripper.press(self._target, motion.force)

    def _conclude(self, opening: float) -> None:
        if len(self._motions) > 1:
            del self._motions[0]
            self._begin_motion(opening)
            return
        assert self._action is not None
        command, success = self._action[0], self._within(opening)
        self.is_grasped = command is GripperCommand.GRASP and success
        if command is GripperCommand.MOVE and not success:
            self._hold(opening)
        self._end(GripperStatus.SUCCESS if success else GripperStatus.UNSUCCESSFUL)

    def _end(self, status: GripperStatus) -> None:
        if self._action is not None:
            self.replies.append((*self._action, status))
        self._action = None

    def _hold(self, opening: float) -> None:
        self._motions = [GripperMotion(opening, self._limits.speed_max, self._limits.force_max)]
        self._target = opening
        self.gripper.press(opening, self._limits.force_max)

    def _begin_motion(self, opening: float) -> None:
        self._mark = opening
        self._still_ticks = 0
        self._arrived = False

    def _within(self, opening: float) -> bool:
        return self._window[0] < opening < self._window[1]


class GripperServer:
    """Serves one gripper on TCP port 1338 to one client at a time, with states at 100 Hz of wall
    time."""

    def __init__(self, host: str, gripper: TwinGripper, limits: Gripper) -> None:
        """Binds the gripper's ports on `host`.

        Args:
            host: address.
            gripper: the world's gripper.
            limits: limits of the robot's gripper.

        Raises:
            HandoffError: the port is in use, or `host` is no address of this computer.
        """
        self.gripper = gripper
        self.unit = GripperUnit(gripper, limits)
        self._width_max = limits.width_max
        self.link = Service(host, GRIPPER_PORT, GRIPPER_HEADER)
        self.due = 0.0
        """Time of the next state on the clock of `time.perf_counter` [s]."""
        self._message_id = 0

    def serve_requests(self) -> None:
        """Handles the client's requests; when the client has disconnected, its action ends."""
        for request in self.link.requests():
            self._handle(request)
        if self.link.lost_client:
            self.link.lost_client = False
            if self.unit.running:
                self.unit.stop()
            # Drop the replies: the next client may have connected already but sent no request.
            self.unit.replies.clear()

    def tick(self) -> None:
        """Advances the gripper by 1 ms of world time."""
        self.unit.tick()
        if self.unit.replies:
            self._send_replies()

    def rest(self) -> None:
        """Ends the running action after the world has placed the fingers elsewhere."""
        self.unit.rest()
        self._send_replies()

    def stream(self, now: float) -> None:
        """Sends the current state if it is due."""
        if now < self.due:
            return
        self.due = max(self.due + STATE_PERIOD, now)
        # The client interprets the message id as a monotonic time.
        self._message_id = (self._message_id + 1) % 2**32
        state = GRIPPER_STATE.pack(
            self._message_id,
            self.gripper.width,
            self._width_max,
            self.unit.is_grasped,
            TEMPERATURE,
        )
        self.link.send_state(state)

    def close(self) -> None:
        """Frees all ports."""
        self.link.close()

    def _handle(self, request: Request) -> None:
        """Handles one request; a malformed one closes the connection."""
        try:
            command = GripperCommand(request.command)
            values = GRIPPER_PAYLOAD[command].unpack(request.payload)
        except (ValueError, struct.error):
            self.link.close_client()
            return
        match command:
            case GripperCommand.CONNECT:
                version, udp_port = values
                compatible = version == GRIPPER_VERSION and udp_port > 0
                status = GripperStatus.SUCCESS if compatible else GripperStatus.FAIL
                self._reply(
                    command, request.command_id, status, GRIPPER_VERSION.to_bytes(2, "little")
                )
                if compatible:
                    self.link.open_udp(udp_port)
            case GripperCommand.STOP:
                self.unit.stop()
                self._send_replies()
                self._reply(command, request.command_id, GripperStatus.SUCCESS)
            case _:
                self.unit.act(command, request.command_id, values)
                self._send_replies()

    def _send_replies(self) -> None:
        for command, command_id, status in self.unit.replies:
            self._reply(command, command_id, status)
        self.unit.replies.clear()

    def _reply(
        self, command: GripperCommand, command_id: int, status: GripperStatus, payload: bytes = b""
    ) -> None:
        self.link.reply(gripper_response(command, command_id, status, payload))


def _valid(command: GripperCommand, values: tuple[float, ...], limits: Gripper) -> bool:
    """Whether an action's values are finite and within the gripper's limits."""
    if not all(isfinite(value) for value in values):
        return False
    match command:
        case GripperCommand.MOVE:
            width, speed = values
            force = limits.force_max
        case GripperCommand.GRASP:
            width, _, _, speed, force = values
        case _:
            return True
    return (
        0.0 <= width <= limits.width_max
        and 0.0 < speed <= limits.speed_max
        and 0.0 < force <= limits.force_max
    )


def _clip(value: float, lowest: float, highest: float) -> float:
    return min(max(value, lowest), highest)
