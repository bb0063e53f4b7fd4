"""Governs the reference of the arm: for any requested motion, the reference stays inside a keep-in
box and within limits of speed, acceleration and jerk.

It works on the end effector's position in the coordinates of the task, once per stream tick. Its
state is the reference itself, and it moves only to states from which it can still brake: on every
axis the braking distance at constant deceleration fits between the reference and the wall. The box
is therefore never overshot, by construction and not by tuning.
"""

from __future__ import annotations

import math
from typing import Annotated, Protocol

import numpy as np
from pydantic import Field

from real.franka.joint_limits import VelocityBounds
from robots.config import check_positive, config
from robots.control.actions import Motion
from robots.errors import HandoffError, SafetyError
from robots.franka.robot import Robot

_WAITING_SHARE = 0.8
"""Share of `max_lag` from which the reference counts as waiting for the arm; it nears `max_lag`
asymptotically."""
LARGEST = 1e6
"""Largest requested or measured number [m, m/s]: beyond it the squares of the numbers lose all
digits of a motion, and overflow in the end."""
BRAKING_SECONDS = 0.5
"""Longest time in which the reference must come to rest from its highest speed [s], so that a hold
takes effect; the defaults need 0.12 s, those of a task's table 0.22 s."""


LIMITS = (
    "max_speed",
    "max_acceleration",
    "max_jerk",
    "max_lag",
    "fault_lag",
    "blocked_seconds",
    "catch_up_rate",
)
"""Options that must be positive."""
Coordinate = Annotated[float, Field(ge=-1.5, le=1.5)]
"""A coordinate within the arm's reach, whatever the origin of the task's frame [m]."""


@config
class GovernorConfig:
    """Limits of the reference; the defaults are those of push-T.

    The push-T demonstrations (agent replayed at 100 Hz) move at 0.078 m/s (median), 0.295 m/s
    (99 %), 0.419 m/s (99.9 %) and at most 0.670 m/s; they accelerate at 0.25, 2.3, 4.2 and at most
    13.5 m/s^2. The defaults lie above the 99.9 % of both. The box is smaller than that of the
    demonstrations (0.013 to 0.511 m): it is the region that the upright pusher can reach.

    The robot's own Cartesian limits are never exceeded: a larger speed is refused, and where the
    reference's velocity is fed to the arm, a larger acceleration; the smaller of the two limits of
    jerk holds. A spring whose targets are positions alone answers an acceleration of its reference
    with a torque that has a kink and no step, so there the joints' torque rates bound the reference
    (`real.motion.reference_bounds`).
    """

    low: tuple[Coordinate, ...] = (0.03, 0.03)
    """Lower corner of the keep-in box in the task frame [m]."""
    high: tuple[Coordinate, ...] = (0.48, 0.48)
    """Upper corner of the keep-in box in the task frame [m]."""
    max_speed: Annotated[float, Field(gt=0.0, le=3.0)] = 0.5
    """Euclidean speed limit of the reference [m/s]."""
    max_acceleration: Annotated[float, Field(gt=0.0, le=60.0)] = 6.0
    """Euclidean acceleration limit of the reference [m/s^2]; every axis gets 1/sqrt(D) of it."""
    max_jerk: Annotated[float, Field(gt=0.0, le=120_000.0)] = 4500.0
    """Jerk limit of the reference [m/s^3]. An acceleration can reverse within one tick, so neither
    this nor the robot's own limit, where it holds, may be below `2 max_acceleration / period`."""
    max_lag: Annotated[float, Field(gt=0.0, le=0.2)] = 0.06
    """Distance ahead of the measured position at which the reference waits for the arm [m]; it
    bounds the force of the stiffness."""
    fault_lag: Annotated[float, Field(gt=0.0, le=0.3)] = 0.12
    """Distance between reference and measured position that stops the episode [m]: the arm is
    blocked or does not track."""
    blocked_seconds: Annotated[float, Field(gt=0.0, le=5.0)] = 0.5
    """Longest time for which the reference waits before the arm counts as blocked [s]."""
    catch_up_rate: Annotated[float, Field(gt=0.0, le=1000.0)] = 60.0
    """Rate at which the reference returns to the requested motion after a limit held it back
    [1/s]."""

    def __post_init__(self) -> None:
        _check_limits(self)


