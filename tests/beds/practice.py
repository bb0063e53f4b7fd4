"""On-policy practice on a bed: rollouts of one action a decision.

Shape suffixes: T decisions, N worlds, O observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.rl.on_policy import Costs, RewardScale, Rollout
from policies.rl.returns import next_values
from tests.beds.bed import Bed

See = Callable[[np.ndarray], Tensor]
"""(N, O) to what actor and critic are shown, (N, ...)."""


class Practice:
    """Collects rollouts, one after another, from a bed whose episodes go on from one to the next.

    Args:
        bed: N worlds.
        actor: `decide(seen, generator)`, whose decision's first entry holds actions (N, A) or chunks (N, 1, A).
        critic: (N, ...) to (N, 1), or (N, 2) with costs.
        see: of the bed's observations.
        discount: per step.
        cost: of the present (N,), where there is one.
    """

    def __init__(
        self,
        bed: Bed,
        actor: Any,
        critic: nn.Module,
        see: See,
        discount: float,
        seed: int = 0,
        cost: Callable[[], np.ndarray] | None = None,
    ) -> None:
        self.bed, self._actor, self._critic, self._see, self._discount = bed, actor, critic, see, discount
        self._generator = torch.Generator().manual_seed(seed)
        self._scale, self._cost = RewardScale(discount), cost
        self.solved: list[bool] = []
        """Of every episode that has ended."""
        self.costs: list[float] = []
        """Summed, of every episode that has ended."""
        self._running = np.zeros(bed.num_envs)

    def rollout(self, decisions: int) -> Rollout:
        """The next `decisions` steps of all worlds."""
        kept: dict[str, list[Tensor]] = {}
        trace: list[dict[str, Tensor]] = []
        for _ in range(decisions):
            seen = self._see(self.bed.observe())
            decision = self._actor.decide(seen, self._generator)
            outcome = self.bed.step(decision[0].reshape(self.bed.num_envs, -1).numpy())
            ended = outcome.terminated | outcome.truncated
            cost = np.zeros(self.bed.num_envs) if self._cost is None else self._cost()
            self._running += cost
            self.solved += outcome.success[ended].tolist()
            self.costs += self._running[ended].tolist()
            self._running[ended] = 0.0
            ends = torch.from_numpy(ended)
            with torch.no_grad():
                row = {
                    "seen": seen,
                    "log_prob": decision.log_prob_BK,
                    "reward": self._scale(torch.from_numpy(outcome.reward.astype(np.float32)), ends).float(),
                    "cost": torch.from_numpy(cost.astype(np.float32)),
                    "value": self._critic(seen),
                    "final": self._critic(self._see(outcome.final_observation)),
                    "terminated": torch.from_numpy(outcome.terminated),
                    "truncated": torch.from_numpy(outcome.truncated),
                }
            trace.append(decision.trace)
            for name, value in row.items():
                kept.setdefault(name, []).append(value)
        table = {name: torch.stack(rows) for name, rows in kept.items()}
        with torch.no_grad():
            last = self._critic(self._see(self.bed.observe()))
        ended = table["terminated"] | table["truncated"]
        after = [
            next_values(table["value"][..., k], last[:, k], table["final"][..., k], ended) for k in range(last.shape[1])
        ]
        return Rollout(
            seen=table["seen"],
            parts={name: torch.stack([part[name] for part in trace]) for name in trace[0]},
            log_prob_TNK=table["log_prob"],
            reward_TN=table["reward"],
            value_TN=table["value"][..., 0],
            next_value_TN=after[0],
            terminated_TN=table["terminated"],
            truncated_TN=table["truncated"],
            discount_TN=torch.full_like(table["reward"], self._discount),
            costs=None if self._cost is None else Costs(table["cost"], table["value"][..., 1], after[1]),
        )
