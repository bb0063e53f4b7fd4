"""Defines the Gaussian actor and the critics of PPO on observation vectors.

Shape suffixes: B batch, O observation, A action, V values.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from policies.rl.actor_export import MIN_STD, network_actor
from policies.rl.from_scratch.config import PpoOptions
from policies.rl.networks.config import MlpSizes
from policies.rl.networks.ensemble import EnsembleMlp, Features
from policies.rl.on_policy.gaussian_actor import GaussianActor
from policies.rl.replay.transitions import Sizes
from robots.wire.actor_card import ActorCard

FIRST_SCALE = 0.01
"""Factor on the initial weights of the mean's last layer, so that the first actions are near 0 in
every state (Andrychowicz et al., arXiv 2006.05990)."""


class SquashedMean(nn.Module):
    """Mean of the actions: tanh of a network, so that it lies in [-1, 1].

    Args:
        features: normalised inputs, shared with the critics.
        sizes: layers.
        actions: entries A of an action.
    """

    def __init__(self, features: Features, sizes: MlpSizes, actions: int) -> None:
        super().__init__()
        self.features = features
        self.network = EnsembleMlp(1, features.size, sizes, actions, FIRST_SCALE)

    def forward(self, vector_BO: Tensor) -> Tensor:
        """(B, A) mean actions of observation vectors in physical units."""
        return torch.tanh(self.network(self.features(vector_BO))[0])


class Values(nn.Module):
    """Values of observations, one network per value.

    Args:
        features: normalised inputs, shared with the actor.
        sizes: layers.
        values: V, 1 or, with cost values, 2.
    """

    def __init__(self, features: Features, sizes: MlpSizes, values: int) -> None:
        super().__init__()
        self.features = features
        self.networks = EnsembleMlp(values, features.size, sizes, 1)

    def forward(self, vector_BO: Tensor) -> Tensor:
        """(B, V) values of observation vectors in physical units."""
        return self.networks(self.features(vector_BO))[..., 0].T


class StateActorCritic:
    """Actor and critics with shared normalisation of the observations.

    Args:
        options: layers and initial standard deviation.
        sizes: sizes of observation vectors and actions.
        values: 1, or 2 with cost values.
        seed: seed of the initial weights.
    """

    def __init__(self, options: PpoOptions, sizes: Sizes, values: int, seed: int) -> None:
        self.sizes = sizes
        self.features = Features(sizes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.mean = SquashedMean(self.features, options.actor, sizes.action)
            self.critic = Values(self.features, options.critic, values)
        self.actor = GaussianActor(self.mean, sizes.action, options.init_std)

    def to(self, device: torch.device) -> StateActorCritic:
        """Moves all weights to `device`; returns itself."""
        self.actor.to(device)
        self.critic.to(device)
        return self

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Weights and normalisation."""
        return {"actor": self.actor.state_dict(), "critic": self.critic.state_dict()}

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Restores a `state_dict`."""
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])

    def exported(self) -> tuple[ActorCard, dict[str, np.ndarray]]:
        """Card and arrays of the mean. Sampling from it in NumPy adds noise before tanh, with the
        geometric mean of the standard deviations."""
        log_std = max(float(self.actor.log_std.detach().mean()), math.log(MIN_STD))
        return network_actor(self.features, self.mean.network, self.sizes, log_std)
