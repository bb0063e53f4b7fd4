"""Rollouts: who decides, and the worlds in which it is decided, turn about.

A decision is one action or a chunk of them. Of a chunk the policy sees no more than of an action:
its reward is the discounted sum of what was executed, and g^length stands before all that comes
after, so a world that ends within a chunk counts as it should. What a decision led to is valued at
the true observation after it, also where the episode ended.

Shape suffixes: T decisions, N worlds, O observation, H horizon, A action.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import RolloutActor, RolloutEnv
from policies.rl.on_policy.returns import next_values
from policies.rl.on_policy.rollout import Costs, RewardScale, Rollout, Trace


class Collector:
    """Makes rollouts, one behind another; episodes go on from one to the next.

    Args:
        worlds: N.
        actor: decides.
        critic: (N, ...) as seen to (N, 1), or (N, 2) with the value of costs.
        discount: per action, for the scale of rewards.
        seed: of all chance.
    """

    def __init__(
        self,
        worlds: RolloutEnv,
        actor: RolloutActor,
        critic: nn.Module,
        discount: float,
        seed: int = 0,
    ) -> None:
        self.worlds = worlds
        self._actor = actor
        self._critic = critic
        self._generator = torch.Generator().manual_seed(seed)
        self._scale = RewardScale(discount)
        self.statistics = EpisodeStatistics(worlds.num_envs)

    def begin(self) -> None:
        """Leaves the episodes that are under way, and begins new ones in all worlds."""
        self.worlds.begin()
        self.statistics.begin()
        self._scale.sums = []

    def rollout(self, decisions: int) -> Rollout:
        """The next `decisions` decisions in all worlds."""
        rows: list[dict[str, Tensor]] = []
        traces: list[Trace] = []
        for _ in range(decisions):
            seen = self.worlds.seen()
            made = self._actor.decide(seen, self._generator)
            led = self.worlds.step(made[0])
            ended_N = led.terminated_N | led.truncated_N
            self.statistics.add(led)
            with torch.no_grad():
                row = {
                    "seen": seen,
                    "value": self._critic(seen),
                    "final": self._critic(led.final_seen),
                }
            row |= {
                "log_prob": made.log_prob_BK,
                "reward": self._scale(led.reward_N, ended_N).float(),
            }
            row |= {
                "discount": led.discount_N,
                "terminated": led.terminated_N,
                "truncated": led.truncated_N,
            }
            row |= {} if led.cost_N is None else {"cost": led.cost_N}
            rows.append(row)
            traces.append(made.trace)
        return self._joined(rows, traces)

    def state_dict(self) -> dict[str, Any]:
        """Chance and scales; the worlds' own state is theirs."""
        scale = {name: getattr(self._scale, name) for name in ("count", "mean", "squares", "sums")}
        return {"generator": self._generator.get_state(), "scale": scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        self._generator.set_state(state["generator"])
        for name, value in state["scale"].items():
            setattr(self._scale, name, value)

    def _joined(self, rows: list[dict[str, Tensor]], traces: list[Trace]) -> Rollout:
        table = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        with torch.no_grad():
            last = self._critic(self.worlds.seen())
        ended = table["terminated"] | table["truncated"]
        values, finals = table["value"].unbind(-1), table["final"].unbind(-1)
        after = [
            next_values(*columns, ended)
            for columns in zip(values, last.unbind(-1), finals, strict=True)
        ]
        return Rollout(
            seen=table["seen"],
            parts={name: torch.stack([trace[name] for trace in traces]) for name in traces[0]},
            log_prob_TNK=table["log_prob"],
            reward_TN=table["reward"],
            value_TN=values[0],
            next_value_TN=after[0],
            terminated_TN=table["terminated"],
            truncated_TN=table["truncated"],
            discount_TN=table["discount"],
            costs=Costs(table["cost"], values[1], after[1]) if "cost" in table else None,
        )
