"""Transformer of BESO (Reuss et al., RSS 2023, arXiv 2304.02532): a GPT as the network F of EDM's
preconditioning.

Tokens are ordered noise level, goal, s_1, a_1, s_2, a_2 .. s_T, a_T, a_{T+1} .. a_H with causal
attention: a noisy action attends to goal and noise level, the observations up to its own step, and
the previous noisy actions. The paper's window ends at a_T, the one action that it executes. Here
the chunk from a_T on replaces that action: its tokens are denoised jointly and attend to each other
in both directions. (Measured once on the paths of `test_learning_beso`, with windows from every
step: without guidance, in fifty steps, 0.96 of them reach the goal, and 0.83 with causal tokens.)

This follows the released beso: a linear embedding of log(sigma) / 4 without a position, one
position per step shared by state and action, linear output, initialisation as in GPT-2. Differences
besides the longer chunk:
- The released sampler gives the network the clean actions executed before. Policies here get
  observations only, so past actions of the chunk are denoised together with the others, as in the
  released training.
- One goal token instead of one per step of a goal sequence (two for Kitchen), with a separate
  embedding, because a goal may have other entries than an observation.

Shape suffixes: B batch, T observed steps, O observation, G goal, H horizon, A action, W width, L
tokens (2 + T + H), N heads, D entries per head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from policies.policy_config import BesoConfig
from robots.errors import HandoffError

_DEVIATION = 0.02
"""Standard deviation of initial weights and positions, as in GPT-2."""


class GoalTransformer(nn.Module):
    """Network F of EDM: scaled noisy chunk to output, conditioned on noise level, goal and
    observations.

    Args:
        chunk: (H, A).
        observation: (T, O).
        goal: G.
        config: sizes.

    Raises:
        HandoffError: heads do not divide the width, or the chunk is shorter than the observation.
    """

    attend_LL: Tensor
    """True where the token of a row attends to that of a column."""

    def __init__(
        self, chunk: tuple[int, int], observation: tuple[int, int], goal: int, config: BesoConfig
    ) -> None:
        super().__init__()
        width = config.width
        (horizon, action) = chunk
        (self.steps, entries) = observation
        self.register_buffer("attend_LL", _attention_mask(self.steps, horizon), persistent=False)
        if config.heads < 1 or width % config.heads:
            raise HandoffError(
                f"beso: width {width} with {config.heads} heads, expected a multiple of the heads."
            )
        if horizon < self.steps:
            raise HandoffError(
                f"beso: horizon {horizon} with {self.steps} observed steps, expected at least as many actions, because "
                "the first belongs to the oldest observation step."
            )
        self.level = nn.Linear(1, width)
        self.goal = nn.Linear(goal, width)
        self.state = nn.Linear(entries, width)
        self.action = nn.Linear(action, width)
        self.goal_position_W = nn.Parameter(torch.empty(width))
        self.position_HW = nn.Parameter(torch.empty(horizon, width))
        self.blocks = nn.ModuleList(
            TransformerBlock(width, config.heads, config.attention_dropout, config.residual_dropout)
            for _ in range(config.layers)
        )
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, action))
        self._initialize()

    def forward(
        self, scaled_BHA: Tensor, noise_B: Tensor, goal_BG: Tensor, observation_BTO: Tensor
    ) -> Tensor:
        """Output of F (B, H, A).

        Args:
            scaled_BHA: noisy chunk times EDM's inner coefficient.
            noise_B: log(sigma) / 4.
            goal_BG: normalised; all zeros mean no goal.
            observation_BTO: normalised, newest step last.
        """
        level_B1W = self.level(noise_B[:, None])[:, None]
        goal_B1W = (self.goal(goal_BG) + self.goal_position_W)[:, None]
        state_BTW = self.state(observation_BTO) + self.position_HW[: self.steps]
        action_BHW = self.action(scaled_BHA) + self.position_HW
        past_BTW, later_BKW = action_BHW[:, : self.steps], action_BHW[:, self.steps :]
        pairs_BLW = torch.stack([state_BTW, past_BTW], dim=2).flatten(1, 2)
        hidden_BLW = torch.cat([level_B1W, goal_B1W, pairs_BLW, later_BKW], dim=1)
        for block in self.blocks:
            hidden_BLW = block(hidden_BLW, self.attend_LL)
        pairs_end = 2 + 2 * self.steps
        return self.output(
            torch.cat([hidden_BLW[:, 3:pairs_end:2], hidden_BLW[:, pairs_end:]], dim=1)
        )

    @torch.no_grad()
    def _initialize(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.ndim > 1 or name == "goal_position_W":
                parameter.normal_(std=_DEVIATION)


class TransformerBlock(nn.Module):
    """Pre-norm transformer layer: attention and a feed-forward network.

    Args:
        width: W.
        heads: number of heads, a divisor of the width.
        attention_dropout: dropout rate of the attention weights.
        residual_dropout: dropout rate of each branch's output.
    """

    def __init__(
        self, width: int, heads: int, attention_dropout: float, residual_dropout: float
    ) -> None:
        super().__init__()
        self.heads = heads
        self.attention_dropout = attention_dropout
        self.attention_norm = nn.LayerNorm(width)
        self.key_query_value = nn.Linear(width, 3 * width)
        self.projection = nn.Sequential(nn.Linear(width, width), nn.Dropout(residual_dropout))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(residual_dropout),
        )

    def forward(self, hidden_BLW: Tensor, attend_LL: Tensor) -> Tensor:
        """(B, L, W) to (B, L, W); `attend_LL` is True where the token of a row attends to that of a
        column."""
        joined_BLW = self.key_query_value(self.attention_norm(hidden_BLW))
        key_BNLD, query_BNLD, value_BNLD = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in joined_BLW.chunk(3, dim=-1)
        )
        dropped = self.attention_dropout if self.training else 0.0
        mixed_BNLD = scaled_dot_product_attention(
            query_BNLD, key_BNLD, value_BNLD, attend_LL, dropout_p=dropped
        )
        hidden_BLW = hidden_BLW + self.projection(mixed_BNLD.transpose(1, 2).flatten(2))
        return hidden_BLW + self.feed_forward(hidden_BLW)


def _attention_mask(steps: int, horizon: int) -> Tensor:
    token_L = torch.arange(2 + steps + horizon)
    chunk_L = token_L >= 1 + 2 * steps  # from a_T on
    return (token_L <= token_L[:, None]) | (chunk_L & chunk_L[:, None])
