"""Implements the controller's own dynamics model of the arm, separate from the simulated world."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import numpy as np

from robots.franka.robot import Robot
from sim.twin.urdf import urdf_of_arm

STIFFNESS = 900.0
"""Stiffness of the joint tracking's error dynamics, per joint [1/s^2]."""
DAMPING = 60.0
"""Damping of the joint tracking's error dynamics, per joint [1/s]; critical."""


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
