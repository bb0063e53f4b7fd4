"""Reads the state of an arm's environments from observations, where the simulator is in another
process, so that a scripted expert can act in them."""

from __future__ import annotations

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation
from sim.engines.arm_engine import ArmEngine, controlled_scene
from sim.scene.view import FREE_JOINT
from sim.tasks.task import Task


class ObservedArm(ArmEngine):
    """N environments whose state is read from observations: joints, gripper, targets, bodies and
    goal. Velocities of bodies are taken to be 0.

    Args:
        task: the task.
        num_envs: N.
    """

    def __init__(self, task: Task, num_envs: int) -> None:
        model = controlled_scene(task, task.actions).compile()
        self._qpos = np.repeat(model.qpos0[None], num_envs, axis=0)
        self._qvel = np.zeros((num_envs, model.nv))
        super().__init__(f"expert of {task.name}", task, num_envs, model, task.actions)

    def observe(self, observation: Observation) -> None:
        """Takes the state from an observation of all environments.

        Raises:
            HandoffError: a field is missing.
        """
        try:
            self._observe({name: np.asarray(a, dtype=float) for name, a in observation.items()})
        except KeyError as error:
            raise HandoffError(
                f"{self.name}: field {error} is not observed, which the scripted expert needs. It runs on the engine "
                "mujoco without it."
            ) from None

    def _observe(self, obs: Observation) -> None:
        task = self.task
        joints = task.robot.num_joints
        self._qpos[:, :joints] = obs["q"]
        self._qvel[:, :joints] = obs["dq"]
        self._target[:, :6] = obs["grasp_pose"] + obs["target_offset"]
        columns: dict[str, np.ndarray] = {} if task.joints is None else dict(task.joints(obs))
        if task.use_gripper:
            self._target[:, -1:] = obs["width_target"]
            columns |= {f"finger_{side}": 0.5 * obs["width"][:, 0] for side in ("left", "right")}
        elif self.layout.has_gripper:
            # The task keeps it open.
            self._target[:, -1] = task.robot.gripper.width_max
            half = np.full(self.num_envs, 0.5 * task.robot.gripper.width_max)
            columns |= {f"finger_{side}": half for side in ("left", "right")}
        for name, values in columns.items():
            self._qpos[:, self.layout.qpos[name]] = values
        for name, place in self.layout.qpos.items():
            if f"{name}_quaternion" in obs:
                self._qpos[:, place : place + 3] = obs[f"{name}_position"]
                self._qpos[:, place + 3 : place + FREE_JOINT] = obs[f"{name}_quaternion"]
        if task.goal_size:
            self._goal[:] = obs["goal"]
        self._changed()
