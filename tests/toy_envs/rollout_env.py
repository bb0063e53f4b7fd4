"""Adapts a toy environment to the collector of rollouts; a decision is one action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.rl.collection.collector import Collector
from policies.rl.collection.interfaces import StepResult
from tests.toy_envs.toy_env import ToyEnv

See = Callable[[np.ndarray], Tensor]
"""Maps (N, O) to the observation (N, ...) of actor and critic."""


class ToyRolloutEnv:
    """Implements `policies.rl.collection.interfaces.RolloutEnv`.

    Args:
        toy_env: N environments.
        see: maps its observations to those of the actor.
        discount: discount per step.
        cost: returns the current costs (N,); None without costs.
    """

    def __init__(
        self,
        toy_env: ToyEnv,
        see: See,
        discount: float,
        cost: Callable[[], np.ndarray] | None = None,
    ) -> None:
        self.toy_env, self.num_envs = toy_env, toy_env.num_envs
        self.device = torch.device("cpu")
        self._see, self._discount, self._cost = see, discount, cost

    def prepare(self) -> None:
        """See `RolloutEnv.prepare`."""

    def begin(self) -> None:
        """See `RolloutEnv.begin`."""
        for row in range(self.num_envs):
            self.toy_env.steps[row] = 0
            self.toy_env.start(row, self.toy_env.rngs[row])

    def observation(self) -> Tensor:
        """See `RolloutEnv.observation`."""
        return self._see(self.toy_env.observe())

    def step(self, decision: Tensor) -> StepResult:
        """See `RolloutEnv.step`: (N, A), or chunks (N, 1, A) of one."""
        outcome = self.toy_env.step(decision.reshape(self.num_envs, -1).numpy())
        reward_N = torch.from_numpy(outcome.reward.astype(np.float32))
        return StepResult(
            reward_N=reward_N,
            discount_N=torch.full_like(reward_N, self._discount),
            terminated_N=torch.from_numpy(outcome.terminated),
            truncated_N=torch.from_numpy(outcome.truncated),
            final_obs=self._see(outcome.final_observation),
            success_N=torch.from_numpy(outcome.success),
            cost_N=None
            if self._cost is None
            else torch.from_numpy(self._cost().astype(np.float32)),
        )


def toy_collector(
    toy_env: ToyEnv,
    actor: Any,
    critic: nn.Module,
    see: See,
    discount: float,
    seed: int = 0,
    cost: Callable[[], np.ndarray] | None = None,
) -> Collector:
    """A collector of rollouts in a toy environment."""
    return Collector(ToyRolloutEnv(toy_env, see, discount, cost), actor, critic, discount, seed)
