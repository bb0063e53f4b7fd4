"""Computes inverse kinematics, batched Jacobians and rotation vectors."""

from __future__ import annotations

import numpy as np

from robots.errors import HandoffError
from robots.franka.robot import Robot


def batched_jacobian(positions: np.ndarray, rotations: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Jacobians of a point fixed to the flange, in base axes.

    Args:
        positions: (N, J + 1, 3) positions from `KinematicChain.batched_joint_frames` [m].
        rotations: (N, J + 1, 3, 3) rotations from the same.
        point: (N, 3) position of the point [m], base.

    Returns:
        (N, 6, J) linear [m/rad] over angular [rad/rad].
    """
    axes = rotations[:, :-1, :, 2]
    levers = point[:, None] - positions[:, :-1]
    # Written out, because np.cross is several times slower on small arrays.
    (ax, ay, az), (lx, ly, lz) = np.moveaxis(axes, -1, 0), np.moveaxis(levers, -1, 0)
    return np.stack([ay * lz - az * ly, az * lx - ax * lz, ax * ly - ay * lx, ax, ay, az], axis=1)


def batched_rotation_vector(rotation: np.ndarray) -> np.ndarray:
    """(N, 3) axis times angle [rad] of rotation matrices (N, 3, 3); the angle lies in [0, pi]."""
    skew = np.stack(
        [
            rotation[:, 2, 1] - rotation[:, 1, 2],
            rotation[:, 0, 2] - rotation[:, 2, 0],
            rotation[:, 1, 0] - rotation[:, 0, 1],
        ],
        axis=1,
    )
    sine = 0.5 * np.sqrt((skew * skew).sum(axis=1))
    cosine = 0.5 * (rotation[:, 0, 0] + rotation[:, 1, 1] + rotation[:, 2, 2] - 1.0)
    angle = np.arctan2(sine, cosine)
    regular = sine > 1e-9
    vector = skew * np.where(regular, 0.5 * angle / np.where(regular, sine, 1.0), 0.5)[:, None]
    # For an angle of pi, the axis is the dominant column of R + 1 = 2 a a^T.
    dominant = np.argmax(np.stack([rotation[:, i, i] for i in range(3)], axis=1), axis=1)
    column = np.take_along_axis(rotation + np.eye(3), dominant[:, None, None], axis=2)[:, :, 0]
    half = angle[:, None] * column / np.sqrt((column * column).sum(axis=1, keepdims=True))
    return np.where((regular | (cosine > 0.0))[:, None], vector, half)


def rotation_vector(rotation: np.ndarray) -> np.ndarray:
    """(3,) axis times angle [rad] of a rotation matrix (3, 3); the angle lies in [0, pi]."""
    skew = np.array(
        [
            rotation[2, 1] - rotation[1, 2],
            rotation[0, 2] - rotation[2, 0],
            rotation[1, 0] - rotation[0, 1],
        ]
    )
    sine, cosine = 0.5 * np.linalg.norm(skew), 0.5 * (np.trace(rotation) - 1.0)
    angle = np.arctan2(sine, cosine)
    if sine > 1e-9:
        return skew * (0.5 * angle / sine)
    if cosine > 0.0:
        return 0.5 * skew
    # For an angle of pi, the axis is the dominant column of R + 1 = 2 a a^T.
    column = (rotation + np.eye(3))[:, int(np.argmax(np.diag(rotation)))]
    return angle * column / np.linalg.norm(column)


def rotation_matrix(vector: np.ndarray) -> np.ndarray:
    """(3, 3) rotation matrix of axis times angle `vector` (3,) [rad] (Rodrigues 1840)."""
    angle = float(np.linalg.norm(vector))
    x, y, z = vector
    skew = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    if angle < 1e-9:
        return np.eye(3) + skew
    return np.eye(3) + np.sin(angle) / angle * skew + (1.0 - np.cos(angle)) / angle**2 * skew @ skew


def inverse_kinematics(
    robot: Robot,
    target: np.ndarray,
    q_seed: np.ndarray,
    *,
    tolerance: float = 1e-6,
    margin: float = 0.05,
    max_iterations: int = 200,
) -> np.ndarray:
    """Joint positions that place the flange at `target`, close to the seed.

    Damped least squares (Wampler 1986; Nakamura and Hanafusa 1986), with damping proportional to
    the squared error, joint limits by clamping, and a nullspace motion towards the seed (Liegeois
    1977).

    Args:
        robot: robot with its kinematic chain and joint limits.
        target: (4, 4) base_T_flange [m].
        q_seed: (J,) initial joint positions and preferred posture [rad].
        tolerance: largest error, the norm of position [m] and rotation [rad] together.
        margin: distance kept from the joint limits [rad].
        max_iterations: largest number of iterations.

    Returns:
        (J,) joint positions [rad].

    Raises:
        HandoffError: no solution within the limits was found from this seed.
    """
    lowest, highest = robot.limits.q_min + margin, robot.limits.q_max - margin
    q = np.clip(q_seed, lowest, highest)
    error = np.zeros(6)
    for _ in range(max_iterations):
        frames = robot.chain.joint_frames(q)
        error[:3] = target[:3, 3] - frames[-1, :3, 3]
        error[3:] = rotation_vector(target[:3, :3] @ frames[-1, :3, :3].T)
        if np.linalg.norm(error) < tolerance:
            return q
        step = _ik_step(robot.chain.jacobian_of(frames), error, q_seed - q)
        q = np.clip(q + step, lowest, highest)
    raise HandoffError(
        f"{robot.name}: no joint positions reach the flange position {np.round(target[:3, 3], 4).tolist()} m within "
        f"the limits (error {np.linalg.norm(error):.1e}, limit {tolerance:.0e}). Is the target outside the arm's reach?"
    )


def _ik_step(J: np.ndarray, error: np.ndarray, to_seed: np.ndarray) -> np.ndarray:
    damping = 1e-8 + 1e-3 * min(1.0, float(error @ error))
    inverse = J.T @ np.linalg.inv(J @ J.T + damping * np.eye(6))
    step = inverse @ error
    # 0.1 per iteration settles the redundant direction while the task error converges
    # quadratically.
    step += 0.1 * (to_seed - inverse @ (J @ to_seed))
    return step * min(1.0, 0.3 / max(float(np.abs(step).max()), 1e-12))


def rotation_of(quaternion: np.ndarray) -> np.ndarray:
    """(..., 3, 3) rotation matrices of unit quaternions (..., 4), wxyz."""
    w, x, y, z = np.moveaxis(quaternion, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
