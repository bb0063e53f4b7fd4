"""The push-T table as a world for the FCI twin: FR3 torques in, block and pusher positions out."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from math import isfinite

import numpy as np

from robots.errors import HandoffError
from robots.kinematics import inverse_kinematics
from sim.tasks.push_t import (
    BASE_R_BOARD,
    Q_BOARD_CENTRE,
    base_pose_of_tee,
    board_from_base,
    build_scene,
    clear_of_tee,
    flange_target,
)

SETTLE_STEPS = 100
"""Physics steps of 1 ms in which a freshly placed block comes to rest on the table."""


class PushTWorld:
    """Implements `sim.fci.world.World` with one MuJoCo scene; deterministic in its calls."""

    def __init__(self) -> None:
        import mujoco

        self.model = build_scene()
        self.data = mujoco.MjData(self.model)
        self._step1, self._step2 = mujoco.mj_step1, mujoco.mj_step2
        self._reset_data = mujoco.mj_resetData
        data = self.data
        # The arm's seven joints come first in every vector of the scene; the block's free joint follows.
        self._q, self._dq, self._ctrl = data.qpos[:7], data.qvel[:7], data.ctrl
        self._qvel = data.qvel
        self._tau_J, self._tau_ext = data.qfrc_actuator[:7], data.qfrc_constraint[:7]
        tip = data.site("pusher_tip")
        self._tip_position, self._tip_axes = tip.xpos, tip.xmat
        self._tee_position, self._tee_axes = data.body("tee").xpos, data.body("tee").xmat
        self._tee_qpos = slice(*(self.model.joint("tee_free").qposadr[0] + np.array([0, 7])))

        pusher = self.model.body("pusher")
        self.ee_mass = float(pusher.mass[0])
        self.ee_com = np.array(pusher.ipos)
        axes = np.empty(9)
        mujoco.mju_quat2Mat(axes, pusher.iquat)
        axes = axes.reshape(3, 3)
        self.ee_inertia = axes @ np.diag(pusher.inertia) @ axes.T
        self.flange_T_ee = np.eye(4)
        self.flange_T_ee[:3, 3] = self.model.site("pusher_tip").pos
        self.reset(np.array([0.256, 0.400]), np.array([0.256, 0.300, 0.0]))

    @property
    def time(self) -> float:
        """Seconds since the last reset."""
        return self.data.time

    @property
    def q(self) -> np.ndarray:
        """(7,) joint positions [rad]; a view."""
        return self._q

    @property
    def dq(self) -> np.ndarray:
        """(7,) joint velocities [rad/s]; a view."""
        return self._dq

    @property
    def tau_J(self) -> np.ndarray:
        """(7,) joint torques of the last step, gravity included [Nm]; a view."""
        return self._tau_J

    @property
    def tau_ext(self) -> np.ndarray:
        """(7,) J^T F of the contact forces on the arm in the last step [Nm]; a view.

        MuJoCo's constraint force, exact rather than estimated. At a joint limit it includes the stop's torque.
        """
        return self._tau_ext

    @property
    def base_T_ee(self) -> np.ndarray:
        """(4, 4) pose of the pusher's tip [m], a new array."""
        pose = np.eye(4)
        pose[:3, :3] = self._tip_axes.reshape(3, 3)
        pose[:3, 3] = self._tip_position
        return pose

    def step(self, tau: np.ndarray) -> None:
        """Advances 1 ms under torques `tau` (7,) [Nm] without gravity, clipped to the joints' limits.

        Raises:
            HandoffError: a torque or the resulting state is not finite.
        """
        if not isfinite(tau.sum()):
            raise HandoffError(
                f"push-T world: torque command {tau.tolist()} Nm at {self.data.time:.3f} s, expected 7 finite values. "
                "Did the controller divide by zero?"
            )
        self._ctrl[:] = tau
        # The position and velocity stages come last: poses and contacts belong to the new state at no extra cost.
        self._step2(self.model, self.data)
        self._step1(self.model, self.data)
        if not isfinite(self._qvel.sum()):
            raise HandoffError(
                f"push-T world: state not finite at {self.data.time:.3f} s, q {self.data.qpos.tolist()}, "
                f"dq {self._qvel.tolist()}, torque {tau.tolist()} Nm. Was the arm driven into the table?"
            )

    def reset(self, agent: np.ndarray, block_pose: np.ndarray, q: np.ndarray | None = None) -> np.ndarray:
        """Places the block on the table, at rest, and the arm with its pusher upright at the agent's position.

        Args:
            agent: (2,) [m], board. Where the pusher would stand in the block it is moved out by the shortest way.
            block_pose: (3,) x, y [m], angle [rad], board.
            q: (7,) joint positions [rad] instead of those found by inverse kinematics.

        Returns:
            (2,) the agent's position as placed [m], board.

        Raises:
            HandoffError: the agent's position is out of reach.
        """
        if q is None:
            q = inverse_kinematics(flange_target(clear_of_tee(agent, block_pose)), Q_BOARD_CENTRE)
        self._reset_data(self.model, self.data)
        self.data.qpos[self._tee_qpos] = base_pose_of_tee(block_pose)
        self._q[:] = q
        self._step1(self.model, self.data)
        still = np.zeros(7)
        for _ in range(SETTLE_STEPS):
            self.step(still)
        self._q[:] = q
        self._qvel[:] = 0.0
        self.data.time = 0.0
        self._step1(self.model, self.data)
        return self.agent_position()

    def tee_pose(self) -> np.ndarray:
        """(3,) block x, y [m], angle [rad] in (-pi, pi], board."""
        x_axis = BASE_R_BOARD.T @ self._tee_axes.reshape(3, 3)[:, 0]
        return np.array([*board_from_base(self._tee_position), np.arctan2(x_axis[1], x_axis[0])])

    def agent_position(self) -> np.ndarray:
        """(2,) position of the pusher's tip [m], board."""
        return board_from_base(self._tip_position)
