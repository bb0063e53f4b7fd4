"""Action expert: a small transformer over noisy actions that attends to the keys and values of a
backbone's layers.

This follows SmolVLA (arXiv 2506.01844) with its released code (lerobot): the expert has the
backbone's heads at a fraction of its width. In self-attention layers actions attend to the
backbone's keys and values and to the actions together, as in pi0 (arXiv 2410.24164). In the
cross-attention layers between them actions attend to the backbone only, whose keys and values pass
through projections of the expert, with positions counted from the first action. Time is embedded as
in openpi: sines and cosines of periods 0.004 to 4, concatenated with the embedded action and mixed
by two layers.

Where SmolVLA and pi0 differ: actions attend to one another in both directions, as in pi0 and its
code; SmolVLA masks later actions, and so does an expert that starts from its weights. With fewer
expert layers than backbone layers, each expert layer uses the last backbone layer of its group, so
that the deepest one is used; SmolVLA's code uses the first. Weights have torch's default
initialisation of linear layers.

Shape suffixes: B batch, H horizon, A action, W width, L prefix tokens, Q queries, N heads, D head
width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from policies.networks.vlm import KeyValues, VisionLanguageModel, rotated
from robots.errors import HandoffError

_PERIODS = 4e-3, 4.0
"""Shortest and longest period of the time embedding."""
_MULTIPLE = 256
"""Widths of the feed-forward layers are rounded up to a multiple of this."""


@dataclass(frozen=True)
class ExpertLayers:
    """What the layers of an expert compute."""

    inner: int | None = None
    """Hidden units of the feed-forward networks; None takes 8/3 of the width, rounded up to a
    multiple of 256."""
    activation: Literal["silu", "gelu"] = "silu"
    """Activation of the feed-forward networks; `gelu` is its approximation by tanh."""
    epsilon: float = 1e-5
    """Added to the mean square in the norms."""
    causal: bool = False
    """Whether an action attends to itself and earlier actions only."""
    state: int | None = None
    """Entries of a state token before the actions, which attend to it while it attends to no
    action; None has none."""


class ExpertContext(NamedTuple):
    """Encoded observation for the expert, computed once per inference and used at every sampler
    step."""

    key_values: KeyValues
    """The backbone's keys and values for each layer of the expert."""
    mask_BL: Tensor
    """False for padding."""
    action_rotary: tuple[Tensor, Tensor]
    """Rotary embedding of actions at their positions after the prefix, for self-attention
    layers."""
    cross_rotary: tuple[Tensor, Tensor]
    """Rotary embedding of actions at positions counted from the first action, for cross-attention
    layers."""
    state_BS: Tensor | None = None
    """The state of an expert with a state token; `action_rotary` then begins with its position."""


