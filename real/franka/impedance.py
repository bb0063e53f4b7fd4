"""Configures the impedance laws of franky that follow streamed targets; franky computes their
torques in C++ at 1 kHz.

The simulation also damps every joint (`robots.control.impedance`), franky only the end effector
and the nullspace. A damping d of every joint is the sum of both: d dq = J^T D J dq + d N dq, where
D = d (J J^T)^-1 and N = I - J^+ J. `cartesian_gains` adds D, which depends on the joints'
positions, to the damping of the end effector; at the home pose of an FR3 it is a fifth of that
along z. Without it an arm lags less than in simulation and overshoots more. The nullspace keeps
franky's own damping, which is critical.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from real.arm import ArmState, TorqueResponse
from real.franka.joint_limits import tool_jacobian
from robots.config import config
from robots.control.impedance import ImpedanceGains
from robots.errors import HandoffError
from robots.franka.kinematics import batched_jacobian
from robots.franka.robot import Robot

GAINS = ImpedanceGains()
"""Gains of the simulation, so that a policy meets the same springs on the arm."""
LARGEST_FORCE = 120.0
"""Largest force of the Cartesian springs [N]: at a lever of 0.7 m it loads the joints 1 to 4 with
84 of their 87 Nm."""
LARGEST_MOMENT = 30.0
"""Largest moment of the Cartesian springs [Nm]."""
SINGULAR = 0.004
"""Added to the eigenvalues of J J^T, which bounds the Cartesian equivalent of a joint damping of 2
Nms/rad by 500 Ns/m where the arm is stretched."""
APPARENT_MASS = 8.0
"""Mass of the upright arm as an acceleration along the table feels it [kg]: 5 to 8 over most of the
push-T board, more beside the base."""
LinearStiffness = Annotated[float, Field(ge=0.0, le=3000.0)]
"""A stiffness [N/m]; the FCI's own Cartesian impedance takes up to 3000."""
AngularStiffness = Annotated[float, Field(ge=0.0, le=300.0)]
"""A stiffness [Nm/rad]; the FCI's own Cartesian impedance takes up to 300."""
Stiffness = tuple[
    LinearStiffness,
    LinearStiffness,
    LinearStiffness,
    AngularStiffness,
    AngularStiffness,
    AngularStiffness,
]
LinearDamping = Annotated[float, Field(ge=0.0, le=500.0)]
AngularDamping = Annotated[float, Field(ge=0.0, le=60.0)]
Damping = tuple[
    LinearDamping, LinearDamping, LinearDamping, AngularDamping, AngularDamping, AngularDamping
]
JointStiffness = Annotated[float, Field(ge=0.0, le=1000.0)]
JointDamping = Annotated[float, Field(ge=0.0, le=100.0)]


@config
class ImpedanceConfig:
    """Choice of the law, its gains and its limits.

    In one replayed push-T demonstration on the twin the Cartesian law with these gains lagged its
    reference by 0.49 mm RMS, the joint law by 1.06 mm (0.68 mm with 1000 Nm/rad in joints 1 to 4).
    The two laws are not matched in stiffness, and no real arm was measured.
    """

    controller: Literal["cartesian", "joint"] | None = None
    """Impedance law: stiffness about the end effector's pose, or about joint positions, by inverse
    kinematics where actions move the pose. None takes that of the policy's actions."""
    stiffness: Stiffness = GAINS.stiffness
    """Cartesian stiffness x, y, z [N/m], rotation [Nm/rad], base axes."""
    damping: Damping = GAINS.damping
    """Cartesian damping x, y, z [Ns/m], rotation [Nms/rad]."""
    error_clip: Annotated[float, Field(gt=0.0, le=0.1)] = 0.02
    """Largest position error that the stiffness acts on [m]; with 2000 N/m it limits the force to
    40 N."""
    rotation_clip: Annotated[float, Field(gt=0.0, le=0.5)] = 0.15
    """Largest rotation error that the stiffness acts on [rad]."""
    posture_stiffness: Annotated[float, Field(ge=0.0, le=50.0)] = GAINS.posture_stiffness
    """Nullspace stiffness towards the posture at the start [Nm/rad]."""
    posture_damping: Annotated[float, Field(ge=0.0, le=10.0)] = GAINS.posture_damping
    """Damping of every joint by the Cartesian law, in addition to `damping` [Nms/rad]."""
    joint_stiffness: tuple[JointStiffness, ...] = GAINS.joint_stiffness
    """(J,) joint impedance stiffness [Nm/rad]."""
    joint_damping: tuple[JointDamping, ...] = GAINS.joint_damping
    """(J,) joint impedance damping [Nms/rad]."""
    max_delta_tau: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Largest torque step per 1 ms cycle [Nm]; 1.0 is the robot's own limit (1000 Nm/s)."""

    def __post_init__(self) -> None:
        if not min(self.damping) >= 0.0 or not min(self.joint_damping) >= 0.0:
            raise HandoffError(
                f"impedance: damping is {self.damping}, joint_damping {self.joint_damping}, expected none negative."
            )
        force = max(self.stiffness[:3]) * self.error_clip
        moment = max(self.stiffness[3:]) * self.rotation_clip
        # The products of defaults are not exact.
        if not force <= LARGEST_FORCE + 1e-9 or not moment <= LARGEST_MOMENT + 1e-9:
            raise HandoffError(
                f"impedance: the springs pull with up to {force:.0f} N and {moment:.1f} Nm (stiffness times error_clip "
                f"and rotation_clip), limits {LARGEST_FORCE:g} N and {LARGEST_MOMENT:g} Nm."
            )


