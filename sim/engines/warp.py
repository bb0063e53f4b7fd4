"""Simulates the same tasks with mujoco-warp on a GPU, thousands of environments at once, or on a
CPU for tests.

The model is that of `sim.engines.mujoco`. Its features in mujoco-warp 4.0.0:

- Site transmissions with a reference site, elliptic cones, joint equalities, gravity compensation
  by actuators, friction loss and the integrator implicitfast are supported and used.
- The flag `autoreset` is not supported. mujoco-warp never resets an environment itself, which
  corresponds to the disabled flag, so its copy of the model has the flag's default.
- Values are float32. From equal states, joint positions after one control period without contact
  agree with MuJoCo's to 1e-5 rad; after contact, trajectories diverge and only their statistics
  agree.

Between control periods environments are NumPy arrays, as everywhere in `sim`: states and targets
are copied to the device before a period and states are copied back after it, so a partial reset
writes rows, and the row of a frozen environment is not written back. As in the CPU engine, each
period starts the constraint solver cold, so that a row's future depends only on the row.

On a CUDA device the physics steps of a period are one captured graph. That code follows
mujoco-warp's own command line and has not been run on a GPU. The tasks' terms are NumPy on the
host, which limits the speed of large batches. On a CPU a step of `reach` takes 6 times (256
environments) to 170 times (4 environments) as long as with MuJoCo, which suffices for tests.
"""

# The compiled mujoco module has no type stubs; mujoco-warp is an optional dependency.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from robots.config import config
from robots.control.actions import ActionSpace
from robots.interfaces import EnvState
from robots.spec import FieldSpec
from sim.engine import EngineState
from sim.engines.arm_engine import ArmEngine
from sim.engines.mujoco import build_model
from sim.engines.warp_physics import WarpPhysics
from sim.scene.cameras import CamerasConfig, camera_fields, latest_positions
from sim.scene.dynamics import ArmDynamics, refuse_varying
from sim.scene.model_draws import ModelDraws
from sim.scene.randomize import Range, drawn_ranges
from sim.tasks.task import Task

if TYPE_CHECKING:
    from sim.scene.warp_cameras import WarpCameras


@config
class WarpConfig:
    """Options of a task's environments in mujoco-warp."""

    actions: ActionSpace | None = None
    """Action space of the arm; None takes the task's own."""
    reward: Literal["dense", "sparse"] = "dense"
    """Reward of a step. `dense`: the task's weighted terms. `sparse`: 1 on success, otherwise 0."""
    randomized: bool = False
    """Whether each episode draws masses, frictions, gains and others from the task's ranges."""
    ranges: tuple[Range, ...] = ()
    """Physical quantities that each episode draws, in place of those of `randomized`."""
    dynamics: ArmDynamics | None = None
    """Tuned parameters of the arm; None keeps the model's own."""
    cameras: CamerasConfig | None = None
    """Cameras whose images are observed; None renders none."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the physics."""


