"""The IQL core: implicit Q-learning, XQL and f-DVL are options of it, and its critics are those of
EDP's IQL form.

V and Q are learned from the data's actions alone, and the actor is a weighted clone of them
(advantage-weighted regression), so nothing ever asks for the value of an action that the data do
not hold. Order of an update as in the
code: V, then the actor by the new V, then Q by the new V, then the targets. The actor's Gaussian
has a tanh mean and is not squashed itself; draws are clipped.

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
from policies.rl.offline.config import IqlConfig
from policies.rl.offline.value_losses import in_sample_value_loss
from policies.rl.replay.transitions import Observations, Sizes, Transitions

Metrics = dict[str, Tensor]
"""Scalars of one update, detached."""


class InSampleCritics(nn.Module):
    """Q and V of the data's actions; the targets of Q follow slowly.

    Args:
        sizes: of the data.
        critics: members of Q.
        critic: hidden layers of Q.
        value: hidden layers of V.
    """

    def __init__(self, sizes: Sizes, critics: int, critic: MlpSizes, value: MlpSizes) -> None:
        super().__init__()
        self.features = Features(sizes)
        self.critic = EnsembleMlp(critics, self.features.size + sizes.action, critic, 1)
        self.critic_target = deepcopy(self.critic).requires_grad_(False)
        self.value = EnsembleMlp(1, self.features.size, value, 1)

    def seen(self, seen: Observations) -> Tensor:
        """(B, F): what the networks are shown."""
        return self.features(seen.vector_BO)

    def state_value(self, features_BF: Tensor) -> Tensor:
        """(B,) V."""
        return self.value(features_BF)[0, :, 0]

    def action_value(self, features_BF: Tensor, action_BA: Tensor) -> Tensor:
        """(B,) least of the target critics."""
        return self.critic_target(torch.cat([features_BF, action_BA], dim=1))[..., 0].amin(dim=0)

    def all_values(self, features_BF: Tensor, action_BA: Tensor) -> Tensor:
        """(E, B) of the critics that learn."""
        return self.critic(torch.cat([features_BF, action_BA], dim=1))[..., 0]


class TanhMeanGaussian(nn.Module):
    """A Gaussian with a tanh mean and deviations that do not depend on the state.

    Args:
        features: F.
        actions: A.
        sizes: of the hidden layers.
        bounds: of the logarithm of the deviations.
        dropout: share of hidden units that a training pass leaves out.
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
        layers = [nn.Linear(before, after) for before, after in pairwise(widths)]
        self.norms = nn.ModuleList(
            nn.LayerNorm(width, eps=1e-6) for width in sizes.hidden if sizes.layer_norm
        )
        for layer in layers:
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)
        self.log_std_A = nn.Parameter(torch.zeros(actions))

    def mean(self, features_BF: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, A) in (-1, 1); with a generator hidden units are dropped by it."""
        hidden = features_BF
        for number, layer in enumerate(self.layers[:-1]):
            hidden = layer(hidden)
            if self.sizes.layer_norm:
                hidden = self.norms[number](hidden)
            hidden = torch.tanh(hidden) if self.sizes.activation == "tanh" else torch.relu(hidden)
            if generator is not None and self.dropout:
                kept = torch.empty_like(hidden).bernoulli_(1.0 - self.dropout, generator=generator)
                hidden = hidden * kept / (1.0 - self.dropout)
        return torch.tanh(self.layers[-1](hidden))

    def log_std(self) -> Tensor:
        """(A,) within the bounds."""
        return self.log_std_A.clamp(*self.bounds)

    def log_prob(
        self, features_BF: Tensor, action_BA: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,) log-density of given actions, before clipping [nat]; `generator` as in `mean`."""
        log_std_A = self.log_std()
        distance_BA = (action_BA - self.mean(features_BF, generator)) / log_std_A.exp()
        return (-0.5 * distance_BA.square() - log_std_A - 0.5 * math.log(2.0 * math.pi)).sum(dim=1)


class IqlNetworks(InSampleCritics):
    """All weights of the learner."""

    def __init__(self, config: IqlConfig, sizes: Sizes) -> None:
        super().__init__(sizes, config.critics, config.critic, config.value_network)
        bounds = (config.log_std_min, config.log_std_max)
        self.actor = TanhMeanGaussian(
            self.features.size, sizes.action, config.actor, bounds, config.dropout
        )


