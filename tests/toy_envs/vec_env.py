"""Adapts a toy environment to `robots.interfaces.VecEnv`, so that code for simulators and arms can
run in it.

Shape suffixes: N environments, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import EnvState, Intervention, Observation, Reason, Requests, Step
from robots.spec import ActionSpec, FieldSpec
from tests.toy_envs.toy_env import ToyEnv


class ToyVecEnv:
    """N environments with one field, `state` (O,).

    Args:
        make: the toy environment for a number of environments and a seed.
        num_envs: N.
        rate_hz: actions per second of simulated time.
    """

    def __init__(
        self, make: Callable[[int, int], ToyEnv], num_envs: int = 1, rate_hz: float = 10.0
    ) -> None:
        self.toy_env = make(num_envs, 0)
        self.num_envs, self.rate_hz = num_envs, rate_hz
        self.observation_spec: Mapping[str, FieldSpec] = {
            "state": FieldSpec(
                shape=(self.toy_env.observation_size,), about="what the toy environment observes"
            )
        }
        size = self.toy_env.action_size
        self.action_spec = ActionSpec(low=(-1.0,) * size, high=(1.0,) * size)

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.reset`."""
        rows = range(self.num_envs) if env_ids is None else env_ids
        for row, seed in zip(rows, seeds, strict=True):
            self.toy_env.rngs[row] = np.random.default_rng(seed)
            self.toy_env.steps[row] = 0
            self.toy_env.start(row, self.toy_env.rngs[row])
        return self._observation()

    def step(self, action: np.ndarray) -> Step:
        """See `VecEnv.step`; one action at a time."""
        outcome = self.toy_env.step(action)
        return Step(
            observation={"state": outcome.observation},
            reward=outcome.reward,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            final_observation={"state": outcome.final_observation},
            info={"success": outcome.success},
            executed=np.ones(self.num_envs, np.int64),
        )

    def save(self) -> EnvState:
        """See `VecEnv.save`; a toy environment cannot."""
        raise HandoffError("toy env: its state cannot be saved.")

    def restore(self, state: EnvState, env_ids: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.restore`; a toy environment cannot."""
        raise HandoffError("toy env: its state cannot be restored.")

    def close(self) -> None:
        """See `VecEnv.close`; there is nothing to free."""

    def _observation(self) -> Observation:
        return {"state": self.toy_env.observe()}


class ToyActions:
    """Actions of a toy environment in the interface of `real.hil`: they equal the learner's, and
    the environment reports gripper toggles.

    Args:
        toy_env: the environments.
    """

    def __init__(self, toy_env: ToyEnv) -> None:
        self.size, self._toy_env = toy_env.action_size, toy_env

    def to_env(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """The same (N, A)."""
        return action

    def from_env(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """The same (N, A), within the bounds."""
        return np.clip(action, -1.0, 1.0)

    def toggled(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N,) bool."""
        return self._toy_env.toggled(action)


class ExpertOperator:
    """Takes over in regular intervals with the toy environment's expert; implements
    `robots.interfaces.Operator`.

    Args:
        toy_env: the watched environments.
        every: steps of an interval.
        hold: steps at the end of an interval at which the expert acts.
    """

    def __init__(self, toy_env: ToyEnv, every: int = 20, hold: int = 0) -> None:
        self._toy_env, self._every, self._hold = toy_env, every, hold
        self._steps = 0

    def reset(
        self, seeds: Sequence[int] | np.ndarray, env_ids: Sequence[int] | np.ndarray | None = None
    ) -> None:
        """See `Operator`; it keeps no state per episode."""

    def intervene(
        self, proposed: np.ndarray, observation: Observation | None = None
    ) -> Intervention:
        """See `Operator`."""
        acts = self._steps % self._every >= self._every - self._hold
        segment = self._steps // self._every if acts else -1
        self._steps += 1
        n = len(proposed)
        return Intervention(
            proposed=proposed,
            executed=self._toy_env.expert() if acts else proposed,
            intervening=np.full(n, acts),
            segment=np.full(n, segment),
            reason=np.full(n, int(Reason.ALWAYS if acts else Reason.NONE)),
            operator="expert",
            device="simulated",
        )

    def requests(self) -> Requests:
        """See `Operator`; there are none."""
        return Requests()

    def status(self) -> str:
        """See `Operator`."""
        return "expert"

    def close(self) -> None:
        """See `Operator`; there is no device."""
