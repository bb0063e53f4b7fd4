"""Turns the input of any device into takeovers of an arm and actions during them.

A person takes over by HOLDING a device, never by a toggle: whoever lets go, walks away or loses the
cable gives the arm back. A device's deflection is a speed, so an action is a step from the arm's
present target; no absolute pose is sent, and nothing has to be aligned at a takeover. The speed is
ramped up over the first moments of a takeover, since arm and person rarely move alike at that
instant. Where an action is a target on a board, it leads the pusher by what makes it move at that
speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from robots.config import Delay, PositiveShare, Radians, config
from robots.control.actions import AXES, PD_TARGET, PdTarget
from robots.control.gripper_commands import entry_from_command
from robots.errors import HandoffError
from robots.interfaces import Intervention, Observation, Reason
from robots.spec import ActionSpec

GRIPPER = "gripper"
"""Name of the gripper's entry of an action."""
BOARD_SPEED = 0.25
"""Speed of a pusher at full deflection and a share of 1 [m/s]."""
AGENT = "agent"
"""Observed position of a pusher on its board."""


@config
class TakeoverConfig:
    """Scaling and axes of a person's motion."""

    ramp: Delay = 0.3
    """Time after a takeover over which the speed limit rises from 0 to full [s]."""
    view_yaw: Radians = 0.0
    """Direction in which the person looks, about the base's z [rad]: 0 is along the base's x, from
    behind the arm; pi is towards the base, as the person of HIL-SERL sits. Forward for the person
    is then forward for the gripper."""
    translation: PositiveShare = 1.0
    """Share of the action's range that full deflection asks for, in x, y and z; where actions are
    targets on a board, share of 0.25 m/s."""
    rotation: PositiveShare = 1.0
    """Share of the action's range that full deflection asks for, in roll, pitch and yaw."""


class HandInput(NamedTuple):
    """The input of a person's hand through a device at one moment."""

    engaged: bool
    """Whether the person holds the arm."""
    twist: np.ndarray
    """(6,) deflection in [-1, 1], in the person's axes: forward, left, up, and rotation about
    these."""
    grip: int
    """Gripper command: -1 close, 1 open, 0 keeps the last command of this takeover."""


def check_actions(spec: ActionSpec, device: str) -> None:
    """Checks that a person can command the actions of an environment.

    Args:
        spec: the actions.
        device: what the person has, for the message.

    Raises:
        HandoffError: they are neither scaled steps of the gripper's pose nor targets on a board.
    """
    if spec.interface == PD_TARGET:
        return
    unknown = set(spec.names) - {*AXES, GRIPPER}
    if unknown or not spec.names or spec.unit != "1":
        entries = f" ({', '.join(spec.names)} [{spec.unit}])" if spec.names else ""
        raise HandoffError(
            f"{device}: the actions of the task{entries} are neither steps of the gripper's pose nor targets on a "
            "board, which a person commands. Choose a task of `handoff list tasks`."
        )


