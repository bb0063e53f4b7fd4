"""Computes the torques of the Cartesian and the joint impedance law.

Simulation and hardware have the same gains.

Cartesian: tau = J^T clip(K e - D J dq) + K_p N (q_0 - q) - D_p dq, where e is the target's position
and rotation vector minus the measured ones, in base axes, and N = I - J^+ J projects the posture
q_0 into the nullspace of the pose (Khatib 1987; the laws of franky 2.0.0). If the gripper is turned
by a yaw t, the torque that answers a small tilt is rotated against it by t / 2 (34 degrees at 1.2
rad); the damping in base axes keeps this stable. Joint: tau = K (q_d - q) - D dq. The robot itself
compensates gravity and Coriolis torques. J is the number of joints.
"""

from __future__ import annotations

import numpy as np

from robots.config import NonNegative, Positive, config

Vector6 = tuple[NonNegative, NonNegative, NonNegative, NonNegative, NonNegative, NonNegative]


@config
class ImpedanceGains:
    """Stiffness, damping and limits of the impedance laws."""

    stiffness: Vector6 = (2000.0, 2000.0, 2000.0, 150.0, 150.0, 150.0)
    """Cartesian stiffness of x, y, z [N/m] and of rotations [Nm/rad], base axes."""
    damping: Vector6 = (120.0, 120.0, 120.0, 15.0, 15.0, 15.0)
    """Cartesian damping of x, y, z [Ns/m] and of rotations [Nms/rad]."""
    force_limit: Positive = 120.0
    """Largest force of spring and damper together along x, y or z [N]. Without a bound, a jammed
    and twisted gripper saturates the joints of the wrist while the springs load the stronger ones,
    and the arm jumps when it comes free."""
    torque_limit: Positive = 10.0
    """Largest torque of spring and damper together about each axis [Nm]; the joints of the wrist
    reach 12."""
    posture_stiffness: NonNegative = 10.0
    """Nullspace stiffness towards the posture [Nm/rad]."""
    posture_damping: NonNegative = 2.0
    """Damping of every joint, in addition to the Cartesian damping [Nms/rad]."""
    joint_stiffness: tuple[Positive, ...] = (600.0, 600.0, 600.0, 600.0, 250.0, 150.0, 50.0)
    """(J,) joint impedance stiffness [Nm/rad]; FR3 and Panda have the same torque limits."""
    joint_damping: tuple[Positive, ...] = (50.0, 50.0, 50.0, 50.0, 30.0, 25.0, 15.0)
    """(J,) joint impedance damping [Nms/rad]."""


def posture_target(J: np.ndarray, q: np.ndarray, q_posture: np.ndarray) -> np.ndarray:
    """The joint positions towards which the posture spring pulls without moving the pose.

    Args:
        J: (..., 6, J) Jacobian at `q`.
        q: (..., J) joint positions [rad].
        q_posture: (..., J) or (J,) posture [rad].

    Returns:
        (..., J) q + N (q_posture - q) [rad].
    """
    pull = q_posture - q
    task = (J @ pull[..., None])[..., 0]
    JJt = J @ np.swapaxes(J, -1, -2)
    # Damped, because near a singularity the exact inverse makes the elbow jump.
    solution = np.linalg.solve(JJt + 1e-6 * np.eye(6), task[..., None])
    return q_posture - (np.swapaxes(J, -1, -2) @ solution)[..., 0]


def cartesian_torque(
    gains: ImpedanceGains,
    J: np.ndarray,
    error: np.ndarray,
    q: np.ndarray,
    dq: np.ndarray,
    q_hold: np.ndarray,
) -> np.ndarray:
    """Joint torques of the Cartesian law without gravity.

    Args:
        gains: gains of the law.
        J: (..., 6, J) Jacobian of the controlled frame, base axes.
        error: (..., 6) target minus measured: position [m], rotation vector [rad], base axes.
        q: (..., J) joint positions [rad].
        dq: (..., J) joint velocities [rad/s].
        q_hold: (..., J) result of `posture_target` [rad].

    Returns:
        (..., J) joint torques [Nm].
    """
    twist = (J @ dq[..., None])[..., 0]
    limit = np.repeat([gains.force_limit, gains.torque_limit], 3)
    wrench = np.clip(
        np.array(gains.stiffness) * error - np.array(gains.damping) * twist, -limit, limit
    )
    posture = gains.posture_stiffness * (q_hold - q) - gains.posture_damping * dq
    return (np.swapaxes(J, -1, -2) @ wrench[..., None])[..., 0] + posture


def implicit_cartesian_torque(
    gains: ImpedanceGains,
    inertia: np.ndarray,
    J: np.ndarray,
    error: np.ndarray,
    q: np.ndarray,
    dq: np.ndarray,
    q_hold: np.ndarray,
    timestep: float,
) -> np.ndarray:
    """Joint torques of the Cartesian law, whose dampers act on the velocity after a physics step.

    For simulators that take torques. MuJoCo's integrator `implicitfast` does the same for its own
    actuators; at a step of 5 ms the torque from the velocity before it moves the arm several times
    as far from MuJoCo's motion.

    Args:
        gains: gains of the law.
        inertia: (..., J, J) joint-space inertia [kg m^2].
        J: (..., 6, J) Jacobian of the controlled frame, base axes.
        error: (..., 6) target minus measured: position [m], rotation vector [rad], base axes.
        q: (..., J) joint positions [rad].
        dq: (..., J) joint velocities [rad/s].
        q_hold: (..., J) result of `posture_target` [rad].
        timestep: physics step [s].

    Returns:
        (..., J) joint torques [Nm], without gravity.
    """
    torque = cartesian_torque(gains, J, error, q, dq, q_hold)
    damping = np.array(gains.damping)
    wrench = np.array(gains.stiffness) * error - damping * (J @ dq[..., None])[..., 0]
    limit = np.repeat([gains.force_limit, gains.torque_limit], 3)
    # A force at its limit does not depend on the velocity.
    free = np.where(np.abs(wrench) < limit, damping, 0.0)
    joints = np.swapaxes(J, -1, -2) @ (free[..., None] * J)
    joints += gains.posture_damping * np.eye(q.shape[-1])
    after = np.linalg.solve(inertia + timestep * joints, torque[..., None])
    return (inertia @ after)[..., 0]


def joint_torque(
    gains: ImpedanceGains, q_target: np.ndarray, q: np.ndarray, dq: np.ndarray
) -> np.ndarray:
    """(..., J) joint torques [Nm] of the joint law without gravity; positions [rad], velocities
    [rad/s]."""
    return np.array(gains.joint_stiffness) * (q_target - q) - np.array(gains.joint_damping) * dq
