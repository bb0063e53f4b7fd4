"""The run that DPPO, FPO and ReinFlow share: rollouts of an actor, each followed by an update of
PPO."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import nn

from policies.policy import DenoisingPolicy
from policies.policy_config import PolicyConfig
from policies.rl.collection.collector import Collector
from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import DecisionEnv, RolloutActor
from policies.rl.finetuning.base import OnlineFinetuning
from policies.rl.finetuning.collapse import CollapseDetector
from policies.rl.finetuning.denoising.critic import new_critic
from policies.rl.on_policy.config import OnPolicyConfig
from policies.rl.on_policy.ppo import OnPolicyActor, OnPolicyLearner
from policies.rl.on_policy.rollout import Rollout, Table
from robots.interfaces import Progress


class FinetunedActor(OnPolicyActor, RolloutActor, Protocol):
    """An actor of a policy that is trained in place."""

    @property
    def reference(self) -> DenoisingPolicy:
        """Frozen copy of the initial policy."""
        ...

    def extra_modules(self) -> dict[str, nn.Module]:
        """Networks besides the policy that are part of the run's state, by name."""
        ...


class PpoFinetuning(OnlineFinetuning, ABC):
    """Implements `policies.rl.finetuning.method.FinetuneMethod` but for `finish`.

    Args:
        learning: options of the updates.
        critic: hidden units of the critic.
        policy: policy that is trained in place.
        actor: samples chunks of the policy, and gives their log-probabilities or what stands for
            them.
        env: training environments.
        seed: seed of initial weights and sampling.
        statistics: statistics to continue; None begins new ones.
    """

    figures: ClassVar[tuple[str, ...]] = ("kl", "clipped", "ratio", "explained", "value_loss")
    """Entries of `UpdateStatistics` that are metrics of a rollout."""

    def __init__(
        self,
        learning: OnPolicyConfig,
        critic: tuple[int, ...],
        policy: DenoisingPolicy,
        actor: FinetunedActor,
        env: DecisionEnv,
        seed: int,
        statistics: EpisodeStatistics | None = None,
    ) -> None:
        self.policy = policy
        self.rollouts = 0
        self.actor = actor
        self.critic = new_critic(actor.reference, critic, env.observation)
        self._collector = Collector(env, actor, self.critic, learning.discount, seed)
        self._collector.statistics = statistics or self._collector.statistics
        self.learner = OnPolicyLearner(learning, actor, self.critic, seed)
        self._collapse = CollapseDetector(list(actor.parameters()))

    @property
    def statistics(self) -> EpisodeStatistics:
        """See `FinetuneMethod.statistics`."""
        return self._collector.statistics

    def rollout(self, decisions: int) -> dict[str, float]:
        """See `FinetuneMethod.rollout`."""
        update = self.learner.learn(self.table(self._collector.rollout(decisions)))
        self.rollouts += 1
        self._collapse.check(
            self.rollouts,
            update,
            policy_trains=self.rollouts > self.learner.config.critic_warmup_rollouts,
        )
        return {name: getattr(update, name) for name in self.figures}

    def table(self, rollout: Rollout) -> Table:
        """Rows with advantages, from which the next update learns."""
        return self.learner.table(rollout)

    def state_dict(self) -> dict[str, Any]:
        """See `FinetuneMethod.state_dict`."""
        return {
            "policy": self.policy.state_dict(),
            **{name: module.state_dict() for name, module in self.actor.extra_modules().items()},
            "critic": self.critic.state_dict(),
            "learner": self.learner.state_dict(),
            "collector": self._collector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `FinetuneMethod.load_state_dict`."""
        self.policy.load_state_dict(state["policy"])
        for name, module in self.actor.extra_modules().items():
            module.load_state_dict(state[name])
        self.critic.load_state_dict(state["critic"])
        self.learner.load_state_dict(state["learner"])
        self._collector.load_state_dict(state["collector"])
        self._collector.begin()
        self.rollouts = self.learner.rollouts

    @abstractmethod
    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`."""
