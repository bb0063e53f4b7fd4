"""Isaac Lab environments as an engine: ManagerBasedRLEnv and DirectRLEnv by their Gymnasium id.

What has run and what has not: written against the source of the `isaaclab` 3.0.0 wheel, which needs
Python 3.12 and torch 2.11 and so cannot be installed beside this project. Tests hold every call
made here against names and signatures recorded from that wheel (`tests/sim/isaaclab_api.json`) and
run the adapter on a small environment with the same semantics. It has never run on Isaac Lab
itself, and no task, rate or device has been tried.

What Isaac Lab does not offer, so that these worlds promise less than others:
- There is one random generator, not one per world. `seeding="per_world"` seeds it anew before each
  world's reset, so a start depends on its own seed; noise, commands and events drawn later are
  shared by all worlds, and GPU physics does not repeat its last bits. `seeding="batch"` seeds once
  per reset and is meant for thousands of worlds.
- Every step steps all worlds, frozen ones too, and an ended world is reset within the step. The
  true last observation is Isaac Lab's `extras["final_obs"]`, asked for by `cfg.compute_final_obs`.
  For an observation group with a history, Isaac Lab computes it without the last frame.
- A manager-based reset appends the present to the observation histories of all worlds, those that
  go on as well.
- Its scene state leaves out managers' buffers, commands, solver and random state: `save` is
  refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Observation, WorldState
from robots.spec import ActionSpec, FieldSpec
from sim.engine import EngineState


@config
class IsaacLabConfig:
    """How an Isaac Lab environment becomes worlds."""

    device: str = "cuda:0"
    """Device of physics and tensors."""
    overrides: tuple[str, ...] = ()
    """Isaac Lab's own overrides of the task's configuration, such as `physics=newton_mjwarp`."""
    creation_seed: int = 0
    """Seed of what is drawn once when the scene is built (terrain, start-up randomisation)."""
    seeding: Literal["per_world", "batch"] = "per_world"
    """A start from each world's own seed, by one reset after another; or one seed for all worlds
    reset together, where a world that Isaac Lab has just reset by itself stays as it is unless all
    are reset."""
    success_term: str = ""
    """Termination term (manager-based) that means solved, such as `success`; "" when nothing
    does."""
    max_steps: int | None = None
    """Time limit [control periods]; None takes the task's own."""


