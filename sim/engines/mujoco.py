"""Simulates N environments of an arm at a task with MuJoCo on the CPU, stepped by
`mujoco.rollout`'s C threads.

Each control period is one call: the impedance law is part of the model (`sim.scene.scene`), and the
targets of all physics steps of the period are passed in advance, interpolated linearly from the
last period's. An environment's state is a row of an array, so environments are saved, restored and
selected by indexing. A row's future depends only on the row, because every call starts the
constraint solver cold.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from robots.config import Count, config
from robots.control.actions import ActionSpace
from robots.errors import HandoffError
from robots.interfaces import EnvState
from robots.spec import FieldSpec
from sim.engine import EngineState
from sim.engines.arm_engine import ArmEngine, controlled_scene
from sim.episode_streams import EpisodeStream
from sim.scene import randomize
from sim.scene.appearance import (
    Appearance,
    apply_look,
    draw_look,
    drawn_textures,
    look_of,
    look_size,
    reset_look,
)
from sim.scene.cameras import Cameras, CamerasConfig, latest_positions
from sim.scene.clutter import add_clutter
from sim.scene.contact_cost import ContactCost, add_contact_sensors
from sim.scene.dynamics import ArmDynamics, add_payload, apply_drawn, apply_dynamics
from sim.scene.randomize import Places, Range
from sim.tasks.task import Task


@config
class MujocoConfig:
    """Options of a task's environments in MuJoCo."""

    actions: ActionSpace | None = None
    """Action space of the arm; None takes the task's own."""
    reward: Literal["dense", "sparse"] = "dense"
    """Reward of a step. `dense`: the task's weighted terms. `sparse`: 1 on success, otherwise 0."""
    randomized: bool = False
    """Whether each episode draws masses, frictions, gains and others from the task's ranges."""
    ranges: tuple[Range, ...] = ()
    """Physical quantities that each episode draws, in place of those of `randomized`."""
    places: Places = ()
    """Family of environments that share `ranges` and the bounds of `dynamics`: one row per member
    with the place of each range, then of each value of `dynamics`, between its bounds, 0 to 1. An
    episode with seed s is that of row s modulo their number; empty lets episodes draw."""
    cameras: CamerasConfig | None = None
    """Cameras whose images are observed; None renders none."""
    appearance: Appearance | None = None
    """What cameras see that differs from the task's own scene; None changes nothing."""
    dynamics: ArmDynamics | None = None
    """Tuned parameters of the arm; None keeps the model's own."""
    threads: Count = 1
    """Number of physics threads, which does not affect the results."""


def build_model(
    task: Task,
    actions: ActionSpace,
    dynamics: ArmDynamics | None = None,
    *,
    contact_sensors: bool = False,
    distractors: int = 0,
) -> Any:
    """Compiles the task's scene with the impedance law for the action space, with tuned parameters
    of the arm, with the sensors of unwanted contacts if requested, and with hidden distractors.

    Raises:
        HandoffError: an error of `sim.scene.dynamics.apply_dynamics`.
    """
    spec = controlled_scene(task, actions)
    if contact_sensors:
        add_contact_sensors(spec, task.robot, task.handled)
    add_clutter(spec, distractors)
    if dynamics is None:
        return spec.compile()
    if any(item.what == "payload" for item in dynamics.values):
        add_payload(spec, task.robot, compensated=dynamics.payload_compensated)
    model = spec.compile()
    apply_dynamics(dynamics, model, task.robot)
    return model


