"""Lets episodes continue after success: success is reported but does not terminate.

For sessions in which a person or a classifier decides about success: the environment must not end
the episode before that decision. Unrecoverable failures and the time limit still end an episode.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robots.interfaces import EnvState
from robots.spec import ActionSpec, FieldSpec
from sim.engine import Engine, EngineState


class IgnoreSuccess:
    """Implements `sim.engine.Engine` over another one.

    Args:
        engine: its success no longer ends an episode.
    """

    def __init__(self, engine: Engine) -> None:
        self.inner = engine
        self.name = engine.name
        self.num_envs = engine.num_envs
        self.rate_hz = engine.rate_hz
        self.max_steps = engine.max_steps
        self.observation_spec: Mapping[str, FieldSpec] = engine.observation_spec
        self.action_spec: ActionSpec = engine.action_spec

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`."""
        self.inner.reset(env_ids, seeds)

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`."""
        self.inner.step(action, running)

    def read(self) -> EngineState:
        """See `Engine.read`; a solved environment is not terminated."""
        state = self.inner.read()
        return state._replace(terminated=state.terminated & ~state.success)

    def save(self) -> EnvState:
        """See `Engine.save`."""
        return self.inner.save()

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        """See `Engine.restore`."""
        self.inner.restore(env_ids, state)

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        """See `Engine.dump`."""
        return self.inner.dump(env_id)

    def close(self) -> None:
        """See `Engine.close`."""
        self.inner.close()
