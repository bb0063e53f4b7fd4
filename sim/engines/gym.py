"""Wraps any registered Gymnasium environment as an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import field
from typing import Any, Literal

import numpy as np

from robots.config import Count, Hertz, config
from robots.errors import HandoffError
from robots.interfaces import EnvState, Observation
from robots.spec import FieldSpec
from sim.engine import Engine, EngineState
from sim.engines.gym_spaces import (
    action_spec,
    control_rate,
    field_specs,
    flatten,
    patch_joint_types,
    seeded_numpy,
    time_limit,
)
from sim.engines.gym_state import ActionHistory, MujocoState, tested_state
from sim.engines.opencv_substitute import importable_opencv
from sim.vec_env import EngineVecEnv, VecEnvConfig

SUCCESS_KEYS = ("is_success", "success", "succeed")
"""Names of success in the info of an environment; the last one is gym-hil's."""


@config
class GymConfig:
    """Options of a Gymnasium environment."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `gymnasium.make`, such as `obs_type`."""
    success: Literal["info", "terminated", "never"] = "info"
    """Source of success. `info`: `info["is_success"]`, `info["success"]` or `info["succeed"]`.
    `terminated`: termination of the environment. `never`: no success."""
    end_on_success: bool = False
    """Whether success ends the episode although the environment itself does not terminate (like the
    Fetch tasks)."""
    info: tuple[str, ...] = ()
    """Keys of the environment's info, with one number each, that are passed on; 0 after a reset."""
    max_steps: Count | None = None
    """Time limit [control periods]; None takes the registered one."""
    rate_hz: Hertz | None = None
    """Control periods per second; None takes the environment's own, `metadata["render_fps"]` or 1 /
    `dt`."""
    global_seed: bool = False
    """Whether a reset also seeds NumPy's global generator, for environments that draw their starts
    from it, such as those of gym-hil."""
    saving: Literal["state", "replay"] = "state"
    """Method of `save`. `state` copies MuJoCo's state. `replay` works for any environment: it
    stores the actions since the reset and repeats them at `restore`, which is exact but takes as
    many steps."""


