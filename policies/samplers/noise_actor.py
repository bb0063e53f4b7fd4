"""Chooses the initial noise of a sampler from the observation (DSRL, Wagenmaker et al., arXiv
2506.15799).

A sampler without noise of its own maps the initial noise to a chunk. An actor that chooses this
noise steers the policy between the chunks that it learned, while its weights stay as they are. The
actor is a tanh-Gaussian whose architecture is a `robots.wire.actor_card.ActorCard`, so the weights
are those that `policies.rl.actor_export` exports.

Shape suffixes: B batch, F features, K chosen steps of noise, H horizon, A action, D = K * A.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policies.networks.config import NoiseActorConfig
from policies.networks.mlp import new_mlp


class NoiseActor(nn.Module):
    """An untrained actor of the initial noise.

    Args:
        config: architecture and bounds.
    """

    centre: Tensor
    half_range: Tensor

    def __init__(self, config: NoiseActorConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("centre", torch.zeros(config.card.observation))
        self.register_buffer("half_range", torch.ones(config.card.observation))
        self.actor = new_mlp(config.card.actor)

    def forward(self, features_BF: Tensor, noise_BHA: Tensor) -> Tensor:
        """The initial noise (B, H, A), within the limit.

        Args:
            features_BF: the policy's features of the observation.
            noise_BHA: standard normal, see `NoiseActorConfig.sampled`.
        """
        config, card = self.config, self.config.card
        out_BD = self.actor((features_BF - self.centre) / self.half_range)
        raw_BD, log_std_BD = out_BD.chunk(2, dim=1)
        if config.sampled:
            std_BD = log_std_BD.clamp(card.log_std_min, card.log_std_max).exp()
            raw_BD = torch.addcmul(raw_BD, std_BD, noise_BHA[:, : config.steps].flatten(1))
        chosen_BKA = config.limit * torch.tanh(raw_BD).unflatten(1, (config.steps, -1))
        return whole_noise(chosen_BKA, noise_BHA.shape[1])


def whole_noise(chosen_BKA: Tensor, horizon: int) -> Tensor:
    """Noise of a whole chunk (B, H, A) from that of its first K actions, whose last is repeated, as
    in the code of DSRL for pi0."""
    rest = horizon - chosen_BKA.shape[1]
    if not rest:
        return chosen_BKA
    return torch.cat([chosen_BKA, chosen_BKA[:, -1:].expand(-1, rest, -1)], dim=1)