class IsaacLabEngine:
    """N worlds of one Isaac Lab environment; one engine per process, for Isaac Lab allows one
    simulation."""

    def __init__(self, task: str, num_envs: int, config: IsaacLabConfig | None = None) -> None:
        """Starts the simulator, which takes a minute, and resets once to learn the observation's
        shapes.

        Args:
            task: Gymnasium id registered by `isaaclab_tasks`, such as `Isaac-Reach-Franka` or
                `Isaac-Cartpole-Direct`.
            num_envs: N, at least 1.
            config: how it becomes worlds.

        Raises:
            HandoffError: Isaac Lab is not installed, is older than 3.0, or lacks what is asked for.
        """
        if num_envs < 1:
            raise HandoffError(f"isaaclab: {num_envs} worlds asked for, at least 1 is needed.")
        self.config = config = config or IsaacLabConfig()
        self.num_envs, self.name = num_envs, f"isaaclab {task}"
        with ExitStack() as runtime:
            self._env = env = _launch(task, config, num_envs, runtime)
            self._managed = hasattr(env, "observation_manager")
            self._check_success_term()
            self._runtime = runtime.pop_all()
        self.rate_hz = 1.0 / float(env.step_dt)
        # Direct tasks time out one step before their limit, by convention; the manager's `time_out`
        # at the limit.
        own_limit = int(env.max_episode_length) - (0 if self._managed else 1)
        self.max_steps = own_limit if config.max_steps is None else config.max_steps
        self.action_spec = _action_spec(env.single_action_space)
        # Tensors beget tensors of their own device and type, so that this layer need not import
        # torch.
        self._indices = env.episode_length_buf
        self._numbers = env.episode_length_buf.float()
        observation, _ = env.reset(seed=config.creation_seed)
        self._observation = _arrays(observation)
        self.observation_spec: Mapping[str, FieldSpec] = {
            name: FieldSpec(
                shape=array.shape[1:],
                dtype=str(array.dtype),
                unit="u8" if array.dtype == np.uint8 else "1",
            )
            for name, array in self._observation.items()
        }
        self._reward = np.zeros(num_envs)
        self._terminated, self._success = (
            np.zeros(num_envs, dtype=bool),
            np.zeros(num_envs, dtype=bool),
        )
        self._reset_itself = np.zeros(num_envs, dtype=bool)
        self._fresh: Observation = dict(self._observation)

    def reset(self, worlds: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`; what a seed decides stands at the top of this file."""
        if self.config.seeding == "per_world":
            for world, seed in zip(worlds, seeds, strict=True):
                self._reset_rows(np.array([world]), int(seed))
        else:
            asked = worlds if len(worlds) == self.num_envs else worlds[~self._reset_itself[worlds]]
            if len(asked):
                self._reset_rows(
                    asked,
                    int(np.random.SeedSequence(seeds.tolist()).generate_state(1)[0] & 0x7FFFFFFF),
                )
        self._observation = _merged(self._observation, self._fresh, worlds)
        self._reward[worlds] = 0.0
        self._terminated[worlds] = self._success[worlds] = self._reset_itself[worlds] = False

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """Steps all worlds; see `Engine.step`.

        Raises:
            HandoffError: a world that should run timed out in Isaac Lab before its limit here.
        """
        early = running & self._reset_itself
        if early.any():
            raise HandoffError(
                f"{self.name}: world {int(np.flatnonzero(early)[0])} timed out in Isaac Lab before the limit of "
                f"{self.max_steps} steps, and has begun another episode. Set max_steps to the task's own limit."
            )
        safe = np.where(running[:, None], action, 0.0)
        tensors = self._env.step(self._numbers.new_tensor(safe))
        observation, reward, terminated, timed_out, extras = tensors
        self._fresh = _arrays(observation)
        self._terminated = _array(terminated).astype(bool)
        self._reset_itself = self._terminated | _array(timed_out).astype(bool)
        self._observation = dict(self._fresh)
        if self._reset_itself.any():
            if "final_obs" not in extras:
                raise HandoffError(
                    f"{self.name}: gives no final_obs although asked. Does the task step by itself?"
                )
            rows = np.flatnonzero(self._reset_itself)
            self._observation = _merged(self._observation, _arrays(extras["final_obs"]), rows)
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

    def save(self) -> WorldState:
        """Refused.

        Raises:
            HandoffError: always.
        """
        raise HandoffError(
            f"{self.name}: Isaac Lab's scene state leaves out commands, managers' buffers, solver and random state, so "
            "a restored world would have another future. Reset from seeds instead."
        )

    def restore(self, worlds: np.ndarray, state: WorldState) -> None:
        """Refused, as `save` is."""
        self.save()

    def dump(self, world: int) -> dict[str, np.ndarray]:
        """Last observation of one world."""
        return {name: array[world] for name, array in self._observation.items()}

    def close(self) -> None:
        """Closes the environment, then the simulator."""
        self._runtime.close()

    def _reset_rows(self, rows: np.ndarray, seed: int) -> None:
        """Isaac Lab's own reset of `rows`; afterwards `_fresh` holds the observation of all
        worlds."""
        env, ids = self._env, self._indices.new_tensor(rows)
        if self._managed:
            observation, _ = env.reset(env_ids=ids, seed=seed)
        else:
            # DirectRLEnv.reset knows no rows; these are its own steps, with some rows instead of
            # all.
            env.seed(seed)
            env._reset_idx(ids)
            env.scene.write_data_to_sim()
            env.sim.forward()
            if env.has_rtx_sensors:
                for _ in range(env.cfg.num_rerenders_on_reset):
                    env.sim.render()
            observation = env._compute_observations()
        self._fresh = _arrays(observation)

    def _check_success_term(self) -> None:
        known = list(self._env.termination_manager.active_terms) if self._managed else []
        if self.config.success_term and self.config.success_term not in known:
            raise HandoffError(
                f"{self.name}: no termination term '{self.config.success_term}', the environment has {known}."
            )


def _launch(task: str, config: IsaacLabConfig, num_envs: int, runtime: ExitStack) -> Any:
    """The unwrapped environment; `runtime` closes it, and then the simulator that is started for it
    here."""
    try:
        import isaaclab_tasks.utils  # pyright: ignore[reportMissingImports]
        from isaaclab.app import launch_simulation  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise HandoffError(
            f"isaaclab: cannot be imported ({error}). It needs an environment of its own: Python 3.12 and "
            "`pip install isaaclab==3.0.0`; versions before 3.0 start in another way."
        ) from None
    import gymnasium

    try:
        cfg = isaaclab_tasks.utils.parse_env_cfg(
            task, device=config.device, num_envs=num_envs, overrides=list(config.overrides)
        )
    except gymnasium.error.Error as error:
        raise HandoffError(f"isaaclab: no task '{task}' ({error}).") from None
    cfg.seed = config.creation_seed
    cfg.compute_final_obs = True
    # Before the environment is made: physics back ends that live in Isaac Sim exist only once its
    # runtime has started.
    runtime.enter_context(launch_simulation(cfg, {"device": config.device, "visualizer": "none"}))
    env: Any = gymnasium.make(task, cfg=cfg).unwrapped
    runtime.callback(env.close)
    return env


def _array(tensor: Any) -> np.ndarray:
    # copy: a tensor on the CPU shares its memory, and Isaac Lab writes to its buffers again.
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
        raise HandoffError(f"isaaclab: actions are a {type(space).__name__}, only Box is known.")
    return ActionSpec(
        low=tuple(map(float, space.low.ravel())), high=tuple(map(float, space.high.ravel()))
    )
