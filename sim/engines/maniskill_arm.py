"""Gives a ManiSkill environment the observations, actions and scripted expert of a task of Handoff.

The scene, its starts, rewards and success stay ManiSkill's own, the time limit is the task's: what
a policy of the task can do there is a test of sim-to-sim transfer. An action moves the controller's
target as it does in the task's own engines; the joint positions of that target are commands of
ManiSkill's joint controller (`pd_joint_pos`), springs and dampers at the joints in place of the
Cartesian impedance law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from robots.control.actions import ActionSpace, PdTarget
from robots.control.impedance import posture_target
from robots.errors import HandoffError
from robots.franka.kinematics import batched_jacobian, batched_rotation_vector
from robots.interfaces import EnvState
from robots.spec import FieldSpec
from sim.engine import EngineState
from sim.engines.arm_engine import ArmEngine
from sim.engines.maniskill import ManiSkillEngine
from sim.engines.maniskill_task import ManiSkillArm, ManiSkillConfig
from sim.engines.mujoco import build_model
from sim.scene.view import FREE_JOINT
from sim.tasks.task import Task
from sim.tasks.terms import read_observation

CONTROL_MODE = "pd_joint_pos"
"""ManiSkill's control mode whose commands are joint positions [rad]."""
POSITIONS, VELOCITIES = "agent/qpos", "agent/qvel"
"""ManiSkill's fields of joint positions and velocities, the arm's first, then two fingers'."""
FINGERS = ("finger_left", "finger_right")
TARGET = "arm_target"
"""Saved field with the controller's targets."""
ITERATIONS = 5
"""Newton steps from the measured joint positions to those of the target pose, which lies within the
leash."""
DAMPING = 1e-5
"""Damping of the least squares of a step [m^2]."""
POSTURE_SHARE = 0.1
"""Share of the way to the preferred posture that a step goes without moving the pose."""


class ManiSkillArmEngine(ArmEngine):
    """Implements `sim.engine.Engine` over `ManiSkillEngine`.

    Velocities of bodies are not observed in ManiSkill; they are NaN, which reveals a term that
    reads them.
    """

    observation_spec: Mapping[str, FieldSpec]

    def __init__(
        self,
        task: Task,
        num_envs: int,
        config: ManiSkillConfig,
        actions: ActionSpace | None = None,
    ) -> None:
        """Makes the environments.

        Args:
            task: task whose observations, actions and expert the environments have.
            num_envs: N.
            config: options of ManiSkill; `arm` names the environment and its fields.
            actions: action space of the arm; None takes the task's own.

        Raises:
            HandoffError: an error of `ManiSkillEngine`, an environment of another robot or rate, a
                field that it does not observe, or an action space that moves a point on a board.
        """
        arm = config.arm
        if arm is None:
            raise HandoffError(f"maniskill {task.name}: set maniskill.arm to an environment.")
        space = actions or task.actions
        name = f"maniskill {task.name}"
        if isinstance(space, PdTarget):
            raise HandoffError(
                f"{name}: actions are pd_target, expected steps of pose or joints. Is it another task?"
            )
        _check(name, config)
        super().__init__(name, task, num_envs, build_model(task, space), space)
        self._arm = arm
        own = replace(config, arm=None, control_mode=CONTROL_MODE)
        self.inner = ManiSkillEngine(arm.environment, num_envs, own)
        try:
            self._finger_limits = _check_fields(name, task, arm, self.inner, self.layout.qpos)
        except HandoffError:
            self.inner.close()
            raise
        pictures = {k: v for k, v in self.inner.observation_spec.items() if k.startswith("image_")}
        self.observation_spec = {**self.observation_spec, **pictures}
        self._pictures = tuple(pictures)
        self._qpos = np.tile(self._model_qpos, (num_envs, 1))
        # ManiSkill says nothing of the velocities of bodies here.
        self._qvel = np.full((num_envs, self.layout.nv), np.nan)

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`; the initial states are ManiSkill's."""
        self.inner.reset(env_ids, seeds)
        self._refresh()
        view = self.view
        self._target[env_ids, : self._arm_size] = (
            view.q if self.joint_targets else view.grasp_pose
        )[env_ids]
        self._target[env_ids, -1] = view.width[env_ids]
        self._changed()

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`."""
        rows = np.flatnonzero(running)
        self._command(action, rows)
        num_joints = self.task.robot.num_joints
        commands = np.zeros((self.num_envs, num_joints + 1))
        commands[rows, :num_joints] = self._joint_positions(rows)
        # ManiSkill's entry is linear in the position of one finger.
        low, high = self._finger_limits
        share = (self._target[rows, -1] / 2.0 - low) / (high - low)
        commands[rows, num_joints] = 2.0 * share - 1.0
        self.inner.step(commands, running)
        self._refresh()

    def read(self) -> EngineState:
        """See `Engine.read`; reward, ends and diagnostics are ManiSkill's."""
        state = self.inner.read()
        observation = {
            name: np.ascontiguousarray(array)
            for name, array in read_observation(self.task, self.view).items()
        }
        pictures = {name: state.observation[name] for name in self._pictures}
        return state._replace(observation={**observation, **pictures})

    def save(self) -> EnvState:
        """See `Engine.save`: the state of `ManiSkillEngine`, and the controller's targets."""
        return {**self.inner.save(), TARGET: self._target.copy()}

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        """See `Engine.restore`.

        Raises:
            HandoffError: a state of another kind; see `ManiSkillEngine.restore`.
        """
        if TARGET not in state or state[TARGET].shape[1:] != self._target.shape[1:]:
            raise HandoffError(
                f"{self.name}: the state has no targets of this controller. Was it saved with another action space, or "
                "without maniskill.arm?"
            )
        inner = {name: array for name, array in state.items() if name != TARGET}
        self.inner.restore(env_ids, inner)
        self._target[env_ids] = state[TARGET]
        self._refresh()

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        """See `Engine.dump`: that of `ManiSkillEngine`, and the controller's target."""
        return {**self.inner.dump(env_id), TARGET: self._target[env_id].copy()}

    def close(self) -> None:
        """See `Engine.close`."""
        self.inner.close()

    def _refresh(self) -> None:
        """Reads positions and velocities from ManiSkill's observation, in the base frame."""
        observed = self.inner.read().observation
        base = np.array(self._arm.base)
        num_joints = self.task.robot.num_joints
        for state, addresses, field in (
            (self._qpos, self.layout.qpos, POSITIONS),
            (self._qvel, self.layout.qvel, VELOCITIES),
        ):
            state[:, :num_joints] = observed[field][:, :num_joints]
            for i, finger in enumerate(FINGERS):
                state[:, addresses[finger]] = observed[field][:, num_joints + i]
        for body, field in self._arm.bodies.items():
            address = self.layout.qpos[body]
            self._qpos[:, address : address + FREE_JOINT] = observed[field]
            self._qpos[:, address : address + 3] -= base
        if self._arm.goal is not None:
            self._goal[:] = observed[self._arm.goal] - base
        self._changed()

    def _joint_positions(self, rows: np.ndarray) -> np.ndarray:
        """(M, J) joint positions [rad] of the controller's targets of `rows`."""
        target = self._target[rows, : self._arm_size]
        if self.joint_targets:
            return target
        robot = self.task.robot
        q = self.view.q[rows].copy()
        for _ in range(ITERATIONS):
            positions, rotations = robot.chain.batched_joint_frames(q)
            flange = rotations[:, -1]
            point = positions[:, -1] + flange @ self.layout.tool_offset
            turn = batched_rotation_vector(flange @ self.layout.tool_rotation)
            J = batched_jacobian(positions, rotations, point)
            error = target - np.concatenate([point, turn], axis=1)
            square = J @ np.swapaxes(J, 1, 2) + DAMPING * np.eye(6)
            step = (np.swapaxes(J, 1, 2) @ np.linalg.solve(square, error[..., None]))[..., 0]
            step += POSTURE_SHARE * (posture_target(J, q, self.task.q_posture) - q)
            q = np.clip(q + step, robot.limits.q_min, robot.limits.q_max)
        return q