class WarpEngine(ArmEngine):
    """Implements `sim.engine.Engine`."""

    observation_spec: Mapping[str, FieldSpec]

    def __init__(self, task: Task, num_envs: int, config: WarpConfig | None = None) -> None:
        """Compiles the task and copies it to the device.

        Args:
            task: the simulated task.
            num_envs: N.
            config: options of the environments.

        Raises:
            HandoffError: mujoco-warp is not installed, there is no such device, the model has a
                feature that mujoco-warp does not support, or the control period is not a multiple
                of the physics step.
        """
        self.config = config or WarpConfig()
        actions = self.config.actions or task.actions
        refuse_varying(self.config.dynamics, f"warp {task.name}")
        self.model = build_model(task, actions, self.config.dynamics)
        super().__init__(
            f"warp {task.name}", task, num_envs, self.model, actions, self.config.reward
        )
        self.set_delay(self.config.dynamics)
        self._qpos = np.zeros((num_envs, self.model.nq))
        self._qvel = np.zeros((num_envs, self.model.nv))
        ranges = drawn_ranges(
            task.ranges, self.config.ranges, self.config.randomized, f"warp {task.name}"
        )
        cameras = self.config.cameras
        self._draws = ModelDraws(ranges, self.model, num_envs, pictured=cameras is not None)
        self._physics = WarpPhysics(
            self.name,
            self.model,
            num_envs,
            self.substeps,
            self.config.device,
            task.capacity,
            self._draws.fields,
        )
        self._cameras: WarpCameras | None = None
        latency = 0
        if cameras is not None:
            self._cameras = self._physics.cameras(self.model, cameras)
            latency = round(cameras.latency / self.model.opt.timestep)
            self.observation_spec = {**self.observation_spec, **camera_fields(cameras)}
        self._earlier = np.zeros((num_envs, latency, self.model.nq))
        """(N, L, nq) positions of the latest L physics steps before the current one, oldest first,
        where pictures are L steps old."""

    @property
    def picture_age(self) -> float:
        """Age of the pictures that are observed [s]."""
        return self._earlier.shape[1] * self.model.opt.timestep

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`."""
        self._start(env_ids, seeds)
        self._earlier[env_ids] = self._qpos[env_ids, None]
        self._draws.draw(env_ids, seeds)
        self._use_draws(env_ids)

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`.

        Raises:
            HandoffError: more contacts or constraints than were allocated.
        """
        rows = np.flatnonzero(running)
        knots = self._command(action, rows)
        control = np.empty((self.num_envs, self.substeps, self.model.nu))
        control[:] = self._ctrl[:, None]
        control[rows] = self._ramp(self._ctrl[rows], knots, rows)
        qpos, qvel = self._physics.advance(self._qpos, self._qvel, control)
        if self._earlier.shape[1]:
            path = np.swapaxes(self._physics.path().cpu().numpy(), 0, 1)[rows]
            self._earlier[rows] = latest_positions(self._earlier[rows], self._qpos[rows], path)
        self._qpos[rows] = qpos[rows]
        self._qvel[rows] = qvel[rows]
        self._ctrl[rows] = knots[:, -1]
        self._changed()

    def read(self) -> EngineState:
        """See `Engine.read`."""
        state = super().read()
        if self._cameras is not None:
            qpos = self._earlier[:, 0] if self._earlier.shape[1] else self._qpos
            state.observation.update(self._cameras.render(qpos, self._goal))
        return state

    def save(self) -> EnvState:
        """See `Engine.save`; exact on one device."""
        state: EnvState = {
            "qpos": self._qpos.copy(),
            "qvel": self._qvel.copy(),
            "ctrl": self._ctrl.copy(),
        }
        state |= {"target": self._target.copy(), "goal": self._goal.copy()}
        if self._draws.ranges:
            state["draws"] = self._draws.values.copy()
        if self._earlier.shape[1]:
            state["earlier"] = self._earlier.copy()
        return state

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        """See `Engine.restore`."""
        self._qpos[env_ids] = state["qpos"]
        self._qvel[env_ids] = state["qvel"]
        self._ctrl[env_ids] = state["ctrl"]
        self._target[env_ids], self._goal[env_ids] = state["target"], state["goal"]
        if self._earlier.shape[1]:
            self._earlier[env_ids] = state["earlier"]
        if self._draws.ranges:
            self._draws.values[env_ids] = state["draws"]
            self._draws.write(env_ids)
            self._use_draws(env_ids)
        self._changed()

    def close(self) -> None:
        """Does nothing: the arrays on the device are freed with the engine."""

    def _use_draws(self, env_ids: np.ndarray) -> None:
        """Copies the drawn fields to the device, and sets the drawn delays."""
        if not self._draws.ranges:
            return
        for env_id in env_ids.tolist():
            drawn = float(self._draws.delay_s[env_id])
            self._delay[env_id] = self.delay_steps(drawn, self.config.dynamics)
        self._physics.write(self._draws.fields)
