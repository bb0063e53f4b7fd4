"""Follows the poses or twists of the end effector that a client commands, by differential inverse
kinematics.

The robot's own inverse kinematics is not published. This one makes one step of resolved motion per
cycle (Whitney 1969) towards the commanded pose. Where the client commands the elbow, which is the
position of the third joint, the seven equations determine the seven joints; elsewhere the smallest
joint motion is taken.
"""

from __future__ import annotations

import numpy as np

from robots.franka.kinematics import rotation_matrix, rotation_vector
from robots.franka.robot import CartesianLimits
from sim.twin.protocol import ErrorBit
from sim.twin.unit.arm_model import ArmModel
from sim.twin.unit.checks import PERIOD, START_DEVIATION, TOLERANCE

ELBOW = 2
"""Index of the joint whose position is the elbow."""
ELBOW_SIGN = 3
"""Index of the joint whose sign tells the two configurations of an elbow apart."""
_DAMPING = 1e-8
"""Keeps joint steps finite in singular configurations."""
_DISCONTINUOUS = (
    ErrorBit.CARTESIAN_VELOCITY_LIMITS,
    ErrorBit.CARTESIAN_VELOCITY_DISCONTINUITY,
    ErrorBit.CARTESIAN_ACCELERATION_DISCONTINUITY,
)
"""Errors of the first, second and third derivative."""


