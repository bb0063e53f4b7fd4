"""A residual MLP that denoises action chunks, and plain MLPs of given layers.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, W width, E time
embedding.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from robots.wire.actor_card import Activation, MlpCard

NORM_EPSILON = 1e-6
"""Epsilon of LayerNorm in networks of reinforcement learners."""


_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
}


def new_mlp(card: MlpCard) -> nn.Sequential:
    """An untrained network of these layers."""
    layers: list[nn.Module] = []
    activations = card.activations()
    for layer, (inputs, outputs) in enumerate(pairwise(card.layers)):
        layers.append(nn.Linear(inputs, outputs))
        if layer < len(activations):
            layers += [nn.LayerNorm(outputs, eps=NORM_EPSILON)] if card.layer_norm else []
            layers.append(_ACTIVATIONS[activations[layer]]())
    return nn.Sequential(*layers)


class ResidualBlock(nn.Module):
    """Residual block of two pre-norm layers, each LayerNorm, SiLU, Linear."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.SiLU(),
            nn.Linear(width, width),
        )

    def forward(self, hidden_BW: Tensor) -> Tensor:
        """(B, W) to (B, W)."""
        return hidden_BW + self.body(hidden_BW)


class MlpDenoiser(nn.Module):
    """Velocity of a noisy chunk, conditioned on timestep and observation, all concatenated at the
    input.

    Args:
        chunk: (H, A).
        observation: (T, O).
        timesteps: number of noise levels.
        width: W.
        blocks: number of residual blocks.
        embedding: E, even.
    """

    embeddings_KE: Tensor

    def __init__(
        self,
        chunk: tuple[int, int],
        observation: tuple[int, int],
        timesteps: int,
        width: int,
        blocks: int,
        embedding: int,
    ) -> None:
        super().__init__()
        self.chunk = chunk
        flat_chunk, flat_observation = math.prod(chunk), math.prod(observation)
        self.register_buffer(
            "embeddings_KE", sinusoidal_embedding(timesteps, embedding), persistent=False
        )
        self.input = nn.Linear(flat_chunk + flat_observation + embedding, width)
        self.blocks = nn.Sequential(*(ResidualBlock(width) for _ in range(blocks)))
        self.output = nn.Sequential(nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, flat_chunk))

    def forward(
        self,
        noisy_BHA: Tensor,
        timestep_B: Tensor,
        observation_BTO: Tensor,
        shift_BE: Tensor | None = None,
    ) -> Tensor:
        """Predicts the velocity (B, H, A).

        Args:
            noisy_BHA: chunk at its noise level, normalised.
            timestep_B: int64.
            observation_BTO: normalised, newest step last.
            shift_BE: added to the embedding of the timestep; None adds nothing.
        """
        time_BE = self.embeddings_KE[timestep_B]
        if shift_BE is not None:
            time_BE = time_BE + shift_BE
        inputs = (noisy_BHA.flatten(1), observation_BTO.flatten(1), time_BE)
        return self.output(self.blocks(self.input(torch.cat(inputs, dim=-1)))).unflatten(
            1, self.chunk
        )


class StepLengthEmbedding(nn.Module):
    """Shift of the timestep embedding by the length of a sampler's step, as in shortcut models
    (Frans et al., arXiv 2410.12557): a linear function of the length's sinusoidal embedding.

    It begins at 0, so that a network starts as what it was without it (SnapFlow, arXiv
    2604.05656). That the shift of length 0, of the instantaneous velocity, is 0 for every weight
    is ours: what is learned about steps leaves the velocity's inputs alone.

    Args:
        timesteps: longest length.
        size: E, even.
    """

    embeddings_KE: Tensor

    def __init__(self, timesteps: int, size: int) -> None:
        super().__init__()
        embeddings_KE = sinusoidal_embedding(timesteps + 1, size)
        self.register_buffer("embeddings_KE", embeddings_KE - embeddings_KE[:1], persistent=False)
        self.linear = nn.Linear(size, size, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, length_B: Tensor) -> Tensor:
        """Lengths (B,) int64 [1 / timesteps of the way from noise to chunk] to shifts (B, E)."""
        return self.linear(self.embeddings_KE[length_B])


def sinusoidal_embedding(count: int, size: int) -> Tensor:
    """Sinusoidal embeddings (count, size) of 0..count-1: sines, then cosines, at geometric
    frequencies 1..1e-4 (Vaswani et al. 2017)."""
    half = size // 2
    frequency = torch.exp(torch.arange(half) * (-math.log(1e4) / (half - 1)))
    angle = torch.arange(count)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
