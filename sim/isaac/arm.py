"""Keeps targets, goals and terms of environments whose physics is Isaac Lab's."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import numpy as np

from sim.engines.arm_engine import ArmEngine, controlled_scene
from sim.tasks.task import Task


class MirroredArm(ArmEngine):
    """Targets, goals and terms of N environments whose physics is Isaac Lab's; positions and
    velocities are copies.

    Args:
        task: the task.
        num_envs: N.
    """

    def __init__(self, task: Task, num_envs: int) -> None:
        import mujoco

        model = controlled_scene(task, task.actions).compile()
        self._qpos = np.zeros((num_envs, model.nq))
        self._qvel = np.zeros((num_envs, model.nv))
        super().__init__(f"isaaclab {task.name}", task, num_envs, model, task.actions)
        self.controls = model.nu
        self._all = np.arange(num_envs)
        self._model = model
        self._data = mujoco.MjData(model)

    def load(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Takes the current positions (N, nq) and velocities (N, nv)."""
        self._qpos[:] = qpos
        self._qvel[:] = qvel
        self._changed()

    def start(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """Draws initial states of environments, each from its seed."""
        self._start(env_ids, seeds)

    def command(self, action: np.ndarray) -> np.ndarray:
        """Moves the targets by (N, A) actions; returns the (N, substeps, nu) path of the
        controls."""
        before = self._ctrl.copy()
        knots = self._command(action, self._all)
        self._ctrl[:] = knots[:, -1]
        return self._ramp(before, knots, self._all)

    def inertia(self) -> np.ndarray:
        """(N, J, J) joint-space inertia of the arm [kg m^2] in the current state."""
        import mujoco

        joints = self.task.robot.num_joints
        full = np.zeros((self._model.nv, self._model.nv))
        inertia = np.empty((self.num_envs, joints, joints))
        for row, qpos in zip(inertia, self._qpos, strict=True):
            self._data.qpos[:] = qpos
            mujoco.mj_kinematics(self._model, self._data)
            mujoco.mj_comPos(self._model, self._data)
            mujoco.mj_crb(self._model, self._data)
            mujoco.mj_fullM(self._model, self._data, full)
            row[:] = full[:joints, :joints]
        return inertia

    def goal(self, env_ids: np.ndarray) -> np.ndarray:
        """(M, G) goals of environments."""
        return self._goal[env_ids]

    def variables(self) -> dict[str, np.ndarray]:
        """Targets, controls and goals, one row per environment; views."""
        return {"target": self._target, "ctrl": self._ctrl, "goal": self._goal}
