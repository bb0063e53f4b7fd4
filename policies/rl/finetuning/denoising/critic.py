"""Makes critics that read observations as a frozen policy encodes them.

Shape suffixes: B batch, T observed steps, O encoded observation, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from policies.families.diffusion import DiffusionPolicy
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import DenoisingPolicy
from policies.rl.on_policy.observations import observation_tensors


class InstructedCritic(nn.Module):
    """Values of observations with instructions.

    It reads what the encoder makes of both, so that it begins with the features that an instruction
    selects, and does not train them.

    Args:
        encoder: frozen encoder of the initial policy, which is no part of the critic's state.
        network: maps the encoded observation (B, steps, outputs) to values (B, 1).
    """

    def __init__(self, encoder: ObservationEncoder, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        # In a tuple, a module is not registered.
        self._encoder = (encoder,)

    def forward(self, obs: Any) -> Tensor:
        """Values (B, 1) of a TensorDict of vectors and instructions."""
        with torch.no_grad():
            encoded_BTO = self._encoder[0](observation_tensors(obs))
        return self.network(encoded_BTO)


class FeatureCritic(nn.Module):
    """Values of the features that a frozen policy of any denoising family computes of an
    observation; see `DenoisingPolicy.encoded_sampler`.

    Args:
        policy: frozen initial policy, which is no part of the critic's state.
        network: maps features (B, F) to values (B, 1).
    """

    def __init__(self, policy: DenoisingPolicy, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._policy = (policy,)

    def forward(self, obs: Any) -> Tensor:
        """Values (B, 1) of an observation of `policies.rl.collection.chunk_env.ChunkEnv`."""
        return self.network(_features(self._policy[0], obs))


def new_critic(
    policy: DenoisingPolicy, hidden: tuple[int, ...], observe: Callable[[], Any]
) -> nn.Module:
    """An untrained critic.

    Args:
        policy: frozen policy, whose encoder the critic shares if it reads more than vectors.
        hidden: units of the hidden layers.
        observe: returns an observation of the environments, which tells the number of features;
            called only for policies other than `DiffusionPolicy`.
    """
    if not isinstance(policy, DiffusionPolicy):
        return FeatureCritic(policy, _network(_features(policy, observe()).shape[1], hidden))
    if not policy.language_conditioned:
        history, entries = policy.encoded_shape
        return _network(history * entries, hidden)
    encoder = policy.encoder
    return InstructedCritic(encoder, _network(encoder.steps * encoder.outputs, hidden))


@torch.no_grad()
def _features(policy: DenoisingPolicy, obs: Any) -> Tensor:
    """(B, F) features of an observation."""
    return policy.encoded_sampler(observation_tensors(obs)).features()


def _network(entries: int, hidden: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, units in zip((entries, *hidden), hidden, strict=False):
        layers += [nn.Linear(inputs, units), nn.Mish()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], 1))
