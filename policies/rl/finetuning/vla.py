"""Fine-tunes vision-language-action policies by PPO or GRPO: over action tokens (RLinf-VLA, arXiv
2510.06710) or over the steps of a flow (pi_RL, arXiv 2510.25889)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from policies.families.token_vla import TokenVlaPolicy
from policies.families.vla import VlaPolicy
from policies.policy import ChunkPolicy
from policies.policy_config import PolicyConfig
from policies.rl.collection.async_actor import AsyncActor
from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.collection.pipelined_collector import make_collector
from policies.rl.finetuning.base import OnlineFinetuning
from policies.rl.finetuning.collapse import PATIENCE, CollapseDetector
from policies.rl.finetuning.config import VlaFinetuneConfig
from policies.rl.on_policy.advantages import ChunkRollout, grouped_table, valued_table
from policies.rl.on_policy.flow_actor import FlowActor
from policies.rl.on_policy.ppo import OnPolicyLearner
from policies.rl.on_policy.rollout import Table
from policies.rl.on_policy.token_actor import TokenActor
from robots.errors import HandoffError
from robots.interfaces import Progress

MIN_KEPT = 0.02
"""Share of valid rows of a rollout below which it counts as without signal."""


class VlaFinetuning(OnlineFinetuning):
    """Implements `policies.rl.finetuning.method.FinetuneMethod`.

    Args:
        config: options of the method.
        policy: policy that is trained in place.
        env: training environments.
        seed: seed of initial weights and sampling.

    Raises:
        HandoffError: chunks that are executed only in part.
    """

    def __init__(
        self,
        config: VlaFinetuneConfig,
        policy: TokenVlaPolicy | VlaPolicy,
        env: DecisionEnv,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        self.config = config
        self.policy = policy
        self.rollouts = 0
        if env.entries != policy.chunk_shape[0] * policy.chunk_shape[1]:
            raise HandoffError(
                f"finetune: {env.entries} entries of chunks of shape {policy.chunk_shape} are executed, expected all, "
                "because every entry has a ratio. Is n_action_steps below the horizon?"
            )
        self.actor = new_actor(config, policy)
        for module in self.actor.extra_modules().values():
            module.to(policy.device)
        self._async_actor = AsyncActor(self.actor, config.staleness) if config.staleness else None
        self._collector = make_collector(
            env, self.actor if self._async_actor is None else self._async_actor.actor, seed
        )
        self._learner = OnPolicyLearner(config.learning, self.actor, self.actor.head, seed)
        self._collapse = CollapseDetector(
            [parameter for parameter in self.actor.parameters() if parameter.requires_grad]
        )
        self._equal_group_rollouts = 0

    @property
    def statistics(self) -> EpisodeStatistics:
        """See `FinetuneMethod.statistics`."""
        return self._collector.statistics

    def rollout(self, decisions: int) -> dict[str, float]:
        """See `FinetuneMethod.rollout`; with groups, one episode per environment of at most
        `decisions` decisions."""
        collect = partial(self.collect, decisions)
        if self._async_actor is None:
            return self.learn(collect())
        rollout = self._async_actor.next_rollout(collect)
        with self._async_actor.collecting_ahead(collect, self.rollouts):
            return self.learn(rollout)

    def learn(self, rollout: ChunkRollout) -> dict[str, float]:
        """Learns from a rollout; returns and raises as `FinetuneMethod.rollout`."""
        table = self._table(rollout)
        statistics = self._learner.learn(table)
        self.rollouts += 1
        assert table.valid_RU is not None
        kept_share = float(table.valid_RU.any(dim=1).float().mean())
        if kept_share > 0.0:
            self._collapse.check(
                self.rollouts,
                statistics,
                policy_trains=self.rollouts > self.config.learning.critic_warmup_rollouts,
            )
        if kept_share >= MIN_KEPT:
            self._equal_group_rollouts = 0
        else:
            self._check_equal_groups(rollout, kept_share)
        names = ("kl", "clipped", "ratio", "explained", "value_loss", "entropy")
        return {name: getattr(statistics, name) for name in names} | {"kept": kept_share}

    def collect(self, decisions: int) -> ChunkRollout:
        """The next rollout; with groups, one episode per environment."""
        group = self.config.group
        if group is None:
            return self._collector.rollout(decisions)
        return self._collector.episodes(group.size, decisions, group.outcomes)

    def _check_equal_groups(self, rollout: ChunkRollout, kept_share: float) -> None:
        """Counts rollouts in which nearly all groups have equal outcomes while the task is
        unsolved; equal groups that all solve the task are a normal end of training.

        Raises:
            HandoffError: `PATIENCE` such rollouts in a row.
        """
        assert rollout.outcome_NM is not None
        outcome_N = rollout.outcome_NM[:, 0]
        # Nearly all groups are equal, so their outcome is either that of failure or the maximum.
        best = float(outcome_N.max())
        unsolved = best <= 0.0 or float(outcome_N.mean()) < 0.5 * max(best, 1e-12)
        self._equal_group_rollouts = self._equal_group_rollouts + 1 if unsolved else 0
        if self._equal_group_rollouts >= PATIENCE:
            raise HandoffError(
                f"finetune: in the last {PATIENCE} rollouts, up to {self.rollouts}, {1.0 - kept_share:.0%} of the rows "
                "or more were dropped, because all trajectories of their groups had equal outcomes and failed. Train "
                "longer by imitation, choose an easier task, or use larger groups."
            )

    def _table(self, rollout: ChunkRollout) -> Table:
        config = self.config
        if config.group is None:
            return valued_table(config.learning, config.log_prob_level, rollout, lambda part: part)
        return grouped_table(config.group, config.log_prob_level, rollout, lambda part: part)

    def state_dict(self) -> dict[str, Any]:
        """See `FinetuneMethod.state_dict`."""
        return {
            "policy": self.policy.state_dict(),
            "extra_modules": {
                name: module.state_dict() for name, module in self.actor.extra_modules().items()
            },
            "learner": self._learner.state_dict(),
            "collector": self._collector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `FinetuneMethod.load_state_dict`."""
        self.policy.load_state_dict(state["policy"])
        for name, module in self.actor.extra_modules().items():
            module.load_state_dict(state["extra_modules"][name])
        self._learner.load_state_dict(state["learner"])
        self._collector.load_state_dict(state["collector"])
        if self._async_actor is not None:
            self._async_actor.discard()
        self._collector.begin()
        self.rollouts = self._learner.rollouts

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`: a flow keeps the number of sampler steps of fine-tuning;
        tokens keep the temperature of the card."""
        return self.policy.config.with_sampler_steps(self.config.flow.steps)


def new_actor(
    config: VlaFinetuneConfig, policy: TokenVlaPolicy | VlaPolicy
) -> TokenActor | FlowActor:
    """The actor for this policy; it has no value head with groups (GRPO)."""
    values = None if config.group is not None else config.values
    keep_reference = config.learning.bc_weight > 0.0
    if isinstance(policy, TokenVlaPolicy):
        return TokenActor(
            policy,
            log_prob_level=config.log_prob_level,
            values=values,
            hidden=config.critic,
            temperature=config.temperature,
            keep_reference=keep_reference,
            trunk=config.critic_trunk,
        )
    return FlowActor(
        policy,
        noise=config.flow,
        log_prob_level=config.log_prob_level,
        values=values,
        hidden=config.critic,
        keep_reference=keep_reference,
        trunk=config.critic_trunk,
    )


def check_language_conditioned(policy: ChunkPolicy) -> TokenVlaPolicy | VlaPolicy:
    """Returns the policy if PPO or GRPO can fine-tune it here.

    Raises:
        HandoffError: a policy of another family, or one that started from a checkpoint.
    """
    if isinstance(policy, VlaPolicy) and policy.checkpoint is not None:
        raise HandoffError(
            "finetune: the policy started from a checkpoint, whose sampler moves padded entries of actions, "
            "too; expected a vla without policy.checkpoint, or a token_vla."
        )
    if not isinstance(policy, TokenVlaPolicy | VlaPolicy):
        raise HandoffError(
            f"finetune: the policy is a {type(policy).__name__}, expected a language-conditioned one (token_vla, vla)."
        )
    return policy