class GymEngine:
    """N instances of one Gymnasium environment in this process: `Box` actions, `Box` or (nested)
    `Dict` observations.

    Fields of a nested observation are named by their path, `outer/inner`; a plain `Box` is
    `observation`. Gymnasium's `TimeLimit` only provides `max_steps`, which `sim.vec_env` applies.
    Actions are not clipped.
    """

    def __init__(self, env_id: str, num_envs: int, config: GymConfig | None = None) -> None:
        """Makes the instances.

        Args:
            env_id: registered id; `module:id` imports the module that registers it first, such as
                `gym_pusht:gym_pusht/PushT-v0` or `gymnasium_robotics:FetchPickAndPlace-v4`.
            num_envs: N, at least 1.
            config: options of the environment.

        Raises:
            HandoffError: an unknown id, other spaces than the above, or no known time limit or
                rate.
        """
        self.config = config or GymConfig()
        self.env_id = env_id
        self.num_envs = num_envs
        self.name = f"gymnasium {env_id.rpartition(':')[2]}"
        if num_envs < 1:
            raise HandoffError(f"{self.name}: {num_envs} environments, at least 1 is needed.")
        self._envs = [self._make() for _ in range(num_envs)]
        first = self._envs[0]
        self.observation_spec: Mapping[str, FieldSpec] = field_specs(
            self.name, first.observation_space
        )
        self.action_spec = action_spec(self.name, first.action_space)
        self.rate_hz = self.config.rate_hz or control_rate(self.name, first)
        self.max_steps = self.config.max_steps or time_limit(self.name, env_id)
        n = num_envs
        self._observation: Observation = {
            name: np.zeros((n, *spec.shape), dtype=spec.dtype)
            for name, spec in self.observation_spec.items()
        }
        self._reward = np.zeros(n)
        self._terminated = np.zeros(n, dtype=bool)
        self._success = np.zeros(n, dtype=bool)
        self._info = {key: np.zeros(n) for key in self.config.info}
        self._seeds = np.zeros(n, dtype=np.int64)
        self._history = (
            ActionHistory(n, self.action_spec.size) if self.config.saving == "replay" else None
        )
        self._mujoco: MujocoState | None = None
        self._refusal = ""

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`."""
        for i, seed in zip(env_ids, seeds, strict=True):
            with seeded_numpy(int(seed)) if self.config.global_seed else nullcontext():
                observation, _ = self._envs[i].reset(seed=int(seed))
            self._put(int(i), observation, 0.0, False, None)
        self._seeds[env_ids] = seeds
        if self._history is not None:
            self._history.clear(env_ids)

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`.

        Raises:
            HandoffError: the environment truncated the episode itself, or does not report success
                as configured.
        """
        for i in np.flatnonzero(running):
            self._step(int(i), action[i])

    def read(self) -> EngineState:
        """See `Engine.read`."""
        return EngineState(
            observation={name: array.copy() for name, array in self._observation.items()},
            reward=self._reward.copy(),
            terminated=self._terminated.copy(),
            success=self._success.copy(),
            info={name: array.copy() for name, array in self._info.items()},
        )

    def save(self) -> EnvState:
        """See `Engine.save`.

        Raises:
            HandoffError: the state cannot be copied, or a trial on another instance was not
                reproduced exactly.
        """
        if self._history is not None:
            return {"start": self._seeds.copy(), **self._history.save()}
        rows = [self._snapshot().save(env.unwrapped) for env in self._envs]
        return {
            **{name: np.stack([row[name] for row in rows]) for name in rows[0]},
            **{f"now_{name}": array.copy() for name, array in self._last_result().items()},
            **{f"observation_{name}": array.copy() for name, array in self._observation.items()},
        }

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        """See `Engine.restore`."""
        if self._history is not None:
            self.reset(env_ids, state["start"])
            for row, i in enumerate(env_ids):
                for action in self._history.of(state, row):
                    self._step(int(i), action)
            return
        snapshot = self._snapshot()
        for row, i in enumerate(env_ids):
            snapshot.restore(
                self._envs[i].unwrapped, {name: array[row] for name, array in state.items()}
            )
        for name, array in self._last_result().items():
            array[env_ids] = state[f"now_{name}"]
        for name, array in self._observation.items():
            array[env_ids] = state[f"observation_{name}"]

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        """See `Engine.dump`."""
        data = getattr(self._envs[env_id].unwrapped, "data", None)
        arrays = {
            name: np.array(getattr(data, name))
            for name in ("qpos", "qvel", "ctrl")
            if hasattr(data, name)
        }
        return {
            **arrays,
            **{f"observation_{name}": array[env_id] for name, array in self._observation.items()},
        }

    def render(self, env_id: int) -> np.ndarray:
        """The image (H, W, 3) uint8 RGB of an environment made with `render_mode: rgb_array`.

        Raises:
            HandoffError: it draws none.
        """
        try:
            image = np.asarray(self._envs[env_id].render())
        # The code of any environment, which draws with libraries of its own.
        except Exception as error:
            raise HandoffError(f"{self.name}: cannot be rendered ({error}).") from error
        if image.dtype != np.uint8 or image.ndim != 3:
            raise HandoffError(
                f"{self.name}: renders {image.dtype} {image.shape}, expected uint8 (H, W, 3)."
            )
        return image

    def close(self) -> None:
        """See `Engine.close`."""
        for env in self._envs:
            env.close()

    def _last_result(self) -> dict[str, np.ndarray]:
        return {
            "reward": self._reward,
            "terminated": self._terminated,
            "success": self._success,
            **self._info,
        }

    def _make(self) -> Any:
        import gymnasium

        # Otherwise pygame, which some environments use, prints a message when it is imported.
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            if self.env_id.startswith("gymnasium_robotics:"):
                patch_joint_types()
            options = dict(self.config.options)
            with importable_opencv():
                return gymnasium.make(
                    self.env_id, max_episode_steps=-1, disable_env_checker=True, **options
                )
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise HandoffError(
                f"{self.name}: cannot be made ({error}). Is its package installed, and named before the id, as in "
                "`gym_pusht:gym_pusht/PushT-v0`?"
            ) from None

    def _step(self, env_id: int, action: np.ndarray) -> None:
        env = self._envs[env_id]
        if self._history is not None:
            self._history.add(env_id, action)
        shaped = action.reshape(env.action_space.shape).astype(env.action_space.dtype)
        observation, reward, terminated, truncated, info = env.step(shaped)
        if truncated:
            raise HandoffError(
                f"{self.name}: environment {env_id} truncated its episode itself. Set a max_steps below its own "
                "time limit."
            )
        self._put(env_id, observation, float(reward), bool(terminated), info)

    def _put(
        self,
        env_id: int,
        observation: Any,
        reward: float,
        terminated: bool,
        info: Mapping[str, Any] | None,
    ) -> None:
        """Stores one environment's result; `info` is None after a reset."""
        for name, value in flatten(observation).items():
            self._observation[name][env_id] = value
        success = info is not None and self._solved(terminated, info)
        self._reward[env_id], self._success[env_id] = reward, success
        self._terminated[env_id] = terminated or (success and self.config.end_on_success)
        for key, array in self._info.items():
            if info is not None and key not in info:
                raise HandoffError(
                    f"{self.name}: no info '{key}', the environment reports {sorted(info)}."
                )
            array[env_id] = 0.0 if info is None else info[key]

    def _solved(self, terminated: bool, info: Mapping[str, Any]) -> bool:
        match self.config.success:
            case "terminated":
                return terminated
            case "never":
                return False
            case "info":
                for key in SUCCESS_KEYS:
                    if key in info:
                        return bool(info[key])
                raise HandoffError(
                    f"{self.name}: its info has no success, only {sorted(info)}. "
                    "Set success to 'terminated' or 'never'."
                )

    def _snapshot(self) -> MujocoState:
        """Returns the object that copies states; its first use is tested on a spare instance, which
        reveals hidden state."""
        if self._mujoco is None and not self._refusal:
            env = self._make()
            try:
                self._mujoco = tested_state(env, self.name)
            except HandoffError as error:
                # Stored, because the NaN guard may save before every step.
                self._refusal = str(error)
            finally:
                env.close()
        if self._mujoco is None:
            raise HandoffError(self._refusal)
        return self._mujoco


class RenderedVecEnv(EngineVecEnv):
    """Gymnasium environments that render themselves, for videos of an evaluation."""

    def __init__(
        self, engine: Engine, config: VecEnvConfig, render: Callable[[int], np.ndarray]
    ) -> None:
        """Takes ownership of an engine.

        Args:
            engine: see `EngineVecEnv`.
            config: start and end of episodes.
            render: `GymEngine.render` of one made with `render_mode: rgb_array`.
        """
        super().__init__(engine, config)
        self._render = render

    def render(self, env_id: int) -> np.ndarray:
        """See `GymEngine.render`."""
        return self._render(env_id)
