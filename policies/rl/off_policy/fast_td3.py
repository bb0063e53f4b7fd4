"""FastTD3: TD3 with distributional critics for many worlds and large batches (Seo et al., arXiv
2505.22642).

PQL (Li et al., arXiv 2307.12983) is the same learner with other options
(`policies.rl.off_policy.fast_td3_config.pql`).

Followed is the released code where it differs from the paper. The target is the whole projected
distribution of the critic whose projection has the lower mean; the actor climbs the lower of the
two means. There is no target actor. The policy is updated after every second critic update, on the
same batch. What differs from the code: running statistics of observations count what is seen in the
worlds, as in PQL, where FastTD3 counts every replayed batch as well; minibatches are drawn from all
steps alike, not equally many of each world; weights begin orthogonal but for the actor's last
layer; everything is float32.

Shape suffixes: B batch, N worlds, E critics, K atoms, O observation, F features, A action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.normalize import MomentStatistics
from policies.random_streams import LearnerStream, sequence_seed
from policies.rl.networks.adam import Optimizer
from policies.rl.networks.distributional import cross_entropy, even_atoms, mean_value, project
from policies.rl.networks.ensemble import EnsembleMlp, Features, move_towards
from policies.rl.networks.learner_state import learner_state, load_learner_state
from policies.rl.off_policy.exploration_noise import MixedNoise
from policies.rl.off_policy.fast_td3_config import FastTd3Config
from policies.rl.replay.transitions import Sizes, Transitions
from robots.errors import HandoffError

CRITICS = 2
NORMALISER_FLOOR = 1e-2
"""Added to the deviation of every entry [C]."""


class FastTd3Networks(nn.Module):
    """All weights of the learner; the critics' target follows slowly."""

    atoms_K: Tensor

    def __init__(self, config: FastTd3Config, sizes: Sizes) -> None:
        super().__init__()
        self.features = Features(sizes)
        inputs = self.features.size + sizes.action
        self.critic = EnsembleMlp(CRITICS, inputs, config.critic, config.atoms)
        self.critic_target = deepcopy(self.critic).requires_grad_(False)
        self.actor = EnsembleMlp(1, self.features.size, config.actor, sizes.action)
        nn.init.normal_(self.actor.weights[-1], 0.0, config.init_scale)
        self.register_buffer("atoms_K", even_atoms(config.low, config.high, config.atoms))

    def action(self, features_BF: Tensor) -> Tensor:
        """(B, A): tanh of the actor's answer."""
        return torch.tanh(self.actor(features_BF)[0])


