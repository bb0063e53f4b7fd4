"""mujoco-warp: the same tasks on a GPU, thousands of worlds at once; on a CPU for tests.

The model is the one that `sim.engines.mujoco` steps. What mujoco-warp 4.0.0 does with its features:

- Site transmissions with a reference site, elliptic cones, joint equalities, gravity compensation
  by actuators, friction loss and the integrator implicitfast are all there, and are used as they
  are.
- The flag `autoreset` is unknown to it. It never resets a world by itself, which is what the
  disabled flag asks for, so the copy of the model that it gets has the flag at its default.
- Its numbers are float32. From equal states, joint positions after one control period without
  contact agree with MuJoCo's to 1e-5 rad; after contact, trajectories part and only their
  statistics agree.

Worlds live in NumPy between control periods, as everywhere in `sim`: states and targets go to the
device before a period and states come back after it, so a partial reset writes rows, and a frozen
world is a row not written back. Like the CPU engine, each period starts the constraint solver cold,
so that a row's future depends on the row alone.

On a CUDA device the physics steps of a period are one captured graph. That path follows
mujoco-warp's own command line and was never run, for want of a GPU. The tasks' terms are NumPy on
the host, which bounds the speed of large batches. On a CPU a step of `reach` takes 6 times (256
worlds) to 170 times (4 worlds) as long as MuJoCo's: that is for tests.
"""

# The compiled mujoco module has no type stubs; mujoco-warp is an optional dependency.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

from __future__ import annotations

import copy
from typing import Literal

import numpy as np

from robots.config import config
from robots.control.actions import ActionSpace
from robots.interfaces import WorldState
from sim.engines.arm_engine import ArmEngine
from sim.engines.mujoco import build_model
from sim.engines.warp_physics import Room, WarpPhysics
from sim.episode_streams import EpisodeStream
from sim.scene import randomize
from sim.tasks.task import Task

BATCHED = (
    "body_mass",
    "body_inertia",
    "body_subtreemass",
    "body_invweight0",
    "dof_invweight0",
    "dof_damping",
    "geom_friction",
    "pair_friction",
    "actuator_gainprm",
    "actuator_biasprm",
    "actuator_acc0",
)
"""Fields of the model that differ from world to world when randomised: those that are drawn and
those derived from them. Cameras and lights are left, for this engine draws no pictures."""


@config
class WarpConfig:
    """How the worlds of a task are made."""

    actions: ActionSpace | None = None
    """Action space of the arm; None takes the task's own."""
    reward: Literal["dense", "sparse"] = "dense"
    """`dense`: the task's weighted terms. `sparse`: 1 when solved, else 0."""
    randomized: bool = False
    """Whether each episode draws its own masses, frictions, gains, ... from the task's ranges."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where physics runs."""
    contacts: int = 64
    """Room for so many contacts per world, shared by all worlds."""
    constraints: int = 256
    """Room for so many rows of constraints in each world; an elliptic contact takes 3, 4 or 6."""


class WarpEngine(ArmEngine):
    """Implements `sim.engine.Engine`."""

    def __init__(self, task: Task, num_envs: int, config: WarpConfig | None = None) -> None:
        """Compiles the task and puts it on the device.

        Args:
            task: what is simulated.
            num_envs: N.
            config: how.

        Raises:
            HandoffError: mujoco-warp is not installed, there is no such device, the model has a
                feature that mujoco-warp lacks, or the physics step does not divide the control
                period.
        """
        self.config = config or WarpConfig()
        actions = self.config.actions or task.actions
        self.model = build_model(task, actions)
        super().__init__(
            f"warp {task.name}", task, num_envs, self.model, actions, self.config.reward
        )
        self._qpos = np.zeros((num_envs, self.model.nq))
        self._qvel = np.zeros((num_envs, self.model.nv))
        self._ranges = task.ranges if self.config.randomized else ()
        self._draws = np.ones((num_envs, len(self._ranges), 3))
        self._fields: dict[str, np.ndarray] = {}
        if self._ranges:
            self._drawn = copy.copy(self.model)
            self._fields = {
                name: np.stack([getattr(self.model, name)] * num_envs) for name in BATCHED
            }
        room = Room(self.config.contacts, self.config.constraints)
        self._physics = WarpPhysics(
            self.name, self.model, num_envs, self.substeps, self.config.device, room, self._fields
        )

    @property
    def qpos(self) -> np.ndarray:
        """(N, nq) generalised positions; a view."""
        return self._qpos

    @property
    def qvel(self) -> np.ndarray:
        """(N, nv) generalised velocities; a view."""
        return self._qvel

    def reset(self, worlds: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`."""
        self._start(worlds, seeds)
        if self._ranges:
            for world, seed in zip(worlds.tolist(), seeds.tolist(), strict=True):
                # The same stream as on the CPU engine: an episode is equally heavy, rough and slow
                # on both.
                chance = np.random.default_rng([seed, EpisodeStream.DOMAIN_RANDOMIZATION])
                self._draws[world] = randomize.draw(self._ranges, chance)
            self._write_draws(worlds)

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`.

        Raises:
            HandoffError: more contacts or constraints than there is room for.
        """
        rows = np.flatnonzero(running)
        knots = self._command(action, rows)
        control = np.empty((self.num_envs, self.substeps, self.model.nu))
        control[:] = self._ctrl[:, None]
        control[rows] = self._ramp(self._ctrl[rows], knots, rows)
        qpos, qvel = self._physics.advance(self._qpos, self._qvel, control)
        self._qpos[rows], self._qvel[rows], self._ctrl[rows] = qpos[rows], qvel[rows], knots[:, -1]
        self._changed()

    def save(self) -> WorldState:
        """See `Engine.save`; exact on one device."""
        state: WorldState = {
            "qpos": self._qpos.copy(),
            "qvel": self._qvel.copy(),
            "ctrl": self._ctrl.copy(),
        }
        state |= {"target": self._target.copy(), "goal": self._goal.copy()}
        if self._ranges:
            state["draws"] = self._draws.copy()
        return state

    def restore(self, worlds: np.ndarray, state: WorldState) -> None:
        """See `Engine.restore`."""
        self._qpos[worlds], self._qvel[worlds], self._ctrl[worlds] = (
            state["qpos"],
            state["qvel"],
            state["ctrl"],
        )
        self._target[worlds], self._goal[worlds] = state["target"], state["goal"]
        if self._ranges:
            self._draws[worlds] = state["draws"]
            self._write_draws(worlds)
        self._changed()

    def close(self) -> None:
        """Nothing to free: the arrays on the device go with the engine."""

    def _write_draws(self, worlds: np.ndarray) -> None:
        import mujoco

        data = mujoco.MjData(self.model)
        for world in worlds.tolist():
            randomize.apply(self._ranges, self._draws[world], self.model, self._drawn)
            # Contact softness is scaled by quantities that the engine derives from the masses.
            mujoco.mj_setConst(self._drawn, data)
            for name, values in self._fields.items():
                values[world] = getattr(self._drawn, name)
            seconds = randomize.delay_of(self._ranges, self._draws[world])
            self._delay[world] = min(self.substeps - 1, round(seconds / self.model.opt.timestep))
        self._physics.write(self._fields)
