"""Implements the controller's own dynamics model of the arm, separate from the simulated world, and
the URDF of it that the twin sends to its client.

libfranka builds its dynamics (pinocchio) and its rate limits from the URDF. It expects joints whose
names contain `joint1` to `joint7`, each with `<limit>` and `<position_based_velocity_limits>`, and
a link named exactly `link8`, the flange: with any other name its memory is corrupted.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robots.franka.robot import Robot

if TYPE_CHECKING:
    import mujoco

STIFFNESS = 900.0
"""Stiffness of the joint tracking's error dynamics, per joint [1/s^2]."""
DAMPING = 60.0
"""Damping of the joint tracking's error dynamics, per joint [1/s]; critical."""
FREE_DECELERATION = 1e6
"""`deceleration_limit` of a robot whose velocity limit does not depend on the position [rad/s^2]:
with an offset of 0, the formula allows the maximum velocity up to 1e-5 rad before the stop."""


class ArmModel:
    """Inverse dynamics and Jacobian of the arm, which has J joints, without its end effector.

    The missing end effector causes a small tracking error in joint motions.
    """

    def __init__(self, robot: Robot) -> None:
        import mujoco

        self._mujoco = mujoco
        self._model = mujoco.MjModel.from_xml_path(str(robot.model_xml))
        self.urdf = urdf_of_arm(self._model, robot).encode()
        """Payload of the reply to `GetRobotModel`."""
        # Commanded torques exclude gravity, so the inverse dynamics must not contain it.
        self._model.opt.gravity[:] = 0.0
        self._model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
        self._data = mujoco.MjData(self._model)
        self._last_body = self._model.body(robot.link_names[-1]).id
        self._flange = self._model.site(robot.flange_name).id
        self._jacobian = np.zeros((6, robot.num_joints))
        self._tau_max = robot.limits.tau_max

    def tracking_torque(self, q: np.ndarray, dq: np.ndarray, reference: np.ndarray) -> np.ndarray:
        """Computed-torque tracking with critically damped error dynamics (natural frequency 30
        rad/s).

        Replaces the robot's unpublished joint impedance law; the stiffness that a client sets has
        no effect.

        Args:
            q: (J,) measured [rad].
            dq: (J,) measured [rad/s].
            reference: (3, J) position [rad], velocity [rad/s] and acceleration [rad/s^2].

        Returns:
            (J,) joint torque without gravity [Nm], within the limits.
        """
        data = self._data
        data.qpos[:], data.qvel[:] = q, dq
        data.qacc[:] = reference[2] + STIFFNESS * (reference[0] - q) + DAMPING * (reference[1] - dq)
        self._mujoco.mj_inverse(self._model, data)
        return np.clip(data.qfrc_inverse, -self._tau_max, self._tau_max)

    def pose_and_jacobian(
        self, q: np.ndarray, flange_T_ee: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pose (4, 4) base_T_ee [m] of the end effector, and the Jacobian (6, J) of its point in
        base axes.

        Args:
            q: (J,) [rad].
            flange_T_ee: (4, 4) the end effector [m].
        """
        data, J = self._data, self._jacobian
        data.qpos[:] = q
        self._mujoco.mj_kinematics(self._model, data)
        self._mujoco.mj_comPos(self._model, data)
        pose = np.eye(4)
        pose[:3, :3] = data.site_xmat[self._flange].reshape(3, 3)
        pose[:3, 3] = data.site_xpos[self._flange]
        pose = pose @ flange_T_ee
        self._mujoco.mj_jac(self._model, data, J[:3], J[3:], pose[:3, 3], self._last_body)
        return pose, J.copy()

    def external_wrench(
        self, q: np.ndarray, tau_ext: np.ndarray, flange_p_k: np.ndarray
    ) -> np.ndarray:
        """Estimates the wrench at a point from external joint torques: least squares of
        `J^T F = tau`.

        Args:
            q: (J,) [rad].
            tau_ext: (J,) [Nm].
            flange_p_k: (3,) the point in the flange frame [m].

        Returns:
            (6,) force [N] and moment [Nm] on the arm, base axes.
        """
        data, J = self._data, self._jacobian
        data.qpos[:] = q
        self._mujoco.mj_kinematics(self._model, data)
        self._mujoco.mj_comPos(self._model, data)
        point = (
            data.site_xpos[self._flange] + data.site_xmat[self._flange].reshape(3, 3) @ flange_p_k
        )
        self._mujoco.mj_jac(self._model, data, J[:3], J[3:], point, self._last_body)
        # The small regularisation keeps the estimate finite in singular configurations.
        return np.linalg.solve(J @ J.T + 1e-6 * np.eye(6), J @ tau_ext)


def urdf_of_arm(model: mujoco.MjModel, robot: Robot) -> str:
    """URDF of `robot`'s links in a compiled model, with the flange as an additional link (`link8`
    for an arm with seven joints).

    Kinematics and inertial parameters are the model's; velocity, effort and position-dependent
    velocity limits are the robot's. Rotor inertia and damping are omitted because the client's
    model does not support them.
    """
    last = robot.num_joints
    lines = [f'<?xml version="1.0"?>\n<robot name="{robot.name}">', _link(model, robot, 0)]
    for number in range(1, last + 1):
        lines += [_link(model, robot, number), _joint(model, robot, number)]
    flange = model.site(robot.flange_name)
    lines += [
        f'<link name="link{last + 1}"/>',
        f'<joint name="flange" type="fixed"><parent link="link{last}"/><child link="link{last + 1}"/>'
        f"{_origin(flange.pos, flange.quat)}</joint>",
        "</robot>\n",
    ]
    return "\n".join(lines)


def _link(model: mujoco.MjModel, robot: Robot, number: int) -> str:
    body = model.body(robot.link_names[number])
    R = _matrix(body.iquat)
    inertia = R @ np.diag(body.inertia) @ R.T
    entries = " ".join(
        f'i{"xyz"[i]}{"xyz"[j]}="{inertia[i, j]:.17g}"'
        for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
    )
    return (
        f'<link name="link{number}"><inertial>{_origin(body.ipos, np.array([1.0, 0, 0, 0]))}'
        f'<mass value="{float(body.mass[0]):.17g}"/><inertia {entries}/></inertial></link>'
    )


def _joint(model: mujoco.MjModel, robot: Robot, number: int) -> str:
    body, i = model.body(robot.link_names[number]), number - 1
    low, high = model.joint(robot.joint_names[i]).range
    limits = robot.limits
    offset = 0.0 if limits.dq_offset is None else limits.dq_offset[i]
    deceleration = FREE_DECELERATION if limits.ddq_dec is None else limits.ddq_dec[i]
    return (
        f'<joint name="joint{number}" type="revolute"><parent link="link{i}"/><child link="link{number}"/>'
        f'{_origin(body.pos, body.quat)}<axis xyz="0 0 1"/>'
        f'<limit lower="{low:.17g}" upper="{high:.17g}" velocity="{limits.dq_max[i]:.17g}" '
        f'effort="{limits.tau_max[i]:.17g}"/>'
        f'<position_based_velocity_limits velocity_offset="{offset:.17g}" '
        f'deceleration_limit="{deceleration:.17g}"/></joint>'
    )


def _origin(position: np.ndarray, quaternion: np.ndarray) -> str:
    R = _matrix(quaternion)
    # Fixed-axis roll, pitch, yaw; no frame of a Franka arm has a pitch of 90 degrees.
    rpy = (
        np.arctan2(R[2, 1], R[2, 2]),
        np.arctan2(-R[2, 0], np.hypot(R[2, 1], R[2, 2])),
        np.arctan2(R[1, 0], R[0, 0]),
    )
    numbers = [" ".join(f"{value:.17g}" for value in triple) for triple in (position, rpy)]
    return f'<origin xyz="{numbers[0]}" rpy="{numbers[1]}"/>'


def _matrix(quaternion: np.ndarray) -> np.ndarray:
    """(3, 3) rotation matrix of a unit quaternion wxyz."""
    w, x, y, z = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
