"""Refines the chunk that a frozen policy samples, from a token of the policy's own features.

Source: Xu et al., "RL Token: Bootstrapping Online RL with Vision-Language-Action Models" (Physical
Intelligence, arXiv 2604.23073, pi.website/research/rlt). From the source are the parts: a
transformer reads one compact token from the features of the frozen policy, and a small actor gets
that token, the proprioceptive state and the chunk that the policy proposes, the reference. Ours is
how they are put together: the actor adds a bounded edit to the executed part of the reference,
where the source's actor returns the whole chunk, so that an actor whose last layer is 0 leaves
every chunk as it is, to the last bit; and it is given the whole observation vector.

`policies.rl.finetuning.rl_token` trains both parts.

Shape suffixes: B batch, L feature tokens, W their width, E width of the RL token, O observation,
S state of the actor, H horizon, A action, D entries of the executed part.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from policies.networks.config import ChunkActorConfig, TokenEncoderConfig
from policies.networks.mlp import new_mlp
from robots.wire.actor_card import MlpCard


class PolicyFeatures(NamedTuple):
    """What a frozen policy computes of B observations."""

    vector_BO: Tensor
    """Normalised observation vector."""
    token_BLW: Tensor
    """Feature tokens, in the policy's order."""
    mask_BL: Tensor
    """False for padding."""


class TokenEncoder(nn.Module):
    """An untrained transformer that reads the RL token from a policy's feature tokens: a learned
    query after them, which attends to all of them.

    Args:
        config: sizes.
    """

    mean_W: Tensor
    deviation_W: Tensor

    def __init__(self, config: TokenEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("mean_W", torch.zeros(config.features))
        self.register_buffer("deviation_W", torch.ones(config.features))
        self.embed = nn.Linear(config.features, config.width)
        self.query_E = nn.Parameter(0.02 * torch.randn(config.width))
        self.layers = nn.ModuleList(
            _Layer(config.width, config.heads) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)

    def fit(self, token_NW: Tensor) -> None:
        """Sets the normalisation of the feature tokens from N of them; constant entries are only
        centred."""
        deviation_W = token_NW.std(dim=0)
        self.mean_W.copy_(token_NW.mean(dim=0))
        self.deviation_W.copy_(
            torch.where(deviation_W > 1e-6, deviation_W, torch.ones_like(deviation_W))
        )

    def normalised(self, token_BLW: Tensor) -> Tensor:
        """Feature tokens with mean 0 and deviation 1 per entry."""
        return (token_BLW - self.mean_W) / self.deviation_W

    def forward(self, token_BLW: Tensor, mask_BL: Tensor) -> Tensor:
        """The RL token (B, E)."""
        embedded_BLE = self.embed(self.normalised(token_BLW))
        embedded_BLE = embedded_BLE + place_embedding(mask_BL, self.config.width)
        query_B1E = self.query_E.expand(embedded_BLE.shape[0], 1, -1)
        hidden_BKE = torch.cat([embedded_BLE, query_B1E], dim=1)
        allowed_BK = torch.cat([mask_BL, torch.ones_like(mask_BL[:, :1])], dim=1)
        for layer in self.layers:
            hidden_BKE = layer(hidden_BKE, allowed_BK)
        return self.norm(hidden_BKE[:, -1])


class ChunkEditor(nn.Module):
    """An untrained actor, whose edits are 0.

    Args:
        card: layers, from state and reference to an edit.
        limit: bound on every entry of an edit [normalised units].
    """

    def __init__(self, card: MlpCard, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.network = new_mlp(card)
        last = self.network[-1]
        for parameter in last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, state_BS: Tensor, shown_BD: Tensor) -> Tensor:
        """(B, D) edits, given the part of the reference that is shown to the actor."""
        edit_BD = self.network(torch.cat([state_BS, shown_BD], dim=1))
        return self.limit * torch.tanh(edit_BD)


class ChunkRefiner(nn.Module):
    """An untrained encoder of the RL token and the actor that refines chunks.

    Args:
        config: sizes and bounds.
    """

    def __init__(self, config: ChunkActorConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = TokenEncoder(config.token)
        self.editor = ChunkEditor(config.actor, config.limit)

    def forward(self, features: PolicyFeatures, chunk_BHA: Tensor) -> Tensor:
        """The refined chunk (B, H, A), of which other actions than the executed ones are those of
        the reference."""
        part_BD = executed_part(chunk_BHA, self.config.first, self.config.steps)
        edit_BD = self.editor(actor_state(self.encoder, features), part_BD)
        return with_executed_part(chunk_BHA, part_BD + edit_BD, self.config.first)


def actor_state(encoder: TokenEncoder, features: PolicyFeatures) -> Tensor:
    """(B, S) state of actor and critics: the RL token and the observation vector."""
    token_BE = encoder(features.token_BLW, features.mask_BL)
    return torch.cat([token_BE, features.vector_BO], dim=1)


def executed_part(chunk_BHA: Tensor, first: int, steps: int) -> Tensor:
    """(B, D) entries of `steps` actions from number `first` on."""
    return chunk_BHA[:, first : first + steps].flatten(1)


def with_executed_part(chunk_BHA: Tensor, part_BD: Tensor, first: int) -> Tensor:
    """Copies of chunks (B, H, A) in which `part_BD` replaces the actions from number `first` on."""
    part_BKA = part_BD.unflatten(1, (-1, chunk_BHA.shape[2]))
    end = first + part_BKA.shape[1]
    return torch.cat([chunk_BHA[:, :first], part_BKA, chunk_BHA[:, end:]], dim=1)


def place_embedding(mask_BL: Tensor, width: int) -> Tensor:
    """(B, L, E) sines and cosines of the places of tokens, counted without padding; E is even."""
    place_BL = mask_BL.long().cumsum(dim=1)
    power = torch.arange(width // 2, device=mask_BL.device) / (width // 2)
    angle_BLK = place_BL[..., None].float() * torch.exp(-math.log(1000.0) * power)
    return torch.cat([angle_BLK.sin(), angle_BLK.cos()], dim=-1)


class _Layer(nn.Module):
    """Pre-norm transformer layer without dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.feedforward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden_BKE: Tensor, allowed_BK: Tensor) -> Tensor:
        projected = self.project_in(self.attention_norm(hidden_BKE)).chunk(3, dim=-1)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in projected
        )
        mixed = scaled_dot_product_attention(query, key, value, allowed_BK[:, None, None])
        hidden_BKE = hidden_BKE + self.project_out(mixed.transpose(1, 2).flatten(2))
        return hidden_BKE + self.feedforward(hidden_BKE)
