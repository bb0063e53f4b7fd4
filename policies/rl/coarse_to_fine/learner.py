"""Implements CQN-AS, the coarse-to-fine Q-network with action sequences (Seo and Abbeel, arXiv
2411.12155), for observation vectors and continuous actions.

A critic predicts distributions of the return for the bins of every entry of the next K actions,
level by level; the policy takes the bin of highest value in each. Entries, steps and levels have
separate values with one and the same Bellman target, the distribution of the same entry, step and
level for the sequence of highest value in the next state. On demonstrations the demonstrated bins
are to dominate the others. The target critic acts, and sequences are averaged over time.

This follows the released code [C], except where it differs from the other learners here.
Observations are normalised; actions behind the end of an episode have no loss, where the code
trains zeros or copies of the last action; sequences enter the temporal ensemble also where an
action has an entry that is exactly 0; demonstrations are drawn for their own share of a minibatch
only, not among the policy's steps too. Pictures are features of a frozen network.

Shape suffixes: B batch, N environments, O observation, K steps of a sequence, A action, L levels,
C bins, Z atoms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.networks.coarse_to_fine.bins import decode, encode
from policies.networks.coarse_to_fine.config import CoarseToFineConfig
from policies.networks.coarse_to_fine.critic import Choice, CoarseToFineCritic, highest
from policies.random_streams import LearnerStream, sequence_seed
from policies.rl.coarse_to_fine.config import CqnAsConfig
from policies.rl.coarse_to_fine.sequences import SequenceBatch
from policies.rl.networks.distributional import project
from policies.rl.networks.ensemble import Features, move_towards
from policies.rl.networks.learner_state import learner_state, load_learner_state
from policies.rl.networks.running_normaliser import RunningNormaliser
from policies.rl.replay.transitions import Sizes, Transitions


class CqnNetworks(nn.Module):
    """Critic and target critic with shared normalisation of the observations.

    Args:
        config: sizes of the critic.
        features: network inputs.
        horizon: steps K of a sequence.
        actions: entries A of an action.
    """

    def __init__(
        self, config: CoarseToFineConfig, features: Features, horizon: int, actions: int
    ) -> None:
        super().__init__()
        self.features = features
        self.critic = CoarseToFineCritic(config, features.size, horizon, actions)
        self.target = CoarseToFineCritic(config, features.size, horizon, actions)
        self.target.load_state_dict(self.critic.state_dict())
        self.target.requires_grad_(False)


class CqnAs:
    """CQN-AS learner: updates and observation statistics.

    The random numbers of an update depend only on the seed and the number of updates; those of
    acting come from an argument.

    Args:
        config: options.
        sizes: sizes of observation vectors and actions.
        seed: seed of initial weights and of the updates.
    """

    def __init__(self, config: CqnAsConfig, sizes: Sizes, seed: int = 0) -> None:
        self.config = config
        self.sizes = sizes
        self.seed = seed
        features = Features(sizes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = CqnNetworks(config.critic, features, config.horizon, sizes.action)
        self.optimizer = torch.optim.AdamW(
            self.networks.critic.parameters(),
            config.learning_rate,
            weight_decay=config.weight_decay,
        )
        self.normaliser = RunningNormaliser(features)
        self.updates = 0
        """Number of updates."""
        self._generator = torch.Generator()

    @property
    def policy_updates(self) -> int:
        """Number of updates of what acts, one per update."""
        return self.updates

    def observe(self, vector_NO: np.ndarray) -> None:
        """Adds observations to the normalisation."""
        if self.config.normalise:
            self.normaliser.update(vector_NO)

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(N, K, A) float32 sequences of actions of highest value to the target critic.

        Args:
            vector_NO: observation vectors in physical units.
            rng: draws one bin of those that are indifferent; None takes the first of them.
        """
        net, choose = self.networks, highest
        if rng is not None:
            self._generator.manual_seed(int(rng.integers(1 << 62)))
            choose = self._choice()
        input_NF = net.features(torch.from_numpy(vector_NO))
        return decode(net.target.best(input_NF, choose), self.config.critic.bins).numpy()

    def update(self, batch: SequenceBatch) -> dict[str, Any]:
        """One update of the critic, after which the target follows it; returns metrics."""
        net, config = self.networks, self.config
        self._generator.manual_seed(
            sequence_seed(self.seed, LearnerStream.CQN_UPDATE, self.updates)
        )
        index_BKAL, centre_BKAL = encode(batch.action_BKA, config.critic.levels, config.critic.bins)
        input_BF = net.features(batch.transitions.obs.vector_BO)
        logit_BKALCZ = net.critic(input_BF, centre_BKAL)
        valid_BK = batch.valid_BK
        entropy_BK = self._cross_entropy(logit_BKALCZ, index_BKAL, self.target(batch.transitions))
        value_loss = (entropy_BK * valid_BK).sum() / valid_BK.sum()
        demo_B = batch.transitions.demo_B
        dominance_BK, margin_BK = self._imitation(logit_BKALCZ[demo_B], index_BKAL[demo_B])
        imitated_BK = valid_BK[demo_B]
        count = imitated_BK.sum().clamp(min=1.0)
        dominance = (dominance_BK * imitated_BK).sum() / count
        margin = (margin_BK * imitated_BK).sum() / count
        loss = config.value_weight * value_loss + config.imitation_weight * (dominance + margin)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if config.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(net.critic.parameters(), config.max_grad_norm)
        self.optimizer.step()
        move_towards(net.target, net.critic, config.tau)
        self.updates += 1
        return {
            "critic_loss": value_loss.detach(),
            "dominance_loss": dominance.detach(),
            "margin_loss": margin.detach(),
            "imitated": float(demo_B.float().mean()),
        }

    @torch.no_grad()
    def target(self, batch: Transitions) -> Tensor:
        """(B, K, A, L, Z) target distributions: those of the target critic for the sequence that
        the critic prefers in the next state, moved by reward and discount."""
        net, critic = self.networks, self.config.critic
        input_BF = net.features(batch.next_obs.vector_BO)
        index_BKAL = net.critic.best(input_BF, self._choice())
        # Centres of the intervals around the chosen actions; a bin's centre lies inside it.
        _, centre_BKAL = encode(decode(index_BKAL, critic.bins), critic.levels, critic.bins)
        probability = functional.softmax(
            chosen(net.target(input_BF, centre_BKAL), index_BKAL), dim=-1
        )
        shape = probability.shape
        values = shape[1:-1].numel()
        reward, discount = (
            each_B[:, None].expand(-1, values).flatten()
            for each_B in (batch.reward_B, batch.discount_B)
        )
        flat = project(probability.flatten(0, -2), reward, discount, net.target.atoms_Z)
        return flat.unflatten(0, shape[:-1])

    def acting_weights(self) -> dict[str, Tensor]:
        """Normalisation and weights of the target critic, which acts, for
        `policies.families.coarse_to_fine`."""
        net = self.networks
        critic = {f"critic.{name}": value for name, value in net.target.state_dict().items()}
        return {**net.features.state_dict(), **critic}

    def state_dict(self) -> dict[str, Any]:
        """Complete state."""
        state = learner_state(self.networks, {"critic": self.optimizer}, self.updates)
        return {**state, "normaliser": self.normaliser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.updates = load_learner_state(state, self.networks, {"critic": self.optimizer})
        self.normaliser.load_state_dict(state["normaliser"])

    def _choice(self) -> Choice:
        """The bin of highest value, or a random one where all are equally good."""

        def choose(value_BKAC: Tensor) -> Tensor:
            spread_BKA = value_BKAC.amax(-1) - value_BKAC.amin(-1)
            random_BKA = torch.randint(
                value_BKAC.shape[-1], spread_BKA.shape, generator=self._generator
            )
            return torch.where(
                spread_BKA < self.config.indifference, random_BKA, highest(value_BKAC)
            )

        return choose

    def _cross_entropy(self, logits: Tensor, index_BKAL: Tensor, target: Tensor) -> Tensor:
        """(B, K) cross-entropies of the executed bins to the targets (B, K, A, L, Z)."""
        log_probability = functional.log_softmax(chosen(logits, index_BKAL), dim=-1)
        return -(target * log_probability).sum(-1).mean((-2, -1))

    def _imitation(self, logits: Tensor, index_BKAL: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K) shortfalls from first-order stochastic dominance and from the margin."""
        probability = functional.softmax(logits, dim=-1)
        executed = chosen(probability, index_BKAL)[..., None, :]
        excess = (executed.cumsum(-1) - probability.cumsum(-1)).clamp(min=0.0)
        atoms_Z = self.networks.critic.atoms_Z
        lead = (executed - probability) @ atoms_Z
        missing = (self.config.margin - lead).clamp(min=0.0)
        return excess.sum(-1).mean((-3, -2, -1)), missing.mean((-3, -2, -1))


def chosen(of_bins: Tensor, index_BKAL: Tensor) -> Tensor:
    """(B, K, A, L, Z) entries (B, K, A, L, C, Z) of the bins of the given indices."""
    index = index_BKAL[..., None, None].expand(*index_BKAL.shape, 1, of_bins.shape[-1])
    return of_bins.gather(-2, index).squeeze(-2)
