"""A residual MLP that denoises action chunks.

Observation and noise level become one condition vector, which enters at the input and scales and shifts the middle of
every block (FiLM, Perez et al. 2018). With concatenation at the input alone, push-T is learned more slowly.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, K noise levels, E time embedding,
C condition, W width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import silu


class ResidualBlock(nn.Module):
    """Adds two layers, each LayerNorm, SiLU, Linear, to its input; the condition modulates the second norm.

    It starts as the identity.
    """

    def __init__(self, width: int, condition: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, width), nn.LayerNorm(width))
        self.modulation = nn.Linear(condition, 2 * width)
        self.second = nn.Linear(width, width)
        for layer in (self.modulation, self.second):
            _zero(layer)

    def forward(self, hidden_BW: Tensor, condition_BC: Tensor) -> Tensor:
        """(B, W) to (B, W)."""
        scale_BW, shift_BW = self.modulation(condition_BC).chunk(2, dim=-1)
        return hidden_BW + self.second(silu(self.first(hidden_BW) * (1.0 + scale_BW) + shift_BW))


class MlpDenoiser(nn.Module):
    """Velocity of a noisy chunk, given its noise level and the observation.

    Args:
        chunk: (H, A).
        observation: (T, O).
        timesteps: K.
        width: W.
        blocks: residual blocks.
        condition: C.
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
        condition: int,
        embedding: int,
    ) -> None:
        super().__init__()
        self.chunk = chunk
        flat_chunk, flat_observation = math.prod(chunk), math.prod(observation)
        self.register_buffer("embeddings_KE", sinusoidal_embedding(timesteps, embedding), persistent=False)
        self.condition = nn.Sequential(
            nn.Linear(flat_observation + embedding, condition),
            nn.SiLU(),
            nn.Linear(condition, condition),
            nn.SiLU(),
        )
        self.input = nn.Linear(flat_chunk + condition, width)
        self.blocks = nn.ModuleList(ResidualBlock(width, condition) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, flat_chunk)
        _zero(self.output)

    def forward(self, noisy_BHA: Tensor, timestep_B: Tensor, observation_BTO: Tensor) -> Tensor:
        """Predicts the velocity (B, H, A).

        Args:
            noisy_BHA: chunk at its noise level, normalised.
            timestep_B: noise level of each row, int64.
            observation_BTO: normalised, newest step last.
        """
        condition_BC = self.condition(torch.cat([observation_BTO.flatten(1), self.embeddings_KE[timestep_B]], dim=-1))
        hidden_BW = self.input(torch.cat([noisy_BHA.flatten(1), condition_BC], dim=-1))
        for block in self.blocks:
            hidden_BW = block(hidden_BW, condition_BC)
        return self.output(silu(self.norm(hidden_BW))).unflatten(1, self.chunk)


def sinusoidal_embedding(count: int, size: int) -> Tensor:
    """(count, size): sines, then cosines, of 0..count-1 at geometric frequencies 1..1e-4 (Vaswani et al. 2017)."""
    half = size // 2
    frequency = torch.exp(torch.arange(half) * (-math.log(1e4) / (half - 1)))
    angle = torch.arange(count)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def _zero(layer: nn.Linear) -> None:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