Networks = TypeVar("Networks", bound=InSampleCritics)


class IqlCritics(Generic[Networks]):
    """Q and V alone, for learners with actors of their own.

    Args:
        config: options; those of the actor have no meaning.
        networks: learn in place.
    """

    def __init__(self, config: IqlConfig, networks: Networks) -> None:
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
        """V, Q and targets, in this order, on every minibatch in turn."""
        metrics: Metrics = {}
        for batch in minibatches:
            metrics |= self._update_value(batch)
            metrics |= self._update_critic(batch)
            move_towards(self.networks.critic_target, self.networks.critic, self.config.tau)
        self.updates += 1
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimisers and the count; all that the next update depends on."""
        return learner_state(self.networks, self.optimizers, self.updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` over."""
        self.updates = load_learner_state(state, self.networks, self.optimizers)

    def advantage(self, batch: Transitions) -> Tensor:
        """(B,) least target Q of the data's actions minus V, detached."""
        net = self.networks
        with torch.no_grad():
            features_BF = net.seen(batch.seen)
            return net.action_value(features_BF, batch.action_BA) - net.state_value(features_BF)

    def _update_value(self, batch: Transitions) -> Metrics:
        net = self.networks
        features_BF = net.seen(batch.seen)
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
                batch.reward_B, batch.discount_B, net.state_value(net.seen(batch.next_seen))
            )
        q_EB = net.all_values(net.seen(batch.seen), batch.action_BA)
        loss = critic_loss(q_EB, target_B, self.config.huber)
        self._step("critic", loss)
        return {"critic_loss": loss.detach(), "q": q_EB.detach().mean()}

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


class Iql(IqlCritics[IqlNetworks]):
    """The learner: networks, optimisers and a count of its updates; learns offline and goes on
    online.

    All its chance comes from the seed and the count, so an update can be repeated.

    Args:
        config: options.
        sizes: of the data.
        seed: of weights and dropout.
    """

    def __init__(self, config: IqlConfig, sizes: Sizes, seed: int = 0) -> None:
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
        """V, actor, Q and targets, in this order, on every minibatch in turn."""
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
    def act(self, vector_NO: np.ndarray, draw: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observations (N, O): drawn with `draw`, or without it the
        mean."""
        net = self.networks
        mean = net.actor.mean(
            net.features(torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32)))
        ).numpy()
        if draw is None:
            return mean
        noise = draw.standard_normal(mean.shape, dtype=np.float32)
        return np.clip(mean + net.actor.log_std().exp().numpy() * noise, -1.0, 1.0)

    def _update_actor(self, batch: Transitions) -> Metrics:
        config, net = self.config, self.networks
        weight_B = awr_weight(self.advantage(batch), config.inverse_temperature, config.weight_clip)
        log_prob_B = net.actor.log_prob(net.seen(batch.seen), batch.action_BA, self._generator)
        loss = -(weight_B * log_prob_B).mean()
        if config.actor_decay_updates is not None:
            share = cosine_share(self.updates, config.actor_decay_updates)
            self.optimizers["actor"].param_groups[0]["lr"] = config.actor_learning_rate * share
        self._step("actor", loss)
        return {
            "actor_loss": loss.detach(),
            "weight": weight_B.mean(),
            "log_prob": log_prob_B.detach().mean(),
        }


def awr_weight(advantage_B: Tensor, inverse_temperature: float, clip: float) -> Tensor:
    """(B,) min(exp(b (Q - V)), clip): how much an action of the data is worth cloning."""
    return (inverse_temperature * advantage_B).clamp(max=math.log(clip)).exp()


def cosine_share(update: int, updates: int) -> float:
    """Share of the first rate that is left after `update` of `updates`: half a cosine from 1 to 0,
    then 0."""
    return 0.5 * (1.0 + math.cos(math.pi * min(update / updates, 1.0)))


def critic_loss(value_EB: Tensor, target_B: Tensor, huber: float | None) -> Tensor:
    """Mean squared error over members and rows, or Huber's, whose slope stops growing at an error
    of `huber`.

    Huber's is doubled, so that both are the same wherever the error is small.
    """
    target_EB = target_B.expand_as(value_EB)
    if huber is None:
        return functional.mse_loss(value_EB, target_EB)
    return 2.0 * functional.huber_loss(value_EB, target_EB, delta=huber)
