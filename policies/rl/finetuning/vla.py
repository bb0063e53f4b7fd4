"""Practice of a policy that reads: PPO with values, or GRPO with none; by its action tokens
(RLinf-VLA, arXiv
2510.06710) or by the steps of its flow (pi_RL, arXiv 2510.25889)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from policies.families.token_vla import TokenVlaPolicy
from policies.families.vla import VlaPolicy
from policies.policy import ChunkPolicy
from policies.policy_config import PolicyConfig
from policies.rl.collection.async_actor import Stale
from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.collection.pipelined_collector import collector_of
from policies.rl.finetuning.base import OnlinePractice
from policies.rl.finetuning.collapse import PATIENCE, Dead
from policies.rl.finetuning.config import VlaPracticeConfig
from policies.rl.on_policy.advantages import ChunkRollout, grouped_table, valued_table
from policies.rl.on_policy.flow_actor import FlowActor
from policies.rl.on_policy.ppo import OnPolicyLearner
from policies.rl.on_policy.rollout import Table
from policies.rl.on_policy.token_actor import TokenActor
from robots.errors import HandoffError
from robots.interfaces import Progress

LEAST_KEPT = 0.02
"""Share of the rows of a rollout below which next to nothing is learned from it."""


class VlaPractice(OnlinePractice):
    """Implements `policies.rl.finetuning.finetune.Practice`.

    Args:
        config: how.
        policy: learns in place.
        worlds: in which it practises.
        seed: of weights and chance.

    Raises:
        HandoffError: not all of a chunk is executed.
    """

    def __init__(
        self,
        config: VlaPracticeConfig,
        policy: TokenVlaPolicy | VlaPolicy,
        worlds: DecisionEnv,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        self.config = config
        self.policy = policy
        self.rollouts = 0
        if worlds.entries != policy.chunk_shape[0] * policy.chunk_shape[1]:
            raise HandoffError(
                f"practice: {worlds.entries} entries of chunks of shape {policy.chunk_shape} are executed, expected "
                "all of them: the others would be learned from and do nothing. Is n_action_steps the horizon?"
            )
        self.actor = new_actor(config, policy)
        for module in self.actor.beside().values():
            module.to(policy.device)
        self._acting = Stale(self.actor, config.staleness) if config.staleness else None
        self._collector = collector_of(
            worlds, self.actor if self._acting is None else self._acting.actor, seed
        )
        self._learner = OnPolicyLearner(config.learning, self.actor, self.actor.head, seed)
        self._dead = Dead([part for part in self.actor.parameters() if part.requires_grad])
        self._silent = 0

    @property
    def statistics(self) -> EpisodeStatistics:
        """See `Practice.statistics`."""
        return self._collector.statistics

    def rollout(self, decisions: int) -> dict[str, float]:
        """See `Practice.rollout`; in groups an episode in every world, of so many decisions at
        most."""
        collect = partial(self.collect, decisions)
        if self._acting is None:
            return self.learn(collect())
        made = self._acting.made(collect)
        with self._acting.ahead(collect, self.rollouts):
            return self.learn(made)

    def learn(self, made: ChunkRollout) -> dict[str, float]:
        """Learns from a rollout; see `Practice.rollout` for what is returned and raised."""
        table = self._table(made)
        learned = self._learner.learn(table)
        self.rollouts += 1
        assert table.valid_RU is not None
        kept = float(table.valid_RU.any(dim=1).float().mean())
        if kept > 0.0:
            self._dead.look(
                self.rollouts,
                learned,
                practises=self.rollouts > self.config.learning.critic_warm_up,
            )
        if kept >= LEAST_KEPT:
            self._silent = 0
        else:
            self._hear_nothing(made, kept)
        names = ("kl", "clipped", "ratio", "explained", "value_loss", "entropy")
        return {name: getattr(learned, name) for name in names} | {"kept": kept}

    def collect(self, decisions: int) -> ChunkRollout:
        """The next rollout; in groups an episode in every world."""
        group = self.config.group
        if group is None:
            return self._collector.rollout(decisions)
        return self._collector.episodes(group.size, decisions, group.outcomes)

    def _hear_nothing(self, made: ChunkRollout, kept: float) -> None:
        """Behind a rollout whose groups nearly all came to the same; where most solved the task
        there is little left.

        Raises:
            HandoffError: that has lasted, with the task unsolved.
        """
        assert made.outcome_NM is not None
        outcome_N = made.outcome_NM[:, 0]
        # All groups alike have come to nothing, or to all there is: only then is success the mean
        # of what remains.
        unsolved = float(outcome_N.mean()) < 0.5 * max(float(outcome_N.max()), 1e-12)
        self._silent = self._silent + 1 if unsolved or float(outcome_N.max()) <= 0.0 else 0
        if self._silent >= PATIENCE:
            raise HandoffError(
                f"practice: in the last {PATIENCE} rollouts, up to {self.rollouts}, {1.0 - kept:.0%} of the rows and "
                "more were left out, for all trajectories of their groups came to the same, and to nothing. Imitate "
                "more before, ask for something easier, or take larger groups."
            )

    def _table(self, made: ChunkRollout) -> Table:
        config = self.config
        if config.group is None:
            return valued_table(config.learning, config.log_prob, made, lambda part: part)
        return grouped_table(config.group, config.log_prob, made, lambda part: part)

    def state_dict(self) -> dict[str, Any]:
        """See `Practice.state_dict`."""
        return {
            "policy": self.policy.state_dict(),
            "beside": {name: module.state_dict() for name, module in self.actor.beside().items()},
            "learner": self._learner.state_dict(),
            "collector": self._collector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Practice.load_state_dict`."""
        self.policy.load_state_dict(state["policy"])
        for name, module in self.actor.beside().items():
            module.load_state_dict(state["beside"][name])
        self._learner.load_state_dict(state["learner"])
        self._collector.load_state_dict(state["collector"])
        if self._acting is not None:
            self._acting.forget()
        self._collector.begin()
        self.rollouts = self._learner.rollouts

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `Practice.finish`: tokens at their own temperature; a flow in as many steps as were
        practised."""
        return self.policy.config.with_sampler_steps(self.config.flow.steps)


def new_actor(
    config: VlaPracticeConfig, policy: TokenVlaPolicy | VlaPolicy
) -> TokenActor | FlowActor:
    """The actor by which such a policy learns; it has no values where groups are compared."""
    values = None if config.group is not None else config.values
    clones = config.learning.cloning > 0.0
    if isinstance(policy, TokenVlaPolicy):
        return TokenActor(
            policy,
            level=config.log_prob,
            values=values,
            hidden=config.critic,
            temperature=config.temperature,
            clones=clones,
            trunk=config.critic_trunk,
        )
    return FlowActor(
        policy,
        noise=config.flow,
        level=config.log_prob,
        values=values,
        hidden=config.critic,
        clones=clones,
        trunk=config.critic_trunk,
    )


def check_reads(policy: ChunkPolicy) -> TokenVlaPolicy | VlaPolicy:
    """The policy, if it can practise so.

    Raises:
        HandoffError: it is another one.
    """
    if not isinstance(policy, TokenVlaPolicy | VlaPolicy):
        raise HandoffError(
            f"practice: a {type(policy).__name__}, expected a policy that reads (token_vla, vla)."
        )
    return policy
