"""Computes the motion of the agent of the interface `pd_target` at any time.

`robots.control.actions` defines the agent's recursion.
"""

from __future__ import annotations

import numpy as np

from robots.control.actions import AgentDynamics, Motion
from robots.errors import HandoffError, SafetyError

_TIME_SLACK = 1e-9
"""Tolerance of the time of a knot, as times are sums of milliseconds in floating point [s]."""


def checked_target(target: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A copy of `target` [m], float64.

    Raises:
        SafetyError: another shape than `shape`, or a non-finite entry.
    """
    copy = np.array(target, dtype=np.float64)
    if copy.shape != shape or not np.isfinite(copy).all():
        raise SafetyError(
            f"action target: {copy.tolist()}, expected {int(np.prod(shape))} finite numbers [m]. Did it diverge?"
        )
    return copy


class AgentReference:
    """The agent's motion under a stream of targets, sampled at any time.

    Positions at the knots are those of the recursion. Between knots the path is a cubic Hermite
    segment. The recursion is semi-implicit: its `v` is the mean velocity of the interval before the
    knot. The tangent at a knot is the mean of the velocities before and after it, which avoids a
    100 Hz ripple in the acceleration.
    """

    def __init__(self, position: np.ndarray, dynamics: AgentDynamics, time: float = 0.0) -> None:
        """Starts the agent at rest.

        Args:
            position: `(D,)` first position, which is also the first target [m].
            dynamics: dynamics of the agent.
            time: time of the first knot [s].
        """
        self._dynamics = dynamics
        self._dt = 1.0 / dynamics.rate_hz
        self._start_time = time
        self._knot = 0
        self._from = np.array(position, dtype=np.float64)
        self._from_tangent = np.zeros_like(self._from)
        self._to = self._from.copy()
        self._to_tangent = np.zeros_like(self._from)
        self._velocity = np.zeros_like(self._from)
        self._target = self._from.copy()

    @property
    def target(self) -> np.ndarray:
        """(D,) the target from the newest knot on [m]."""
        return self._target.copy()

    @property
    def position(self) -> np.ndarray:
        """(D,) position at the newest knot [m]."""
        return self._to.copy()

    @property
    def velocity(self) -> np.ndarray:
        """(D,) the recursion's `v` at the newest knot [m/s]."""
        return self._velocity.copy()

    @property
    def time(self) -> float:
        """Time of the newest knot [s]."""
        return self._start_time + self._knot * self._dt

    def push(self, target: np.ndarray) -> None:
        """Sets the target from the newest knot on.

        Args:
            target: `(D,)` the target [m].

        Raises:
            SafetyError: wrong shape or a non-finite entry.
        """
        self._target = checked_target(target, self._to.shape)

    def sample(self, time: float) -> Motion:
        """The motion at `time`; computes further knots as needed.

        Args:
            time: time [s], not before the beginning of the newest segment.

        Raises:
            HandoffError: `time` lies before that segment.
        """
        while time > self.time + _TIME_SLACK:
            self._step()
        segment_start = self.time - (self._dt if self._knot else 0.0)
        if time < segment_start - _TIME_SLACK:
            raise HandoffError(
                f"agent reference: requested at {time:.4f} s, the newest segment starts at {segment_start:.4f} s. "
                "Did the robot's clock jump back?"
            )
        return self._hermite(min(max((time - segment_start) / self._dt, 0.0), 1.0))

    def _acceleration(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        return self._dynamics.k_p * (self._target - position) - self._dynamics.k_v * velocity

    def _step(self) -> None:
        self._from = self._to
        self._from_tangent = self._to_tangent
        self._velocity = self._velocity + self._acceleration(self._from, self._velocity) * self._dt
        self._to = self._from + self._velocity * self._dt
        next_velocity = self._velocity + self._acceleration(self._to, self._velocity) * self._dt
        self._to_tangent = (self._velocity + next_velocity) / 2.0
        self._knot += 1

    def _hermite(self, s: float) -> Motion:
        if self._knot == 0:
            return Motion(self._to.copy(), np.zeros_like(self._to), np.zeros_like(self._to))
        dt = self._dt
        p0 = self._from
        p1 = self._to
        m0, m1 = self._from_tangent * dt, self._to_tangent * dt
        rise = p1 - p0
        c2, c3 = 3.0 * rise - 2.0 * m0 - m1, m0 + m1 - 2.0 * rise
        return Motion(
            p0 + s * (m0 + s * (c2 + s * c3)) if s < 1.0 else p1.copy(),
            (m0 + s * (2.0 * c2 + 3.0 * s * c3)) / dt,
            (2.0 * c2 + 6.0 * s * c3) / dt**2,
        )
