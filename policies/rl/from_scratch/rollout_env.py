"""Adapts state environments to the collector of on-policy rollouts.

Shape suffixes: N environments, O observation, A action.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from policies.rl.collection.interfaces import StepResult
from policies.rl.collection.state_env import StateEnv
from robots.errors import HandoffError


class StateRolloutEnv:
    """Implements `policies.rl.collection.interfaces.RolloutEnv`.

    Args:
        env: environments that reset themselves.
        discount: discount per control period.
        cost_limit: limit on the cost of an episode, which is the unit of the costs in results of
            `step` and `take_costs`: advantages of rewards and costs then have similar scales,
            whatever the cost measures. None does not read costs.
    """

    def __init__(self, env: StateEnv, discount: float, cost_limit: float | None) -> None:
        self.num_envs = env.num_envs
        self.device = torch.device("cpu")
        self._env = env
        self._cost_limit = cost_limit
        self._discount_N = torch.full((env.num_envs,), discount)
        self._ended_costs: list[float] = []

    def prepare(self) -> None:
        """See `RolloutEnv.prepare`; nothing is pending."""

    def check(self) -> None:
        """Does nothing: `step` checks every reward."""

    def begin(self) -> None:
        """See `RolloutEnv.begin`."""
        self._env.begin()
        self._ended_costs.clear()

    def observation(self) -> Tensor:
        """(N, O) current observation vectors in physical units."""
        return torch.from_numpy(self._env.observation)

    def step(self, decision: Tensor) -> StepResult:
        """Executes actions (N, A), clipped to [-1, 1].

        Raises:
            HandoffError: the cost is limited, but the environments report none.
        """
        episodes = self._env.statistics.episodes
        steps = self._env.step(np.clip(decision.numpy(), -1.0, 1.0))
        ended = self._env.statistics.episodes - episodes
        if ended:
            newest = self._env.statistics.ended[-ended:]
            self._ended_costs += [episode.cost / (self._cost_limit or 1.0) for episode in newest]
        return StepResult(
            reward_N=torch.from_numpy(steps.reward),
            discount_N=self._discount_N,
            terminated_N=torch.from_numpy(steps.terminated),
            truncated_N=torch.from_numpy(steps.truncated),
            final_obs=torch.from_numpy(steps.next_observation),
            success_N=torch.from_numpy(self._env.success_N),
            cost_N=self._cost(),
        )

    def take_costs(self) -> list[float]:
        """Costs of the episodes that ended since the last call, in limits."""
        costs = self._ended_costs
        self._ended_costs = []
        return costs

    def _cost(self) -> Tensor | None:
        if self._cost_limit is None:
            return None
        if self._env.cost_N is None:
            raise HandoffError(
                f"reinforce: cost_limit is {self._cost_limit}, but these environments report no cost. Set the "
                "protocol's option contact_threshold (engine mujoco), or use the algorithm ppo."
            )
        return torch.from_numpy(self._env.cost_N / self._cost_limit).float()
