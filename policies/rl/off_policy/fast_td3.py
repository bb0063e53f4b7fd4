"""Implements FastTD3: TD3 with distributional critics, many environments and large batches (Seo et
al., arXiv 2505.22642).

PQL (Li et al., arXiv 2307.12983) is the same learner with other options
(`policies.rl.off_policy.fast_td3_config.PqlConfig`).

Where paper and released code differ, this follows the code. The Bellman target is the whole
projected distribution of the critic with the lower mean; the actor maximises the lower of the two
means. There is no target actor. The policy is updated after every second critic update, on the same
minibatch. Differences from the code: running statistics of observations come from environment steps
only, as in PQL, while FastTD3 also includes every replayed minibatch; minibatches are sampled
uniformly from all steps, not equally from each environment; initial weights are orthogonal except
in the actor's last layer; all computations are float32.

Shape suffixes: B batch, N environments, E critics, K atoms, O observation, F features, A action.
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
from policies.rl.networks.running_normaliser import NORMALISER_FLOOR
from policies.rl.off_policy.exploration_noise import PerEnvNoise
from policies.rl.off_policy.fast_td3_config import FastTd3Config
from policies.rl.replay.transitions import Sizes, Transitions
from robots.errors import HandoffError

CRITICS = 2
"""Critics in the ensemble."""


class FastTd3Networks(nn.Module):
    """All networks of the learner, with target critics."""

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
        """(B, A) actions: tanh of the actor's output."""
        return torch.tanh(self.actor(features_BF)[0])


