"""Practice by DPPO: rollouts of a pretrained policy with the noise it learns by, and an update
behind each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from policies.families.diffusion import DiffusionPolicy
from policies.policy_config import PolicyConfig
from policies.rl.collection.collector import Collector
from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.finetuning.base import OnlinePractice
from policies.rl.finetuning.collapse import Dead
from policies.rl.finetuning.config import DppoPracticeConfig
from policies.rl.on_policy.diffusion_actor import DenoisingActor
from policies.rl.on_policy.ppo import OnPolicyLearner
from robots.interfaces import Progress


class DppoPractice(OnlinePractice):
    """Implements `policies.rl.finetuning.finetune.Practice`.

    Args:
        config: how.
        policy: learns in place.
        worlds: in which it practises.
        seed: of weights and chance.
        statistics: of the episodes before, which these are added to; None begins new ones.
    """

    def __init__(
        self,
        config: DppoPracticeConfig,
        policy: DiffusionPolicy,
        worlds: DecisionEnv,
        seed: int,
        statistics: EpisodeStatistics | None = None,
    ) -> None:
        torch.manual_seed(seed)
        self.config, self.policy, self.rollouts = config, policy, 0
        self._critic = _critic(policy, config.critic)
        self._actor = DenoisingActor(policy, config.walk)
        self._collector = Collector(
            worlds, self._actor, self._critic, config.learning.discount, seed
        )
        self._collector.statistics = statistics or self._collector.statistics
        self._learner = OnPolicyLearner(config.learning, self._actor, self._critic, seed)
        self._dead = Dead(self._actor.parameters())

    @property
    def statistics(self) -> EpisodeStatistics:
        """See `Practice.statistics`."""
        return self._collector.statistics

    def rollout(self, decisions: int) -> dict[str, float]:
        """See `Practice.rollout`."""
        learned = self._learner.update(self._collector.rollout(decisions))
        self.rollouts += 1
        self._dead.look(
            self.rollouts, learned, practises=self.rollouts > self.config.learning.critic_warm_up
        )
        names = ("kl", "clipped", "ratio", "explained", "value_loss")
        return {name: getattr(learned, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """See `Practice.state_dict`."""
        return {
            "policy": self.policy.state_dict(),
            "before": self._actor.before.state_dict(),
            "critic": self._critic.state_dict(),
            "learner": self._learner.state_dict(),
            "collector": self._collector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Practice.load_state_dict`."""
        self.policy.load_state_dict(state["policy"])
        self._actor.before.load_state_dict(state["before"])
        self._critic.load_state_dict(state["critic"])
        self._learner.load_state_dict(state["learner"])
        self._collector.load_state_dict(state["collector"])
        self._collector.begin()
        self.rollouts = self._learner.rollouts

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `Practice.finish`: it samples in as many steps as were practised."""
        return self.policy.config.with_sampler_steps(self.config.walk.steps)


def _critic(policy: DiffusionPolicy, hidden: tuple[int, ...]) -> nn.Module:
    history, observation = policy.observation_shape
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip((history * observation, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, after), nn.Mish()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], 1))
