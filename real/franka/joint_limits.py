"""Limits joint positions, velocities and torques of a Cartesian motion: a bound slows it down, a
limit refuses it."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from robots.config import PositiveShare, config
from robots.errors import HandoffError, SafetyError
from robots.franka.chain import KinematicChain
from robots.franka.robot import JointLimits, Robot


@config
class JointGuardConfig:
    """Distances that the arm and its reference keep from the limits of the joints."""

    position_margin: Annotated[float, Field(ge=0.0, le=0.5)] = 0.05
    """Distance from the joint position limits within which a target is refused [rad]."""
    velocity_share: PositiveShare = 0.7
    """Share of the position-dependent joint velocity limits at which the reference is slowed down.

    At the corners of the push-T board joint 4 reaches its limit at a pusher speed of 0.19 m/s.
    """
    fault_share: PositiveShare = 0.95
    """Share of the position-dependent joint velocity limits above which a target is refused."""
    torque_share: PositiveShare = 0.9
    """Share of the joints' torque limits at which the reference is slowed down, without gravity and
    friction, for which the robot compensates."""
    torque_rate_share: PositiveShare = 0.38
    """Share of the joints' torque rate limits at which the reference is slowed down. franky's steps
    end at the limit, of which libfranka's low-pass filter of 100 Hz lets 0.386 through per
    millisecond, so that a faster change is not executed."""

    def __post_init__(self) -> None:
        if not 0.0 < self.velocity_share < self.fault_share <= 1.0:
            raise HandoffError(
                f"joints: velocity_share is {self.velocity_share} and fault_share {self.fault_share}, expected "
                "0 < velocity_share < fault_share <= 1."
            )
        if not 0.0 <= self.position_margin < math.inf:
            raise HandoffError(
                f"joints: position_margin is {self.position_margin} rad, expected 0 or more."
            )


class VelocityBounds(NamedTuple):
    """Bounds on a velocity v (D,) of a task [m/s]: |rows . v + offset| <= 1 in every row."""

    rows: np.ndarray
    """(M, D) [s/m]."""
    offset: np.ndarray
    """(M,)."""


def tool_jacobian(chain: KinematicChain, q: np.ndarray, flange_T_ee: np.ndarray) -> np.ndarray:
    """(6, J) geometric Jacobian of the end effector's origin in base axes, at `q` (J,) [rad]."""
    frames = chain.joint_frames(q)
    levers = (frames[-1] @ flange_T_ee[:, 3] - frames[:-1, :, 3])[:, :3]
    (ax, ay, az), (rx, ry, rz) = frames[:-1, :3, 2].T, levers.T
    # Written out: np.cross costs more than all the rest of a stream tick.
    return np.stack([ay * rz - az * ry, az * rx - ax * rz, ax * ry - ay * rx, ax, ay, az])


def joint_velocity(
    chain: KinematicChain, q: np.ndarray, twist: np.ndarray, flange_T_ee: np.ndarray
) -> np.ndarray:
    """Least-norm joint velocity for a twist of the end effector.

    Args:
        chain: kinematic chain of the robot.
        q: (J,) [rad].
        twist: (6,) or (6, N) twists, linear [m/s] over angular [rad/s].
        flange_T_ee: (4, 4) end effector in the flange frame [m].

    Returns:
        (J,) or (J, N) joint velocities [rad/s].
    """
    J = tool_jacobian(chain, q, flange_T_ee)
    # A little damping: close to a singularity the limit must be hit, not a division by zero.
    return J.T @ np.linalg.solve(J @ J.T + 1e-6 * np.eye(6), twist)


def velocity_rows(
    config: JointGuardConfig, limits: JointLimits, q: np.ndarray, dq_per_speed: np.ndarray
) -> np.ndarray:
    """Rows of the bounds on the task's velocity by the joints' velocity limits.

    Args:
        config: share of the limits to use.
        limits: joint limits of the robot.
        q: (J,) joint positions [rad].
        dq_per_speed: (J, D) joint velocity [rad/s] per unit of velocity along each axis of the task
            [m/s].

    Returns:
        (J, D) rows r [s/m], each of which demands |r . v| <= 1 of the task's velocity v (D,).
    """
    slowest, fastest = limits.velocity_limits(q)
    allowed = config.velocity_share * np.maximum(np.minimum(-slowest, fastest), 1e-3)
    return dq_per_speed / allowed[:, None]


def checked_joints(robot: Robot, q: np.ndarray) -> np.ndarray:
    """(J,) joint positions [rad] to which an arm is to move.

    Raises:
        SafetyError: `q` is not one finite number per joint inside the limits.
    """
    q = np.asarray(q, dtype=np.float64)
    joints, limits = robot.num_joints, robot.limits
    if q.shape != (joints,) or not ((q > limits.q_min) & (q < limits.q_max)).all():
        raise SafetyError(
            f"arm: joint target {q.tolist()} rad, expected {joints} numbers inside {limits.q_min.tolist()} to "
            f"{limits.q_max.tolist()}."
        )
    return q


def check_joints(config: JointGuardConfig, robot: Robot, q: np.ndarray, dq: np.ndarray) -> None:
    """Checks joint positions `q` (J,) [rad] and requested velocities `dq` (J,) [rad/s] against the
    robot's limits.

    Raises:
        SafetyError: names the joint, its value, the limit and the likely cause.
    """
    limits, margin = robot.limits, config.position_margin
    lowest, highest = limits.q_min + margin, limits.q_max - margin
    outside = ~((q >= lowest) & (q <= highest))
    if outside.any():
        i = int(np.argmax(outside))
        raise SafetyError(
            f"{robot.name}: joint{i + 1} is at {q[i]:.3f} rad, outside [{lowest[i]:.3f}, {highest[i]:.3f}] (limits "
            f"less {margin} rad). Is the target at the edge of the arm's reach?"
        )
    slowest, fastest = (config.fault_share * limit for limit in limits.velocity_limits(q))
    too_fast = ~((dq >= slowest) & (dq <= fastest))
    if too_fast.any():
        i = int(np.argmax(too_fast))
        raise SafetyError(
            f"{robot.name}: joint{i + 1} would move at {dq[i]:.3f} rad/s, allowed [{slowest[i]:.3f}, {fastest[i]:.3f}] "
            f"at {q[i]:.3f} rad. Is the arm near a singularity or a joint limit?"
        )
