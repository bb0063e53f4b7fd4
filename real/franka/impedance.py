"""The impedance laws of franky that follow streamed targets; their torques are computed in C++ at 1
kHz."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from real.arm import ArmState
from robots.config import config
from robots.control.impedance import ImpedanceGains, Vector6, Vector7
from robots.franka.fr3 import Q_MAX, Q_MIN

GAINS = ImpedanceGains()
"""Those of the simulated worlds, so that a policy meets the same springs on the arm."""


@config
class ImpedanceConfig:
    """Which law, how stiff, and how hard it may push.

    One replayed push-T demonstration on the twin with these gains: Cartesian 0.49 mm RMS behind its
    reference, joint
    1.06 mm (0.68 mm with 1000 Nm/rad in joints 1 to 4). The two are not matched in stiffness, and
    no arm was measured.
    """

    controller: Literal["cartesian", "joint"] = "cartesian"
    """Stiffness about the pusher's pose, or about joint positions found by inverse kinematics."""
    stiffness: Vector6 = GAINS.stiffness
    """Cartesian stiffness x, y, z [N/m], rotation [Nm/rad], base axes."""
    damping: Vector6 = GAINS.damping
    """Cartesian damping x, y, z [Ns/m], rotation [Nms/rad]."""
    error_clip: float = 0.02
    """Position error that the stiffness sees at most [m]: with 2000 N/m it pushes with 40 N at
    most."""
    rotation_clip: float = 0.15
    """Rotation error that the stiffness sees at most [rad]."""
    posture_stiffness: float = GAINS.posture_stiffness
    """Nullspace stiffness towards the posture at the start [Nm/rad]."""
    joint_stiffness: Vector7 = GAINS.joint_stiffness
    """Joint impedance stiffness [Nm/rad]."""
    joint_damping: Vector7 = GAINS.joint_damping
    """Joint impedance damping [Nms/rad]."""
    max_delta_tau: float = 1.0
    """Torque step per 1 ms cycle [Nm]; 1.0 is the robot's own limit (1000 Nm/s)."""


def impedance_motion(config: ImpedanceConfig, state: ArmState) -> Any:
    """The franky motion of `config`, its first reference being the present pose of `state`."""
    return _cartesian(config, state) if config.controller == "cartesian" else _joint(config, state)


def _cartesian(config: ImpedanceConfig, state: ArmState) -> Any:
    import franky

    motion = franky.CartesianImpedanceTrackingMotion(
        translational_error_clip=np.full(3, config.error_clip),
        rotational_error_clip=np.full(3, config.rotation_clip),
        posture_task=franky.PostureTask(state.q, config.posture_stiffness),
        max_delta_tau=config.max_delta_tau,
        lower_joint_limits=Q_MIN,
        upper_joint_limits=Q_MAX,
    )
    motion.set_gains(
        franky.CartesianImpedanceGains.diagonal(
            np.array(config.stiffness), np.array(config.damping)
        )
    )
    motion.set_reference(franky.CartesianReference(franky.Affine(state.base_T_ee)))
    return motion


def _joint(config: ImpedanceConfig, state: ArmState) -> Any:
    import franky

    motion = franky.JointImpedanceTrackingMotion(
        stiffness=np.array(config.joint_stiffness),
        damping=np.array(config.joint_damping),
        max_delta_tau=config.max_delta_tau,
        lower_joint_limits=Q_MIN,
        upper_joint_limits=Q_MAX,
    )
    motion.set_reference(franky.JointReference(q=state.q))
    return motion
