"""Implements the common part of engines that simulate an arm at a task: initial states, commands
and observations, as arrays of N rows."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robots.control.actions import (
    AXES,
    ActionSpace,
    CartesianDelta,
    JointDelta,
    JointTarget,
    PdTarget,
    check_actions,
    with_gripper,
)
from robots.control.impedance import posture_target
from robots.errors import HandoffError
from robots.spec import FieldSpec
from sim.engine import EngineState
from sim.scene.dynamics import ArmDynamics
from sim.scene.scene import (
    FINGER_JOINTS,
    add_cartesian_impedance,
    add_gripper,
    add_joint_impedance,
)
from sim.scene.view import View
from sim.tasks.task import ExpertTarget, InitialState, Task
from sim.tasks.terms import control, next_target, read_terms

ASTRAY = 0.8
"""Distance of rotation vectors above which a scripted expert in a joint space first returns to its
posture [rad]."""


def controlled_scene(task: Task, actions: ActionSpace) -> Any:
    """The task's scene (mujoco.MjSpec) with the impedance law for an action space, and the
    gripper's servos."""
    spec = task.scene()
    if isinstance(actions, (CartesianDelta, PdTarget)):
        add_cartesian_impedance(spec, task.gains, task.robot)
    else:
        add_joint_impedance(spec, task.gains, task.robot)
    if FINGER_JOINTS[0] in [joint.name for joint in spec.joints]:
        add_gripper(spec)
    return spec


