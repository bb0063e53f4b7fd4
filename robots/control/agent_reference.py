"""The motion of the agent behind the interface `pd_target`, sampled at any time.

`robots.control.actions` states the agent's recursion.
"""

from __future__ import annotations

import numpy as np

from robots.control.actions import AgentDynamics, Motion
from robots.errors import HandoffError, SafetyError

_TIME_SLACK = 1e-9
"""Seconds by which a time may miss a knot, being a sum of milliseconds in floating point."""


def checked_target(target: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A copy of `target` [m], float64.

    Raises:
        SafetyError: another shape than `shape`, or a non-finite entry.
    """
    found = np.array(target, dtype=np.float64)
    if found.shape != shape or not np.isfinite(found).all():
        raise SafetyError(
            f"action target: {found.tolist()}, expected {int(np.prod(shape))} finite numbers [m]. Did it diverge?"
        )
    return found


class AgentReference:
    """The agent's motion under a stream of targets, sampled at any time.

    Positions at the knots are those of the recursion. Between knots the path is a cubic Hermite
    segment. The recursion is semi-implicit, its `v` being the mean velocity of the interval that it
    ends; so a knot's tangent is the mean of the two velocities around it, which keeps the
    acceleration free of a 100 Hz ripple.
    """

    def __init__(self, position: np.ndarray, dynamics: AgentDynamics, time: float = 0.0) -> None:
        """Starts at rest.

        Args:
            position: `(D,)` [m]; it is also the first target.
            dynamics: of the agent.
            time: of the first knot [s].
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
        """(D,) [m], the target obeyed from the next knot on."""
        return self._target.copy()

    @property
    def position(self) -> np.ndarray:
        """(D,) [m], at the newest knot."""
        return self._to.copy()

    @property
    def velocity(self) -> np.ndarray:
        """(D,) [m/s], the recursion's `v` at the newest knot."""
        return self._velocity.copy()

    @property
    def time(self) -> float:
        """Time of the newest knot [s]."""
        return self._start_time + self._knot * self._dt

    def push(self, target: np.ndarray) -> None:
        """Obeys `target` from the newest knot on.

        Args:
            target: `(D,)` [m].

        Raises:
            SafetyError: wrong shape or a non-finite entry.
        """
        self._target = checked_target(target, self._to.shape)

    def sample(self, time: float) -> Motion:
        """The reference at `time`, computing further knots as needed.

        Args:
            time: [s], not earlier than the segment that the newest knot ends.

        Raises:
            HandoffError: `time` lies before that segment.
        """
        while time > self.time + _TIME_SLACK:
            self._step()
        segment_start = self.time - (self._dt if self._knot else 0.0)
        if time < segment_start - _TIME_SLACK:
            raise HandoffError(
                f"agent reference: asked for {time:.4f} s, the running segment starts at {segment_start:.4f} s. "
                "Did the robot's clock jump back?"
            )
        return self._hermite(min(max((time - segment_start) / self._dt, 0.0), 1.0))

    def _acceleration(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        return self._dynamics.k_p * (self._target - position) - self._dynamics.k_v * velocity

    def _step(self) -> None:
        self._from, self._from_tangent = self._to, self._to_tangent
        self._velocity = self._velocity + self._acceleration(self._from, self._velocity) * self._dt
        self._to = self._from + self._velocity * self._dt
        following = self._velocity + self._acceleration(self._to, self._velocity) * self._dt
        self._to_tangent = (self._velocity + following) / 2.0
        self._knot += 1

    def _hermite(self, s: float) -> Motion:
        if self._knot == 0:
            return Motion(self._to.copy(), np.zeros_like(self._to), np.zeros_like(self._to))
        dt, p0, p1 = self._dt, self._from, self._to
        m0, m1 = self._from_tangent * dt, self._to_tangent * dt
        rise = p1 - p0
        c2, c3 = 3.0 * rise - 2.0 * m0 - m1, m0 + m1 - 2.0 * rise
        return Motion(
            p0 + s * (m0 + s * (c2 + s * c3)) if s < 1.0 else p1.copy(),
            (m0 + s * (2.0 * c2 + 3.0 * s * c3)) / dt,
            (2.0 * c2 + 6.0 * s * c3) / dt**2,
        )
