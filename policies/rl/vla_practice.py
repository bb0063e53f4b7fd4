"""Practice of a policy that reads: PPO with values of the backbone, or GRPO with none (RLinf-VLA, arXiv 2510.06710)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from policies.policy_config import TokenVlaConfig
from policies.rl.advantages import ChunkRollout, grouped_table, valued_table
from policies.rl.chunk_collector import ChunkCollector
from policies.rl.chunk_worlds import ChunkWorlds
from policies.rl.collector import EpisodeTally
from policies.rl.dead import PATIENCE, Dead
from policies.rl.experience import Table
from policies.rl.on_policy import OnPolicyLearner
from policies.rl.online_practice import OnlinePractice
from policies.rl.practice_config import VlaPracticeConfig
from policies.rl.token_actor import TokenActor
from policies.token_vla import TokenVlaPolicy
from robots.errors import HandoffError
from robots.types import Progress


class VlaPractice(OnlinePractice):
    """Implements `policies.finetune.Practice`.

    Args:
        config: how.
        policy: learns in place.
        worlds: in which it practises.
        seed: of weights and chance.
    """

    def __init__(self, config: VlaPracticeConfig, policy: TokenVlaPolicy, worlds: ChunkWorlds, seed: int) -> None:
        torch.manual_seed(seed)
        self.config, self.policy, self.rollouts = config, policy, 0
        learning = config.learning
        values = None if config.group is not None else config.values
        self._actor = TokenActor(
            policy, config.log_prob, values, config.critic, config.temperature, clones=learning.cloning > 0.0
        )
        self._collector = ChunkCollector(worlds, self._actor, seed)
        self._learner = OnPolicyLearner(learning, self._actor, self._actor.head, seed)
        self._dead = Dead([part for part in self._actor.parameters() if part.requires_grad])
        self._silent = 0

    @property
    def tally(self) -> EpisodeTally:
        """See `Practice.tally`."""
        return self._collector.tally

    def rollout(self, decisions: int) -> dict[str, float]:
        """See `Practice.rollout`; in groups an episode in every world, of so many decisions at most."""
        group = self.config.group
        if group is None:
            made = self._collector.rollout(decisions)
        else:
            made = self._collector.episodes(group.size, decisions, group.outcomes)
        table, learning = self._table(made), self.config.learning
        learned = self._learner.learn(table)
        self.rollouts += 1
        assert table.valid_RU is not None
        kept = float(table.valid_RU.any(dim=1).float().mean())
        if kept > 0.0:
            self._silent = 0
            self._dead.look(self.rollouts, learned, practises=self.rollouts > learning.critic_warm_up)
        else:
            self._hear_nothing(made)
        names = ("kl", "clipped", "ratio", "explained", "value_loss", "entropy")
        return {name: getattr(learned, name) for name in names} | {"kept": kept}

    def _hear_nothing(self, made: ChunkRollout) -> None:
        """Behind a rollout whose groups all came to the same; where they all solved the task there is nothing left.

        Raises:
            HandoffError: that has lasted, with the task unsolved.
        """
        assert made.outcome_NM is not None
        unsolved = float(made.outcome_NM[:, 0].mean()) <= 0.0
        self._silent = self._silent + 1 if unsolved else 0
        if self._silent >= PATIENCE:
            raise HandoffError(
                f"practice: in the last {PATIENCE} rollouts, up to {self.rollouts}, all trajectories of every group "
                "came to the same, and to nothing. Imitate more before, ask for something easier, or take larger ones."
            )

    def _table(self, made: ChunkRollout) -> Table:
        config = self.config
        if config.group is None:
            return valued_table(config.learning, config.log_prob, made, lambda part: part)
        return grouped_table(config.group, config.log_prob, made, lambda part: part)

    def state_dict(self) -> dict[str, Any]:
        """See `Practice.state_dict`."""
        before, head = self._actor.before, self._actor.head
        return {
            "policy": self.policy.state_dict(),
            "before": None if before is None else before.state_dict(),
            "head": None if head is None else head.state_dict(),
            "learner": self._learner.state_dict(),
            "collector": self._collector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Practice.load_state_dict`."""
        self.policy.load_state_dict(state["policy"])
        for module, name in ((self._actor.before, "before"), (self._actor.head, "head")):
            if module is not None:
                module.load_state_dict(state[name])
        self._learner.load_state_dict(state["learner"])
        self._collector.load_state_dict(state["collector"])
        self._collector.begin()
        self.rollouts = self._learner.rollouts

    def finish(self, identity: str, out: Path, progress: Progress) -> TokenVlaConfig:
        """See `Practice.finish`: at inference it is as it was, at its own temperature."""
        return self.policy.config


def check_reads(policy: Any) -> TokenVlaPolicy:
    """The policy, if it can practise so.

    Raises:
        HandoffError: it is another one.
    """
    if not isinstance(policy, TokenVlaPolicy):
        raise HandoffError(f"practice: a {type(policy).__name__}, expected a policy of action tokens (token_vla).")
    return policy
