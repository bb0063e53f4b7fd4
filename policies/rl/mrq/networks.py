"""Defines the networks of MR.Q: encoders of states and pairs, two values, and a policy.

Layers, activations and initial weights are those of the released code [C]; LayerNorm has no trained
gain or shift. Its epsilon is that of the other learners (1e-6, in the code 1e-5), so that a robot
runs the exported actor as any other.

Shape suffixes: B batch, F features, A action, S state embedding, P pair embedding, K atoms, E
values.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.networks.mlp import NORM_EPSILON
from policies.rl.mrq.config import MrqConfig, MrqEncoderConfig
from policies.rl.networks.distributional import symexp_atoms
from policies.rl.networks.ensemble import Features
from policies.rl.replay.transitions import Sizes
from robots.wire.actor_card import Activation

VALUES = 2
"""Value networks E."""
STATE_ACTIVATION: Activation = "elu"
"""Activation of encoders and values [C]."""
POLICY_ACTIVATION: Activation = "relu"
"""Activation of the policy [C]."""


class NormedMlp(nn.Module):
    """Linear layers with LayerNorm and an activation behind each.

    Initial weights are uniform (Glorot, with the gain of ReLU); biases are zero [C].

    Args:
        widths: entries of the input and of the output of every layer.
        activation: of every layer that has one.
        head: whether the last layer is only linear.
    """

    def __init__(self, widths: tuple[int, ...], activation: Activation, *, head: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(one, other) for one, other in pairwise(widths))
        for layer in self.layers:
            initialise(layer)
        self.activation: Activation = activation
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, last width) outputs for (B, first width) inputs."""
        hidden = inputs
        for number, layer in enumerate(self.layers, start=1):
            hidden = layer(hidden)
            if self.head and number == len(self.layers):
                return hidden
            hidden = functional.layer_norm(hidden, hidden.shape[-1:], eps=NORM_EPSILON)
            elu = self.activation == "elu"
            hidden = functional.elu(hidden) if elu else functional.relu(hidden)
        return hidden


class Prediction(NamedTuple):
    """Linear predictions from the embedding of a pair of state and action."""

    terminal_B: Tensor
    """1 where the task terminates with the step, as a regression."""
    state_BS: Tensor
    """Embedding of the next state."""
    reward_BK: Tensor
    """Logits of the reward's distribution."""


class MrqEncoder(nn.Module):
    """Encoders of states and of pairs of state and action, with the linear model on top.

    Args:
        config: sizes.
        features: entries F of the normalised observation.
        actions: entries A of an action.
    """

    def __init__(self, config: MrqEncoderConfig, features: int, actions: int) -> None:
        super().__init__()
        units = config.units
        self._state_size = config.state_size
        self.state_layers = NormedMlp(
            (features, units, units, config.state_size), STATE_ACTIVATION, head=False
        )
        self.action_layer = nn.Linear(actions, config.action_size)
        self.pair_layers = NormedMlp(
            (config.state_size + config.action_size, units, units, config.pair_size),
            STATE_ACTIVATION,
            head=True,
        )
        self.model = nn.Linear(config.pair_size, 1 + config.state_size + config.bins)
        for layer in (self.action_layer, self.model):
            initialise(layer)

    def state(self, features_BF: Tensor) -> Tensor:
        """(B, S) embeddings of states."""
        return self.state_layers(features_BF)

    def pair(self, state_BS: Tensor, action_BA: Tensor) -> Tensor:
        """(B, P) embeddings of pairs of an embedded state and an action."""
        action_BZ = functional.elu(self.action_layer(action_BA))
        return self.pair_layers(torch.cat([state_BS, action_BZ], dim=1))

    def predict(self, state_BS: Tensor, action_BA: Tensor) -> Prediction:
        """Predictions of what follows an action in an embedded state."""
        out = self.model(self.pair(state_BS, action_BA))
        behind = 1 + self._state_size
        return Prediction(out[:, 0], out[:, 1:behind], out[:, behind:])


class MrqValues(nn.Module):
    """Two value networks on embeddings of pairs.

    Args:
        config: sizes.
    """

    def __init__(self, config: MrqConfig) -> None:
        super().__init__()
        units = config.value_units
        widths = (config.encoder.pair_size, units, units, units, 1)
        self.members = nn.ModuleList(
            NormedMlp(widths, STATE_ACTIVATION, head=True) for _ in range(VALUES)
        )

    def forward(self, pair_BP: Tensor) -> Tensor:
        """(E, B) values, in units of the reward scale."""
        return torch.stack([member(pair_BP)[:, 0] for member in self.members])


class MrqNetworks(nn.Module):
    """All networks of the learner, with their targets."""

    atoms_K: Tensor

    def __init__(self, config: MrqConfig, sizes: Sizes) -> None:
        super().__init__()
        encoder, units = config.encoder, config.policy_units
        self.features = Features(sizes)
        self.encoder = MrqEncoder(encoder, self.features.size, sizes.action)
        self.value = MrqValues(config)
        widths = (encoder.state_size, units, units, sizes.action)
        self.policy = NormedMlp(widths, POLICY_ACTIVATION, head=True)
        self.encoder_target = deepcopy(self.encoder).requires_grad_(False)
        self.value_target = deepcopy(self.value).requires_grad_(False)
        self.policy_target = deepcopy(self.policy).requires_grad_(False)
        self.register_buffer("atoms_K", symexp_atoms(encoder.low, encoder.high, encoder.bins))

    def action(self, vector_BO: Tensor) -> Tensor:
        """(B, A) actions for observations (B, O) in physical units."""
        return torch.tanh(self.policy(self.encoder.state(self.features(vector_BO))))

    def synchronise(self) -> None:
        """Copies all networks to their targets."""
        for name in ("encoder", "value", "policy"):
            getattr(self, f"{name}_target").load_state_dict(getattr(self, name).state_dict())


def initialise(layer: nn.Module) -> None:
    """Draws the initial weights of a linear layer."""
    assert isinstance(layer, nn.Linear)
    nn.init.xavier_uniform_(layer.weight, nn.init.calculate_gain("relu"))
    nn.init.zeros_(layer.bias)