class ArmEngine:
    """N environments of one task, without the physics step; engines add `reset`, `step`, `save` and
    `restore`, and keep the state in `_qpos` and `_qvel`."""

    _qpos: np.ndarray
    """(N, nq) generalised positions."""
    _qvel: np.ndarray
    """(N, nv) generalised velocities."""

    def __init__(
        self,
        name: str,
        task: Task,
        num_envs: int,
        model: Any,
        actions: ActionSpace,
        reward: str = "dense",
    ) -> None:
        """Reads the compiled `model` (mujoco.MjModel) of `task`.

        Raises:
            HandoffError: fewer than one environment, an unknown reward, an invalid action space, or
                a control period that is not a multiple of the physics step.
        """
        import mujoco

        self.name = name
        self.task = task
        self.num_envs = num_envs
        self.actions = actions
        if num_envs < 1:
            raise HandoffError(f"{name}: {num_envs} environments, at least 1 is needed.")
        if reward not in ("dense", "sparse"):
            raise HandoffError(f"{name}: reward '{reward}', expected 'dense' or 'sparse'.")
        check_actions(name, actions, task.robot)
        self.rate_hz = task.rate_hz
        self.max_steps = task.max_steps
        self.period = 1.0 / task.rate_hz
        self.substeps = round(self.period / model.opt.timestep)
        if abs(self.substeps * model.opt.timestep - self.period) > 1e-9:
            raise HandoffError(
                f"{name}: a physics step of {model.opt.timestep} s does not divide the period of {self.period} s."
            )
        self.layout = task.layout(model, task.robot)
        self.observation_spec: Mapping[str, FieldSpec] = {
            key: term.spec for key, term in task.observations.items()
        }
        if task.use_gripper and not self.layout.has_gripper:
            raise HandoffError(
                f"{name}: the task '{task.name}' has no gripper. Remove gripper_entry."
            )
        self.use_gripper = task.use_gripper
        arm_spec = actions.spec(task.robot)
        self.action_spec = with_gripper(arm_spec) if self.use_gripper else arm_spec
        self._sparse = reward == "sparse"
        data = mujoco.MjData(model)
        self._model_qpos = data.qpos.copy()
        n = num_envs
        # Columns of the target: the arm's, the velocity of the agent of `PdTarget`, and the
        # gripper's opening.
        self.joint_targets = isinstance(actions, JointDelta | JointTarget)
        self._arm_size = task.robot.num_joints if self.joint_targets else 6
        self._target = np.zeros(
            (n, self._arm_size + (2 if isinstance(actions, PdTarget) else 0) + 1)
        )
        self._delay = np.zeros(n, dtype=np.int64)
        self._goal = np.zeros((n, task.goal_size))
        self._ctrl = np.zeros((n, model.nu))
        self._view: View | None = None

    def set_delay(self, dynamics: ArmDynamics | None) -> None:
        """Delays the commands of all environments by the delay of `dynamics`.

        Raises:
            HandoffError: an error of `delay_steps`, also of the longest delay that an episode may
                draw.
        """
        if dynamics is not None:
            self.delay_steps(0.0, dynamics.drawn(np.ones(len(dynamics.values))))
        self._delay[:] = self.delay_steps(0.0, dynamics)

    def delay_steps(self, drawn: float, dynamics: ArmDynamics | None) -> int:
        """Physics steps by which commands are delayed: the delay of `dynamics` and a drawn one [s].

        Raises:
            HandoffError: a delay that is negative or not shorter than the control period.
        """
        seconds = drawn + (dynamics.delay if dynamics is not None else 0.0)
        steps = round(seconds / (self.period / self.substeps))
        if not 0 <= steps < self.substeps:
            raise HandoffError(
                f"{self.name}: delay is {seconds:.4f} s, expected less than the control period of {self.period} s. "
                "Is a range of delays in milliseconds, or the task's rate too high for a tuned delay?"
            )
        return steps

    @property
    def qpos(self) -> np.ndarray:
        """(N, nq) generalised positions; a view."""
        return self._qpos

    @property
    def qvel(self) -> np.ndarray:
        """(N, nv) generalised velocities; a view."""
        return self._qvel

    @property
    def view(self) -> View:
        """The current state of all environments."""
        if self._view is None:
            self._view = View(
                self.layout,
                self.qpos,
                self.qvel,
                self._target,
                self._goal,
                joint_targets=self.joint_targets,
            )
        return self._view

    def read(self) -> EngineState:
        """See `Engine.read`."""
        output = read_terms(self.task, self.view, self._sparse)
        return EngineState(
            observation={
                name: np.ascontiguousarray(array) for name, array in output.observation.items()
            },
            reward=output.reward,
            terminated=output.success | output.failure,
            success=output.success,
            info=output.info,
        )

    def show(
        self, env_id: int, qpos: np.ndarray, qvel: np.ndarray, target: np.ndarray, goal: np.ndarray
    ) -> None:
        """Sets the state of an environment to one that another simulation of the same scene has
        reached.

        Args:
            env_id: number of the environment.
            qpos: (nq,) generalised positions.
            qvel: (nv,) generalised velocities.
            target: (C,) targets of the controller, as of `View`.
            goal: (G,) the task's own variables.
        """
        self.qpos[env_id], self.qvel[env_id] = qpos, qvel
        self._target[env_id], self._goal[env_id] = target, goal
        self._changed()

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        """See `Engine.dump`."""
        return {
            "qpos": self.qpos[env_id].copy(),
            "qvel": self.qvel[env_id].copy(),
            "ctrl": self._ctrl[env_id].copy(),
            "goal": self._goal[env_id].copy(),
        }

    def to_action(self, target: ExpertTarget) -> np.ndarray:
        """The action (N, A) float64 that brings every environment closest to its expert's
        target."""
        view = self.view
        arm = self._arm_action(view, target)
        if not self.use_gripper:
            return arm
        opening = 2.0 * target.width / self.task.robot.gripper.width_max - 1.0
        return np.concatenate([arm, np.clip(opening, -1.0, 1.0)[:, None]], axis=1)

    def expert_action(self) -> np.ndarray:
        """(N, A) float64 action of the task's scripted expert in the current state."""
        return self.to_action(self.task.expert(self.view))

    def _arm_action(self, view: View, target: ExpertTarget) -> np.ndarray:
        speed = np.broadcast_to(np.asarray(target.speed, dtype=float), (view.n,))[:, None]
        match self.actions:
            case CartesianDelta() as space:
                index = [AXES.index(axis) for axis in space.axes]
                scale = np.array([space.translation if i < 3 else space.rotation for i in index])
                delta = (target.pose - view.target_pose)[:, index] / scale
                # All axes are scaled equally, so that the motion is straight.
                largest = np.maximum(np.abs(delta).max(axis=1, keepdims=True), 1e-9)
                return delta * np.minimum(1.0, speed / largest)
            case JointDelta() | JointTarget() as space:
                step = self._joint_step(view, target)
                if isinstance(space, JointDelta):
                    ahead = step - (self._target[:, : self._arm_size] - view.q)
                    largest = np.maximum(
                        np.abs(ahead).max(axis=1, keepdims=True) / space.step, 1e-9
                    )
                    return ahead / space.step * np.minimum(1.0, speed / largest)
                return view.q + step
            case PdTarget() as space:
                return np.clip(space.to_board(target.pose[:, :3]), space.low, space.high)

    def _joint_step(self, view: View, target: ExpertTarget) -> np.ndarray:
        """(N, J) joint motion [rad] towards the target pose: one damped least-squares step that
        keeps the posture."""
        error = target.pose - view.grasp_pose
        error[:, :3] = np.clip(error[:, :3], -0.04, 0.04)
        error[:, 3:] = np.clip(error[:, 3:], -0.2, 0.2)
        J = view.jacobian
        JJt = J @ np.swapaxes(J, 1, 2) + 1e-5 * np.eye(6)
        step = (np.swapaxes(J, 1, 2) @ np.linalg.solve(JJt, error[..., None]))[..., 0]
        step += 0.1 * (posture_target(J, view.q, self.task.q_posture) - view.q)
        # Far from the target orientation this step would drive the arm into its joint limits, so it
        # first returns to its posture.
        astray = np.linalg.norm(target.pose[:, 3:] - view.grasp_pose[:, 3:], axis=1) > ASTRAY
        return np.where(astray[:, None], self.task.q_posture - view.q, step)

    def _start(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """Writes the initial states of `env_ids` into qpos, qvel, goal and the controller's
        targets."""
        width_grip = np.zeros(len(env_ids))
        for i, (env_id, seed) in enumerate(zip(env_ids.tolist(), seeds.tolist(), strict=True)):
            self.qpos[env_id] = self._model_qpos
            self.qvel[env_id] = 0.0
            self._goal[env_id], self._target[env_id] = 0.0, 0.0
            start = InitialState(self.layout, self.qpos[env_id], self._goal[env_id])
            self.task.reset(np.random.default_rng(seed), start)
            width_grip[i] = start.grip
        self._changed()
        view = self.view
        arm = view.q if self.joint_targets else view.grasp_pose
        self._target[env_ids, : self._arm_size] = arm[env_ids]
        if self.layout.has_gripper:
            self._target[env_ids, -1] = np.maximum(0.0, view.width[env_ids] - width_grip)
        self._ctrl[env_ids] = self._control_of(env_ids)

    def _command(self, action: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Moves the targets of `rows` by their actions.

        Returns:
            (M, K, nu) the actuators' targets at K equidistant times of the period, the last of
            which is its end.
        """
        arm = action[rows, : action.shape[1] - self.use_gripper]
        if isinstance(self.actions, PdTarget):
            return self._follow_agent(self.actions, arm, rows)
        view = self.view
        measured = view.grasp_pose if isinstance(self.actions, CartesianDelta) else view.q
        width = view.width[rows] if self.use_gripper else None
        self._target[rows] = next_target(
            self.actions,
            self._target[rows],
            measured[rows],
            width,
            action[rows],
            self.period,
            self.task.robot,
        )
        return self._control_of(rows)[:, None]

    def _follow_agent(self, space: PdTarget, action: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(M, K, nu) actuators' targets at the knots of the agents of `rows` under `action` (M,
        2)."""
        # Motion of the agents.
        target, gains = self._target[rows], self.task.gains
        here = space.to_board(target[:, :3])
        motion = space.motion(here, target[:, 6:8], action, self.period)
        target[:, :3] += space.to_base(motion.position[:, -1] - here)
        target[:, 6:8] = motion.velocity[:, -1]
        self._target[rows] = target
        knots = np.repeat(self._control_of(rows)[:, None], motion.position.shape[1], axis=1)
        # The dampers act against the velocity, so targets lead by the force that velocity and
        # acceleration require.
        dt = 1.0 / space.dynamics.rate_hz
        velocity = space.to_base(motion.velocity + 0.5 * dt * motion.acceleration)
        stiffness, damping = np.array(gains.stiffness[:3]), np.array(gains.damping[:3])
        force = damping * velocity + space.mass * space.to_base(motion.acceleration)
        knots[:, :, :3] += (
            space.to_base(motion.position - motion.position[:, -1:]) + force / stiffness
        )
        # The posture's targets move with the arm, from its current joint positions.
        Jt = np.swapaxes(self.view.jacobian[rows], 1, 2)
        inverse = Jt @ np.linalg.inv(self.view.jacobian[rows] @ Jt + 1e-6 * np.eye(6))
        displacement = space.to_base(
            motion.position - space.to_board(self.view.grasp_position[rows])[:, None]
        )
        displacement += gains.posture_damping / gains.posture_stiffness * velocity
        posture = slice(6, 6 + self.task.robot.num_joints)
        knots[:, :, posture] += displacement @ np.swapaxes(inverse[:, :, :3], 1, 2)
        return knots

    def _ramp(self, start: np.ndarray, knots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(M, substeps, nu) targets of every physics step, interpolated linearly from `start` (M,
        nu) through the knots (M, K, nu).

        A delayed command starts late and ends with the period, so the arm lags by the delay, then
        catches up.
        """
        n, delay = self.substeps, self._delay[rows, None]
        if not delay.any():
            delay = np.zeros((1, 1))
        fraction = np.maximum(0.0, (np.arange(1, n + 1)[None] - delay) / (n - delay))
        if knots.shape[1] == 1:
            return start[:, None] + fraction[:, :, None] * (knots - start[:, None])
        path = np.concatenate([start[:, None], knots], axis=1)
        position = fraction * knots.shape[1]
        index = np.minimum(position.astype(int), knots.shape[1] - 1)
        row = np.arange(len(rows))[:, None]
        return path[row, index] + (position - index)[:, :, None] * (
            path[row, index + 1] - path[row, index]
        )

    def _control_of(self, rows: np.ndarray) -> np.ndarray:
        """(M, nu) actuators' targets for the controller's targets of `rows`."""
        jacobian = None if self.joint_targets else self.view.jacobian[rows]
        target = np.concatenate(
            [self._target[rows, : self._arm_size], self._target[rows, -1:]], axis=1
        )
        return control(
            target, jacobian, self.view.q[rows], self.task.q_posture, self.layout.has_gripper
        )

    def _changed(self) -> None:
        self._view = None
