"""MuJoCo on the CPU: N worlds of an arm at a task, stepped by `mujoco.rollout`'s C threads.

Each control period is one call: the impedance law is part of the model (`sim.scene.scene`), and the
targets of all physics steps of the period are given in advance, rising linearly from the last
period's. A world's state is a row of an array, so saving, restoring and picking worlds is indexing;
and a row's future depends on the row alone, for every call starts the constraint solver cold.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from robots.config import config
from robots.control.actions import ActionSpace, CartesianDelta, PdTarget
from robots.errors import HandoffError
from robots.interfaces import WorldState
from robots.spec import FieldSpec
from sim.engine import EngineState
from sim.engines.arm_engine import ArmEngine
from sim.episode_streams import EpisodeStream
from sim.scene import randomize
from sim.scene.cameras import Cameras, CamerasConfig
from sim.scene.scene import add_cartesian_impedance, add_gripper, add_joint_impedance
from sim.tasks.task import Task


@config
class MujocoConfig:
    """How the worlds of a task are made."""

    actions: ActionSpace | None = None
    """Action space of the arm; None takes the task's own."""
    reward: Literal["dense", "sparse"] = "dense"
    """`dense`: the task's weighted terms. `sparse`: 1 when solved, else 0."""
    randomized: bool = False
    """Whether each episode draws its own masses, frictions, gains, ... from the task's ranges."""
    cameras: CamerasConfig | None = None
    """Pictures as observations; None makes none."""
    threads: int = 1
    """Threads of physics. Results do not depend on it."""


def build_model(task: Task, actions: ActionSpace) -> Any:
    """Compiles the task's scene with the impedance law that suits the action space."""
    spec = task.scene()
    if isinstance(actions, (CartesianDelta, PdTarget)):
        add_cartesian_impedance(spec, task.gains, task.robot)
    else:
        add_joint_impedance(spec, task.gains, task.robot)
    if "finger_left" in [joint.name for joint in spec.joints]:
        add_gripper(spec)
    return spec.compile()