def _check(name: str, config: ManiSkillConfig) -> None:
    """Refuses options of ManiSkill that do not go with the interface of a task."""
    if config.control_mode not in (None, CONTROL_MODE):
        raise HandoffError(
            f"{name}: control_mode is '{config.control_mode}', but actions are those of the task {name.split()[-1]}. "
            "Leave it out, or set maniskill.arm to null."
        )
    if "state" not in config.observation:
        raise HandoffError(
            f"{name}: observation is '{config.observation}', without the state from which the task's fields are "
            "computed. Set maniskill.observation to 'state' or 'state+rgb'."
        )


def _check_fields(
    name: str, task: Task, arm: ManiSkillArm, inner: ManiSkillEngine, addresses: Mapping[str, int]
) -> tuple[float, float]:
    """Refuses an environment whose robot, rate or fields are not those that the task needs; returns
    the limits of its gripper."""
    spec, limits = inner.observation_spec, inner.finger_limits
    joints = task.robot.num_joints + len(FINGERS)
    if limits is None or POSITIONS not in spec or spec[POSITIONS].shape != (joints,):
        raise HandoffError(
            f"{name}: '{POSITIONS}' of {arm.environment} has shape "
            f"{spec[POSITIONS].shape if POSITIONS in spec else None}, expected ({joints},) of a {task.robot.title} "
            "with two fingers. Set maniskill.options.robot_uids, such as panda."
        )
    if abs(inner.rate_hz - task.rate_hz) > 1e-6:
        raise HandoffError(
            f"{name}: {arm.environment} runs at {inner.rate_hz:g} Hz, the task at {task.rate_hz:g} Hz. Set "
            f"maniskill.options.sim_config to {{control_freq: {task.rate_hz:g}}}."
        )
    fixed = {*task.robot.joint_names, *FINGERS}
    unknown = sorted(set(arm.bodies) - set(addresses))
    missing = sorted(set(addresses) - fixed - set(arm.bodies))
    if unknown or missing:
        raise HandoffError(
            f"{name}: maniskill.arm.bodies lacks {missing} and has unknown {unknown}; expected one field with a pose "
            f"for each of {sorted(set(addresses) - fixed)}."
        )
    if (arm.goal is None) != (task.goal_size == 0):
        raise HandoffError(
            f"{name}: maniskill.arm.goal is {arm.goal}, but the goal of the task has {task.goal_size} entries."
        )
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys(arm.bodies.values(), (FREE_JOINT,))
    if arm.goal is not None:
        wanted[arm.goal] = (task.goal_size,)
    for field, shape in wanted.items():
        if field not in spec or spec[field].shape != shape:
            raise HandoffError(
                f"{name}: {arm.environment} observes no '{field}' of shape {shape}, it has "
                f"{ {key: each.shape for key, each in spec.items()} }."
            )
    return limits