class CartesianReference:
    """Commanded pose, twist and acceleration of the end effector, in the base frame.

    Args:
        arm: kinematics of the arm.
        limits: limits of end effector and elbow.
    """

    def __init__(self, arm: ArmModel, limits: CartesianLimits) -> None:
        self._arm = arm
        self._limits = limits
        self._flange_T_ee = np.eye(4)
        self._commands_elbow = False
        self.pose = np.eye(4)
        """(4, 4) base_T_ee [m]."""
        self.twist = np.zeros(6)
        """Linear [m/s] and angular [rad/s] velocity."""
        self.acceleration = np.zeros(6)
        """Linear [m/s^2] and angular [rad/s^2] acceleration."""
        self.elbow = np.zeros(3)
        """Position [rad], velocity [rad/s] and acceleration [rad/s^2] of the elbow."""

    def begin(self, q: np.ndarray, flange_T_ee: np.ndarray) -> None:
        """Begins at rest.

        Args:
            q: (J,) desired joint positions [rad].
            flange_T_ee: (4, 4) the end effector [m].
        """
        self._flange_T_ee = flange_T_ee.copy()
        self.pose = self._arm.pose_and_jacobian(q, self._flange_T_ee)[0]
        self.twist = np.zeros(6)
        self.acceleration = np.zeros(6)
        self.elbow = np.array([q[ELBOW], 0.0, 0.0])
        self._commands_elbow = False

    def follow_pose(self, pose: np.ndarray, *, first: bool) -> ErrorBit | None:
        """Takes a commanded pose (4, 4) [m]; returns the error that it is, and then changes
        nothing."""
        if not _is_frame(pose):
            return ErrorBit.CARTESIAN_INVALID_FRAME
        step = _step(self.pose, pose)
        if first:
            # As in a joint motion, a start a little beside the desired pose is one at rest.
            if not (np.abs(step) <= START_DEVIATION).all():
                return ErrorBit.CARTESIAN_START_POSE_INVALID
            self.pose = pose.copy()
            return None
        error = self._move(step / PERIOD)
        if error is None:
            self.pose = pose.copy()
        return error

    def follow_twist(self, twist: np.ndarray) -> ErrorBit | None:
        """Takes a commanded twist (6,) [m/s, rad/s]; returns the error that it is, and then
        changes nothing."""
        if not np.isfinite(twist).all():
            return ErrorBit.CARTESIAN_VELOCITY_LIMITS
        error = self._move(twist)
        if error is None:
            self._integrate()
        return error

    def follow_elbow(self, elbow: np.ndarray, q: np.ndarray, *, first: bool) -> ErrorBit | None:
        """Takes a commanded elbow.

        Args:
            elbow: (2,) position of the third joint [rad], and sign of the fourth.
            q: (J,) desired joint positions [rad].
            first: whether it is the motion's first command.
        """
        if not np.isfinite(elbow).all() or elbow[1] * q[ELBOW_SIGN] < 0.0:
            return ErrorBit.ELBOW_SIGN_INCONSISTENT
        position, velocity, acceleration = self.elbow
        if first or not self._commands_elbow:
            if abs(elbow[0] - position) > START_DEVIATION:
                return ErrorBit.START_ELBOW_INVALID
            self._commands_elbow = True
            self.elbow = np.array([elbow[0], 0.0, 0.0])
            return None
        rate = (elbow[0] - position) / PERIOD
        change = (rate - velocity) / PERIOD
        jerk = (change - acceleration) / PERIOD
        limits = (self._limits.velocity, self._limits.acceleration, self._limits.jerk)
        for value, limit, error in zip((rate, change, jerk), limits, _DISCONTINUOUS, strict=True):
            if not abs(value) <= TOLERANCE * limit[2]:
                return error
        self.elbow = np.array([elbow[0], rate, change])
        return None

    def release_elbow(self) -> None:
        """The client commands no elbow."""
        self._commands_elbow = False

    def extrapolate(self) -> None:
        """Goes on with constant acceleration, where a command is missing."""
        self.twist = self.twist + PERIOD * self.acceleration
        self._integrate()

    def joint_step(self, q: np.ndarray) -> np.ndarray:
        """(J,) joint step [rad] from `q` towards the commanded pose."""
        pose, J = self._arm.pose_and_jacobian(q, self._flange_T_ee)
        step = _step(pose, self.pose)
        if self._commands_elbow:
            J = np.vstack([J, np.eye(len(q))[ELBOW]])
            step = np.append(step, self.elbow[0] - q[ELBOW])
        return J.T @ np.linalg.solve(J @ J.T + _DAMPING * np.eye(len(J)), step)

    @property
    def at_rest(self) -> bool:
        """Whether the end effector has stopped, up to one cycle of braking."""
        slowest = TOLERANCE * PERIOD * self._limits.acceleration
        return bool((_norms(self.twist) <= slowest[:2]).all())

    def _move(self, twist: np.ndarray) -> ErrorBit | None:
        """Takes the twist of this cycle, if it keeps the limits."""
        acceleration = (twist - self.twist) / PERIOD
        jerk = (acceleration - self.acceleration) / PERIOD
        limits = (self._limits.velocity, self._limits.acceleration, self._limits.jerk)
        for value, limit, error in zip(
            (twist, acceleration, jerk), limits, _DISCONTINUOUS, strict=True
        ):
            if not (_norms(value) <= TOLERANCE * limit[:2]).all():
                return error
        self.twist = twist.copy()
        self.acceleration = acceleration
        return None

    def _integrate(self) -> None:
        pose = self.pose.copy()
        pose[:3, 3] += PERIOD * self.twist[:3]
        pose[:3, :3] = rotation_matrix(PERIOD * self.twist[3:]) @ pose[:3, :3]
        self.pose = pose


def _step(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """(6,) translation [m] and rotation vector [rad] from one pose to another, in the base
    frame."""
    turned = rotation_vector(end[:3, :3] @ start[:3, :3].T)
    return np.concatenate([end[:3, 3] - start[:3, 3], turned])


def _norms(value: np.ndarray) -> np.ndarray:
    """(2,) lengths of the linear and the angular part."""
    return np.linalg.norm(value.reshape(2, 3), axis=1)


def _is_frame(pose: np.ndarray) -> bool:
    R = pose[:3, :3]
    return bool(
        np.isfinite(pose).all()
        and np.allclose(pose[3], [0.0, 0.0, 0.0, 1.0], atol=1e-6)
        and np.allclose(R @ R.T, np.eye(3), atol=1e-4)
        and np.linalg.det(R) > 0.0
    )