class ActionExpert(nn.Module):
    """Noisy chunk (B, H, A) and time (B,) to the flow's velocity (B, H, A), conditioned on the
    observation.

    Args:
        backbone: model whose keys and values it attends to.
        action: A.
        width: width as a fraction of the backbone's, rounded down to an even number.
        layers: number of layers, a divisor of the backbone's; None takes as many.
        self_attention_every: interval of self-attention layers, starting at the first.
        computes: what the layers compute.

    Raises:
        HandoffError: incompatible sizes.
    """

    def __init__(
        self,
        backbone: VisionLanguageModel,
        action: int,
        width: float,
        layers: int | None,
        self_attention_every: int,
        computes: ExpertLayers | None = None,
    ) -> None:
        super().__init__()
        computes = computes or ExpertLayers()
        count = backbone.layers if layers is None else layers
        expert_width = int(backbone.width * width) // 2 * 2
        if (
            expert_width < 4
            or not 1 <= count <= backbone.layers
            or backbone.layers % count
            or self_attention_every < 1
        ):
            raise HandoffError(
                f"expert: width {width:g} of {backbone.width} is {expert_width}, expected at least 4; layers are "
                f"{count}, expected a divisor of {backbone.layers}; self_attention_every is {self_attention_every}, "
                "expected at least 1."
            )
        self.source_layers = tuple(
            range(backbone.layers // count - 1, backbone.layers, backbone.layers // count)
        )
        sizes = expert_width, backbone.heads, backbone.kv_heads, backbone.head_dim
        self.layers = nn.ModuleList(
            _Layer(sizes, number % self_attention_every != 0, computes) for number in range(count)
        )
        self.norm = nn.RMSNorm(expert_width, eps=computes.epsilon)
        self.state = None if computes.state is None else nn.Linear(computes.state, expert_width)
        self.embed = nn.Linear(action, expert_width)
        self.join = nn.ModuleList(
            [nn.Linear(2 * expert_width, expert_width), nn.Linear(expert_width, expert_width)]
        )
        self.out = nn.Linear(expert_width, action)
        self.width = expert_width
        """W."""

    def forward(self, noisy_BHA: Tensor, time_B: Tensor, context: ExpertContext) -> Tensor:
        """The velocity noise - clean, in float32."""
        return self.velocity(self.hidden(noisy_BHA, time_B, context))

    def velocity(self, hidden_BHW: Tensor) -> Tensor:
        """Velocity (B, H, A) from the features of `hidden`."""
        return self.out(hidden_BHW).float()

    def hidden(self, noisy_BHA: Tensor, time_B: Tensor, context: ExpertContext) -> Tensor:
        """Features (B, H, W) of every action before the output layer; also an input for critics."""
        embedded_BHW = self.embed(noisy_BHA)
        time_BW = time_embedding(time_B, embedded_BHW.shape[-1])
        time_BHW = time_BW[:, None].to(embedded_BHW.dtype).expand_as(embedded_BHW)
        first, second = self.join
        # The residual stream stays in float32, also under autocast.
        hidden_BHW = second(silu(first(torch.cat([embedded_BHW, time_BHW], dim=-1)))).float()
        if self.state is not None:
            assert context.state_BS is not None
            state_B1W = self.state(context.state_BS)[:, None].float()
            hidden_BHW = torch.cat([state_B1W, hidden_BHW], dim=1)
        for layer, key_value in zip(self.layers, context.key_values, strict=True):
            hidden_BHW = layer(hidden_BHW, key_value, context)
        return self.norm(hidden_BHW[:, -noisy_BHA.shape[1] :])


class _Layer(nn.Module):
    """Pre-norm transformer layer: attention and a gated feed-forward network."""

    def __init__(
        self, sizes: tuple[int, int, int, int], cross: bool, computes: ExpertLayers
    ) -> None:
        super().__init__()
        width, heads, kv_heads, head = sizes
        self.cross = cross
        self.computes = computes
        self.head = head
        self.shared = heads // kv_heads
        source = kv_heads * head if cross else width
        self.attention_norm = nn.RMSNorm(width, eps=computes.epsilon)
        self.q_proj = nn.Linear(width, heads * head, bias=False)
        self.k_proj = nn.Linear(source, kv_heads * head, bias=False)
        self.v_proj = nn.Linear(source, kv_heads * head, bias=False)
        self.o_proj = nn.Linear(heads * head, width, bias=False)
        self.feedforward_norm = nn.RMSNorm(width, eps=computes.epsilon)
        inner = computes.inner or -(-8 * width // 3 // _MULTIPLE) * _MULTIPLE
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(
        self, hidden_BHW: Tensor, key_value: tuple[Tensor, Tensor], context: ExpertContext
    ) -> Tensor:
        normed_BHW = self.attention_norm(hidden_BHW)
        key_BNLD, value_BNLD = key_value
        allowed_BQL = context.mask_BL[:, None]
        query_BNHD = self._heads(self.q_proj(normed_BHW))
        if self.cross:
            query_BNHD = rotated(query_BNHD, context.cross_rotary)
            key_BNLD = self._heads(self.k_proj(_merged_heads(key_BNLD)))
            value_BNLD = self._heads(self.v_proj(_merged_heads(value_BNLD)))
        else:
            query_BNHD = rotated(query_BNHD, context.action_rotary)
            action_BNHD = rotated(self._heads(self.k_proj(normed_BHW)), context.action_rotary)
            key_BNLD = torch.cat([key_BNLD.to(action_BNHD.dtype), action_BNHD], dim=2)
            action_BNHD = self._heads(self.v_proj(normed_BHW))
            value_BNLD = torch.cat([value_BNLD.to(action_BNHD.dtype), action_BNHD], dim=2)
            allowed_BQL = self._with_actions(allowed_BQL, hidden_BHW.shape[1])
        # Key heads are repeated explicitly: fast CUDA kernels support a mask or grouped heads, but
        # not both.
        key_BNLD, value_BNLD = (
            part.to(query_BNHD.dtype).repeat_interleave(self.shared, dim=1)
            for part in (key_BNLD, value_BNLD)
        )
        mixed_BNHD = scaled_dot_product_attention(
            query_BNHD, key_BNLD, value_BNLD, attn_mask=allowed_BQL[:, None]
        )
        hidden_BHW = hidden_BHW + self.o_proj(_merged_heads(mixed_BNHD))
        normed_BHW = self.feedforward_norm(hidden_BHW)
        gate_BHI = self.gate_proj(normed_BHW)
        active_BHI = (
            silu(gate_BHI)
            if self.computes.activation == "silu"
            else gelu(gate_BHI, approximate="tanh")
        )
        return hidden_BHW + self.down_proj(active_BHI * self.up_proj(normed_BHW))

    def _with_actions(self, allowed_B1L: Tensor, tokens: int) -> Tensor:
        """Mask (B, 1 or Q, L + Q) of the prefix and of the Q tokens after it."""
        causal, state = self.computes.causal, self.computes.state is not None
        if not (causal or state):
            return torch.cat(
                [allowed_B1L, allowed_B1L.new_ones(len(allowed_B1L), 1, tokens)], dim=2
            )
        order_Q = torch.arange(tokens, device=allowed_B1L.device)
        # A state token sees itself alone, and all others see it.
        last_Q = order_Q if causal else torch.where(order_Q == 0, 0, tokens - 1)
        inside_BQQ = (order_Q[None] <= last_Q[:, None]).expand(len(allowed_B1L), -1, -1)
        return torch.cat([allowed_B1L.expand(-1, tokens, -1), inside_BQQ], dim=2)

    def _heads(self, merged_BLW: Tensor) -> Tensor:
        return merged_BLW.unflatten(-1, (-1, self.head)).transpose(1, 2)


def _merged_heads(heads_BNLD: Tensor) -> Tensor:
    """Concatenates the heads: (B, L, N * D)."""
    return heads_BNLD.transpose(1, 2).flatten(2)


def time_embedding(time_B: Tensor, width: int) -> Tensor:
    """Time embedding (B, W): sines, then cosines, at periods in geometric progression."""
    shortest, longest = _PERIODS
    share = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=time_B.device)
    period = shortest * (longest / shortest) ** share
    angle_BW = 2.0 * math.pi * time_B.double()[:, None] / period
    return torch.cat([angle_BW.sin(), angle_BW.cos()], dim=1).float()
