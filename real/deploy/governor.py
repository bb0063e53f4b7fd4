"""The reference governor: whatever is asked, what reaches the arm stays inside the box and inside
the limits.

Works on the pusher's position in the plane of the task, once per stream tick. Its state is the
reference itself, and it only leaves a state for one from which it can still brake: on every axis
the braking distance at constant deceleration fits between the reference and the wall. So the box is
never overshot, by construction and not by tuning.
"""

from __future__ import annotations

import math

import numpy as np

from robots.config import config
from robots.control.actions import Motion
from robots.errors import HandoffError, SafetyError

_WAITING_SHARE = 0.8
"""Share of `max_lag` from which the reference counts as waiting for the arm; it nears `max_lag`
asymptotically."""


@config
class GovernorConfig:
    """Limits of the reference, of a planar task.

    The push-T demonstrations (agent replayed at 100 Hz) move at 0.078 m/s median, 0.295 m/s 99 %,
    0.419 m/s 99.9 % and
    0.670 m/s at most; they accelerate at 0.25, 2.3, 4.2 and 13.5 m/s^2. The defaults lie above 99.9
    % of both, but the box is smaller than the demonstrations' (0.013 to 0.511 m): it is where the
    arm's pusher can reach upright. FR3 itself allows 3.0 m/s, 9.0 m/s^2, 4500 m/s^3 (Franka control
    parameters, 2026-05).
    """

    low: tuple[float, ...] = (0.03, 0.03)
    """Lower corner of the keep-in box [m], task frame."""
    high: tuple[float, ...] = (0.48, 0.48)
    """Upper corner of the keep-in box [m], task frame."""
    max_speed: float = 0.5
    """Of the reference [m/s], Euclidean."""
    max_acceleration: float = 6.0
    """Of the reference [m/s^2], Euclidean; every axis gets 1/sqrt(D) of it."""
    max_jerk: float = 4500.0
    """[m/s^3]. An acceleration can reverse in one tick, so `2 max_acceleration / period` must not
    exceed it."""
    max_lag: float = 0.06
    """The reference waits when it is this far ahead of the measured position [m]; bounds the
    stiffness' force."""
    fault_lag: float = 0.12
    """Reference minus measured position that stops the episode [m]: the arm is blocked or does not
    track."""
    blocked_seconds: float = 0.5
    """How long the reference may wait for the arm before the arm counts as blocked [s]."""
    catch_up_rate: float = 60.0
    """Rate at which the reference returns to what is asked after a limit held it back [1/s]."""


