"""Wraps Isaac Lab environments (ManagerBasedRLEnv and DirectRLEnv, by Gymnasium id) as an engine.

Status: written for the `isaaclab` 3.0.0 wheel, which cannot be installed together with this project
and runs on an environment server (`sim.servers`). Tests check every call against names and
signatures recorded from that wheel (`tests/sim/isaaclab_api.json`), and run the adapter on a small
environment with the same semantics. On Isaac Lab itself it has run on a CPU with the Newton back
end, with a direct task of our own; not with Isaac Sim, on a GPU, or with a stock task.

Restrictions compared with other engines:
- Isaac Lab has one random generator instead of one per environment. `seeding="per_env"` reseeds it
  before each environment's reset, so that an initial state depends on its own seed; later noise,
  commands and events are shared by all environments, and GPU physics is not reproducible to the
  last bit. `seeding="batch"` seeds once per reset and is meant for thousands of environments.
- Every step steps all environments, including frozen ones, and resets ended ones within the step.
  The final observation is Isaac Lab's `extras["final_obs"]`, enabled by `cfg.compute_final_obs`.
  For an observation group with a history, Isaac Lab computes it without the last frame.
- A manager-based reset appends the current observation to the histories of all environments,
  including running ones.
- Isaac Lab's scene state lacks managers' buffers, commands, solver and random state, so `save`
  raises an error. Handoff's own tasks (`sim.isaac`) are an exception: they hold nothing else, and
  save what the solver starts from; each of their environments is reset from its own seed, at once
  with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal

import numpy as np

from robots.config import Count, Pixels, Seed, config
from robots.errors import HandoffError
from robots.interfaces import EnvState, Observation
from robots.outside import import_outside
from robots.spec import ActionSpec, FieldSpec
from sim.engine import EngineState

OWN_TASKS = ("reach", "pick_cube", "open_drawer")
"""Tasks of Handoff that exist in Isaac Lab, with the same fields, actions and initial states as in
MuJoCo (`sim.isaac`)."""
OWN_ROBOT = "fr3"
"""Name of their arm unless another one is given."""
OWN_MODULE = "sim.isaac.environment"
"""Module that registers them."""
OWN_GROUP = "policy"
"""Group of their observations, whose terms are fields."""


@config
class IsaacLabConfig:
    """Options of Isaac Lab."""

    device: str = "cuda:0"
    """Device of physics and tensors."""
    overrides: tuple[str, ...] = ()
    """Isaac Lab's own overrides of the task's configuration, such as `physics=newton_mjwarp`."""
    creation_seed: Seed = 0
    """Seed of the scene's construction (terrain, start-up randomisation)."""
    seeding: Literal["per_env", "batch"] = "per_env"
    """Seeding of resets. `per_env`: environments are reset one after another, each from its own
    seed. `batch`: one seed for all environments that are reset together; an environment that Isaac
    Lab has just reset itself is not reset again unless all are."""
    success_term: str = ""
    """Termination term (manager-based) that means success, such as `success`; "" for none."""
    max_steps: Count | None = None
    """Time limit [control periods]; None takes the task's own."""
    cameras: tuple[str, ...] = ()
    """Cameras of Handoff's own tasks, each observed as `image_<name>`."""
    height: Pixels = 128
    """Height of an image [px]."""
    width: Pixels = 128
    """Width of an image [px]."""


