"""Joint positions and velocities of a Cartesian motion: a bound that slows it down, and a limit
that refuses it."""

from __future__ import annotations

import numpy as np

from robots.config import config
from robots.errors import SafetyError
from robots.franka.fr3 import Q_MAX, Q_MIN, velocity_limits
from robots.franka.kinematics import joint_frames


@config
class JointGuardConfig:
    """How near to its joint limits the arm may be led."""

    position_margin: float = 0.05
    """Distance kept from the joint position limits [rad]."""
    velocity_share: float = 0.7
    """Share of the position-dependent joint velocity limits beyond which the reference is slowed
    down.

    At the corners of the push-T board joint 4 reaches its limit at a pusher speed of 0.19 m/s.
    """
    fault_share: float = 0.95
    """Share of them beyond which a target is refused."""


def tool_jacobian(q: np.ndarray, flange_T_ee: np.ndarray) -> np.ndarray:
    """(6, 7) geometric Jacobian of the end effector's origin in base axes, at `q` (7,) [rad]."""
    frames = joint_frames(q)
    axes = frames[:7, :3, 2]
    (ax, ay, az), (rx, ry, rz) = axes.T, (frames[7] @ flange_T_ee[:, 3] - frames[:7, :, 3])[:, :3].T
    # Written out: np.cross costs more than all the rest of a stream tick.
    return np.stack([ay * rz - az * ry, az * rx - ax * rz, ax * ry - ay * rx, ax, ay, az])


def joint_velocity(q: np.ndarray, twist: np.ndarray, flange_T_ee: np.ndarray) -> np.ndarray:
    """Least-norm joint velocity for a twist of the end effector.

    Args:
        q: (7,) [rad].
        twist: (6,), or (6, N) for N of them, linear [m/s] over angular [rad/s].
        flange_T_ee: (4, 4) [m].

    Returns:
        (7,) or (7, N) [rad/s].
    """
    J = tool_jacobian(q, flange_T_ee)
    # A little damping: close to a singularity the limit must be hit, not a division by zero.
    return J.T @ np.linalg.solve(J @ J.T + 1e-6 * np.eye(6), twist)


def velocity_bounds(
    config: JointGuardConfig, q: np.ndarray, dq_per_speed: np.ndarray
) -> np.ndarray:
    """What the joints allow the pusher.

    Args:
        config: the share of the limits to use.
        q: (7,) [rad].
        dq_per_speed: (7, D) joint velocity [rad/s] per unit of velocity along each axis of the task
            [m/s].

    Returns:
        (7, D) rows r [s/m], each demanding |r . v| <= 1 of the task's velocity v (D,).
    """
    slowest, fastest = velocity_limits(q)
    allowed = config.velocity_share * np.maximum(np.minimum(-slowest, fastest), 1e-3)
    return dq_per_speed / allowed[:, None]


def check_joints(config: JointGuardConfig, q: np.ndarray, dq: np.ndarray) -> None:
    """Checks joint positions `q` (7,) [rad] and wanted velocities `dq` (7,) [rad/s] against the
    FR3's limits.

    Raises:
        SafetyError: names the joint, its value, the limit and the likely cause.
    """
    lowest, highest = Q_MIN + config.position_margin, Q_MAX - config.position_margin
    outside = ~((q >= lowest) & (q <= highest))
    if outside.any():
        i = int(np.argmax(outside))
        raise SafetyError(
            f"fr3: joint{i + 1} is at {q[i]:.3f} rad, outside [{lowest[i]:.3f}, {highest[i]:.3f}] (limits less "
            f"{config.position_margin} rad). Is the target at the edge of the arm's reach?"
        )
    slowest, fastest = (config.fault_share * limit for limit in velocity_limits(q))
    too_fast = ~((dq >= slowest) & (dq <= fastest))
    if too_fast.any():
        i = int(np.argmax(too_fast))
        raise SafetyError(
            f"fr3: joint{i + 1} would move at {dq[i]:.3f} rad/s, allowed [{slowest[i]:.3f}, {fastest[i]:.3f}] at "
            f"{q[i]:.3f} rad. Is the arm near a singularity or a joint limit?"
        )