class ReferenceGovernor:
    """Shapes a stream of asked motions into one that keeps every limit of its configuration."""

    def __init__(self, config: GovernorConfig, period: float, position: np.ndarray) -> None:
        """Starts at rest.

        Args:
            config: limits, D entries per corner.
            period: of one tick [s].
            position: `(D,)` where the reference starts [m].

        Raises:
            HandoffError: limits that contradict one another.
            SafetyError: the start lies outside the box.
        """
        self._low, self._high = (
            np.asarray(config.low, dtype=float),
            np.asarray(config.high, dtype=float),
        )
        _check_limits(config, self._low, self._high, period)
        self._config = config
        self._dt = period
        self._axis_acceleration = config.max_acceleration / math.sqrt(self._low.size)
        self._position = self._require("start position", position)
        if (self._position < self._low).any() or (self._position > self._high).any():
            raise SafetyError(
                f"governor: start {np.round(self._position, 4).tolist()} m lies outside the keep-in box "
                f"{self._low.tolist()} to {self._high.tolist()} m. Is the arm registered to the board?"
            )
        self._velocity = np.zeros_like(self._position)
        self._waited = 0.0

    def clamp(self, target: np.ndarray) -> np.ndarray:
        """The point of the keep-in box nearest to `target` `(D,)` [m].

        Raises:
            SafetyError: wrong shape or a non-finite entry.
        """
        return np.clip(self._require("action", target), self._low, self._high)

    def step(self, asked: Motion, measured: np.ndarray, bounds: np.ndarray | None = None) -> Motion:
        """One tick.

        Args:
            asked: position and velocity wanted at the end of the tick.
            measured: `(D,)` the arm's position now [m].
            bounds: `(M, D)` rows r [s/m], each demanding |r . v| <= 1 of the velocity, e.g. what
                the joints allow here. Where they tighten faster than the reference can brake, it
                brakes.

        Returns:
            The reference at the end of the tick; its acceleration is the mean over the tick.

        Raises:
            SafetyError: non-finite or ill-shaped input, or the arm further than `fault_lag` from
                its reference.
        """
        position, velocity = (
            self._require("position", asked.position),
            self._require("velocity", asked.velocity),
        )
        inside = np.clip(position, self._low, self._high)
        wanted = self._tracking_velocity(inside, np.where(inside == position, velocity, 0.0))
        return self._move(wanted, measured, bounds)

    def brake(self, measured: np.ndarray, bounds: np.ndarray | None = None) -> Motion:
        """One tick towards rest, as fast as the limits allow, on every axis at once; arguments and
        errors as of `step`.

        Nothing is followed meanwhile, so that the reference comes to rest where it can, and does
        not turn back.
        """
        return self._move(np.zeros_like(self._velocity), measured, bounds)

    def _move(self, wanted: np.ndarray, measured: np.ndarray, bounds: np.ndarray | None) -> Motion:
        measured = self._require("measured position", measured)
        self._judge_lag(float(np.linalg.norm(self._position - measured)))
        new_velocity = self._feasible(self._wait_for_arm(wanted, measured), bounds)
        new_position = self._position + (self._velocity + new_velocity) / 2.0 * self._dt
        acceleration = (new_velocity - self._velocity) / self._dt
        # Rounding may leave the wall behind by some 1e-17 m; the walls hold exactly.
        self._position, self._velocity = np.clip(new_position, self._low, self._high), new_velocity
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

    def _wait_for_arm(self, wanted: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """Takes from `wanted` the speed away from the arm that could not be braked within `max_lag`
        of it."""
        ahead = self._position - measured
        distance = float(np.linalg.norm(ahead))
        if distance == 0.0:
            return wanted
        outward = ahead / distance
        allowed = math.sqrt(
            2.0 * self._axis_acceleration * max(self._config.max_lag - distance, 0.0)
        )
        return wanted - outward * max(float(wanted @ outward) - allowed, 0.0)

    def _tracking_velocity(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Follows exactly what keeps the limits, and comes back along a braking parabola to what
        did not."""
        error = position - self._position - (self._velocity + velocity) / 2.0 * self._dt
        distance = float(np.linalg.norm(error))
        if distance == 0.0:
            return velocity
        # Half the available deceleration is spent on catching up, so that the asked motion may
        # still change.
        speed = min(
            self._config.catch_up_rate * distance, math.sqrt(self._axis_acceleration * distance)
        )
        return velocity + error * (speed / distance)

    def _feasible(self, wanted: np.ndarray, bounds: np.ndarray | None) -> np.ndarray:
        """The velocity nearest to `wanted` from which the reference can still stop inside the
        box."""
        change = self._axis_acceleration * self._dt
        braked = np.sign(self._velocity) * np.maximum(np.abs(self._velocity) - change, 0.0)
        highest = np.minimum(
            self._velocity + change, self._fastest(self._high - self._position, self._velocity)
        )
        lowest = np.maximum(
            self._velocity - change, -self._fastest(self._position - self._low, -self._velocity)
        )
        bounded = np.clip(wanted, np.minimum(lowest, braked), np.maximum(highest, braked))
        shortened = _into_ball(braked, bounded, self._config.max_speed)
        return shortened if bounds is None else _into_slabs(braked, shortened, bounds)

    def _fastest(self, room: np.ndarray, speed: np.ndarray) -> np.ndarray:
        """Largest speed towards a wall at the end of this tick that still stops before it.

        The tick covers (speed + x) dt / 2, and braking from x in whole ticks at most x^2 / 2a + x
        dt / 2; their sum must fit into `room`. No solution means to brake now, which the state of
        one tick before made sure is enough.
        """
        a, dt = self._axis_acceleration, self._dt
        return (
            np.sqrt(np.maximum(a * a * dt * dt + 2.0 * a * (room - speed * dt / 2.0), 0.0)) - a * dt
        )

    def _require(self, name: str, value: np.ndarray) -> np.ndarray:
        value = np.array(value, dtype=np.float64)
        if value.shape != self._low.shape or not np.isfinite(value).all():
            raise SafetyError(
                f"governor: {name} is {value.tolist()}, expected {self._low.size} finite numbers. "
                "Did the policy or a sensor fail?"
            )
        return value


def _into_ball(safe: np.ndarray, wanted: np.ndarray, limit: float) -> np.ndarray:
    """The last point on the way from `safe`, inside the ball of radius `limit`, to `wanted` that
    lies in the ball."""
    if float(wanted @ wanted) <= limit * limit:
        return wanted
    way = wanted - safe
    a, b, c = float(way @ way), float(safe @ way), float(safe @ safe) - limit * limit
    if a == 0.0:
        return safe
    share = (-b + math.sqrt(max(b * b - a * c, 0.0))) / a
    return safe + way * min(max(share, 0.0), 1.0)


def _into_slabs(safe: np.ndarray, wanted: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The last point from `safe` to `wanted` with |r . v| <= 1 for every row, or no larger than at
    `safe`."""
    begin, change = rows @ safe, rows @ (wanted - safe)
    limit = np.maximum(1.0, np.abs(begin))
    moving = change != 0.0
    shares = (np.sign(change[moving]) * limit[moving] - begin[moving]) / change[moving]
    return safe + (wanted - safe) * min(1.0, float(shares.min(initial=1.0)))


def _check_limits(config: GovernorConfig, low: np.ndarray, high: np.ndarray, period: float) -> None:
    if low.shape != high.shape or low.ndim != 1 or not (low < high).all():
        raise HandoffError(
            f"governor: keep-in box {config.low} to {config.high} m is empty or ill-shaped."
        )
    jerk = 2.0 * config.max_acceleration / period
    if jerk > config.max_jerk:
        raise HandoffError(
            f"governor: max_acceleration {config.max_acceleration} m/s^2 at a period of {period} s allows a jerk of "
            f"{jerk:.0f} m/s^3, limit {config.max_jerk:.0f}. Lower the acceleration or the stream rate."
        )
    positive = (
        "max_speed",
        "max_acceleration",
        "max_lag",
        "fault_lag",
        "blocked_seconds",
        "catch_up_rate",
    )
    for name in positive:
        if not getattr(config, name) > 0.0:
            raise HandoffError(
                f"governor: {name} is {getattr(config, name)}, expected a positive number."
            )
    if config.max_lag > config.fault_lag:
        raise HandoffError(
            f"governor: max_lag {config.max_lag} m exceeds fault_lag {config.fault_lag} m."
        )
