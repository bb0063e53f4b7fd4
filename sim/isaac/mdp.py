"""Terms of Isaac Lab's managers that evaluate those of a task.

A task's own terms (`sim.tasks.task`) are functions of arrays on the host, evaluated once per state;
the functions here hand out one of them as a tensor.
"""

# Isaac Lab is in another virtual environment.
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from isaaclab.managers import ActionTerm, ActionTermCfg
from isaaclab.utils import configclass

from robots.control.impedance import implicit_cartesian_torque
from sim.engine import EngineState
from sim.isaac.arm import MirroredArm
from sim.tasks.task import Task


class EvaluatedEnv(Protocol):
    """What the terms read of `sim.isaac.environment.TaskEnv`."""

    task: Task
    arm: MirroredArm
    num_envs: int
    device: str
    scene: Any

    def current(self) -> EngineState:
        """Observation, reward and flags in the current state."""
        ...

    def load_state(self) -> None:
        """Copies positions and velocities of the scene to `arm`."""
        ...

    def forget_state(self) -> None:
        """Must be called when the state of the scene changes."""
        ...

    def start(self, env_ids: np.ndarray) -> None:
        """Puts environments into initial states."""
        ...

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        """A float32 tensor on the environments' device."""
        ...


class ArmAction(ActionTerm):
    """The task's action space over the impedance law, whose torques are computed at every physics
    step (`robots.control.impedance`)."""

    def __init__(self, cfg: ArmActionCfg, env: EvaluatedEnv) -> None:
        super().__init__(cfg, env)
        self._arm = env.arm
        self._actions = torch.zeros((env.num_envs, self.action_dim), device=env.device)
        self._path = np.zeros((env.num_envs, self._arm.substeps, self._arm.controls))
        self._inertia = np.zeros((0, 0, 0))
        self._substep = 0
        robot = env.task.robot
        joints = self._asset.joint_names
        self._arm_joints = [joints.index(name) for name in robot.joint_names]
        self._fingers = [i for i, name in enumerate(joints) if name not in robot.joint_names]

    @property
    def action_dim(self) -> int:
        """A, the number of entries of an action."""
        return self._env.arm.action_spec.size

    @property
    def raw_actions(self) -> torch.Tensor:
        """(N, A) latest actions."""
        return self._actions

    @property
    def processed_actions(self) -> torch.Tensor:
        """(N, A) latest actions, which this term does not change."""
        return self._actions

    def process_actions(self, actions: torch.Tensor) -> None:
        """Moves the targets of the impedance law by (N, A) actions."""
        self._actions[:] = actions
        self._path = self._arm.command(actions.detach().cpu().numpy().astype(np.float64))
        self._inertia = self._arm.inertia()
        self._substep = 0

    def apply_actions(self) -> None:
        """Sets the joint torques [Nm] of the next physics step, and the fingers' targets [m]."""
        env = self._env
        arm = self._arm
        env.load_state()
        view = arm.view
        control = self._path[:, self._substep]
        joints = len(self._arm_joints)
        torque = implicit_cartesian_torque(
            env.task.gains,
            self._inertia,
            view.jacobian,
            control[:, :6] - view.grasp_pose,
            view.q,
            view.dq,
            control[:, 6 : 6 + joints],
            env.task.timestep,
        )
        self._set(self._asset.actuators.target_command.set_effort_index, torque, self._arm_joints)
        if self._fingers:
            fingers = control[:, 6 + joints :]
            self._set(
                self._asset.actuators.target_command.set_position_index, fingers, self._fingers
            )
        self._substep += 1
        env.forget_state()

    def _set(self, set_index: Any, value: np.ndarray, joints: list[int]) -> None:
        tensor = torch.as_tensor(value, dtype=torch.float32, device=self.device).contiguous()
        set_index(value=tensor, joint_ids=joints)


@configclass
class ArmActionCfg(ActionTermCfg):
    """Configuration of `ArmAction`."""

    class_type: type[ActionTerm] = ArmAction
    asset_name: str = "robot"


@configclass
class ActionsCfg:
    """The terms of an action."""

    arm: ArmActionCfg = ArmActionCfg()


def observed(env: EvaluatedEnv, field: str) -> torch.Tensor:
    """(N, ...) one field of the task's observation."""
    return env.tensor(env.current().observation[field])


def picture(env: EvaluatedEnv, sensor: str) -> torch.Tensor:
    """(N, height, width, 3) uint8 RGB image of a camera."""
    return env.scene[sensor].data.output["rgb"].torch[..., :3].clone()


def rewarded(env: EvaluatedEnv) -> torch.Tensor:
    """(N,) the task's dense reward of this control period; NaN where the physics has diverged."""
    return env.tensor(env.current().reward)


def succeeded(env: EvaluatedEnv) -> torch.Tensor:
    """(N,) bool: the task is solved."""
    return torch.as_tensor(env.current().success, device=env.device)


def failed(env: EvaluatedEnv) -> torch.Tensor:
    """(N,) bool: the task can no longer be solved."""
    state = env.current()
    return torch.as_tensor(state.terminated & ~state.success, device=env.device)


def start(env: EvaluatedEnv, env_ids: Any) -> None:
    """Puts environments into initial states of the task."""
    env.start(np.arange(env.num_envs)[_host(env_ids)])


def _host(env_ids: Any) -> Any:
    return env_ids if isinstance(env_ids, slice) else env_ids.cpu().numpy()
