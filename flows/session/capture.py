"""Adds the capture times of a simulated environment's cameras to its observations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robots.episodes.metadata.capture_times import capture_time_field, capture_time_name
from robots.episodes.schema import is_picture
from robots.interfaces import EnvState, Observation, Step
from sim.engine import Engine
from sim.vec_env import EngineVecEnv, VecEnvConfig


class CapturingVecEnv(EngineVecEnv):
    """Environments whose observations state when each picture was taken, in simulated time since
    the first observation of the episode. They render at every step, so that pictures are older than
    the state beside them by the latency of the cameras alone.

    Args:
        engine: see `EngineVecEnv`.
        config: see `EngineVecEnv`.
        latency: age of every picture when it is observed [s].
    """

    def __init__(
        self, engine: Engine, config: VecEnvConfig | None = None, *, latency: float = 0.0
    ) -> None:
        super().__init__(engine, config)
        self._latency = latency
        cameras = [name for name, spec in self.observation_spec.items() if is_picture(spec)]
        self._times = {capture_time_name(name): capture_time_field(name) for name in cameras}
        self.observation_spec = {**self.observation_spec, **self._times}

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> Observation:
        """See `EngineVecEnv.reset`."""
        return self._timed(super().reset(seeds, env_ids), self.steps)

    def step(self, action: np.ndarray) -> Step:
        """See `EngineVecEnv.step`."""
        before = self.steps
        step = super().step(action)
        return step._replace(
            observation=self._timed(step.observation, self.steps),
            final_observation=self._timed(step.final_observation, before + step.executed),
        )

    def restore(self, state: EnvState, env_ids: Sequence[int] | None = None) -> Observation:
        """See `EngineVecEnv.restore`."""
        return self._timed(super().restore(state, env_ids), self.steps)

    def _timed(self, observation: Observation, steps: np.ndarray) -> Observation:
        """The observation after `steps` (N,) control periods, with the times of its pictures, of
        which none is from before the start."""
        times = np.maximum(steps / self.rate_hz - self._latency, 0.0)
        return {**observation, **{name: times.copy() for name in self._times}}
