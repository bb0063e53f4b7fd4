"""What the robot's controller refuses: each check answers with the error bit it would raise, or
None.

The limits are those of the FR3 robot specification. How far the real controller lets a command
exceed them before it reacts is not published; `TOLERANCE` is ours.
"""

from __future__ import annotations

import numpy as np

from robots.franka.fr3 import (
    DDDQ_MAX,
    DDQ_MAX,
    DQ_MAX,
    DTAU_MAX,
    Q_MAX,
    Q_MIN,
    TAU_MAX,
    velocity_limits,
)
from sim.twin.protocol import ErrorBit

PERIOD = 0.001
"""Control cycle [s]."""
LOST_PACKETS_MAX = 20
"""Commands missing in a row that end a motion, FCI documentation."""
TOLERANCE = 1.02
"""Factor on rates: states carry single precision, so a client at the limit is seen slightly above
it."""
START_DEVIATION = 1e-3
"""Largest distance of a motion's first commanded position from the robot's desired one [rad]."""


def check_torque(tau: np.ndarray, previous: np.ndarray) -> ErrorBit | None:
    """Range and rate of commanded torques (7,) [Nm]; a NaN fails the range."""
    # Written as `not <=` so that NaN is refused.
    if not (np.abs(tau) <= TAU_MAX).all():
        return ErrorBit.TORQUE_RANGE
    if not (np.abs(tau - previous) <= TOLERANCE * PERIOD * DTAU_MAX).all():
        return ErrorBit.TORQUE_DISCONTINUITY
    return None


def check_joint_reference(reference: np.ndarray, previous: np.ndarray) -> ErrorBit | None:
    """Limits and smoothness of a commanded joint trajectory.

    Args:
        reference: (3, 7) position [rad], velocity [rad/s], acceleration [rad/s^2] of this cycle.
        previous: (3, 7) of the cycle before.
    """
    q, dq, ddq = reference
    if not ((q >= Q_MIN) & (q <= Q_MAX)).all():
        return ErrorBit.COMMANDED_POSITION_LIMITS
    lower, upper = velocity_limits(q)
    # Leaving a limit starts at rest, so a motion away from it is judged by the far side only.
    if not ((dq <= TOLERANCE * upper + 1e-3) & (dq >= TOLERANCE * lower - 1e-3)).all():
        return ErrorBit.COMMANDED_VELOCITY_LIMITS
    if not (np.abs(ddq) <= TOLERANCE * DDQ_MAX).all():
        return ErrorBit.COMMANDED_VELOCITY_DISCONTINUITY
    if not (np.abs(ddq - previous[2]) <= TOLERANCE * PERIOD * DDDQ_MAX).all():
        return ErrorBit.COMMANDED_ACCELERATION_DISCONTINUITY
    return None


def check_start(q_c: np.ndarray, q_d: np.ndarray) -> ErrorBit | None:
    """A position motion must begin where the robot is: commanded and desired positions (7,)
    [rad]."""
    return None if (np.abs(q_c - q_d) <= START_DEVIATION).all() else ErrorBit.START_POSITION_INVALID


def check_measured(q: np.ndarray, dq: np.ndarray) -> ErrorBit | None:
    """Joint position (7,) [rad] and velocity (7,) [rad/s] limits of the arm itself."""
    if not ((q >= Q_MIN) & (q <= Q_MAX)).all():
        return ErrorBit.JOINT_POSITION_LIMITS
    if not (np.abs(dq) <= DQ_MAX).all():
        return ErrorBit.JOINT_VELOCITY
    return None


def check_contact(
    tau_ext: np.ndarray, F_ext: np.ndarray, tau_max: np.ndarray, F_max: np.ndarray
) -> ErrorBit | None:
    """Collision thresholds set by the client: joint torques (7,) [Nm] and the wrench at K (6,) [N,
    Nm]."""
    if not (np.abs(tau_ext) <= tau_max).all():
        return ErrorBit.JOINT_REFLEX
    if not (np.abs(F_ext) <= F_max).all():
        return ErrorBit.CARTESIAN_REFLEX
    return None
