"""The action expert: a small transformer over noisy actions that reads the keys and values of a
backbone's layers.

Followed is SmolVLA (arXiv 2506.01844) with its released code (lerobot): the expert has the
backbone's heads at a fraction of its width; in self-attention layers the actions attend to the
backbone's keys and values and to their own together, as in pi0 (arXiv 2410.24164); in the layers
between, to the backbone's alone, whose keys and values pass through projections of the expert, with
positions counted from the first action. Time enters as in openpi: sines and cosines of periods
0.004 to 4 beside the embedded action, joined by two layers.

Where SmolVLA and pi0 differ: the actions attend to one another in both directions, as in pi0 and
its code; SmolVLA masks later actions. Where there are fewer expert layers than backbone layers,
each reads the last of its group, so that the deepest one is read; SmolVLA's code reads the first.
Weights start as torch starts linear layers.

Shape suffixes: B batch, H horizon, A action, W width, L prefix tokens, N heads, D head width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from policies.networks.vlm import KeyValues, VisionLanguageModel, rotated
from robots.errors import HandoffError

_PERIODS = 4e-3, 4.0
"""Shortest and longest period of the sines that tell the time."""
_MULTIPLE = 256
"""Widths of the feed-forward layers are rounded up to a multiple of this."""


class ExpertContext(NamedTuple):
    """What the expert reads at every step of the sampler; worked out once per inference."""

    key_values: KeyValues
    """Per layer of the expert, from the backbone."""
    mask_BL: Tensor
    """False for padding."""
    action_rotary: tuple[Tensor, Tensor]
    """Turns queries and keys of actions to their positions after the prefix."""
    own_rotary: tuple[Tensor, Tensor]
    """Turns queries of actions to positions counted from the first action."""


class ActionExpert(nn.Module):
    """Noisy chunk (B, H, A) and time (B,) to the flow's velocity (B, H, A), given what is seen.

    Args:
        backbone: whose keys and values it reads.
        action: A.
        width: its own width as a share of the backbone's, rounded down to an even number.
        layers: its layers, a divisor of the backbone's; None takes as many.
        self_attention_every: every such layer, from the first on, attends to the actions too.

    Raises:
        HandoffError: sizes that do not fit together.
    """

    def __init__(
        self,
        backbone: VisionLanguageModel,
        action: int,
        width: float,
        layers: int | None,
        self_attention_every: int,
    ) -> None:
        super().__init__()
        count = backbone.layers if layers is None else layers
        own = int(backbone.width * width) // 2 * 2
        if (
            own < 4
            or not 1 <= count <= backbone.layers
            or backbone.layers % count
            or self_attention_every < 1
        ):
            raise HandoffError(
                f"expert: its width, {width:g} of {backbone.width}, is {own}, expected at least 4; its layers are "
                f"{count}, expected a divisor of {backbone.layers}; self_attention_every is {self_attention_every}, "
                "expected at least 1."
            )
        self.read = tuple(
            range(backbone.layers // count - 1, backbone.layers, backbone.layers // count)
        )
        sizes = own, backbone.heads, backbone.kv_heads, backbone.head_dim
        self.layers = nn.ModuleList(
            _Layer(sizes, number % self_attention_every != 0) for number in range(count)
        )
        self.norm = nn.RMSNorm(own, eps=1e-5)
        self.embed = nn.Linear(action, own)
        self.join = nn.ModuleList([nn.Linear(2 * own, own), nn.Linear(own, own)])
        self.out = nn.Linear(own, action)
        self.width = own
        """W."""

    def forward(self, noisy_BHA: Tensor, time_B: Tensor, seen: ExpertContext) -> Tensor:
        """The velocity noise - clean, in float32."""
        return self.velocity(self.hidden(noisy_BHA, time_B, seen))

    def velocity(self, hidden_BHW: Tensor) -> Tensor:
        """(B, H, A) of `hidden`."""
        return self.out(hidden_BHW).float()

    def hidden(self, noisy_BHA: Tensor, time_B: Tensor, seen: ExpertContext) -> Tensor:
        """What it makes of every action, (B, H, W), before the velocity is read from it; a critic
        may read it, too."""
        embedded_BHW = self.embed(noisy_BHA)
        time_BW = time_embedding(time_B, embedded_BHW.shape[-1])
        time_BHW = time_BW[:, None].to(embedded_BHW.dtype).expand_as(embedded_BHW)
        first, second = self.join
        # The residual path stays in float32, whatever autocast makes of the products.
        hidden_BHW = second(silu(first(torch.cat([embedded_BHW, time_BHW], dim=-1)))).float()
        for layer, key_value in zip(self.layers, seen.key_values, strict=True):
            hidden_BHW = layer(hidden_BHW, key_value, seen)
        return self.norm(hidden_BHW)


class _Layer(nn.Module):
    """Attention and a gated feed-forward layer, each after a norm and around a residual path."""

    def __init__(self, sizes: tuple[int, int, int, int], cross: bool) -> None:
        super().__init__()
        width, heads, kv_heads, head = sizes
        self.cross, self.head, self.shared = cross, head, heads // kv_heads
        source = kv_heads * head if cross else width
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.q_proj = nn.Linear(width, heads * head, bias=False)
        self.k_proj = nn.Linear(source, kv_heads * head, bias=False)
        self.v_proj = nn.Linear(source, kv_heads * head, bias=False)
        self.o_proj = nn.Linear(heads * head, width, bias=False)
        self.feedforward_norm = nn.RMSNorm(width, eps=1e-5)
        inner = -(-8 * width // 3 // _MULTIPLE) * _MULTIPLE
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(
        self, hidden_BHW: Tensor, key_value: tuple[Tensor, Tensor], seen: ExpertContext
    ) -> Tensor:
        normed_BHW = self.attention_norm(hidden_BHW)
        key_BNLD, value_BNLD = key_value
        allowed_BL = seen.mask_BL
        query_BNHD = self._heads(self.q_proj(normed_BHW))
        if self.cross:
            query_BNHD = rotated(query_BNHD, seen.own_rotary)
            key_BNLD = self._heads(self.k_proj(_joined(key_BNLD)))
            value_BNLD = self._heads(self.v_proj(_joined(value_BNLD)))
        else:
            query_BNHD = rotated(query_BNHD, seen.action_rotary)
            own_BNHD = rotated(self._heads(self.k_proj(normed_BHW)), seen.action_rotary)
            key_BNLD = torch.cat([key_BNLD.to(own_BNHD.dtype), own_BNHD], dim=2)
            own_BNHD = self._heads(self.v_proj(normed_BHW))
            value_BNLD = torch.cat([value_BNLD.to(own_BNHD.dtype), own_BNHD], dim=2)
            allowed_BL = torch.cat([allowed_BL, allowed_BL.new_ones(hidden_BHW.shape[:2])], dim=1)
        # Repeated by hand, because CUDA's fast kernels take a mask or fewer key heads than query
        # heads, but not both.
        key_BNLD, value_BNLD = (
            part.to(query_BNHD.dtype).repeat_interleave(self.shared, dim=1)
            for part in (key_BNLD, value_BNLD)
        )
        mixed_BNHD = scaled_dot_product_attention(
            query_BNHD, key_BNLD, value_BNLD, attn_mask=allowed_BL[:, None, None]
        )
        hidden_BHW = hidden_BHW + self.o_proj(_joined(mixed_BNHD))
        normed_BHW = self.feedforward_norm(hidden_BHW)
        return hidden_BHW + self.down_proj(
            silu(self.gate_proj(normed_BHW)) * self.up_proj(normed_BHW)
        )

    def _heads(self, joined_BLW: Tensor) -> Tensor:
        return joined_BLW.unflatten(-1, (-1, self.head)).transpose(1, 2)


def _joined(heads_BNLD: Tensor) -> Tensor:
    """Heads side by side: (B, L, N * D)."""
    return heads_BNLD.transpose(1, 2).flatten(2)


def time_embedding(time_B: Tensor, width: int) -> Tensor:
    """Sines, then cosines (B, W), of the time at periods in geometric progression."""
    least, greatest = _PERIODS
    share = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=time_B.device)
    period = least * (greatest / least) ** share
    angle_BW = 2.0 * math.pi * time_B.double()[:, None] / period
    return torch.cat([angle_BW.sin(), angle_BW.cos()], dim=1).float()