class MujocoEngine(ArmEngine):
    """Implements `sim.engine.Engine`."""

    observation_spec: Mapping[str, FieldSpec]

    def __init__(self, task: Task, num_envs: int, config: MujocoConfig | None = None) -> None:
        """Compiles the task.

        Args:
            task: what is simulated.
            num_envs: N.
            config: how.

        Raises:
            HandoffError: the physics step does not divide the control period, fewer than one
                thread, or pictures without OpenGL.
        """
        import mujoco
        from mujoco import rollout

        self.config = config or MujocoConfig()
        if self.config.threads < 1:
            raise HandoffError(
                f"mujoco {task.name}: {self.config.threads} threads asked for, at least 1 is needed."
            )
        actions = self.config.actions or task.actions
        self.model = build_model(task, actions)
        super().__init__(
            f"mujoco {task.name}", task, num_envs, self.model, actions, self.config.reward
        )
        self._state_spec = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
        self._ctrl_spec = mujoco.mjtState.mjSTATE_CTRL.value
        size = mujoco.mj_stateSize(self.model, self._state_spec)
        if size != 1 + self.model.nq + self.model.nv:
            raise HandoffError(
                f"{self.name}: a state of {size} numbers, expected time, qpos and qvel "
                f"({1 + self.model.nq + self.model.nv}). Does the scene have actuators with activation?"
            )
        self._state = np.zeros((num_envs, size))
        self._qpos = self._state[:, 1 : 1 + self.model.nq]
        self._qvel = self._state[:, 1 + self.model.nq :]
        threads = self.config.threads
        self._pool = rollout.Rollout(nthread=0 if threads == 1 else threads)
        self._data = [mujoco.MjData(self.model) for _ in range(threads)]
        self._ranges = task.ranges if self.config.randomized else ()
        self._models = [self.model] * num_envs
        if self._ranges:
            self._models = [copy.copy(self.model) for _ in range(num_envs)]
        self._draws = np.ones((num_envs, len(self._ranges), 3))
        self._cameras: Cameras | None = None
        if self.config.cameras is not None:
            self._cameras = Cameras(self.model, self.config.cameras)
            self.observation_spec = {**self.observation_spec, **self._cameras.specs()}

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
        self._state[worlds] = 0.0
        self._start(worlds, seeds)
        if self._ranges:
            for world, seed in zip(worlds.tolist(), seeds.tolist(), strict=True):
                # A stream of its own, so that starts are the same with and without randomisation.
                chance = np.random.default_rng([seed, EpisodeStream.DOMAIN_RANDOMIZATION])
                self._draws[world] = randomize.draw(self._ranges, chance)
                self._write_draws(world)

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`."""
        rows = np.flatnonzero(running)
        everyone = len(rows) == self.num_envs
        before = self._ctrl if everyone else self._ctrl[rows]
        knots = self._command(action, rows)
        control = self._ramp(before, knots, rows)
        state = np.ascontiguousarray(self._state[rows])
        out = np.empty((len(rows), self.substeps, state.shape[1]))
        sensors = np.empty((len(rows), self.substeps, self.model.nsensordata))
        models = self._models if everyone else [self._models[i] for i in rows]
        self._pool.rollout(
            models,
            self._data,
            state,
            control,
            nstep=self.substeps,
            control_spec=self._ctrl_spec,
            state=out,
            sensordata=sensors,
            skip_checks=True,
        )
        self._state[rows] = out[:, -1]
        self._ctrl[rows] = knots[:, -1]
        self._changed()

    def read(self) -> EngineState:
        """See `Engine.read`."""
        reading = super().read()
        # Where MuJoCo warns (numbers too large, no memory for contacts) a rollout leaves the world
        # within its period.
        periods = self._state[:, 0] / self.period
        stopped = ~(np.abs(periods - np.round(periods)) < 1e-3)
        reading = reading._replace(reward=np.where(stopped, np.nan, reading.reward))
        if self._cameras is not None:
            reading.observation.update(self._cameras.render(self._models, self._qpos, self._goal))
        return reading

    def save(self) -> WorldState:
        """See `Engine.save`; always exact."""
        state: WorldState = {
            "physics": self._state.copy(),
            "ctrl": self._ctrl.copy(),
            "target": self._target.copy(),
            "goal": self._goal.copy(),
        }
        if self._ranges:
            state["draws"] = self._draws.copy()
        return state

    def restore(self, worlds: np.ndarray, state: WorldState) -> None:
        """See `Engine.restore`.

        Raises:
            HandoffError: the state of other worlds: another task or action space, or (not)
                randomised.
        """
        expected = {name: array.shape[1:] for name, array in self.save().items()}
        given = {name: np.shape(array)[1:] for name, array in state.items()}
        if given != expected:
            raise HandoffError(
                f"{self.name}: a state with {given} per world, expected {expected}. "
                "Was it saved with another task, action space or randomisation?"
            )
        self._state[worlds], self._ctrl[worlds] = state["physics"], state["ctrl"]
        self._target[worlds], self._goal[worlds] = state["target"], state["goal"]
        if self._ranges:
            self._draws[worlds] = state["draws"]
            for world in worlds.tolist():
                self._write_draws(world)
        self._changed()

    def close(self) -> None:
        """Stops the threads and frees the OpenGL context."""
        self._pool.close()
        if self._cameras is not None:
            self._cameras.close()

    def _write_draws(self, world: int) -> None:
        import mujoco

        model = self._models[world]
        randomize.apply(self._ranges, self._draws[world], self.model, model)
        # Contact softness is scaled by quantities that the engine derives from the masses.
        mujoco.mj_setConst(model, self._data[0])
        seconds = randomize.delay_of(self._ranges, self._draws[world])
        self._delay[world] = round(seconds / self.model.opt.timestep)
        if not 0 <= self._delay[world] < self.substeps:
            raise HandoffError(
                f"{self.name}: a delay of {seconds:.4f} s, expected less than the control period of {self.period} s. "
                "Is the task's range of delays in milliseconds?"
            )