class IsaacLabEngine:
    """N environments of one Isaac Lab task; one engine per process, because Isaac Lab allows only
    one simulation."""

    def __init__(
        self,
        task: str,
        num_envs: int,
        config: IsaacLabConfig | None = None,
        robot: str = OWN_ROBOT,
    ) -> None:
        """Starts the simulator, which takes a minute, and resets once to read the observation's
        shapes.

        Args:
            task: one of `OWN_TASKS`, or a Gymnasium id registered by `isaaclab_tasks`, such as
                `Isaac-Reach-Franka` or `Isaac-Cartpole-Direct`; `module:id` imports the module that
                registers it.
            num_envs: N, at least 1.
            config: options of Isaac Lab.
            robot: the arm of a task in `OWN_TASKS`.

        Raises:
            HandoffError: Isaac Lab is not installed or older than 3.0, or has no such task or term;
                an arm for another task.
        """
        if num_envs < 1:
            raise HandoffError(f"isaaclab: {num_envs} environments, at least 1 is needed.")
        config = config or IsaacLabConfig()
        self._own = task in OWN_TASKS
        if not self._own and robot != OWN_ROBOT:
            raise HandoffError(
                f"isaaclab {task}: robot {robot}, but only {', '.join(OWN_TASKS)} take an arm by name. Leave robot out."
            )
        if self._own:
            config = replace(config, success_term=config.success_term or "success")
        self.config = config
        self.num_envs = num_envs
        self.name = f"isaaclab {task}"
        with ExitStack() as runtime:
            self._env = env = _launch(task, config, num_envs, robot, runtime)
            self._managed = hasattr(env, "observation_manager")
            self._check_success_term()
            self._runtime = runtime.pop_all()
        self.rate_hz = 1.0 / float(env.step_dt)
        # By convention direct tasks time out one step before their limit, manager-based ones at the
        # limit.
        own_limit = int(env.max_episode_length) - (0 if self._managed else 1)
        self.max_steps = own_limit if config.max_steps is None else config.max_steps
        self.action_spec = env.action_spec if self._own else _action_spec(env.single_action_space)
        # New tensors are created from these, so that this module need not import torch.
        self._indices = env.episode_length_buf
        self._numbers = env.episode_length_buf.float()
        observation, _ = env.reset(seed=config.creation_seed)
        self._observation = self._fields(observation)
        self.observation_spec: Mapping[str, FieldSpec] = {
            name: FieldSpec(
                shape=array.shape[1:],
                dtype=str(array.dtype),
                unit="u8" if array.dtype == np.uint8 else "1",
            )
            for name, array in self._observation.items()
        }
        if self._own:
            self.observation_spec = self.observation_spec | dict(env.observation_spec)
        self._reward = np.zeros(num_envs)
        self._terminated = np.zeros(num_envs, dtype=bool)
        self._success = np.zeros(num_envs, dtype=bool)
        self._reset_itself = np.zeros(num_envs, dtype=bool)
        self._fresh: Observation = dict(self._observation)

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`; the module's docstring states what a seed determines."""
        if self._own:
            self._fresh = self._fields(self._env.reset_each(env_ids, seeds))
        elif self.config.seeding == "per_env":
            for env_id, seed in zip(env_ids, seeds, strict=True):
                self._reset_rows(np.array([env_id]), int(seed))
        else:
            rows = (
                env_ids if len(env_ids) == self.num_envs else env_ids[~self._reset_itself[env_ids]]
            )
            if len(rows):
                self._reset_rows(
                    rows,
                    int(np.random.SeedSequence(seeds.tolist()).generate_state(1)[0] & 0x7FFFFFFF),
                )
        self._observation = _merged(self._observation, self._fresh, env_ids)
        self._reward[env_ids] = 0.0
        self._terminated[env_ids] = self._success[env_ids] = self._reset_itself[env_ids] = False

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """Steps all environments; see `Engine.step`.

        Raises:
            HandoffError: a running environment timed out in Isaac Lab before `max_steps`.
        """
        early = running & self._reset_itself
        if early.any():
            raise HandoffError(
                f"{self.name}: environment {int(np.flatnonzero(early)[0])} timed out in Isaac Lab before the limit of "
                f"{self.max_steps} steps and has started another episode. Set max_steps to the task's own limit."
            )
        safe = np.where(running[:, None], action, 0.0)
        tensors = self._env.step(self._numbers.new_tensor(safe))
        observation, reward, terminated, timed_out, extras = tensors
        self._fresh = self._fields(observation)
        self._terminated = _array(terminated).astype(bool)
        self._reset_itself = self._terminated | _array(timed_out).astype(bool)
        self._observation = dict(self._fresh)
        if self._reset_itself.any():
            if "final_obs" not in extras:
                raise HandoffError(
                    f"{self.name}: no final_obs although compute_final_obs is set. Does the task override step?"
                )
            rows = np.flatnonzero(self._reset_itself)
            self._observation = _merged(self._observation, self._fields(extras["final_obs"]), rows)
        self._reward = _array(reward).astype(np.float64)
        if self.config.success_term:
            self._success = _array(
                self._env.termination_manager.get_term(self.config.success_term)
            ).astype(bool)

    def read(self) -> EngineState:
        """See `Engine.read`."""
        return EngineState(
            observation={name: array.copy() for name, array in self._observation.items()},
            reward=self._reward.copy(),
            terminated=self._terminated.copy(),
            success=self._success.copy(),
            info={},
        )

    def save(self) -> EnvState:
        """States of the environments of Handoff's own tasks; see the module's docstring.

        Raises:
            HandoffError: the task is another one.
        """
        if not self._own:
            raise HandoffError(
                f"{self.name}: Isaac Lab's scene state lacks commands, managers' buffers, solver and random state, so "
                "a restored environment would behave differently. Reset from seeds instead."
            )
        return self._env.save_state()

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        """See `Engine.restore`.

        Raises:
            HandoffError: the error of `save`, or a state of another task.
        """
        expected = {name: array.shape[1:] for name, array in self.save().items()}
        given = {name: np.shape(array)[1:] for name, array in state.items()}
        if given != expected:
            raise HandoffError(
                f"{self.name}: state fields {given} per environment, expected {expected}. Was it saved with another "
                "task?"
            )
        self._fresh = self._fields(self._env.restore_state(env_ids, state))
        self._observation = _merged(self._observation, self._fresh, env_ids)
        current = self._env.current()
        self._reward[env_ids] = current.reward[env_ids]
        self._terminated[env_ids] = current.terminated[env_ids]
        self._success[env_ids] = current.success[env_ids]
        self._reset_itself[env_ids] = False

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        """Last observation of one environment."""
        return {name: array[env_id] for name, array in self._observation.items()}

    def close(self) -> None:
        """Closes the environment, then the simulator."""
        self._runtime.close()

    def _reset_rows(self, rows: np.ndarray, seed: int) -> None:
        """Resets `rows` in Isaac Lab; `_fresh` then holds the observation of all environments."""
        env, ids = self._env, self._indices.new_tensor(rows)
        if self._managed:
            observation, _ = env.reset(env_ids=ids, seed=seed)
        else:
            # DirectRLEnv.reset always resets all environments; these are its steps for some of
            # them.
            env.seed(seed)
            env._reset_idx(ids)
            env.scene.write_data_to_sim()
            env.sim.forward()
            if env.has_rtx_sensors:
                for _ in range(env.cfg.num_rerenders_on_reset):
                    env.sim.render()
            observation = env._compute_observations()
        self._fresh = self._fields(observation)

    def _fields(self, observation: Mapping[str, Any]) -> Observation:
        """Arrays of an observation; those of Handoff's own tasks have the names of its fields."""
        return _arrays(observation[OWN_GROUP] if self._own else observation)

    def _check_success_term(self) -> None:
        known = list(self._env.termination_manager.active_terms) if self._managed else []
        if self.config.success_term and self.config.success_term not in known:
            raise HandoffError(
                f"{self.name}: no termination term '{self.config.success_term}', the environment has {known}."
            )


def _launch(
    task: str, config: IsaacLabConfig, num_envs: int, robot: str, runtime: ExitStack
) -> Any:
    """Starts the simulator and makes the unwrapped environment; `runtime` closes both."""
    try:
        import isaaclab_tasks.utils  # pyright: ignore[reportMissingImports]
        from isaaclab.app import launch_simulation  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise HandoffError(
            f"isaaclab: cannot be imported ({error}). It needs a virtual environment of its own: handoff envs create "
            "isaaclab, and engine: server; versions before 3.0 are not supported."
        ) from None
    import gymnasium

    if task in OWN_TASKS:
        task = import_module(OWN_MODULE).register(task, robot)
    module, _, task = task.rpartition(":")
    if module:
        import_outside(module, f"isaaclab {module}:{task}")
    try:
        cfg = isaaclab_tasks.utils.parse_env_cfg(
            task, device=config.device, num_envs=num_envs, overrides=list(config.overrides)
        )
    except gymnasium.error.Error as error:
        raise HandoffError(f"isaaclab: no task '{task}' ({error}).") from None
    if config.cameras:
        if not hasattr(cfg, "observe_cameras"):
            raise HandoffError(
                f"isaaclab {task}: cameras {config.cameras}, but only {', '.join(OWN_TASKS)} have cameras by name. "
                "Leave isaaclab.cameras out."
            )
        cfg.observe_cameras(config.cameras, config.height, config.width)
    cfg.seed = config.creation_seed
    cfg.compute_final_obs = True
    # The simulation is launched first: physics back ends of Isaac Sim exist only after its runtime
    # has started.
    runtime.enter_context(launch_simulation(cfg, {"device": config.device, "visualizer": "none"}))
    env: Any = gymnasium.make(task, cfg=cfg).unwrapped
    runtime.callback(env.close)
    return env


def _array(tensor: Any) -> np.ndarray:
    # A copy, because a CPU tensor shares its memory and Isaac Lab reuses its buffers.
    return np.array(tensor.detach().cpu().numpy())


def _arrays(observation: Mapping[str, Any], path: str = "") -> Observation:
    """Groups of tensors, or of named terms, as flat names: `policy`, or `policy/joint_pos`."""
    arrays: Observation = {}
    for key, value in observation.items():
        name = f"{path}/{key}" if path else key
        if isinstance(value, Mapping):
            arrays |= _arrays(value, name)
        else:
            arrays[name] = _array(value)
    return arrays


def _unit(array: np.ndarray) -> str:
    return "u8" if array.dtype == np.uint8 else "1"


def _merged(old: Observation, new: Observation, rows: np.ndarray) -> Observation:
    merged = {name: array.copy() for name, array in old.items()}
    for name, array in merged.items():
        array[rows] = new[name][rows]
    return merged


def _action_spec(space: Any) -> ActionSpec:
    if not hasattr(space, "low"):
        raise HandoffError(
            f"isaaclab: actions are a {type(space).__name__}, only Box is supported."
        )
    return ActionSpec(
        low=tuple(map(float, space.low.ravel())), high=tuple(map(float, space.high.ravel()))
    )