class KeepInBox:
    """The keep-in box of a governor, for those who set targets.

    Args:
        config: limits with D entries per corner.
    """

    def __init__(self, config: GovernorConfig) -> None:
        self.low = np.asarray(config.low, dtype=float)
        """(D,) lower corner [m]."""
        self.high = np.asarray(config.high, dtype=float)
        """(D,) upper corner [m]."""

    def clamp(self, target: np.ndarray) -> np.ndarray:
        """The point of the box nearest to `target` `(D,)` [m].

        Raises:
            SafetyError: wrong shape or a non-finite entry.
        """
        return np.clip(self.checked("action", target), self.low, self.high)

    def checked(self, name: str, value: np.ndarray) -> np.ndarray:
        """A copy of `value`, which must be one finite number per coordinate.

        Args:
            name: what the value is, for the message.
            value: (D,) numbers.

        Raises:
            SafetyError: wrong shape or a non-finite entry.
        """
        value = np.array(value, dtype=np.float64)
        # Written so that a number that is none is refused as well.
        if value.shape != self.low.shape or not (np.abs(value) <= LARGEST).all():
            raise SafetyError(
                f"governor: {name} is {value.tolist()}, expected {self.low.size} finite numbers up to {LARGEST:g}. "
                "Did the policy or a sensor fail?"
            )
        return value


