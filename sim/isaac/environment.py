"""Provides Handoff's tasks as manager-based environments of Isaac Lab, registered with Gymnasium as
`Handoff-<task>-<robot>` when this module is imported.

The same seed gives the same initial state as with every other engine.
"""

# Isaac Lab is in another virtual environment.
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
import torch
from isaaclab.envs import ManagerBasedRLEnv, ManagerBasedRLEnvCfg
from isaaclab.managers import (
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
)
from isaaclab.utils import configclass
from isaaclab_newton.physics import NewtonManager

from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.catalog import ROBOTS
from robots.interfaces import EnvState
from robots.spec import ActionSpec, FieldSpec
from sim.engine import EngineState
from sim.engines.isaac_lab import OWN_GROUP, OWN_ROBOT, OWN_TASKS
from sim.engines.warp_physics import check_capacity
from sim.isaac import mdp
from sim.isaac.arm import MirroredArm
from sim.isaac.scene import add_cameras, scene_cfg, simulation_cfg
from sim.isaac.state import SceneState, show_goals
from sim.isaac.usd import SceneFiles, scene_files
from sim.tasks.task import Task

FIXTURE = "fixture_"
"""Prefix of saved fields that hold the pose of a fixture."""


@configclass
class TaskEnvCfg(ManagerBasedRLEnvCfg):
    """Configuration of one of Handoff's tasks."""

    task_name: str = "reach"
    robot_name: str = OWN_ROBOT

    def __post_init__(self) -> None:
        """Fills in scene, physics and terms."""
        task = find_task(self.task_name, self.robot_name)
        self.decimation = round(1.0 / (task.rate_hz * task.timestep))
        self.episode_length_s = task.max_steps / task.rate_hz
        self.sim = simulation_cfg(task)
        self.scene = scene_cfg(task, self.files(), 1)
        self.actions = mdp.ActionsCfg()
        group = ObservationGroupCfg(concatenate_terms=False, enable_corruption=False)
        for field in task.observations:
            term = ObservationTermCfg(func=mdp.observed, params={"field": field})
            setattr(group, field, term)
        self.observations = {OWN_GROUP: group}
        # Isaac Lab multiplies a reward by the control period.
        self.rewards = {"task": RewardTermCfg(func=mdp.rewarded, weight=task.rate_hz)}
        self.terminations = {
            "success": TerminationTermCfg(func=mdp.succeeded),
            "failure": TerminationTermCfg(func=mdp.failed),
            "time_out": TerminationTermCfg(func=_late, time_out=True),
        }
        self.events = {"start": EventTermCfg(func=mdp.start, mode="reset")}

    def files(self) -> SceneFiles:
        """USD files of the task with its arm."""
        return _find_files(self.task_name, self.robot_name)

    def observe_cameras(self, names: Sequence[str], height: int, width: int) -> None:
        """Adds cameras to scene and observation.

        Args:
            names: names of the task's cameras.
            height: height of an image [px].
            width: width of an image [px].

        Raises:
            HandoffError: the task has no such camera.
        """
        task = find_task(self.task_name, self.robot_name)
        add_cameras(self.scene, task, self.files(), names, height, width)
        for name in names:
            field = f"image_{name}"
            term = ObservationTermCfg(func=mdp.picture, params={"sensor": field})
            setattr(self.observations[OWN_GROUP], field, term)