class FastTd3Updates:
    """Networks, optimisers and updates of FastTD3, on any device.

    The random numbers of an update depend only on the seed and the number of updates, so updates
    are reproducible.

    Args:
        config: options.
        sizes: sizes of observation vectors and actions; images are not supported.
        seed: seed of initial weights, which are the same on every device, and of the updates.
        device: device of networks and minibatches; None is the host.

    Raises:
        HandoffError: observations have images, or the atoms are invalid.
    """

    def __init__(
        self,
        config: FastTd3Config,
        sizes: Sizes,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        if sizes.pictures:
            raise HandoffError(
                f"fast_td3: cameras {[name for name, *_ in sizes.pictures]}, but FastTD3 supports only "
                "observation vectors."
            )
        self.config = config
        self.sizes = sizes
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = FastTd3Networks(config, sizes)
        if device is not None:
            self.networks.to(device)
        net = self.networks
        self.optimizers: dict[str, Optimizer] = {
            name: torch.optim.AdamW(
                network.parameters(), rate, weight_decay=config.weight_decay, fused=True
            )
            for name, network, rate in (
                ("critic", net.critic, config.learning_rate),
                ("actor", net.actor, config.actor_learning_rate),
            )
        }
        self.updates = 0
        """Number of critic updates."""
        self._generator = torch.Generator() if device is None else torch.Generator(device)

    def update(self, minibatches: Sequence[Transitions]) -> dict[str, Tensor]:
        """One critic update per minibatch, followed by a policy update on the same minibatch if it
        is due."""
        metrics: dict[str, Tensor] = {}
        for batch in minibatches:
            self._generator.manual_seed(
                sequence_seed(self.seed, LearnerStream.FAST_TD3_UPDATE, self.updates)
            )
            policy_updates = self.policy_updates
            loss, critic_metrics = self.critic_loss(batch)
            self._step("critic", loss)
            metrics |= critic_metrics
            self.updates += 1
            if self.policy_updates > policy_updates:
                metrics |= self._update_actor(batch)
            move_towards(self.networks.critic_target, self.networks.critic, self.config.tau)
        return metrics

    @property
    def policy_updates(self) -> int:
        """Number of policy updates so far. It depends only on the number of critic updates, so
        rounding and resumed runs add or lose no updates."""
        return math.floor(self.updates / self.config.critic_per_policy + 1e-9)

    def critic_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum over both critics of the mean cross-entropy to the target distribution [nat], and
        metrics."""
        net = self.networks
        target_BK = self.target(batch)
        inputs = torch.cat([net.features(batch.obs.vector_BO), batch.action_BA], dim=1)
        loss = cross_entropy(net.critic(inputs), target_BK).mean(dim=1).sum()
        return loss, {
            "critic_loss": loss.detach(),
            "target": mean_value(target_BK, net.atoms_K).mean(),
        }

    @torch.no_grad()
    def target(self, batch: Transitions) -> Tensor:
        """(B, K) projected value distributions, for each row that of the target critic with the
        lower mean."""
        net, config = self.networks, self.config
        next_BF = net.features(batch.next_obs.vector_BO)
        noise_BA = (
            torch.randn(
                batch.action_BA.shape, generator=self._generator, device=batch.action_BA.device
            )
            * config.target_noise
        )
        noise_BA = noise_BA.clamp(-config.target_noise_clip, config.target_noise_clip)
        action_BA = (net.action(next_BF) + noise_BA).clamp(-1.0, 1.0)
        next_EBK = torch.softmax(net.critic_target(torch.cat([next_BF, action_BA], dim=1)), dim=-1)
        projected = [
            project(next_BK, batch.reward_B, batch.discount_B, net.atoms_K) for next_BK in next_EBK
        ]
        return lower_mean(torch.stack(projected), net.atoms_K)

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Negative mean over rows of the lower mean of the critics, and metrics."""
        net = self.networks
        features_BF = net.features(batch.obs.vector_BO)
        logit_EBK = net.critic(torch.cat([features_BF, net.action(features_BF)], dim=1))
        loss = -mean_value(torch.softmax(logit_EBK, dim=-1), net.atoms_K).amin(dim=0).mean()
        return loss, {"actor_loss": loss.detach()}

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


class FastTd3(FastTd3Updates):
    """FastTD3 learner that acts on the host: updates, observation statistics, exploration noise.

    The random numbers of acting come from an argument.

    Args:
        config: options.
        sizes: sizes of observation vectors and actions; images are not supported.
        num_envs: number of environments N for exploration.
        seed: seed of initial weights and noise.

    Raises:
        HandoffError: `num_envs` is below 1, or an error of `FastTd3Updates`.
    """

    def __init__(self, config: FastTd3Config, sizes: Sizes, num_envs: int, seed: int = 0) -> None:
        super().__init__(config, sizes, seed)
        self.noise = PerEnvNoise(config.noise, num_envs)
        self.statistics = MomentStatistics((sizes.observation,))

    def observe(self, vector_NO: np.ndarray, began_N: np.ndarray, rng: np.random.Generator) -> None:
        """Updates observation statistics and exploration noise before a step of all environments.

        Args:
            vector_NO: observations in physical units, added to the running statistics.
            began_N: bool mask of environments where an episode begins, whose noise is resampled if
                its spread is uniform.
            rng: random number generator.

        Raises:
            HandoffError: observations are not finite.
        """
        self.noise.begin_episodes(began_N, rng)
        if self.config.normalise:
            self.statistics.update(vector_NO)
            features = self.networks.features
            features.centre.copy_(torch.from_numpy(self.statistics.mean))
            features.half_range.copy_(
                torch.from_numpy(self.statistics.deviation + NORMALISER_FLOOR)
            )

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observation vectors (N, O), with the exploration noise of
        each environment, or without noise if `rng` is None."""
        features_NF = self.networks.features(
            torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))
        )
        action_NA = self.networks.action(features_NF).numpy()
        return action_NA if rng is None else self.noise.add_noise(action_NA, rng)

    def state_dict(self) -> dict[str, Any]:
        """Complete state: weights, optimisers, number of updates, statistics and exploration
        noise."""
        moments = {
            name: torch.from_numpy(np.array(getattr(self.statistics, name)))
            for name in ("mean", "squares")
        }
        return {
            **learner_state(self.networks, self.optimizers, self.updates),
            "statistics": {"count": self.statistics.count, **moments},
            "deviation": self.noise.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`.

        Raises:
            HandoffError: the state has another number of environments.
        """
        self.noise.load_state(state["deviation"], "fast_td3")
        self.updates = load_learner_state(state, self.networks, self.optimizers)
        self.statistics.count = state["statistics"]["count"]
        self.statistics.mean = state["statistics"]["mean"].numpy().copy()
        self.statistics.squares = state["statistics"]["squares"].numpy().copy()


def lower_mean(probability_EBK: Tensor, atoms_K: Tensor) -> Tensor:
    """(B, K) distribution of the member with the lowest mean, selected separately for each row."""
    lowest_B = mean_value(probability_EBK, atoms_K).argmin(dim=0)
    return probability_EBK[lowest_B, torch.arange(len(lowest_B), device=lowest_B.device)]