def differing_gains(config: ImpedanceConfig, trained: ImpedanceGains | None) -> list[str]:
    """Gains of an arm's law that are not those with which a policy was trained, one phrase each.

    Args:
        config: law and gains of the arm.
        trained: gains of the contract; None where they are not known.
    """
    if trained is None:
        return []
    law = (
        ("joint_stiffness", "joint_damping")
        if config.controller == "joint"
        else ("stiffness", "damping", "posture_stiffness", "posture_damping")
    )
    return [
        f"{name} {getattr(config, name)}, in training {getattr(trained, name)}"
        for name in law
        if getattr(config, name) != getattr(trained, name)
    ]


def impedance_motion(config: ImpedanceConfig, robot: Robot, state: ArmState) -> Any:
    """The franky motion of `config`, whose first reference is the pose of `state`.

    Raises:
        HandoffError: a stiffness or damping per joint has another number of entries than joints.
    """
    law = _joint if config.controller == "joint" else _cartesian
    return law(config, robot, state)


def limp_motion(damping: Sequence[float], robot: Robot, state: ArmState) -> Any:
    """The franky motion that yields to a hand from the pose of `state` on: no stiffness, and
    `damping` (J,) [Nms/rad].

    Raises:
        HandoffError: another number of entries than joints.
    """
    robot.check_per_joint("damping", damping)
    return _joint_motion([0.0] * robot.num_joints, damping, 1.0, robot, state)


def _cartesian(config: ImpedanceConfig, robot: Robot, state: ArmState) -> Any:
    import franky

    motion = franky.CartesianImpedanceTrackingMotion(
        translational_error_clip=np.full(3, config.error_clip),
        rotational_error_clip=np.full(3, config.rotation_clip),
        posture_task=franky.PostureTask(state.q, config.posture_stiffness),
        max_delta_tau=config.max_delta_tau,
        lower_joint_limits=robot.limits.q_min,
        upper_joint_limits=robot.limits.q_max,
    )
    motion.set_gains(cartesian_gains(config, robot, state.q, state.base_T_ee[:3, 3]))
    motion.set_reference(franky.CartesianReference(franky.Affine(state.base_T_ee)))
    return motion


def cartesian_gains(
    config: ImpedanceConfig, robot: Robot, q: np.ndarray, base_p_ee: np.ndarray
) -> Any:
    """The `franky.CartesianImpedanceGains` of the Cartesian law at joint positions.

    Args:
        config: the gains.
        robot: the arm.
        q: (J,) joint positions [rad].
        base_p_ee: (3,) position of the end effector at `q` [m], base.
    """
    import franky

    positions, rotations = robot.chain.batched_joint_frames(q[None])
    J = batched_jacobian(positions, rotations, base_p_ee[None])[0]
    gains = franky.CartesianImpedanceGains.diagonal(
        np.array(config.stiffness), np.array(config.damping)
    )
    gains.damping = _cartesian_damping(config, J)
    return gains


def _cartesian_damping(config: ImpedanceConfig, J: np.ndarray) -> np.ndarray:
    """(6, 6) damping of the end effector, which includes that of every joint, at the Jacobian `J`
    (6, J)."""
    of_joints = config.posture_damping * np.linalg.inv(J @ J.T + SINGULAR * np.eye(6))
    return np.diag(config.damping) + of_joints


def torque_response(
    config: ImpedanceConfig,
    robot: Robot,
    q: np.ndarray,
    axes: np.ndarray,
    along: np.ndarray,
    flange_T_ee: np.ndarray,
) -> TorqueResponse:
    """The torques with which the law of `config` answers a reference; only the Cartesian law is fed
    its acceleration, of which the angular part is left out.

    Args:
        config: the law and its gains.
        robot: the arm.
        q: (J,) joint positions [rad].
        axes: (6, D) twists in the base frame of unit velocities along the coordinates.
        along: (J, D) joint velocities [rad/s] of the same.
        flange_T_ee: (4, 4) end effector in the flange frame [m].
    """
    if config.controller == "joint":
        K, D = np.diag(config.joint_stiffness), np.diag(config.joint_damping)
        return TorqueResponse(K @ along, D @ along, np.zeros_like(along), K, D)
    J = tool_jacobian(robot.chain, q, flange_T_ee)
    K, D = J.T * np.array(config.stiffness), J.T @ _cartesian_damping(config, J)
    inertia = APPARENT_MASS * J[:3].T @ axes[:3]
    return TorqueResponse(K @ axes, D @ axes, inertia, K @ J, D @ J)


def _joint(config: ImpedanceConfig, robot: Robot, state: ArmState) -> Any:
    robot.check_per_joint("impedance.joint_stiffness", config.joint_stiffness)
    robot.check_per_joint("impedance.joint_damping", config.joint_damping)
    stiffness, damping = config.joint_stiffness, config.joint_damping
    return _joint_motion(stiffness, damping, config.max_delta_tau, robot, state)


def _joint_motion(
    stiffness: Sequence[float],
    damping: Sequence[float],
    max_delta_tau: float,
    robot: Robot,
    state: ArmState,
) -> Any:
    """The joint law with (J,) stiffness [Nm/rad] and damping [Nms/rad], and the largest torque step
    per cycle [Nm]."""
    import franky

    motion = franky.JointImpedanceTrackingMotion(
        stiffness=np.array(stiffness),
        damping=np.array(damping),
        max_delta_tau=max_delta_tau,
        lower_joint_limits=robot.limits.q_min,
        upper_joint_limits=robot.limits.q_max,
    )
    motion.set_reference(franky.JointReference(q=state.q))
    return motion
