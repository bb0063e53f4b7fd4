"""Simulates the twin's Franka Hand: `GripperUnit` moves the fingers in steps of 1 ms, and
`GripperServer` serves it to one client.

The replies follow libfranka's documentation (`franka::Gripper`), and where it is silent what users
report of the real one:

- Fingers that hold something outside the window of a grasp press no more: the grasp has failed
  (libfranka issue 13, franka_ros issues 16 and 108).
- A grasp fails at once while an object is grasped, which `stop` releases (libfranka issue 108).
- Speeds and forces above the gripper's own are accepted, as programs for it send them (0.3 m/s and
  130 N in SERL's); here they are cut to the gripper's. A move beyond the largest opening, which
  they send as well (90 mm), opens to the stop and does not succeed.

The real gripper's motion is not published; here the target of the fingers' servo moves at the
commanded speed, and an action ends when the servo has reached its target and the fingers are at
rest. Stopping works at once, and a move that is blocked ends, which users report to be otherwise
(libfranka issues 18 and 111). The gripper is homed from the beginning, and sends no command before
its first action, so that a world may begin with a grasped object.
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
        """Begins an action; replies FAIL if another one runs or a value is none, and UNSUCCESSFUL
        to a grasp while an object is grasped.

        Args:
            command: HOMING, GRASP or MOVE.
            command_id: the client's.
            values: those of `protocol.GRIPPER_PAYLOAD`, SI units.
        """
        self.actions += 1
        if self.running or not _valid(command, values):
            self.replies.append((command, command_id, GripperStatus.FAIL))
            return
        if command is GripperCommand.GRASP and self.is_grasped:
            self.replies.append((command, command_id, GripperStatus.UNSUCCESSFUL))
            return
        limits = self._limits
        opening = target = self.gripper.width
        match command:
            case GripperCommand.MOVE:
                width, speed = values
                end = min(width, limits.width_max)
                motions = [GripperMotion(end, min(speed, limits.speed_max), limits.force_max)]
                window = width - REACHED, width + REACHED
            case GripperCommand.GRASP:
                width, inner, outer, speed, force = values
                window = width - inner, width + outer
                # Fingers that are closed further than the window can only grasp from inside;
                # whether the real gripper does so is not documented. A target that already presses
                # is kept, so that a grasp does not release what the fingers hold first.
                if opening <= window[0]:
                    end, target = inf, max(self._target, opening)
                else:
                    end, target = -inf, min(self._target, opening)
                speed, force = min(speed, limits.speed_max), min(force, limits.force_max)
                motions = [GripperMotion(end, speed, force)]
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
        if not success:
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
        self._ticks = 0
        """Ticks since the last state."""
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
        self._ticks += 1
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
        # The client takes the message id for the time since the start [ms], which increases with
        # every state, also while the world stands.
        self._message_id = (self._message_id + max(1, self._ticks)) % 2**32
        self._ticks = 0
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


def _valid(command: GripperCommand, values: tuple[float, ...]) -> bool:
    """Whether an action's values are finite, its opening is not negative, and its speed and force
    are positive."""
    if not all(isfinite(value) for value in values):
        return False
    match command:
        case GripperCommand.MOVE:
            width, speed = values
            return width >= 0.0 and speed > 0.0
        case GripperCommand.GRASP:
            width, _, _, speed, force = values
            return width >= 0.0 and speed > 0.0 and force > 0.0
        case _:
            return True


def _clip(value: float, lowest: float, highest: float) -> float:
    return min(max(value, lowest), highest)
