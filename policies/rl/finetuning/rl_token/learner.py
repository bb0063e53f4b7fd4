"""Learns to refine the chunks of a frozen policy: an actor and an ensemble of critics.

The losses are those of Xu et al., arXiv 2604.23073, which are TD3's with a term of imitation: the
critics, of RL token, observation vector and executed part of a chunk, learn the discounted reward
of a whole chunk and the minimum of their targets at the next one; the actor maximises their
minimum, and is drawn towards the reference. The critics take several steps for one of the actor.
Ours: the next chunk has the exploration noise of acting, which serves as TD3's smoothing, and there
is no target actor.

Shape suffixes: B batch, S state, D entries of the executed part, E members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from policies.rl.finetuning.rl_token.config import RlTokenFinetuneConfig
from policies.rl.networks.adam import Adam
from policies.rl.networks.critics import bellman_target, squared_error
from policies.rl.networks.ensemble import EnsembleMlp, move_towards
from policies.rl.networks.learner_state import learner_state, load_learner_state
from policies.samplers.chunk_actor import ChunkEditor
from robots.wire.actor_card import MlpCard


class RefinementBatch(NamedTuple):
    """B transitions between two decisions."""

    state_BS: Tensor
    reference_BD: Tensor
    """Executed part of the chunk that the policy proposed."""
    executed_BD: Tensor
    """Executed part of the chunk that was executed."""
    reward_B: Tensor
    """Discounted sum of the rewards of the executed actions."""
    discount_B: Tensor
    """Discount over the executed actions; 0 where the task ended."""
    next_state_BS: Tensor
    next_reference_BD: Tensor


class RefinementNetworks(nn.Module):
    """Untrained actor and critics.

    Args:
        config: options.
        state: S.
        action: (steps, entries) of the executed part.
    """

    def __init__(self, config: RlTokenFinetuneConfig, state: int, action: tuple[int, int]) -> None:
        super().__init__()
        entries = action[0] * action[1]
        self.actor = ChunkEditor(editor_card(config, state, entries), config.limit)
        self.critic = EnsembleMlp(config.critics, state + entries, config.critic, 1)
        self.critic_target = EnsembleMlp(config.critics, state + entries, config.critic, 1)
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.critic_target.requires_grad_(False)


class RefinementLearner:
    """Implements `policies.rl.finetuning.frozen_policy.ActorLearner`.

    Args:
        config: options.
        state: S.
        action: (steps, entries) of the executed part.
        seed: seed of initial weights.
    """

    def __init__(
        self, config: RlTokenFinetuneConfig, state: int, action: tuple[int, int], seed: int
    ) -> None:
        self.config = config
        self.action = action
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = RefinementNetworks(config, state, action)
        self.optimizers = {
            "critic": Adam(self.networks.critic.parameters(), config.learning_rate),
            "actor": Adam(self.networks.actor.parameters(), config.learning_rate),
        }
        self.updates = 0

    def explored(
        self, state_BS: Tensor, reference_BD: Tensor, generator: torch.Generator
    ) -> Tensor:
        """(B, D) refined chunks with exploration noise."""
        refined_BD = reference_BD + self.networks.actor(state_BS, reference_BD)
        return refined_BD + self.noise(len(state_BS), generator)

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """(rows, D) exploration noise."""
        steps, entries = self.action
        shared = self.config.shared_noise
        own = torch.randn(rows, steps, entries, generator=generator)
        common = torch.randn(rows, 1, entries, generator=generator)
        mixed = (1.0 - shared) ** 0.5 * own + shared**0.5 * common
        return self.config.noise * mixed.flatten(1)

    def shown(self, reference_BD: Tensor, generator: torch.Generator) -> Tensor:
        """References as the actor is shown them in training: 0 in the rows of the dropout."""
        kept_B1 = torch.rand(len(reference_BD), 1, generator=generator) >= self.config.dropout
        return reference_BD * kept_B1

    def target(self, batch: RefinementBatch, generator: torch.Generator) -> Tensor:
        """(B,) Bellman targets of the critics."""
        next_state_BS = batch.next_state_BS
        action_BD = self.explored(next_state_BS, batch.next_reference_BD, generator)
        value_EB = self.networks.critic_target(torch.cat([next_state_BS, action_BD], dim=1))[..., 0]
        return bellman_target(batch.reward_B, batch.discount_B, value_EB.amin(dim=0))

    def actor_loss(
        self, batch: RefinementBatch, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Loss of the actor, and its mean squared edit."""
        state_BS, reference_BD = batch.state_BS, batch.reference_BD
        edit_BD = self.networks.actor(state_BS, self.shown(reference_BD, generator))
        inputs = torch.cat([state_BS, reference_BD + edit_BD], dim=1)
        value_B = self.networks.critic(inputs)[..., 0].amin(dim=0)
        # The distance to the reference is the edit.
        squared = edit_BD.square().mean()
        return self.config.bc_weight * squared - value_B.mean(), squared.detach()

    def update(
        self, minibatches: Sequence[RefinementBatch], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """One critic step per minibatch, then one step of the actor on the last."""
        metrics: dict[str, Tensor] = {}
        for batch in minibatches:
            metrics = self._critic_step(batch, generator)
        critic = self.networks.critic
        critic.requires_grad_(False)
        loss, squared = self.actor_loss(minibatches[-1], generator)
        self._step("actor", loss)
        critic.requires_grad_(True)
        self.updates += 1
        return {**metrics, "edit": squared.sqrt()}

    def state_dict(self) -> dict[str, Any]:
        """See `ActorLearner.state_dict`."""
        return learner_state(self.networks, self.optimizers, self.updates)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `ActorLearner.load_state_dict`."""
        self.updates = load_learner_state(state, self.networks, self.optimizers)

    def _critic_step(self, batch: RefinementBatch, generator: torch.Generator) -> dict[str, Tensor]:
        with torch.no_grad():
            target_B = self.target(batch, generator)
        inputs = torch.cat([batch.state_BS, batch.executed_BD], dim=1)
        loss = squared_error(self.networks.critic(inputs)[..., 0], target_B)
        self._step("critic", loss)
        move_towards(self.networks.critic_target, self.networks.critic, self.config.tau)
        return {"critic_loss": loss.detach(), "value": target_B.mean()}

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def editor_card(config: RlTokenFinetuneConfig, state: int, entries: int) -> MlpCard:
    """Layers of the actor, from state and reference to an edit."""
    sizes = config.actor
    return MlpCard(
        layers=(state + entries, *sizes.hidden, entries),
        activation=sizes.activation,
        layer_norm=sizes.layer_norm,
    )