class Takeover:
    """Turns the input of a person's hand into interventions in one environment.

    Args:
        spec: actions of the environment: entries named x, y, z, roll, pitch, yaw and gripper, or
            targets of a pusher on a board.
        config: scaling and axes.
        operator: name of the person.
        device: name of the device.
        now: returns the time [s].
        width_max: largest opening of the gripper [m]; None if actions have no entry for one.

    Raises:
        HandoffError: actions that no person commands, or a gripper without a largest opening.
    """

    def __init__(
        self,
        spec: ActionSpec,
        config: TakeoverConfig,
        operator: str,
        device: str,
        now: Callable[[], float],
        width_max: float | None = None,
    ) -> None:
        check_actions(spec, device)
        if GRIPPER in spec.names and width_max is None:
            raise HandoffError(
                f"{device}: actions have an entry for the gripper, whose largest opening was not given. Pass width_max."
            )
        self._spec = spec
        self._config = config
        self._operator = operator
        self._device = device
        self._now = now
        self._width_max = width_max
        self._board = PdTarget() if spec.interface == PD_TARGET else None
        self._last_gripper = np.nan
        """The gripper's entry of the last executed action."""
        self.reset()

    def reset(self) -> None:
        """Begins a new episode; a person who holds the arm begins a new takeover."""
        self.engaged = False
        self._segment = -1
        self._engaged_at = 0.0
        self._grip = 0

    @property
    def segments(self) -> int:
        """Number of takeovers in this episode so far."""
        return self._segment + 1

    def intervene(
        self, proposed: np.ndarray, observation: Observation, hand: HandInput
    ) -> Intervention:
        """The intervention at this step, see `robots.interfaces.Operator.intervene`.

        Args:
            proposed: (1, A) the policy's action.
            observation: observation of the environment.
            hand: the person's input.

        Raises:
            HandoffError: `proposed` has another shape.
        """
        proposed = np.asarray(proposed, dtype=np.float64)
        if proposed.shape != (1, self._spec.size):
            raise HandoffError(
                f"{self._device}: proposed actions of shape {proposed.shape}, expected (1, {self._spec.size}). "
                "One person moves one arm."
            )
        if hand.engaged and not self.engaged:
            self._segment += 1
            self._engaged_at = self._now()
            self._grip = 0
        self.engaged = hand.engaged
        executed = self._action(observation, hand, proposed)[None] if hand.engaged else proposed
        if GRIPPER in self._spec.names:
            self._last_gripper = float(executed[0, self._spec.names.index(GRIPPER)])
        return Intervention(
            proposed=proposed,
            executed=executed,
            intervening=np.array([hand.engaged]),
            segment=np.array([self._segment if hand.engaged else -1]),
            reason=np.array([int(Reason.PERSON if hand.engaged else Reason.NONE)]),
            operator=self._operator,
            device=self._device,
        )

    def _action(
        self, observation: Observation, hand: HandInput, proposed: np.ndarray
    ) -> np.ndarray:
        """(A,) the person's action, within the environment's bounds."""
        config = self._config
        self._grip = hand.grip or self._grip
        engaged_for = self._now() - self._engaged_at
        ramp = 1.0 if config.ramp <= 0.0 else min(1.0, engaged_for / config.ramp)
        twist = base_twist(hand.twist, config.view_yaw) * ramp
        twist[:3] *= config.translation
        twist[3:] *= config.rotation
        if self._board is not None:
            target = board_target(self._board, observation, BOARD_SPEED * twist[:3])
            return np.clip(target, self._spec.low, self._spec.high)
        action = np.zeros(self._spec.size)
        for entry, name in enumerate(self._spec.names):
            if name == GRIPPER:
                action[entry] = self._gripper_entry(observation, float(proposed[0, entry]))
            else:
                action[entry] = twist[AXES.index(name)]  # type: ignore[arg-type]  the names were checked
        return np.clip(action, self._spec.low, self._spec.high)

    def _gripper_entry(self, observation: Observation, proposed: float) -> float:
        width_target = observation.get("width_target")
        if width_target is not None:
            assert self._width_max is not None, "the constructor refuses a gripper without it"
            present = np.asarray(width_target, dtype=np.float64).reshape(-1)[0]
            return float(entry_from_command(np.array(self._grip), present, self._width_max))
        # The environment does not observe its gripper's target, so the last executed entry stands
        # for it, the person's or the policy's.
        last = proposed if math.isnan(self._last_gripper) else self._last_gripper
        return float(self._grip) if self._grip else last


def board_target(board: PdTarget, observation: Observation, velocity: np.ndarray) -> np.ndarray:
    """(2,) the target on a board [m] that lets the pusher move at a velocity (3,) [m/s], base axes:
    it leads the pusher, which follows as `AgentDynamics`.

    Args:
        board: axes of the board, and dynamics of the pusher.
        observation: with the pusher's position `agent` (1, 2) [m], board frame.
        velocity: velocity along the base axes; that across the board does not count.

    Raises:
        HandoffError: the pusher is not observed.
    """
    if AGENT not in observation:
        raise HandoffError(
            f"takeover: the environment does not observe '{AGENT}', where the pusher is. Add it to "
            "env.observation_fields."
        )
    lead = velocity * board.dynamics.k_v / board.dynamics.k_p
    agent = np.asarray(observation[AGENT], dtype=np.float64).reshape(-1)
    return agent + np.array([board.x_axis, board.y_axis]) @ lead


def base_twist(twist: np.ndarray, view_yaw: float) -> np.ndarray:
    """(6,) a twist in base axes, given (6,) in the axes of a person who looks along `view_yaw`
    [rad]."""
    c, s = math.cos(view_yaw), math.sin(view_yaw)
    turned = np.array(twist, dtype=np.float64)
    for first in (0, 3):
        forward, left = float(twist[first]), float(twist[first + 1])
        turned[first], turned[first + 1] = c * forward - s * left, s * forward + c * left
    return turned
