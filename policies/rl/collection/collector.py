"""Collects rollouts by alternating between actor and environments.

A decision is one action or a chunk of actions. A chunk counts as one transition: its reward is the
discounted sum over the executed actions, and everything after it is discounted by g^length, so an
episode that ends within a chunk counts correctly. The next value is that of the true observation
after the decision, also where the episode ended.

Shape suffixes: T decisions, N environments, O observation, H horizon, A action.
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
    """Collects consecutive rollouts; episodes continue from one rollout to the next.

    Args:
        env: N environments.
        actor: samples decisions.
        critic: maps observations (N, ...) to values (N, 1), or (N, 2) with cost values second.
        discount: discount per action, for reward scaling.
        seed: seed of all sampling.
    """

    def __init__(
        self,
        env: RolloutEnv,
        actor: RolloutActor,
        critic: nn.Module,
        discount: float,
        seed: int = 0,
    ) -> None:
        self.env = env
        self._actor = actor
        self._critic = critic
        self._generator = torch.Generator(env.device).manual_seed(seed)
        self._scale = RewardScale(discount)
        self.statistics = EpisodeStatistics(env.num_envs)

    def begin(self) -> None:
        """Abandons the running episodes and resets all environments."""
        self.env.begin()
        self.statistics.begin()
        self._scale.restart()

    def rollout(self, decisions: int) -> Rollout:
        """The next `decisions` decisions of all environments."""
        self.env.prepare()
        rows: list[dict[str, Tensor]] = []
        traces: list[Trace] = []
        for _ in range(decisions):
            # Execute one decision in every environment.
            obs = self.env.observation()
            output = self._actor.decide(obs, self._generator)
            result = self.env.step(output[0])
            ended_N = result.terminated_N | result.truncated_N
            self.statistics.add(result)
            # Record what the update needs.
            with torch.no_grad():
                row = {
                    "obs": obs,
                    "value": self._critic(obs),
                    "final": self._critic(result.final_obs),
                }
            row |= {
                "log_prob": output.log_prob_BK,
                "reward": self._scale(result.reward_N, ended_N).float(),
            }
            row |= {
                "discount": result.discount_N,
                "terminated": result.terminated_N,
                "truncated": result.truncated_N,
            }
            row |= {} if result.cost_N is None else {"cost": result.cost_N}
            rows.append(row)
            traces.append(output.trace)
        return self._stack(rows, traces)

    def state_dict(self) -> dict[str, Any]:
        """State of the random generator and the reward scale; the environments save their own
        state."""
        return {"generator": self._generator.get_state(), "scale": self._scale.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`."""
        self._generator.set_state(state["generator"])
        self._scale.load_state_dict(state["scale"])

    def _stack(self, rows: list[dict[str, Tensor]], traces: list[Trace]) -> Rollout:
        table = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        with torch.no_grad():
            last = self._critic(self.env.observation())
        ended = table["terminated"] | table["truncated"]
        values, finals = table["value"].unbind(-1), table["final"].unbind(-1)
        next_value = [
            next_values(*columns, ended)
            for columns in zip(values, last.unbind(-1), finals, strict=True)
        ]
        return Rollout(
            obs=table["obs"],
            trace={name: torch.stack([trace[name] for trace in traces]) for name in traces[0]},
            log_prob_TNK=table["log_prob"],
            reward_TN=table["reward"],
            value_TN=values[0],
            next_value_TN=next_value[0],
            terminated_TN=table["terminated"],
            truncated_TN=table["truncated"],
            discount_TN=table["discount"],
            costs=Costs(table["cost"], values[1], next_value[1]) if "cost" in table else None,
        )
