"""What an exported action means: targets of an agent with its own dynamics, turned into a smooth reference.

The interface `pd_target` is that of push-T in gym-pusht 0.1.8 (`gym_pusht/envs/pusht.py`, `PushTEnv.step`): an action
is the position target `a` of a critically damped agent, obeyed for one policy period at 100 Hz as

    v <- v + (k_p (a - p) - k_v v) dt,    p <- p + v dt.

The arm follows the same recursion, so that what a policy learned about its own agent stays true on the robot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robots.config import config
from robots.errors import HandoffError, SafetyError

PD_TARGET = "pd_target"
"""`Contract.action_interface`: the action is the position target of the 100 Hz agent above."""

_TIME_SLACK = 1e-9
"""Seconds by which a time may miss a knot, being a sum of milliseconds in floating point."""


@config
class AgentDynamics:
    """The second-order agent that obeys position targets."""

    k_p: float = 100.0
    """Stiffness per mass [1/s^2]."""
    k_v: float = 20.0
    """Damping per mass [1/s]."""
    rate_hz: float = 100.0
    """Steps of the recursion per second."""


class Motion(NamedTuple):
    """One sample of a moving point, each `(D,)`."""

    position: np.ndarray
    """[m]."""
    velocity: np.ndarray
    """[m/s]."""
    acceleration: np.ndarray
    """[m/s^2]."""


def agent_dynamics(interface: str) -> AgentDynamics:
    """The agent behind an action interface.

    Raises:
        HandoffError: the interface is not known here.
    """
    match interface:
        case "pd_target":
            return AgentDynamics()
        case _:
            raise HandoffError(
                f"action interface: '{interface}' is not known, this build knows '{PD_TARGET}'. "
                "Was the policy exported by a newer version?"
            )


class AgentReference:
    """The agent's motion under a stream of targets, sampled at any time.

    Positions at the knots are those of the recursion. Between knots the path is a cubic Hermite segment. The recursion
    is semi-implicit, its `v` being the mean velocity of the interval that it ends; so a knot's tangent is the mean of
    the two velocities around it, which keeps the acceleration free of a 100 Hz ripple.
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
        target = np.asarray(target, dtype=np.float64)
        if target.shape != self._to.shape or not np.isfinite(target).all():
            raise SafetyError(
                f"action target: {target.tolist()}, expected {self._to.size} finite numbers [m]. Did it diverge?"
            )
        self._target = target.copy()

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
