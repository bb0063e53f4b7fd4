"""Transformer denoiser of Diffusion Policy (Chi et al., RSS 2023).

This follows the released diffusion_policy (`TransformerForDiffusion` with observations as
condition, no encoder layers): one token per action with causal attention; memory of one token for
the timestep and one per observation step, passed through a small MLP. An action does not attend to
later observations, which matters only if the horizon is shorter than the observation.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, W width, M memory (1
+ T).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policies.networks.config import TransformerConfig
from policies.networks.mlp import sinusoidal_embedding
from robots.errors import HandoffError

_DEVIATION = 0.02
"""Standard deviation of initial weights and positions, as in GPT-2."""


class TransformerDenoiser(nn.Module):
    """Velocity of a noisy chunk, conditioned on timestep and observation.

    Args:
        chunk: (H, A).
        observation: (T, O).
        timesteps: number of noise levels.
        config: sizes.

    Raises:
        HandoffError: heads do not divide the width, or it is odd.
    """

    embeddings_KW: Tensor
    later_HH: Tensor
    """True where attention is masked: from an action to later actions."""
    later_HM: Tensor
    """True where attention is masked: from an action to later observations."""

    def __init__(
        self,
        chunk: tuple[int, int],
        observation: tuple[int, int],
        timesteps: int,
        config: TransformerConfig,
    ) -> None:
        super().__init__()
        width, (horizon, action) = config.width, chunk
        if width % 2 or width % config.heads:
            raise HandoffError(
                f"transformer: width {width} with {config.heads} heads, expected an even multiple of the heads."
            )
        # Embeddings of actions, timestep and observations.
        self.register_buffer(
            "embeddings_KW", sinusoidal_embedding(timesteps, width), persistent=False
        )
        self.input = nn.Linear(action, width)
        self.position_HW = nn.Parameter(torch.empty(horizon, width))
        self.observation = nn.Linear(observation[1], width)
        self.memory_position_MW = nn.Parameter(torch.empty(1 + observation[0], width))
        self.memory = nn.Sequential(
            nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width)
        )
        # Decoder layers and output.
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(
                width,
                config.heads,
                4 * width,
                config.dropout,
                "gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(config.layers)
        )
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, action))
        # Causal masks.
        step_H1, memory_M = torch.arange(horizon)[:, None], torch.arange(1 + observation[0])
        self.register_buffer("later_HH", torch.arange(horizon) > step_H1, persistent=False)
        self.register_buffer("later_HM", memory_M - 1 > step_H1, persistent=False)
        self._initialize()

    def forward(
        self,
        noisy_BHA: Tensor,
        timestep_B: Tensor,
        observation_BTO: Tensor,
        shift_BW: Tensor | None = None,
    ) -> Tensor:
        """Predicts the velocity (B, H, A).

        Args:
            noisy_BHA: chunk at its noise level, normalised.
            timestep_B: int64.
            observation_BTO: normalised, newest step last.
            shift_BW: added to the embedding of the timestep; None adds nothing.
        """
        timestep_BW = self.embeddings_KW[timestep_B]
        timestep_B1W = (timestep_BW if shift_BW is None else timestep_BW + shift_BW)[:, None]
        observation_BTW = self.observation(observation_BTO)
        memory_BMW = self.memory(
            torch.cat([timestep_B1W.to(observation_BTW.dtype), observation_BTW], dim=1)
            + self.memory_position_MW
        )
        hidden_BHW = self.input(noisy_BHA) + self.position_HW
        for layer in self.layers:
            hidden_BHW = layer(
                hidden_BHW, memory_BMW, tgt_mask=self.later_HH, memory_mask=self.later_HM
            )
        return self.output(hidden_BHW)

    @torch.no_grad()
    def _initialize(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.ndim > 1:
                parameter.normal_(std=_DEVIATION)
