"""Defines the interface of a physics engine: start, step and read. `sim.vec_env` adds episodes to
every engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from robots.interfaces import EnvState, Observation
from robots.spec import ActionSpec, FieldSpec


class EngineState(NamedTuple):
    """The current state of N environments. The caller owns the arrays: the engine never writes to
    them again."""

    observation: Observation
    """Per field `(N, ...)`."""
    reward: np.ndarray
    """(N,) reward of the last step; unused after a reset. NaN where the physics has diverged, on
    which `sim.vec_env` raises an error."""
    terminated: np.ndarray
    """(N,) bool: the task is over, by success or failure."""
    success: np.ndarray
    """(N,) bool: the task is solved in this state."""
    info: dict[str, np.ndarray]
    """Other diagnostics, each `(N, ...)`."""


class Engine(Protocol):
    """N environments of one task in one process, without episodes: no time limit, no automatic
    reset, no chunks."""

    name: str
    """Engine and task for messages, such as `mujoco pick_cube`."""
    num_envs: int
    observation_spec: Mapping[str, FieldSpec]
    action_spec: ActionSpec
    rate_hz: float
    """Control periods per second of simulated time."""
    max_steps: int
    """The task's own time limit [control periods]; `sim.vec_env` applies it."""

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """Starts an episode in environments `env_ids` (M,) from `seeds` (M,) int64; the episode
        depends only on its seed and its actions."""
        ...

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """Advances by one control period.

        Args:
            action: (N, A) float64, finite in the rows of running environments.
            running: (N,) bool. Other environments should stay unchanged, to save time; an engine
                that can only step all of them may do so, because their state is not read before
                their next reset or restore.
        """
        ...

    def read(self) -> EngineState:
        """Observation, reward and flags of all environments."""
        ...

    def save(self) -> EnvState:
        """States of all environments.

        Raises:
            HandoffError: this engine cannot save its state.
        """
        ...

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        """Puts row i of `state` into environment `env_ids[i]`."""
        ...

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        """Named arrays for debugging a diverged environment, such as qpos and qvel."""
        ...

    def close(self) -> None:
        """Frees processes and windows."""
        ...
