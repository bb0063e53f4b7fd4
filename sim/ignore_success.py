"""Worlds that do not know when their task is solved: success is read, but the episode goes on.

For sessions in which a person or a classifier says what success is: a world that ended at its own
opinion would take the word out of their mouths. Failures beyond repair still end an episode, and so
does the time limit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robots.interfaces import WorldState
from robots.spec import ActionSpec, FieldSpec
from sim.engine import Engine, EngineState


class Endless:
    """Implements `sim.engine.Engine` over another one.

    Args:
        engine: whose success shall not end an episode.
    """

    def __init__(self, engine: Engine) -> None:
        self.inner = engine
        self.name, self.num_envs, self.rate_hz = engine.name, engine.num_envs, engine.rate_hz
        self.max_steps = engine.max_steps
        self.observation_spec: Mapping[str, FieldSpec] = engine.observation_spec
        self.action_spec: ActionSpec = engine.action_spec

    def reset(self, worlds: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`."""
        self.inner.reset(worlds, seeds)

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`."""
        self.inner.step(action, running)

    def read(self) -> EngineState:
        """See `Engine.read`; a solved world has not ended."""
        reading = self.inner.read()
        return reading._replace(terminated=reading.terminated & ~reading.success)

    def save(self) -> WorldState:
        """See `Engine.save`."""
        return self.inner.save()

    def restore(self, worlds: np.ndarray, state: WorldState) -> None:
        """See `Engine.restore`."""
        self.inner.restore(worlds, state)

    def dump(self, world: int) -> dict[str, np.ndarray]:
        """See `Engine.dump`."""
        return self.inner.dump(world)

    def close(self) -> None:
        """See `Engine.close`."""
        self.inner.close()
