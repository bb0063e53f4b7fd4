"""Implements implicit Q-learning (IQL), XQL and f-DVL; EDP uses its critics.

V and Q are learned only from actions in the data, and the actor is trained by advantage-weighted
regression, so actions outside the data are never evaluated. An update has the order of the released
code: V, then the actor with the new V, then Q with the new V, then the targets. The actor is a
Gaussian with a tanh mean; samples are clipped, not squashed.

Shape suffixes: B batch, E members, A action, F features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.random_streams import sequence_seed
from policies.rl.networks.config import MlpSizes
from policies.rl.networks.critics import bellman_target
from policies.rl.networks.ensemble import EnsembleMlp, Features, move_towards
from policies.rl.networks.learner_state import learner_state, load_learner_state
from policies.rl.offline.config import InSampleConfig, InSampleCriticsConfig
from policies.rl.offline.value_losses import in_sample_value_loss
from policies.rl.replay.transitions import Observations, Sizes, Transitions

Metrics = dict[str, Tensor]
"""Detached scalars of one update."""
FIRST_SCALE = 0.01
"""Factor of `shrink_final_layers`."""


class InSampleCritics(nn.Module):
    """Q ensemble with target networks, and V.

    Args:
        sizes: sizes of observations and actions.
        critics: members of the Q ensemble.
        critic: hidden layers of Q.
        value: hidden layers of V.
    """

    def __init__(self, sizes: Sizes, critics: int, critic: MlpSizes, value: MlpSizes) -> None:
        super().__init__()
        self.features = Features(sizes)
        self.critic = EnsembleMlp(critics, self.features.size + sizes.action, critic, 1)
        self.critic_target = deepcopy(self.critic).requires_grad_(False)
        self.value = EnsembleMlp(1, self.features.size, value, 1)

    def encode(self, obs: Observations) -> Tensor:
        """(B, F) features of the observations."""
        return self.features(obs.vector_BO)

    def state_value(self, features_BF: Tensor) -> Tensor:
        """(B,) state values V."""
        return self.value(features_BF)[0, :, 0]

    def action_value(self, features_BF: Tensor, action_BA: Tensor) -> Tensor:
        """(B,) minimum Q over the target critics."""
        return self.critic_target(torch.cat([features_BF, action_BA], dim=1))[..., 0].amin(dim=0)

    def all_values(self, features_BF: Tensor, action_BA: Tensor) -> Tensor:
        """(E, B) Q of the trained critics."""
        return self.critic(torch.cat([features_BF, action_BA], dim=1))[..., 0]


class TanhMeanGaussian(nn.Module):
    """Gaussian policy with a tanh mean and state-independent standard deviations.

    Args:
        features: number of features F.
        actions: entries A of an action.
        sizes: hidden layers.
        bounds: bounds of the log standard deviations.
        dropout: dropout probability of hidden units in training.
    """

    def __init__(
        self,
        features: int,
        actions: int,
        sizes: MlpSizes,
        bounds: tuple[float, float],
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.actions = actions
        self.sizes = sizes
        self.bounds = bounds
        self.dropout = dropout
        widths = (features, *sizes.hidden, actions)
        layers = [nn.Linear(size_in, size_out) for size_in, size_out in pairwise(widths)]
        self.norms = nn.ModuleList(
            nn.LayerNorm(width, eps=1e-6) for width in sizes.hidden if sizes.layer_norm
        )
        for layer in layers:
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)
        self.log_std_A = nn.Parameter(torch.zeros(actions))

    def mean(self, features_BF: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, A) mean in (-1, 1); a generator enables dropout."""
        hidden = features_BF
        for number, layer in enumerate(self.layers[:-1]):
            hidden = layer(hidden)
            if self.sizes.layer_norm:
                hidden = self.norms[number](hidden)
            hidden = torch.tanh(hidden) if self.sizes.activation == "tanh" else torch.relu(hidden)
            if generator is not None and self.dropout:
                mask = torch.empty_like(hidden).bernoulli_(1.0 - self.dropout, generator=generator)
                hidden = hidden * mask / (1.0 - self.dropout)
        return torch.tanh(self.layers[-1](hidden))

    def log_std(self) -> Tensor:
        """(A,) log standard deviations, clipped to the bounds."""
        return self.log_std_A.clamp(*self.bounds)

    def log_prob(
        self, features_BF: Tensor, action_BA: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,) log-density of given actions under the unclipped Gaussian [nat]; see `mean` for
        `generator`."""
        log_std_A = self.log_std()
        distance_BA = (action_BA - self.mean(features_BF, generator)) / log_std_A.exp()
        return (-0.5 * distance_BA.square() - log_std_A - 0.5 * math.log(2.0 * math.pi)).sum(dim=1)


class IqlNetworks(InSampleCritics):
    """All networks of the learner."""

    def __init__(self, config: InSampleConfig, sizes: Sizes) -> None:
        super().__init__(sizes, config.critics, config.critic, config.value_network)
        bounds = (config.log_std_min, config.log_std_max)
        self.actor = TanhMeanGaussian(
            self.features.size, sizes.action, config.actor, bounds, config.dropout
        )


Networks = TypeVar("Networks", bound=InSampleCritics)


class IqlCritics(Generic[Networks]):
    """Training of Q and V, without an actor.

    Args:
        config: options of Q and V.
        networks: Q and V, trained in place.
    """

    def __init__(self, config: InSampleCriticsConfig, networks: Networks) -> None:
        self.config = config
        self.networks = networks
        self.optimizers = {
            "value": torch.optim.Adam(
                networks.value.parameters(), config.learning_rate, fused=True
            ),
            "critic": torch.optim.Adam(
                networks.critic.parameters(), config.learning_rate, fused=True
            ),
        }
        self.updates = 0

    def update(self, minibatches: Sequence[Transitions]) -> Metrics:
        """Updates V, Q and targets, in this order, on each minibatch."""
        metrics: Metrics = {}
        for batch in minibatches:
            metrics |= self._update_value(batch)
            metrics |= self._update_critic(batch)
            move_towards(self.networks.critic_target, self.networks.critic, self.config.tau)
        self.updates += 1
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Complete state: weights, optimisers and number of updates."""
        return learner_state(self.networks, self.optimizers, self.updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.updates = load_learner_state(state, self.networks, self.optimizers)

    def advantage(self, batch: Transitions) -> Tensor:
        """(B,) detached advantage of the actions in the data: minimum target Q minus V."""
        net = self.networks
        with torch.no_grad():
            features_BF = net.encode(batch.obs)
            return net.action_value(features_BF, batch.action_BA) - net.state_value(features_BF)

    def _update_value(self, batch: Transitions) -> Metrics:
        net = self.networks
        features_BF = net.encode(batch.obs)
        with torch.no_grad():
            q_B = net.action_value(features_BF, batch.action_BA)
        v_B = net.state_value(features_BF)
        loss = in_sample_value_loss(q_B - v_B, self.config).mean()
        self._step("value", loss)
        return {
            "in_sample_value_loss": loss.detach(),
            "v": v_B.detach().mean(),
            "v_size": v_B.detach().abs().max(),
        }

    def _update_critic(self, batch: Transitions) -> Metrics:
        net = self.networks
        with torch.no_grad():
            target_B = bellman_target(
                batch.reward_B, batch.discount_B, net.state_value(net.encode(batch.next_obs))
            )
        q_EB = net.all_values(net.encode(batch.obs), batch.action_BA)
        loss = critic_loss(q_EB, target_B, self.config.huber)
        self._step("critic", loss)
        return {"critic_loss": loss.detach(), "q": q_EB.detach().mean()}

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


class Iql(IqlCritics[IqlNetworks]):
    """Learner of IQL, XQL or f-DVL, by its options, for offline training and online fine-tuning.

    Random numbers depend only on the seed and the number of updates, so updates are reproducible.

    Args:
        config: options.
        sizes: sizes of observations and actions.
        seed: seed of initial weights and dropout.
    """

    config: InSampleConfig

    def __init__(self, config: InSampleConfig, sizes: Sizes, seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            networks = IqlNetworks(config, sizes)
        super().__init__(config, networks)
        self.sizes = sizes
        self.seed = seed
        actor = torch.optim.Adam(
            self.networks.actor.parameters(), config.actor_learning_rate, fused=True
        )
        self.optimizers = {
            "value": self.optimizers["value"],
            "actor": actor,
            "critic": self.optimizers["critic"],
        }
        self._generator = torch.Generator()

    def update(self, minibatches: Sequence[Transitions]) -> Metrics:
        """Updates V, actor, Q and targets, in this order, on each minibatch."""
        self._generator.manual_seed(sequence_seed(self.seed, self.updates))
        metrics: Metrics = {}
        for batch in minibatches:
            metrics |= self._update_value(batch)
            metrics |= self._update_actor(batch)
            metrics |= self._update_critic(batch)
            move_towards(self.networks.critic_target, self.networks.critic, self.config.tau)
        self.updates += 1
        return metrics

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observation vectors (N, O): sampled with `rng`, or the mean
        if it is None."""
        net = self.networks
        mean = net.actor.mean(
            net.features(torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32)))
        ).numpy()
        if rng is None:
            return mean
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        return np.clip(mean + net.actor.log_std().exp().numpy() * noise, -1.0, 1.0)

    def _update_actor(self, batch: Transitions) -> Metrics:
        config, net = self.config, self.networks
        weight_B = awr_weight(self.advantage(batch), config.inverse_temperature, config.weight_clip)
        log_prob_B = net.actor.log_prob(net.encode(batch.obs), batch.action_BA, self._generator)
        loss = -(weight_B * log_prob_B).mean()
        if config.actor_decay_updates is not None:
            factor = cosine_factor(self.updates, config.actor_decay_updates)
            self.optimizers["actor"].param_groups[0]["lr"] = config.actor_learning_rate * factor
        self._step("actor", loss)
        return {
            "actor_loss": loss.detach(),
            "weight": weight_B.mean(),
            "log_prob": log_prob_B.detach().mean(),
        }


@torch.no_grad()
def shrink_final_layers(networks: InSampleCritics) -> None:
    """Scales the last layers down, so that all initial values are near 0.

    A common offset of the values decays only by (1 - g) tau per update. From initial values around
    1, a few thousand updates (IQL has a million) leave an offset larger than a sparse reward.
    """
    for network in (networks.critic, networks.critic_target, networks.value):
        network.weights[-1].mul_(FIRST_SCALE)


def awr_weight(advantage_B: Tensor, inverse_temperature: float, clip: float) -> Tensor:
    """(B,) weights min(exp(b (Q - V)), clip) of advantage-weighted regression."""
    return (inverse_temperature * advantage_B).clamp(max=math.log(clip)).exp()


def cosine_factor(update: int, updates: int) -> float:
    """Factor of the learning rate at `update`: half a cosine from 1 to 0 over `updates`, then 0."""
    return 0.5 * (1.0 + math.cos(math.pi * min(update / updates, 1.0)))


def critic_loss(value_EB: Tensor, target_B: Tensor, huber: float | None) -> Tensor:
    """Mean squared error over members and rows, or the Huber loss with threshold `huber`.

    The Huber loss is doubled, so that both are equal for small errors.
    """
    target_EB = target_B.expand_as(value_EB)
    if huber is None:
        return functional.mse_loss(value_EB, target_EB)
    return 2.0 * functional.huber_loss(value_EB, target_EB, delta=huber)