class TaskEnv(ManagerBasedRLEnv):
    """N environments of one of Handoff's tasks."""

    cfg: TaskEnvCfg

    def __init__(self, cfg: TaskEnvCfg, render_mode: str | None = None, **kwargs: Any) -> None:
        self.task = find_task(cfg.task_name, cfg.robot_name)
        self.arm = MirroredArm(self.task, cfg.scene.num_envs)
        self._files = cfg.files()
        self._state: SceneState | None = None
        self._seeds: np.ndarray | None = None
        self._current: EngineState | None = None
        # Graphs of kernels exist on NVIDIA GPUs only.
        cfg.sim.physics.use_cuda_graph = cfg.sim.device.startswith("cuda")
        super().__init__(cfg=cfg, render_mode=render_mode, **kwargs)

    def load_managers(self) -> None:
        """Makes the managers; the terms read the scene when they are made."""
        self._state = SceneState(self.scene, self.arm.layout, self._files)
        # Newton would repeat one torque over the whole control period; the impedance law needs a
        # new one at every physics step.
        self.sim.physics_manager.set_decimation(1)
        self._physics_handles_decimation = False
        super().load_managers()

    @property
    def observation_spec(self) -> Mapping[str, FieldSpec]:
        """Fields of the observation, without pictures."""
        return self.arm.observation_spec

    @property
    def action_spec(self) -> ActionSpec:
        """Entries of an action."""
        return self.arm.action_spec

    def reset_each(self, env_ids: np.ndarray, seeds: np.ndarray) -> Any:
        """Starts episodes in environments `env_ids` (M,), each from its own seed (M,).

        Returns:
            The observations of all environments.
        """
        self._seeds = seeds
        try:
            observation, _ = self.reset(torch.as_tensor(env_ids, device=self.device))
        finally:
            self._seeds = None
        return observation

    def start(self, env_ids: np.ndarray) -> None:
        """Puts environments into initial states, drawn from the seeds of `reset_each`, or from
        torch's generator, which Isaac Lab seeds."""
        assert self._state is not None
        seeds = self._seeds
        if seeds is None:
            seeds = torch.randint(0, 2**31, (len(env_ids),)).numpy()
        self.load_state()
        self.arm.start(env_ids, seeds)
        self._state.write_at_rest(env_ids, self.arm.qpos[env_ids])
        show_goals(self.scene, self._files, env_ids, self.arm.goal(env_ids))
        self.forget_state()

    def load_state(self) -> None:
        """Copies positions and velocities of the scene to `arm`.

        Raises:
            HandoffError: more contacts or constraints than `task.capacity`.
        """
        assert self._state is not None
        overflow = NewtonManager._solver.mjw_data.overflow.numpy()
        check_capacity(self.arm.name, overflow, self.task.capacity)
        self.arm.load(*self._state.read())

    def forget_state(self) -> None:
        """Must be called when the state of the scene changes."""
        self._current = None

    def current(self) -> EngineState:
        """Observation, reward and flags in the current state."""
        if self._current is None:
            self.load_state()
            self._current = self.arm.read()
        return self._current

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        """A float32 tensor on the environments' device."""
        return torch.as_tensor(array, dtype=torch.float32, device=self.device)

    def save_state(self) -> EnvState:
        """All that decides the future, one row per environment."""
        assert self._state is not None
        fixtures = {FIXTURE + name: pose for name, pose in self._state.fixture_poses().items()}
        rows = {name: tensor.cpu().numpy().copy() for name, tensor in self._physics().items()}
        variables = {name: array.copy() for name, array in self.arm.variables().items()}
        length = self.episode_length_buf.cpu().numpy().copy()
        return {**rows, **fixtures, **variables, "episode_length": length}

    def restore_state(self, env_ids: np.ndarray, state: EnvState) -> Any:
        """Puts row i of a saved state into environment `env_ids[i]`.

        Returns:
            The observations of all environments.
        """
        assert self._state is not None
        ids = torch.as_tensor(env_ids, device=self.device)
        # As a reset does, so that Isaac Lab computes what it derives from the positions anew.
        self.reset(ids)
        fixtures = {name: state[FIXTURE + name] for name in self._files.fixtures}
        self._state.place_fixtures(env_ids, fixtures)
        self._write_physics(ids, state)
        for name, array in self.arm.variables().items():
            array[env_ids] = state[name]
        show_goals(self.scene, self._files, env_ids, self.arm.goal(env_ids))
        length = torch.as_tensor(state["episode_length"], device=self.device)
        self.episode_length_buf[ids] = length
        self.sim.forward()
        # Where a fixture was placed, the solver has begun anew.
        self._write_physics(ids, state)
        self.forget_state()
        self.obs_buf = self.observation_manager.compute()
        return self.obs_buf

    def _write_physics(self, ids: torch.Tensor, state: EnvState) -> None:
        for name, tensor in self._physics().items():
            tensor[ids] = torch.as_tensor(state[name], device=tensor.device)

    def _physics(self) -> dict[str, torch.Tensor]:
        """Newton's positions, velocities and the solver's start, (N, ...) each; views."""
        import warp

        state = NewtonManager.backend.state_0
        solver = NewtonManager._solver.mjw_data
        arrays = {
            "joint_q": state.joint_q,
            "joint_qd": state.joint_qd,
            "warmstart": solver.qacc_warmstart,
        }
        return {
            name: warp.to_torch(array).view(self.num_envs, -1) for name, array in arrays.items()
        }


def _late(env: TaskEnv) -> torch.Tensor:
    return env.episode_length_buf >= env.max_episode_length


@cache
def find_task(name: str, robot: str) -> Task:
    """One of Handoff's tasks, for an arm.

    Raises:
        HandoffError: the task is not one of Isaac Lab's.
    """
    if name not in OWN_TASKS:
        raise HandoffError(f"isaaclab: no task '{name}', expected one of {', '.join(OWN_TASKS)}.")
    return import_module(f"sim.tasks.{name}").task(find_robot(robot))


@cache
def _find_files(name: str, robot: str) -> SceneFiles:
    return scene_files(find_task(name, robot))


@cache
def register(name: str, robot: str) -> str:
    """Registers one of Handoff's tasks for an arm, and returns its Gymnasium id."""

    def configure() -> TaskEnvCfg:
        return TaskEnvCfg(task_name=name, robot_name=robot)

    identity = f"Handoff-{name}-{robot}"
    gymnasium.register(
        id=identity,
        entry_point=f"{__name__}:TaskEnv",
        disable_env_checker=True,
        kwargs={"env_cfg_entry_point": configure},
    )
    return identity


for _name in OWN_TASKS:
    for _robot in ROBOTS:
        register(_name, _robot)
