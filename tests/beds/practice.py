"""A bed as a collector's worlds: one action a decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.rl.collection.collector import Collector
from policies.rl.collection.interfaces import Decided
from tests.beds.bed import Bed

See = Callable[[np.ndarray], Tensor]
"""(N, O) to what actor and critic are shown, (N, ...)."""


class BedWorlds:
    """Implements `policies.rl.collection.interfaces.RolloutEnv`.

    Args:
        bed: N worlds.
        see: of its observations.
        discount: per step.
        cost: of the present (N,), where there is one.
    """

    def __init__(
        self, bed: Bed, see: See, discount: float, cost: Callable[[], np.ndarray] | None = None
    ) -> None:
        self.bed, self.num_envs = bed, bed.num_envs
        self._see, self._discount, self._cost = see, discount, cost

    def begin(self) -> None:
        """See `RolloutEnv.begin`."""
        for row in range(self.num_envs):
            self.bed.steps[row] = 0
            self.bed.start(row, self.bed.rngs[row])

    def seen(self) -> Tensor:
        """See `RolloutEnv.seen`."""
        return self._see(self.bed.observe())

    def step(self, decision: Tensor) -> Decided:
        """See `RolloutEnv.step`: (N, A), or chunks (N, 1, A) of one."""
        outcome = self.bed.step(decision.reshape(self.num_envs, -1).numpy())
        reward_N = torch.from_numpy(outcome.reward.astype(np.float32))
        return Decided(
            reward_N=reward_N,
            discount_N=torch.full_like(reward_N, self._discount),
            terminated_N=torch.from_numpy(outcome.terminated),
            truncated_N=torch.from_numpy(outcome.truncated),
            final_seen=self._see(outcome.final_observation),
            success_N=torch.from_numpy(outcome.success),
            cost_N=None
            if self._cost is None
            else torch.from_numpy(self._cost().astype(np.float32)),
        )


def practice(
    bed: Bed,
    actor: Any,
    critic: nn.Module,
    see: See,
    discount: float,
    seed: int = 0,
    cost: Callable[[], np.ndarray] | None = None,
) -> Collector:
    """A collector in a bed."""
    return Collector(BedWorlds(bed, see, discount, cost), actor, critic, discount, seed)
