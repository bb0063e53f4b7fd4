"""Simulates the push-T table as a world for the FCI twin, driven by torques, with the positions of
block and pusher."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import numpy as np

from robots.franka import find_robot
from robots.franka.kinematics import inverse_kinematics
from sim.scene.view import FREE_JOINT
from sim.tasks.push_t.geometry import (
    BASE_R_BOARD,
    Q_BOARD_CENTRE,
    base_pose_of_tee,
    board_from_base,
    clear_of_tee,
    flange_target,
    scene_spec,
)
from sim.twin.arm_world import ArmWorld, PastStates

SETTLE_STEPS = 100
"""Physics steps of 1 ms after which a newly placed block is at rest on the table."""


BOARD_STATE = 3 + 3 + 9
"""Entries of the remembered state of the board: positions of the pusher's tip and of the block [m],
and the block's rotation matrix, in base."""


class PushTWorld(ArmWorld):
    """The arm with a pusher instead of a gripper, and the block."""

    def __init__(self, robot: str = "fr3") -> None:
        """Builds the scene; `robot` is the arm's name, because a pickled `Robot` would be a
        different object in the twin's process."""
        arm = find_robot(robot)
        super().__init__("push-T world", scene_spec(arm), arm, "pusher", "pusher_tip")
        data = self.data
        self._past = PastStates(self.name, BOARD_STATE)
        self._board = np.zeros(BOARD_STATE)
        self._tee_position = data.body("tee").xpos
        self._tee_axes = data.body("tee").xmat
        tee = int(self.model.joint("tee_free").qposadr[0])
        self._tee_qpos = slice(tee, tee + FREE_JOINT)
        self.reset(np.array([0.256, 0.400]), np.array([0.256, 0.300, 0.0]))

    def reset(
        self, agent: np.ndarray, block_pose: np.ndarray, q: np.ndarray | None = None
    ) -> np.ndarray:
        """Places the block at rest on the table, and the arm with its pusher upright at the agent's
        position.

        Args:
            agent: (2,) [m], board frame. A pusher that would overlap the block is moved to the
                nearest free position.
            block_pose: (3,) x, y [m], angle [rad], board frame.
            q: (J,) joint positions [rad]; None computes them by inverse kinematics.

        Returns:
            (2,) the agent's actual position [m], board frame.

        Raises:
            HandoffError: the agent's position is out of reach.
        """
        import mujoco

        if q is None:
            target = flange_target(clear_of_tee(agent, block_pose))
            q = inverse_kinematics(self.robot, target, Q_BOARD_CENTRE)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[self._tee_qpos] = base_pose_of_tee(block_pose)
        self._q[:] = q
        self._step1(self.model, self.data)
        # Let the block settle, then undo the arm's motion.
        zero_torque = np.zeros(self.robot.num_joints)
        for _ in range(SETTLE_STEPS):
            self.step(zero_torque)
        self._q[:] = q
        self._qvel[:] = 0.0
        self.data.time = 0.0
        self._step1(self.model, self.data)
        self._past.begin(self._board_state())
        return self.agent_position()

    def step(self, tau: np.ndarray) -> None:
        """See `World`; remembers the new positions for the camera."""
        super().step(tau)
        self._past.add(self._board_state())

    def tee_pose(self) -> np.ndarray:
        """(3,) block x, y [m], angle [rad] in (-pi, pi], board frame."""
        return _tee_pose(self._tee_position, self._tee_axes)

    def agent_position(self) -> np.ndarray:
        """(2,) position of the pusher's tip [m], board frame."""
        return board_from_base(self._tip_position)

    def board_at(self, time: float) -> tuple[np.ndarray, np.ndarray]:
        """Position (2,) of the pusher's tip [m] and pose (3,) of the block [m, m, rad], board
        frame, at a time since the last reset [s]; before that, the initial ones.

        Raises:
            HandoffError: a time that has not come, or that the world has forgotten.
        """
        state = self._past.at(time)
        return board_from_base(state[:3]), _tee_pose(state[3:6], state[6:])

    def _board_state(self) -> np.ndarray:
        """The board's state (`BOARD_STATE`,); the same array at every call."""
        # The frame is computed when a picture asks for it: this runs every millisecond.
        self._board[:3] = self._tip_position
        self._board[3:6] = self._tee_position
        self._board[6:] = self._tee_axes
        return self._board


def _tee_pose(position: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Pose (3,) of the block [m, m, rad], board frame, of its position (3,) [m] and its rotation
    matrix (9,) in base."""
    x_axis = BASE_R_BOARD.T @ axes.reshape(3, 3)[:, 0]
    return np.array([*board_from_base(position), np.arctan2(x_axis[1], x_axis[0])])
