"""Guards contact: limits the force with which the springs press where the robot feels a contact,
and ends the episode below the robot's own reflex where an external force lasts too long.

What the robot estimates of external forces is filtered by a low-pass of first order, without the
bias that it had at rest before the first target. That bias is bounded, so no more force than the
bound is ever taken for an offset. The sign of the estimate is not relied on: the limit holds for
pressing and for pulling along the direction of the contact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from real.arm import ArmState
from real.franka.config import Force, FrankaConfig, Moment
from robots.config import OpenShare, changed_options, config
from robots.control.actions import Motion
from robots.errors import HandoffError, SafetyError
from robots.franka.robot import Robot

CHANNELS = ("limit", "fault_force", "fault_moment", "fault_torque_share")
"""Options of which one must be given for the guard to do anything."""


@config
class ForceGuardConfig:
    """Limits of what the robot feels from outside; none by default."""

    limit: Force | None = None
    """Largest force of the position springs along the direction of a contact [N]: the reference
    stays as near to the arm as that. Rotations count as lengths with a lever of 0.1 m. None does
    not limit it."""
    fault_force: Force | None = None
    """External force at the end effector that ends the episode once it has lasted `fault_seconds`
    [N]; None does not look at it."""
    fault_moment: Moment | None = None
    """External moment at the end effector that ends the episode likewise [Nm]; None does not look
    at it."""
    fault_torque_share: OpenShare | None = None
    """Share of the joints' torque limits that an external torque of a joint must not exceed for
    `fault_seconds`, so that contacts of the elbow count as well; None does not look at them."""
    fault_seconds: Annotated[float, Field(ge=0.0, le=2.0)] = 0.1
    """Time for which a filtered force, moment or torque must stay above its threshold to end the
    episode [s]."""
    contact: Annotated[float, Field(gt=0.0, le=50.0)] = 5.0
    """External force from which on the end effector counts as in contact, so that `limit` holds
    [N]."""
    cutoff_hz: Annotated[float, Field(gt=0.0, le=100.0)] = 10.0
    """Cut-off frequency of the low-pass filter of forces and torques [1/s]; 10 delays them by
    16 ms."""
    rest_seconds: Annotated[float, Field(gt=0.0, le=2.0)] = 0.2
    """Time at rest before the first target over which the bias is averaged [s]."""
    max_bias: Annotated[float, Field(gt=0.0, le=20.0)] = 5.0
    """Largest force at rest that is removed as bias [N]; a larger one refuses the episode."""
    max_bias_moment: Annotated[float, Field(gt=0.0, le=5.0)] = 2.0
    """Largest moment at rest that is removed as bias [Nm]; that of joint torques is the arm's
    `rest_torque`."""

    def __post_init__(self) -> None:
        changed = changed_options(self)
        if self.empty and changed:
            raise HandoffError(
                f"force: {changed[0]} has no effect without a threshold. Give one of {', '.join(CHANNELS)}, too."
            )
        if self.limit is not None and self.limit <= self.contact:
            raise HandoffError(
                f"force: limit {self.limit} N is not above contact {self.contact} N, from which on it holds. Raise "
                "the limit, or lower contact."
            )

    @property
    def empty(self) -> bool:
        """Whether nothing is limited."""
        return all(getattr(self, name) is None for name in CHANNELS)


class _Threshold(NamedTuple):
    """What ends an episode, and how long it has lasted."""

    what: str
    value: float
    limit: float
    unit: str


class ForceGuard:
    """The guard of one episode.

    Args:
        config: thresholds.
        robot: the arm, whose torque limits `fault_torque_share` refers to.
        period: period of a stream tick [s].
    """

    def __init__(self, config: ForceGuardConfig, robot: Robot, period: float) -> None:
        self.config = config
        self._tau_max = robot.limits.tau_max
        self._period = period
        self._gain = 1.0 - math.exp(-2.0 * math.pi * config.cutoff_hz * period)
        self.wrench = np.zeros(6)
        """(6,) filtered external force [N] and moment [Nm] at the end effector, base axes, without
        bias."""
        self._tau = np.zeros(robot.num_joints)
        self._bias = np.zeros(6 + robot.num_joints)
        self._seconds: dict[str, float] = {}
        """Time for which each threshold has been exceeded [s]."""

    @property
    def rest_ticks(self) -> int:
        """Number of ticks at rest of which the bias is the mean."""
        return max(1, round(self.config.rest_seconds / self._period))

    def rest(self, states: Sequence[ArmState]) -> None:
        """Takes the mean of states at rest as the bias.

        Raises:
            SafetyError: it is larger than its bounds, or not finite.
        """
        config = self.config
        bias = np.mean([_felt(state) for state in states], axis=0)
        force, moment = (float(np.linalg.norm(part)) for part in (bias[:3], bias[3:6]))
        for what, value, limit, unit, option in (
            ("force", force, config.max_bias, "N", "max_bias"),
            ("moment", moment, config.max_bias_moment, "Nm", "max_bias_moment"),
        ):
            if not value <= limit:
                raise SafetyError(
                    f"force: the arm feels a {what} of {value:.1f} {unit} at rest, limit {limit} {unit} "
                    f"({option}). Does something touch it, is the tool's mass configured in Desk?"
                )
        self._bias = bias

    def observe(self, state: ArmState) -> None:
        """Takes the state of a tick.

        Raises:
            SafetyError: a threshold has been exceeded for `fault_seconds`, or an estimate is not
                finite.
        """
        felt = _felt(state) - self._bias
        if not np.isfinite(felt).all():
            raise SafetyError("force: the robot's estimate of external forces is not finite.")
        self.wrench = self.wrench + self._gain * (felt[:6] - self.wrench)
        self._tau = self._tau + self._gain * (felt[6:] - self._tau)
        for threshold in self._thresholds():
            self._judge(threshold)

    def limited(
        self, asked: Motion, measured: np.ndarray, stiffness: np.ndarray, axes: np.ndarray
    ) -> Motion:
        """The requested motion, no further from the arm along the direction of a contact than the
        springs need for `limit`; the same object without a contact.

        Args:
            asked: requested motion.
            measured: (D,) position of the arm [m].
            stiffness: (D, D) of the springs in the coordinates [N/m].
            axes: (6, D) twists in the base frame of unit velocities along the coordinates.
        """
        limit = self.config.limit
        force = axes.T @ self.wrench
        size = float(np.linalg.norm(force))
        if limit is None or size < self.config.contact:
            return asked
        along = force / size
        press = along @ stiffness
        softness = float(press @ along)
        pressing = float(press @ (asked.position - measured))
        excess = abs(pressing) - limit
        if softness <= 0.0 or excess <= 0.0:
            return asked
        outward = math.copysign(1.0, pressing) * along
        velocity = asked.velocity - outward * max(float(asked.velocity @ outward), 0.0)
        return asked._replace(
            position=asked.position - outward * (excess / softness), velocity=velocity
        )

    def _thresholds(self) -> list[_Threshold]:
        config = self.config
        found = []
        for what, part, limit, unit in (
            ("an external force", self.wrench[:3], config.fault_force, "N"),
            ("an external moment", self.wrench[3:], config.fault_moment, "Nm"),
        ):
            if limit is not None:
                found.append(_Threshold(what, float(np.linalg.norm(part)), limit, unit))
        if config.fault_torque_share is not None:
            shares = np.abs(self._tau) / self._tau_max
            i = int(np.argmax(shares))
            limit = config.fault_torque_share * float(self._tau_max[i])
            what = f"an external torque at joint{i + 1}"
            found.append(_Threshold(what, float(abs(self._tau[i])), limit, "Nm"))
        return found

    def _judge(self, threshold: _Threshold) -> None:
        # Whichever joint it is: the time is that of the kind of threshold.
        kind = threshold.what.partition(" at ")[0]
        above = threshold.value > threshold.limit
        self._seconds[kind] = self._seconds.get(kind, 0.0) + self._period if above else 0.0
        # Half a tick: sums of periods are not exact.
        if above and self._seconds[kind] > self.config.fault_seconds + self._period / 2.0:
            raise SafetyError(
                f"force: {threshold.what} of {threshold.value:.1f} {threshold.unit} has lasted "
                f"{self.config.fault_seconds:g} s, limit {threshold.limit:g} {threshold.unit}. Is the arm blocked, "
                "or something in its way?"
            )


def check_reflex(config: ForceGuardConfig, arm: FrankaConfig) -> None:
    """Checks that the guard ends an episode before the robot's own reflex does.

    Raises:
        HandoffError: a threshold is not below that of the robot.
    """
    for name, value, limits, unit in (
        ("fault_force", config.fault_force, arm.collision_force[:3], "N"),
        ("fault_moment", config.fault_moment, arm.collision_force[3:], "Nm"),
    ):
        if value is not None and value >= min(limits):
            raise HandoffError(
                f"loop.force.{name} is {value} {unit}, not below the {min(limits):g} {unit} of arm.collision_force at "
                "which the robot itself stops. Lower it."
            )


def _felt(state: ArmState) -> np.ndarray:
    """(6 + J,) external wrench and joint torques."""
    return np.concatenate([state.wrench_ext, state.tau_ext])
