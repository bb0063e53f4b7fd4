"""Checks commands and states against the robot's limits: each check returns the error bit that the
robot's controller would raise, or None.

The limits are those of the robot's specification; J is its number of joints. The margin that the
real controller allows before it reacts is not published; `TOLERANCE` is our choice.
"""

from __future__ import annotations

import numpy as np

from robots.franka.robot import JointLimits
from sim.twin.protocol import ErrorBit

PERIOD = 0.001
"""Control cycle [s]."""
LOST_PACKETS_MAX = 20
"""Consecutive missing commands that abort a motion (FCI documentation)."""
TOLERANCE = 1.02
"""Factor on rate limits: states have single precision, so a client at the limit may appear slightly
above it."""
START_DEVIATION = 1e-3
"""Maximum distance between a motion's first commanded position and the robot's desired one
[rad]."""


def check_torque(limits: JointLimits, tau: np.ndarray, previous: np.ndarray) -> ErrorBit | None:
    """Checks range and rate of commanded torques (J,) [Nm]; NaN is out of range."""
    # `not <=` also refuses NaN.
    if not (np.abs(tau) <= limits.tau_max).all():
        return ErrorBit.TORQUE_RANGE
    if not (np.abs(tau - previous) <= TOLERANCE * PERIOD * limits.dtau_max).all():
        return ErrorBit.TORQUE_DISCONTINUITY
    return None


def check_joint_reference(
    limits: JointLimits, reference: np.ndarray, previous: np.ndarray
) -> ErrorBit | None:
    """Checks limits and smoothness of a commanded joint trajectory.

    Args:
        limits: limits of the robot.
        reference: (3, J) position [rad], velocity [rad/s], acceleration [rad/s^2] of this cycle.
        previous: (3, J) the same of the previous cycle.
    """
    q, dq, ddq = reference
    if (error := check_position(limits, q)) is not None:
        return error
    lower, upper = limits.velocity_limits(q)
    # A motion away from a position limit starts at rest, so only the far limit constrains it.
    if not ((dq <= TOLERANCE * upper + 1e-3) & (dq >= TOLERANCE * lower - 1e-3)).all():
        return ErrorBit.COMMANDED_VELOCITY_LIMITS
    if not (np.abs(ddq) <= TOLERANCE * limits.ddq_max).all():
        return ErrorBit.COMMANDED_VELOCITY_DISCONTINUITY
    if not (np.abs(ddq - previous[2]) <= TOLERANCE * PERIOD * limits.dddq_max).all():
        return ErrorBit.COMMANDED_ACCELERATION_DISCONTINUITY
    return None


def check_position(limits: JointLimits, q_c: np.ndarray) -> ErrorBit | None:
    """Checks commanded joint positions (J,) [rad]; NaN is out of range."""
    if not ((q_c >= limits.q_min) & (q_c <= limits.q_max)).all():
        return ErrorBit.COMMANDED_POSITION_LIMITS
    return None


def check_start(q_c: np.ndarray, q_d: np.ndarray) -> ErrorBit | None:
    """Checks that a position motion begins at the robot's position: commanded and desired positions
    (J,) [rad]."""
    return None if (np.abs(q_c - q_d) <= START_DEVIATION).all() else ErrorBit.START_POSITION_INVALID


def check_measured(limits: JointLimits, q: np.ndarray, dq: np.ndarray) -> ErrorBit | None:
    """Checks measured joint positions (J,) [rad] and velocities (J,) [rad/s]."""
    if not ((q >= limits.q_min) & (q <= limits.q_max)).all():
        return ErrorBit.JOINT_POSITION_LIMITS
    if not (np.abs(dq) <= limits.dq_max).all():
        return ErrorBit.JOINT_VELOCITY
    return None


def check_contact(
    tau_ext: np.ndarray, F_ext: np.ndarray, tau_max: np.ndarray, F_max: np.ndarray
) -> ErrorBit | None:
    """Checks external joint torques (J,) [Nm] and the wrench at K (6,) [N, Nm] against the client's
    collision thresholds."""
    if not (np.abs(tau_ext) <= tau_max).all():
        return ErrorBit.JOINT_REFLEX
    if not (np.abs(F_ext) <= F_max).all():
        return ErrorBit.CARTESIAN_REFLEX
    return None