class FastTd3:
    """The learner: networks, optimisers, a count of its critic updates, statistics of what was
    seen, exploration.

    An update's chance comes from the seed and the count, so it can be repeated; that of acting is
    an argument.

    Args:
        config: options.
        sizes: of the data: a vector, no pictures.
        worlds: N, in which it explores.
        seed: of weights and noise.

    Raises:
        HandoffError: pictures, no worlds, or atoms without room.
    """

    def __init__(self, config: FastTd3Config, sizes: Sizes, worlds: int, seed: int = 0) -> None:
        if sizes.pictures:
            raise HandoffError(
                f"fast_td3: cameras {[name for name, *_ in sizes.pictures]}, it learns from state alone."
            )
        self.config = config
        self.sizes = sizes
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = FastTd3Networks(config, sizes)
        self.noise = MixedNoise(config.noise, worlds)
        self.statistics = MomentStatistics((sizes.observation,))
        net = self.networks
        self.optimizers: dict[str, Optimizer] = {
            name: torch.optim.AdamW(
                one.parameters(), rate, weight_decay=config.weight_decay, fused=True
            )
            for name, one, rate in (
                ("critic", net.critic, config.learning_rate),
                ("actor", net.actor, config.actor_learning_rate),
            )
        }
        self.updates = 0
        """Of the critics."""
        self._generator = torch.Generator()

    def observe(
        self, vector_NO: np.ndarray, began_N: np.ndarray, draw: np.random.Generator
    ) -> None:
        """What is seen in all worlds before they are acted in with exploration, and where episodes
        begin.

        Args:
            vector_NO: in physical units; the running statistics count it.
            began_N: bool; there the deviation of the noise is drawn anew, if it is to be.
            draw: all chance.

        Raises:
            HandoffError: a number that is not finite.
        """
        self.noise.begin(began_N, draw)
        if self.config.normalise:
            self.statistics.update(vector_NO)
            features = self.networks.features
            features.centre.copy_(torch.from_numpy(self.statistics.mean))
            features.half_range.copy_(
                torch.from_numpy(self.statistics.deviation + NORMALISER_FLOOR)
            )

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, draw: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observations (N, O): with every world's noise, or without
        `draw` none."""
        features_NF = self.networks.features(
            torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))
        )
        action_NA = self.networks.action(features_NF).numpy()
        return action_NA if draw is None else self.noise.added(action_NA, draw)

    def update(self, minibatches: Sequence[Transitions]) -> dict[str, Tensor]:
        """One critic update per minibatch, and behind it a policy update on the same one where it
        is due."""
        metrics: dict[str, Tensor] = {}
        for batch in minibatches:
            self._generator.manual_seed(
                sequence_seed(self.seed, LearnerStream.FAST_TD3_UPDATE, self.updates)
            )
            before = self.policy_updates
            loss, told = self.critic_loss(batch)
            self._step("critic", loss)
            metrics |= told
            self.updates += 1
            if self.policy_updates > before:
                metrics |= self._update_actor(batch)
            move_towards(self.networks.critic_target, self.networks.critic, self.config.tau)
        return metrics

    @property
    def policy_updates(self) -> int:
        """Made so far: what the ratio gives for the count of critic updates, so neither rounding
        nor a resumed run can gain or lose one."""
        return math.floor(self.updates / self.config.critic_per_policy + 1e-9)

    def critic_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum over both critics of the mean cross-entropy to the target's distribution [nat], and
        what it tells."""
        net = self.networks
        target_BK = self.target(batch)
        inputs = torch.cat([net.features(batch.seen.vector_BO), batch.action_BA], dim=1)
        loss = cross_entropy(net.critic(inputs), target_BK).mean(dim=1).sum()
        return loss, {
            "critic_loss": loss.detach(),
            "target": mean_value(target_BK, net.atoms_K).mean(),
        }

    @torch.no_grad()
    def target(self, batch: Transitions) -> Tensor:
        """(B, K): for every row the projected distribution of the target critic whose projection
        has the lower mean."""
        net, config = self.networks, self.config
        after_BF = net.features(batch.next_seen.vector_BO)
        noise_BA = (
            torch.randn(batch.action_BA.shape, generator=self._generator) * config.target_noise
        )
        noise_BA = noise_BA.clamp(-config.target_noise_clip, config.target_noise_clip)
        action_BA = (net.action(after_BF) + noise_BA).clamp(-1.0, 1.0)
        next_EBK = torch.softmax(net.critic_target(torch.cat([after_BF, action_BA], dim=1)), dim=-1)
        projected = [
            project(next_BK, batch.reward_B, batch.discount_B, net.atoms_K) for next_BK in next_EBK
        ]
        return lower_mean(torch.stack(projected), net.atoms_K)

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Minus the mean over rows of the lower of the critics' means, and what it tells."""
        net = self.networks
        features_BF = net.features(batch.seen.vector_BO)
        logit_EBK = net.critic(torch.cat([features_BF, net.action(features_BF)], dim=1))
        loss = -mean_value(torch.softmax(logit_EBK, dim=-1), net.atoms_K).amin(dim=0).mean()
        return loss, {"actor_loss": loss.detach()}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimisers, count, statistics and the worlds' deviations; all that the next
        update depends on."""
        seen = {
            name: torch.from_numpy(np.array(getattr(self.statistics, name)))
            for name in ("mean", "squares")
        }
        return {
            **learner_state(self.networks, self.optimizers, self.updates),
            "statistics": {"count": self.statistics.count, **seen},
            "deviation": torch.from_numpy(self.noise.deviation_N.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` over.

        Raises:
            HandoffError: it explored in another number of worlds.
        """
        if len(state["deviation"]) != len(self.noise.deviation_N):
            raise HandoffError(
                f"fast_td3: the state is of {len(state['deviation'])} worlds, expected {len(self.noise.deviation_N)}."
            )
        self.updates = load_learner_state(state, self.networks, self.optimizers)
        self.statistics.count = state["statistics"]["count"]
        self.statistics.mean = state["statistics"]["mean"].numpy().copy()
        self.statistics.squares = state["statistics"]["squares"].numpy().copy()
        self.noise.deviation_N = state["deviation"].numpy().copy()

    def _update_actor(self, batch: Transitions) -> dict[str, Tensor]:
        net = self.networks
        net.critic.requires_grad_(False)
        loss, metrics = self.actor_loss(batch)
        self._step("actor", loss)
        net.critic.requires_grad_(True)
        return metrics

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.config.max_grad_norm is not None:
            module = self.networks.critic if name == "critic" else self.networks.actor
            nn.utils.clip_grad_norm_(module.parameters(), self.config.max_grad_norm)
        optimizer.step()


def lower_mean(probability_EBK: Tensor, atoms_K: Tensor) -> Tensor:
    """(B, K): of every row the whole distribution of the member with the lowest mean, never a
    mixture of several."""
    lowest_B = mean_value(probability_EBK, atoms_K).argmin(dim=0)
    return probability_EBK[lowest_B, torch.arange(len(lowest_B))]
