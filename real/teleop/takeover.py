"""One person at one arm: when they have it, and what their hand comes to as an action. Shared by
all devices.

Takeover is by HOLDING, never by a toggle: who lets go, walks away or loses the cable gives the arm
back. A device's deflection is a speed, so the action is a step from where the arm's target is now;
nothing absolute is ever sent, and there is nothing to align when the person takes the arm. What
they ask for rises from nothing over the first moments after a takeover, since arm and person rarely
want the same at that instant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from robots.config import config
from robots.control.actions import AXES
from robots.control.gripper_commands import entry_of
from robots.errors import HandoffError
from robots.interfaces import Intervention, Observation, Reason
from robots.spec import ActionSpec

GRIPPER = "gripper"
"""Name of the hand's entry of an action."""


@config
class TakeoverConfig:
    """How a hand's motion becomes the arm's."""

    ramp: float = 0.3
    """Time after a takeover over which the speed that a person may ask for rises from 0 to all
    [s]."""
    view_yaw: float = 0.0
    """Direction in which the person looks, about the base's z [rad]: 0 is along the base's x, from
    behind the arm; pi is towards the base, as the person of HIL-SERL sits. Forward for the person
    is then forward for the hand."""
    translation: float = 1.0
    """Share of the action's range that full deflection asks for, of x, y and z."""
    rotation: float = 1.0
    """Likewise of roll, pitch and yaw."""


class Hand(NamedTuple):
    """What a device tells of the person's hand at one moment."""

    engaged: bool
    """They hold the arm."""
    twist: np.ndarray
    """(6,) in [-1, 1], in the person's axes: forward, left, up, and rotation about these."""
    grip: int
    """-1 close, 1 open, 0 nothing said: the hand goes on with what it was last told in this
    takeover."""


class Takeover:
    """Turns moments of a hand into interventions of one world.

    Args:
        spec: of the world's actions; entries named x, y, z, roll, pitch, yaw and gripper.
        config: how.
        operator: who.
        device: by what.
        now: time [s].
    """

    def __init__(
        self,
        spec: ActionSpec,
        config: TakeoverConfig,
        operator: str,
        device: str,
        now: Callable[[], float],
    ) -> None:
        unknown = sorted(set(spec.names) - {*AXES, GRIPPER})
        if unknown or not spec.names or spec.unit != "1":
            raise HandoffError(
                f"{device}: the world's actions are {list(spec.names)} [{spec.unit}], expected scaled steps of "
                f"{[*AXES, GRIPPER]}. Choose a Cartesian-delta action space."
            )
        self._spec, self._config, self._now = spec, config, now
        self._operator, self._device = operator, device
        self._held = np.nan
        self.reset()

    def reset(self) -> None:
        """A new episode begins; whoever holds the arm must take it anew."""
        self.engaged, self._segment, self._since, self._grip = False, -1, 0.0, 0

    @property
    def segments(self) -> int:
        """Takeovers in this episode so far."""
        return self._segment + 1

    def intervene(self, proposed: np.ndarray, observation: Observation, hand: Hand) -> Intervention:
        """See `robots.interfaces.Operator.intervene`; one world.

        Raises:
            HandoffError: another shape than (1, A).
        """
        proposed = np.asarray(proposed, dtype=np.float64)
        if proposed.shape != (1, self._spec.size):
            raise HandoffError(
                f"{self._device}: proposed actions of shape {proposed.shape}, expected (1, {self._spec.size}). "
                "One person moves one arm."
            )
        if hand.engaged and not self.engaged:
            self._segment, self._since, self._grip = self._segment + 1, self._now(), 0
        self.engaged = hand.engaged
        executed = self._action(observation, hand, proposed)[None] if hand.engaged else proposed
        if GRIPPER in self._spec.names:
            self._held = float(executed[0, self._spec.names.index(GRIPPER)])
        return Intervention(
            proposed=proposed,
            executed=executed,
            intervening=np.array([hand.engaged]),
            segment=np.array([self._segment if hand.engaged else -1]),
            reason=np.array([int(Reason.PERSON if hand.engaged else Reason.NONE)]),
            operator=self._operator,
            device=self._device,
        )

    def _action(self, observation: Observation, hand: Hand, proposed: np.ndarray) -> np.ndarray:
        """(A,) within the world's bounds."""
        config = self._config
        self._grip = hand.grip or self._grip
        reach = 1.0 if config.ramp <= 0.0 else min(1.0, (self._now() - self._since) / config.ramp)
        twist = base_twist(hand.twist, config.view_yaw) * reach
        twist[:3] *= config.translation
        twist[3:] *= config.rotation
        action = np.zeros(self._spec.size)
        for entry, name in enumerate(self._spec.names):
            if name == GRIPPER:
                action[entry] = self._opening(observation, float(proposed[0, entry]))
            else:
                action[entry] = twist[AXES.index(name)]  # type: ignore[arg-type]  the names were checked
        return np.clip(action, self._spec.low, self._spec.high)

    def _opening(self, observation: Observation, proposed: float) -> float:
        told = observation.get("width_target")
        if told is not None:
            return float(
                entry_of(np.array(self._grip), np.asarray(told, dtype=np.float64).reshape(-1)[0])
            )
        # A world that does not tell what its hand was told: the last that was executed, whoever
        # asked for it.
        held = proposed if math.isnan(self._held) else self._held
        return float(self._grip) if self._grip else held


def base_twist(twist: np.ndarray, view_yaw: float) -> np.ndarray:
    """(6,) in base axes of a twist (6,) in the axes of a person who looks along `view_yaw`
    [rad]."""
    c, s = math.cos(view_yaw), math.sin(view_yaw)
    turned = np.array(twist, dtype=np.float64)
    for first in (0, 3):
        forward, left = float(twist[first]), float(twist[first + 1])
        turned[first], turned[first + 1] = c * forward - s * left, s * forward + c * left
    return turned