class VelocityFilter(Protocol):
    """A last limit on the velocity of a reference; `real.motion.energy_tank.EnergyTank` is one."""

    def shortened(self, braked: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """A velocity (D,) [m/s] on the line from `braked`, which braking for a tick leads to, to
        `wanted`, which all other limits allow."""
        ...


class ReferenceGovernor:
    """Turns a stream of requested motions into one that keeps all limits; it starts at rest.

    Args:
        config: limits, D entries per corner.
        period: period of one tick [s].
        position: `(D,)` first position of the reference [m].
        robot: robot whose Cartesian limits hold as well.
        feeds_velocity: whether the reference's velocity is fed to the arm; see `check_robot`.
        velocity_filter: a last limit on the velocity; None for none.

    Raises:
        HandoffError: limits that contradict one another, or exceed the robot's.
        SafetyError: the first position lies outside the box.
    """

    def __init__(
        self,
        config: GovernorConfig,
        period: float,
        position: np.ndarray,
        robot: Robot,
        *,
        feeds_velocity: bool = True,
        velocity_filter: VelocityFilter | None = None,
    ) -> None:
        self._filter = velocity_filter
        self.box = KeepInBox(config)
        """Where the reference stays."""
        self._low = self.box.low
        self._high = self.box.high
        check_robot(config, period, robot, feeds_velocity=feeds_velocity)
        self._config = config
        self._dt = period
        self._axis_acceleration = config.max_acceleration / math.sqrt(self._low.size)
        self._position = self.box.checked("start position", position)
        if (self._position < self._low).any() or (self._position > self._high).any():
            raise SafetyError(
                f"governor: start {np.round(self._position, 4).tolist()} m lies outside the keep-in box "
                f"{self._low.tolist()} to {self._high.tolist()} m. Is the arm registered to the board?"
            )
        self._velocity = np.zeros_like(self._position)
        self._waited = 0.0

    def step(
        self, requested: Motion, measured: np.ndarray, bounds: VelocityBounds | None = None
    ) -> Motion:
        """Advances the reference by one tick towards a requested motion.

        Args:
            requested: requested position and velocity at the end of the tick.
            measured: `(D,)` present position of the arm [m].
            bounds: bounds on the velocity, such as the joints' velocity limits in this pose. If
                they tighten faster than the reference can brake, it brakes.

        Returns:
            The reference at the end of the tick; its acceleration is the mean over the tick.

        Raises:
            SafetyError: non-finite or ill-shaped input, or the arm is further than `fault_lag` from
                its reference.
        """
        position = self.box.checked("position", requested.position)
        velocity = self.box.checked("velocity", requested.velocity)
        inside = np.clip(position, self._low, self._high)
        target = self._tracking_velocity(inside, np.where(inside == position, velocity, 0.0))
        return self._move(target, measured, bounds)

    def brake(self, measured: np.ndarray, bounds: VelocityBounds | None = None) -> Motion:
        """Advances the reference by one tick towards rest, as fast as the limits allow, on all axes
        at once; arguments and errors as of `step`.

        No requested motion is followed meanwhile, so the reference comes to rest without turning
        back.
        """
        return self._move(np.zeros_like(self._velocity), measured, bounds)

    def _move(
        self, requested: np.ndarray, measured: np.ndarray, bounds: VelocityBounds | None
    ) -> Motion:
        """Advances the reference with the velocity nearest to `requested` (D,) [m/s]."""
        measured = self.box.checked("measured position", measured)
        if bounds is not None and not all((np.abs(part) <= LARGEST).all() for part in bounds):
            raise SafetyError(
                "governor: the joints' bounds on the velocity are not finite. Did a joint sensor fail?"
            )
        self._judge_lag(float(np.linalg.norm(self._position - measured)))
        new_velocity = self._feasible(self._wait_for_arm(requested, measured), bounds)
        new_position = self._position + (self._velocity + new_velocity) / 2.0 * self._dt
        acceleration = (new_velocity - self._velocity) / self._dt
        # Clipped because rounding may overshoot a wall by some 1e-17 m.
        self._position = np.clip(new_position, self._low, self._high)
        self._velocity = new_velocity
        return Motion(self._position.copy(), self._velocity.copy(), acceleration)

    def _judge_lag(self, lag: float) -> None:
        if lag > self._config.fault_lag:
            raise SafetyError(
                f"governor: the arm is {lag:.4f} m from its reference, limit {self._config.fault_lag} m. "
                "Was it pushed away, or is its stiffness too low for the load?"
            )
        self._waited = (
            self._waited + self._dt if lag > _WAITING_SHARE * self._config.max_lag else 0.0
        )
        if self._waited > self._config.blocked_seconds:
            raise SafetyError(
                f"governor: the arm has been {lag:.4f} m behind its reference for {self._waited:.2f} s, limit "
                f"{self._config.blocked_seconds} s. Is it blocked?"
            )

    def _wait_for_arm(self, requested: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """Reduces the speed away from the arm to one that can be braked within `max_lag` of it."""
        ahead = self._position - measured
        distance = float(np.linalg.norm(ahead))
        if distance == 0.0:
            return requested
        outward = ahead / distance
        allowed = math.sqrt(
            2.0 * self._axis_acceleration * max(self._config.max_lag - distance, 0.0)
        )
        return requested - outward * max(float(requested @ outward) - allowed, 0.0)

    def _tracking_velocity(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """(D,) velocity [m/s] that follows a motion within the limits exactly, and returns to it
        along a braking parabola after a limit held the reference back."""
        error = position - self._position - (self._velocity + velocity) / 2.0 * self._dt
        distance = float(np.linalg.norm(error))
        if distance == 0.0:
            return velocity
        # Half the available deceleration is used to catch up; the other half is left for changes
        # of the requested motion.
        speed = min(
            self._config.catch_up_rate * distance, math.sqrt(self._axis_acceleration * distance)
        )
        return velocity + error * (speed / distance)

    def _feasible(self, requested: np.ndarray, bounds: VelocityBounds | None) -> np.ndarray:
        """(D,) velocity nearest to `requested` from which the reference can still stop inside the
        box."""
        change = self._axis_acceleration * self._dt
        braked = np.sign(self._velocity) * np.maximum(np.abs(self._velocity) - change, 0.0)
        highest = np.minimum(
            self._velocity + change, self._fastest(self._high - self._position, self._velocity)
        )
        lowest = np.maximum(
            self._velocity - change, -self._fastest(self._position - self._low, -self._velocity)
        )
        bounded = np.clip(requested, np.minimum(lowest, braked), np.maximum(highest, braked))
        shortened = _into_ball(braked, bounded, self._config.max_speed)
        if bounds is not None:
            shortened = _into_slabs(braked, shortened, bounds)
        return shortened if self._filter is None else self._filter.shortened(braked, shortened)

    def _fastest(self, room: np.ndarray, speed: np.ndarray) -> np.ndarray:
        """Largest speed x towards a wall, at the end of this tick, that still stops before it.

        The tick covers (speed + x) dt / 2, and braking from x in whole ticks at most x^2 / 2a + x
        dt / 2; their sum must fit into `room`. Without a solution the reference brakes, which is
        enough because the last tick left room for it.
        """
        a, dt = self._axis_acceleration, self._dt
        return (
            np.sqrt(np.maximum(a * a * dt * dt + 2.0 * a * (room - speed * dt / 2.0), 0.0)) - a * dt
        )


def _into_ball(safe: np.ndarray, requested: np.ndarray, limit: float) -> np.ndarray:
    """The last point in the ball of radius `limit` on the line from `safe`, inside it, to
    `requested`."""
    if float(requested @ requested) <= limit * limit:
        return requested
    line = requested - safe
    # |safe + share * line|^2 = limit^2 is a quadratic equation a share^2 + 2 b share + c = 0.
    a = float(line @ line)
    b = float(safe @ line)
    c = float(safe @ safe) - limit * limit
    if a == 0.0:
        return safe
    share = (-b + math.sqrt(max(b * b - a * c, 0.0))) / a
    return safe + line * min(max(share, 0.0), 1.0)


def _into_slabs(safe: np.ndarray, requested: np.ndarray, bounds: VelocityBounds) -> np.ndarray:
    """The last point on the line from `safe` to `requested` that keeps all bounds; a larger value
    at `safe` may not increase."""
    begin = bounds.rows @ safe + bounds.offset
    change = bounds.rows @ (requested - safe)
    limit = np.maximum(1.0, np.abs(begin))
    moving = change != 0.0
    shares = (np.sign(change[moving]) * limit[moving] - begin[moving]) / change[moving]
    return safe + (requested - safe) * min(1.0, float(shares.min(initial=1.0)))


def _check_limits(config: GovernorConfig) -> None:
    low, high = np.asarray(config.low, dtype=float), np.asarray(config.high, dtype=float)
    if low.shape != high.shape or low.ndim != 1 or not (low < high).all():
        raise HandoffError(
            f"governor: keep-in box {config.low} to {config.high} m is empty or ill-shaped."
        )
    check_positive("governor", config, LIMITS)
    if config.max_lag >= config.fault_lag:
        raise HandoffError(
            f"governor: max_lag {config.max_lag} m is not below fault_lag {config.fault_lag} m."
        )
    braking = config.max_speed / (config.max_acceleration / math.sqrt(low.size))
    if braking > BRAKING_SECONDS:
        raise HandoffError(
            f"governor: from max_speed {config.max_speed} m/s the reference brakes for {braking:.2f} s with a "
            f"max_acceleration of {config.max_acceleration} m/s^2, limit {BRAKING_SECONDS} s. Lower the speed."
        )


def check_robot(
    config: GovernorConfig, period: float, robot: Robot, *, feeds_velocity: bool = True
) -> None:
    """Compares with the robot's limits of translation, because coordinates of a task are
    lengths.

    Args:
        config: limits of the reference.
        period: period of one tick [s].
        robot: robot whose Cartesian limits hold as well.
        feeds_velocity: whether the reference's velocity is fed to the arm. If it is not, the arm's
            spring answers the position alone, and the robot's limits of acceleration and jerk do
            not hold for the reference.

    Raises:
        HandoffError: a limit exceeds the robot's, or does not fit the period.
    """
    limits = robot.cartesian
    speed, acceleration, robot_jerk = (
        float(limit[0]) for limit in (limits.velocity, limits.acceleration, limits.jerk)
    )
    if not feeds_velocity:
        acceleration, robot_jerk = math.inf, math.inf
    for name, value, limit, unit in (
        ("max_speed", config.max_speed, speed, "m/s"),
        ("max_acceleration", config.max_acceleration, acceleration, "m/s^2"),
    ):
        if value > limit:
            raise HandoffError(
                f"governor: {name} is {value} {unit}, {robot.name} allows {limit} {unit}. Was the configuration "
                "written for another robot?"
            )
    jerk = 2.0 * config.max_acceleration / period
    most = min(config.max_jerk, robot_jerk)
    if jerk > most:
        raise HandoffError(
            f"governor: max_acceleration {config.max_acceleration} m/s^2 at a period of {period} s allows a jerk of "
            f"{jerk:.0f} m/s^3, limit {most:.0f}. Lower the acceleration or the stream rate."
        )
    if config.catch_up_rate * period > 1.0:
        raise HandoffError(
            f"governor: catch_up_rate {config.catch_up_rate} 1/s overshoots at a period of {period} s, limit "
            f"{1.0 / period:.0f}."
        )