class MujocoEngine(ArmEngine):
    """Implements `sim.engine.Engine`."""

    observation_spec: Mapping[str, FieldSpec]

    def __init__(
        self,
        task: Task,
        num_envs: int,
        config: MujocoConfig | None = None,
        contact_threshold: float | None = None,
    ) -> None:
        """Compiles the task.

        Args:
            task: the simulated task.
            num_envs: N.
            config: options of the environments.
            contact_threshold: force of unwanted contacts above which they have a cost [N], reported
                as `cost` in `info` (`sim.scene.contact_cost`); None reports no cost.

        Raises:
            HandoffError: a control period that is not a multiple of the physics step, fewer than
                one thread, a negative contact threshold, cameras without OpenGL, an appearance
                without cameras, or dynamics of another robot or of a controller that the action
                space does not have.
        """
        import mujoco
        from mujoco import rollout

        self.config = config or MujocoConfig()
        if self.config.threads < 1:
            raise HandoffError(
                f"mujoco {task.name}: {self.config.threads} threads, at least 1 is needed."
            )
        if contact_threshold is not None and not contact_threshold >= 0.0:
            raise HandoffError(
                f"mujoco {task.name}: contact_threshold is {contact_threshold} N, expected at least 0."
            )
        look = self.config.appearance
        if look is not None and self.config.cameras is None:
            raise HandoffError(
                f"mujoco {task.name}: an appearance without cameras, which nothing sees. Set cameras, or remove "
                "appearance."
            )
        actions = self.config.actions or task.actions
        sensors = contact_threshold is not None
        self.model = build_model(
            task,
            actions,
            self.config.dynamics,
            contact_sensors=sensors,
            distractors=0 if look is None else look.distractors,
        )
        super().__init__(
            f"mujoco {task.name}", task, num_envs, self.model, actions, self.config.reward
        )
        self.set_delay(self.config.dynamics)
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
        self._ranges = randomize.drawn_ranges(
            task.ranges, self.config.ranges, self.config.randomized, f"mujoco {task.name}"
        )
        self._draws = np.ones((num_envs, len(self._ranges), 3))
        tuned = self.config.dynamics or ArmDynamics()
        self._uncertain = tuned if tuned.varies else None
        self._places = np.zeros((num_envs, len(tuned.values) if tuned.varies else 0))
        """(N, D) places of the uncertain values of the arm between their bounds."""
        varying = len(self._ranges) + self._places.shape[1]
        randomize.check_places(self.config.places, varying, self.name)
        self._family = np.array(self.config.places)
        """(M, R + D) places of the members of a family; empty lets episodes draw."""
        self._models = [self.model] * num_envs
        if self._varies:
            self._models = [copy.copy(self.model) for _ in range(num_envs)]
        self._start_data = mujoco.MjData(self.model)
        self._looks = np.zeros((num_envs, 0))
        if look is not None:
            self._looks = np.zeros((num_envs, look_size(look, self.model)))
        self._cost: ContactCost | None = None
        if contact_threshold is not None:
            self._cost = ContactCost(self.model, num_envs, contact_threshold)
        self._cameras: Cameras | None = None
        latency = 0
        if self.config.cameras is not None:
            textures = () if look is None else drawn_textures(look, self.model)
            self._cameras = Cameras(self.model, self.config.cameras, textures)
            latency = round(self.config.cameras.latency / self.model.opt.timestep)
            self.observation_spec = {**self.observation_spec, **self._cameras.specs()}
        self._earlier = np.zeros((num_envs, latency, self.model.nq))
        """(N, L, nq) positions of the latest L physics steps before the current one, oldest first,
        where pictures are L steps old."""

    @property
    def picture_age(self) -> float:
        """Age of the pictures that are observed [s]."""
        return self._earlier.shape[1] * self.model.opt.timestep

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`."""
        self._state[env_ids] = 0.0
        if self._cost is not None:
            self._cost.cost_N[env_ids] = 0.0
        self._start(env_ids, seeds)
        self._earlier[env_ids] = self._qpos[env_ids, None]
        if not self._varies:
            return
        for env_id, seed in zip(env_ids.tolist(), seeds.tolist(), strict=True):
            self._draw_parameters(env_id, seed)
            if self.config.appearance is not None:
                self._looks[env_id] = self._draw_look(self.config.appearance, env_id, seed)
            self._write_draws(env_id)

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`."""
        rows = np.flatnonzero(running)
        all_running = len(rows) == self.num_envs
        start = self._ctrl if all_running else self._ctrl[rows]
        knots = self._command(action, rows)
        control = self._ramp(start, knots, rows)
        state = np.ascontiguousarray(self._state[rows])
        out = np.empty((len(rows), self.substeps, state.shape[1]))
        sensors = np.empty((len(rows), self.substeps, self.model.nsensordata))
        models = self._models if all_running else [self._models[i] for i in rows]
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
        if self._earlier.shape[1]:
            qpos = slice(1, 1 + self.model.nq)
            self._earlier[rows] = latest_positions(
                self._earlier[rows], self._state[rows, qpos], out[:, :, qpos]
            )
        self._state[rows] = out[:, -1]
        self._ctrl[rows] = knots[:, -1]
        if self._cost is not None:
            self._cost.measure(rows, sensors)
        self._changed()

    def read(self) -> EngineState:
        """See `Engine.read`."""
        state = super().read()
        # After a MuJoCo warning (values too large, no memory for contacts) a rollout stops within
        # the period.
        periods = self._state[:, 0] / self.period
        stopped = ~(np.abs(periods - np.round(periods)) < 1e-3)
        state = state._replace(reward=np.where(stopped, np.nan, state.reward))
        if self._cost is not None:
            state.info["cost"] = self._cost.cost_N.copy()
        if self._cameras is not None:
            qpos = self._earlier[:, 0] if self._earlier.shape[1] else self._qpos
            state.observation.update(self._cameras.render(self._models, qpos, self._goal))
        return state

    def save(self) -> EnvState:
        """See `Engine.save`; always exact."""
        state: EnvState = {
            "physics": self._state.copy(),
            "ctrl": self._ctrl.copy(),
            "target": self._target.copy(),
            "goal": self._goal.copy(),
        }
        if self._ranges:
            state["draws"] = self._draws.copy()
        if self._uncertain is not None:
            state["places"] = self._places.copy()
        if self.config.appearance is not None:
            state["look"] = self._looks.copy()
        if self._cost is not None:
            state["cost"] = self._cost.cost_N.copy()
        if self._earlier.shape[1]:
            state["earlier"] = self._earlier.copy()
        return state

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        """See `Engine.restore`.

        Raises:
            HandoffError: a state of another task, action space, randomisation, appearance, contact
                cost or latency of the cameras.
        """
        expected = {name: array.shape[1:] for name, array in self.save().items()}
        given = {name: np.shape(array)[1:] for name, array in state.items()}
        if given != expected:
            raise HandoffError(
                f"{self.name}: state fields {given} per environment, expected {expected}. "
                "Was it saved with another task, action space, randomisation, appearance, contact_threshold or latency "
                "of the cameras?"
            )
        self._state[env_ids], self._ctrl[env_ids] = state["physics"], state["ctrl"]
        self._target[env_ids], self._goal[env_ids] = state["target"], state["goal"]
        if self._cost is not None:
            self._cost.cost_N[env_ids] = state["cost"]
        if self._earlier.shape[1]:
            self._earlier[env_ids] = state["earlier"]
        if self._ranges:
            self._draws[env_ids] = state["draws"]
        if self._uncertain is not None:
            self._places[env_ids] = state["places"]
        if self.config.appearance is not None:
            self._looks[env_ids] = state["look"]
        for env_id in env_ids.tolist() if self._varies else ():
            self._write_draws(env_id)
        self._changed()

    def close(self) -> None:
        """Stops the threads and frees the OpenGL context."""
        self._pool.close()
        if self._cameras is not None:
            self._cameras.close()

    @property
    def _varies(self) -> bool:
        """Whether episodes have models of their own."""
        own = self._uncertain is not None or self.config.appearance is not None
        return bool(self._ranges) or own

    def _draw_parameters(self, env_id: int, seed: int) -> None:
        """Draws the parameters of an episode, or takes those of its member of the family."""
        if len(self._family):
            own = self._family[seed % len(self._family)]
            unit, self._places[env_id] = np.split(own, [len(self._ranges)])
            shared = np.repeat(unit[:, None], 3, axis=1)
            self._draws[env_id] = randomize.values_at(self._ranges, shared)
            return
        # A separate stream, so that initial states are the same with and without randomisation.
        rng = np.random.default_rng([seed, EpisodeStream.DOMAIN_RANDOMIZATION])
        self._draws[env_id] = randomize.draw(self._ranges, rng)
        rng = np.random.default_rng([seed, EpisodeStream.DYNAMICS])
        self._places[env_id] = rng.random(self._places.shape[1])

    def _draw_look(self, appearance: Appearance, env_id: int, seed: int) -> np.ndarray:
        import mujoco

        data = self._start_data
        data.qpos[:] = self._qpos[env_id]
        data.mocap_pos[:] = self._goal[env_id, : 3 * self.model.nmocap].reshape(-1, 3)
        mujoco.mj_kinematics(self.model, data)
        root = self.task.robot.link_names[0]
        return draw_look(appearance, self.model, data, root, seed).flat()

    def _write_draws(self, env_id: int) -> None:
        import mujoco

        model = self._models[env_id]
        base = self.model
        dynamics = self.config.dynamics
        if self._uncertain is not None:
            dynamics = self._uncertain.drawn(self._places[env_id])
            base = copy.copy(self.model)
            apply_drawn(self._uncertain, dynamics, self.model, base, self.task.robot)
            apply_drawn(self._uncertain, dynamics, self.model, model, self.task.robot)
        if self.config.appearance is not None:
            reset_look(self.model, model)
        randomize.apply(self._ranges, self._draws[env_id], base, model)
        if self._ranges or self._uncertain is not None:
            # Contact softness depends on quantities that the engine derives from the masses.
            mujoco.mj_setConst(model, self._data[0])
        self._delay[env_id] = self.delay_steps(
            randomize.delay_of(self._ranges, self._draws[env_id]), dynamics
        )
        if self.config.appearance is not None:
            look = look_of(self.config.appearance, self.model, self._looks[env_id])
            apply_look(self.config.appearance, look, model)
