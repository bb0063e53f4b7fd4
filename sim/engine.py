"""Defines the interface of a physics engine: start, step and read; `sim.vec_env` does the rest for
all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from robots.interfaces import Observation, WorldState
from robots.spec import ActionSpec, FieldSpec


class EngineState(NamedTuple):
    """The present of N worlds. Arrays are the caller's to keep: the engine never writes to them
    again."""

    observation: Observation
    """Per field `(N, ...)`."""
    reward: np.ndarray
    """(N,) of the last step; after a reset nobody reads it. NaN where the physics broke down:
    `sim.vec_env` stops."""
    terminated: np.ndarray
    """(N,) bool: the task is over, by success or failure."""
    success: np.ndarray
    """(N,) bool: solved now."""
    info: dict[str, np.ndarray]
    """Other diagnostics, each `(N, ...)`."""


class Engine(Protocol):
    """N worlds of one task in one process, without episodes: no time limit, no automatic reset, no
    chunks."""

    name: str
    """For messages: engine and task, such as `mujoco pick_cube`."""
    num_envs: int
    observation_spec: Mapping[str, FieldSpec]
    action_spec: ActionSpec
    rate_hz: float
    """Control periods per second of simulated time."""
    max_steps: int
    """The task's own time limit [control periods]; `sim.vec_env` applies it."""

    def reset(self, worlds: np.ndarray, seeds: np.ndarray) -> None:
        """Starts worlds `worlds` (M,) from `seeds` (M,) int64; what follows depends on the seed
        only."""
        ...

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """Advances by one control period.

        Args:
            action: (N, A) float64, finite in rows that run.
            running: (N,) bool. Worlds that do not run should be left as they are, to save time; an
                engine that can only step all may step them too, for nobody reads them before their
                next reset or restore.
        """
        ...

    def read(self) -> EngineState:
        """Observation, reward and flags of all worlds."""
        ...

    def save(self) -> WorldState:
        """States of all worlds.

        Raises:
            HandoffError: this engine cannot.
        """
        ...

    def restore(self, worlds: np.ndarray, state: WorldState) -> None:
        """Puts row i of `state` into world `worlds[i]`."""
        ...

    def dump(self, world: int) -> dict[str, np.ndarray]:
        """Named arrays that help to understand a world gone wrong, such as qpos and qvel."""
        ...

    def close(self) -> None:
        """Frees processes and windows."""
        ...
