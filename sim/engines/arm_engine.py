"""Shares among engines that simulate an arm at a task: starts, commands and readings, on arrays of
N rows."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from robots.control.actions import (
    AXES,
    GRIPPER_SPEC,
    ActionSpace,
    CartesianDelta,
    JointDelta,
    JointTarget,
    PdTarget,
)
from robots.control.impedance import posture_target
from robots.errors import HandoffError
from robots.franka.robot import Robot
from robots.spec import ActionSpec, FieldSpec
from sim.engine import EngineState
from sim.scene.view import View
from sim.tasks.task import Intent, Start, Task
from sim.tasks.terms import control, next_target, told

ASTRAY = 0.8
"""Distance of rotation vectors from which on a scripted expert in a joint space first returns to
its posture [rad]."""


class ArmEngine:
    """N worlds of one task, without the physics step; engines add `reset`, `step`, `save` and
    `restore`."""

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
            HandoffError: fewer than one world, an unknown reward, an action space without sense, or
                a physics step that does not divide the period.
        """
        import mujoco

        self.name, self.task, self.num_envs, self.actions = name, task, num_envs, actions
        if num_envs < 1:
            raise HandoffError(f"{name}: {num_envs} worlds asked for, at least 1 is needed.")
        if reward not in ("dense", "sparse"):
            raise HandoffError(f"{name}: reward '{reward}', expected 'dense' or 'sparse'.")
        _check_actions(name, actions, task.robot)
        self.rate_hz, self.max_steps = task.rate_hz, task.max_steps
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
        self.use_gripper = task.use_gripper
        arm_spec = actions.spec(task.robot)
        self.action_spec = _with_gripper(arm_spec) if self.use_gripper else arm_spec
        self._sparse = reward == "sparse"
        data = mujoco.MjData(model)
        self._model_qpos = data.qpos.copy()
        n = num_envs
        # Columns of the target: the arm's, the velocity of the agent that `PdTarget` moves, and
        # last the hand's.
        self.joint_targets = isinstance(actions, JointDelta | JointTarget)
        self._arm_size = task.robot.num_joints if self.joint_targets else 6
        self._target = np.zeros(
            (n, self._arm_size + (2 if isinstance(actions, PdTarget) else 0) + 1)
        )
        self._delay = np.zeros(n, dtype=np.int64)
        self._goal = np.zeros((n, task.goal_size))
        self._ctrl = np.zeros((n, model.nu))
        self._view: View | None = None

    @property
    @abstractmethod
    def qpos(self) -> np.ndarray:
        """(N, nq) generalised positions."""

    @property
    @abstractmethod
    def qvel(self) -> np.ndarray:
        """(N, nv) generalised velocities."""

    @property
    def view(self) -> View:
        """The present of all worlds."""
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
        found = told(self.task, self.view, self._sparse)
        observation = {name: np.ascontiguousarray(part) for name, part in found.observation.items()}
        return EngineState(
            observation, found.reward, found.success | found.failure, found.success, found.info
        )

    def dump(self, world: int) -> dict[str, np.ndarray]:
        """See `Engine.dump`."""
        return {
            "qpos": self.qpos[world].copy(),
            "qvel": self.qvel[world].copy(),
            "ctrl": self._ctrl[world].copy(),
            "goal": self._goal[world].copy(),
        }

    def to_action(self, intent: Intent) -> np.ndarray:
        """The action (N, A) float64 that brings every world nearest to what its scripted expert
        wants."""
        view = self.view
        arm = self._arm_action(view, intent)
        if not self.use_gripper:
            return arm
        opening = 2.0 * intent.width / self.task.robot.gripper.width_max - 1.0
        return np.concatenate([arm, np.clip(opening, -1.0, 1.0)[:, None]], axis=1)

    def expert_action(self) -> np.ndarray:
        """(N, A) float64 what the task's scripted expert does now."""
        return self.to_action(self.task.expert(self.view))

    def _arm_action(self, view: View, intent: Intent) -> np.ndarray:
        speed = np.broadcast_to(np.asarray(intent.speed, dtype=float), (view.n,))[:, None]
        match self.actions:
            case CartesianDelta() as space:
                index = [AXES.index(axis) for axis in space.axes]
                scale = np.array([space.translation if i < 3 else space.rotation for i in index])
                wanted = (intent.pose - view.target_pose)[:, index] / scale
                # Along a straight line: all axes are slowed alike.
                largest = np.maximum(np.abs(wanted).max(axis=1, keepdims=True), 1e-9)
                return wanted * np.minimum(1.0, speed / largest)
            case JointDelta() | JointTarget() as space:
                step = self._joint_step(view, intent)
                if isinstance(space, JointDelta):
                    ahead = step - (self._target[:, : self._arm_size] - view.q)
                    largest = np.maximum(
                        np.abs(ahead).max(axis=1, keepdims=True) / space.step, 1e-9
                    )
                    return ahead / space.step * np.minimum(1.0, speed / largest)
                return view.q + step
            case PdTarget() as space:
                return np.clip(space.to_board(intent.pose[:, :3]), space.low, space.high)

    def _joint_step(self, view: View, intent: Intent) -> np.ndarray:
        """(N, J) joint motion [rad] towards the intended pose: one damped least-squares step, the
        posture held."""
        error = intent.pose - view.grasp_pose
        error[:, :3] = np.clip(error[:, :3], -0.04, 0.04)
        error[:, 3:] = np.clip(error[:, 3:], -0.2, 0.2)
        J = view.jacobian
        JJt = J @ np.swapaxes(J, 1, 2) + 1e-5 * np.eye(6)
        step = (np.swapaxes(J, 1, 2) @ np.linalg.solve(JJt, error[..., None]))[..., 0]
        step += 0.1 * (posture_target(J, view.q, self.task.q_posture) - view.q)
        # Thrown far about, the arm would hang at its joint limits on this way: by its posture it
        # gets out.
        astray = np.linalg.norm(intent.pose[:, 3:] - view.grasp_pose[:, 3:], axis=1) > ASTRAY
        return np.where(astray[:, None], self.task.q_posture - view.q, step)

    def _start(self, worlds: np.ndarray, seeds: np.ndarray) -> None:
        """Writes the starts of `worlds` into qpos, qvel, goal and the controller's targets."""
        width_grip = np.zeros(len(worlds))
        for i, (world, seed) in enumerate(zip(worlds.tolist(), seeds.tolist(), strict=True)):
            self.qpos[world] = self._model_qpos
            self.qvel[world] = 0.0
            self._goal[world], self._target[world] = 0.0, 0.0
            start = Start(self.layout, self.qpos[world], self._goal[world])
            self.task.reset(np.random.default_rng(seed), start)
            width_grip[i] = start.grip
        self._changed()
        view = self.view
        arm = view.q if self.joint_targets else view.grasp_pose
        self._target[worlds, : self._arm_size] = arm[worlds]
        if self.layout.has_hand:
            self._target[worlds, -1] = np.maximum(0.0, view.width[worlds] - width_grip)
        self._ctrl[worlds] = self._control_of(worlds)

    def _command(self, action: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Moves the targets of `rows` by their actions.

        Returns:
            (M, K, nu) the actuators' targets at K equidistant times of the period, the last being
            its end.
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
        """(M, K, nu) actuators' targets at the knots of the agents of `rows`, which obey `action`
        (M, 2)."""
        target, gains = self._target[rows], self.task.gains
        here = space.to_board(target[:, :3])
        motion = space.motion(here, target[:, 6:8], action, self.period)
        target[:, :3] += space.to_base(motion.position[:, -1] - here)
        target[:, 6:8] = motion.velocity[:, -1]
        self._target[rows] = target
        knots = np.repeat(self._control_of(rows)[:, None], motion.position.shape[1], axis=1)
        # All springs are dampers against rest: their targets go ahead by what velocity and
        # acceleration cost in force.
        dt = 1.0 / space.dynamics.rate_hz
        velocity = space.to_base(motion.velocity + 0.5 * dt * motion.acceleration)
        stiffness, damping = np.array(gains.stiffness[:3]), np.array(gains.damping[:3])
        force = damping * velocity + space.mass * space.to_base(motion.acceleration)
        knots[:, :, :3] += (
            space.to_base(motion.position - motion.position[:, -1:]) + force / stiffness
        )
        # The posture's springs go with the arm, from where the joints are now.
        Jt = np.swapaxes(self.view.jacobian[rows], 1, 2)
        inverse = Jt @ np.linalg.inv(self.view.jacobian[rows] @ Jt + 1e-6 * np.eye(6))
        gone = space.to_base(
            motion.position - space.to_board(self.view.grasp_position[rows])[:, None]
        )
        gone += gains.posture_damping / gains.posture_stiffness * velocity
        posture = slice(6, 6 + self.task.robot.num_joints)
        knots[:, :, posture] += gone @ np.swapaxes(inverse[:, :, :3], 1, 2)
        return knots

    def _ramp(self, before: np.ndarray, knots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(M, substeps, nu) targets of every physics step: from `before` (M, nu) straight from knot
        to knot (M, K, nu).

        A delayed command begins late and ends with the period: the arm is behind by the delay, then
        catches up.
        """
        n, delay = self.substeps, self._delay[rows, None]
        if not delay.any():
            delay = np.zeros((1, 1))
        share = np.maximum(0.0, (np.arange(1, n + 1)[None] - delay) / (n - delay))
        if knots.shape[1] == 1:
            return before[:, None] + share[:, :, None] * (knots - before[:, None])
        path = np.concatenate([before[:, None], knots], axis=1)
        place = share * knots.shape[1]
        start = np.minimum(place.astype(int), knots.shape[1] - 1)
        row = np.arange(len(rows))[:, None]
        return path[row, start] + (place - start)[:, :, None] * (
            path[row, start + 1] - path[row, start]
        )

    def _control_of(self, rows: np.ndarray) -> np.ndarray:
        """(M, nu) actuators' targets for the controller's targets of `rows`."""
        jacobian = None if self.joint_targets else self.view.jacobian[rows]
        target = np.concatenate(
            [self._target[rows, : self._arm_size], self._target[rows, -1:]], axis=1
        )
        return control(
            target, jacobian, self.view.q[rows], self.task.q_posture, self.layout.has_hand
        )

    def _changed(self) -> None:
        self._view = None


def _check_actions(name: str, actions: ActionSpace, robot: Robot) -> None:
    if isinstance(actions, JointTarget):
        robot.check_per_joint("actions.leash", actions.leash)
    if isinstance(actions, CartesianDelta) and (
        not actions.axes or len(set(actions.axes)) < len(actions.axes)
    ):
        raise HandoffError(
            f"{name}: actions along the axes {list(actions.axes)}, expected one or more different ones."
        )
    if (
        isinstance(actions, (CartesianDelta, PdTarget))
        and not np.less(actions.low, actions.high).all()
    ):
        raise HandoffError(
            f"{name}: targets from {actions.low} to {actions.high} m, expected low < high. Are they swapped?"
        )


def _with_gripper(arm: ActionSpec) -> ActionSpec:
    return ActionSpec(
        low=(*arm.low, *GRIPPER_SPEC.low),
        high=(*arm.high, *GRIPPER_SPEC.high),
        names=(*arm.names, *GRIPPER_SPEC.names),
        unit=arm.unit,
        interface=arm.interface,
    )
