"""Plans point-to-point motions of the joints to targets that a client sends now and then.

What the robot plans itself (`use_async` of libfranka's joint positions) is not published. Here
every joint takes the shortest time to its target within the velocities of the request, half of the
robot's published acceleration and its jerk, from whatever it does when the target comes, and ends
at rest. The acceleration of an FR3 is that of the motion generator in libfranka's examples. A
target nearer to a stop than the position-dependent velocity limits allow is not reached.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from robots.franka.robot import JointLimits
from sim.twin.unit.checks import PERIOD

ACCELERATION_SHARE = 0.5
"""Acceleration as a fraction of the published limit; our choice."""


class PointToPoint:
    """Reference of J joints, one step of 1 ms per call.

    Args:
        limits: limits of the robot.
        q: (J,) joint positions at which it begins, at rest [rad].
        dq_max: (J,) highest velocities [rad/s].
    """

    def __init__(self, limits: JointLimits, q: np.ndarray, dq_max: np.ndarray) -> None:
        self._acceleration = ACCELERATION_SHARE * limits.ddq_max
        self._dq_max = dq_max
        slow = limits
        if limits.ddq_dec is not None:
            # A velocity that falls towards the stop must fall no faster than the joint can brake.
            slow = replace(limits, ddq_dec=np.minimum(limits.ddq_dec, self._acceleration))
        self._velocity_limits = slow.velocity_limits
        self._q = q.copy()
        """Position before smoothing [rad]."""
        self._dq = np.zeros_like(q)
        """Velocity before smoothing [rad/s]."""
        # The mean over this time turns steps of the acceleration, by twice its limit at most, into
        # ramps within the limit of the jerk.
        ramp = float(np.max(2.0 * self._acceleration / limits.dddq_max)) / PERIOD
        self._recent = np.tile(q, (max(1, int(np.ceil(ramp - 1e-9))), 1))
        self._reference = np.stack([q, np.zeros_like(q), np.zeros_like(q)])
        self._target = q.copy()
        self._stopping = False

    def go_to(self, target: np.ndarray) -> None:
        """Heads for `target` (J,) [rad], unless it is stopping."""
        self._target = target.copy()

    def stop(self) -> None:
        """Brakes to rest, wherever that is."""
        self._stopping = True

    @property
    def stopped(self) -> bool:
        """Whether it has come to rest after `stop`."""
        return self._stopping and not self._reference[1:].any()

    def step(self) -> np.ndarray:
        """(3, J) position [rad], velocity [rad/s] and acceleration [rad/s^2] of the next cycle."""
        change = PERIOD * self._acceleration
        if self._stopping:
            wanted = np.zeros_like(self._dq)
        else:
            lowest, highest = self._velocity_limits(self._q)
            wanted = _approach(self._target - self._q, self._acceleration)
            wanted = np.clip(
                wanted, np.maximum(lowest, -self._dq_max), np.minimum(highest, self._dq_max)
            )
        self._dq = np.clip(wanted, self._dq - change, self._dq + change)
        self._q = self._q + PERIOD * self._dq
        self._recent = np.concatenate([self._recent[1:], self._q[None]])
        self._reference = self._next_reference()
        return self._reference

    def _next_reference(self) -> np.ndarray:
        q, dq, _ = self._reference
        # At rest exactly so: the mean of equal numbers may differ from them in the last bit.
        still = (self._recent == self._q).all(axis=0)
        new_q = np.where(still, self._q, self._recent.mean(axis=0))
        new_dq = (new_q - q) / PERIOD
        return np.stack([new_q, new_dq, (new_dq - dq) / PERIOD])


def _approach(distance: np.ndarray, acceleration: np.ndarray) -> np.ndarray:
    """(J,) highest velocities of the next cycle from which constant braking ends exactly at
    `distance` (J,) [rad], at rest.

    In n cycles that brake by a T each, a joint covers `T (n v - a T n (n - 1) / 2)`; n is the least
    number for which v, solved from that, is at most n a T.
    """
    unit = acceleration * PERIOD**2
    far = np.abs(distance)
    cycles = np.maximum(1.0, np.ceil(0.5 * (np.sqrt(1.0 + 8.0 * far / unit) - 1.0) - 1e-9))
    speed = far / (cycles * PERIOD) + 0.5 * (cycles - 1.0) * acceleration * PERIOD
    return np.copysign(speed, distance) * (far > 0.0)
