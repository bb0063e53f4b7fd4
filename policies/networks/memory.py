"""Summaries of a window of encoded observations: a small recurrent or attention memory, or running
means.

A policy that observes many steps would otherwise get them side by side, with a weight of its own
for every entry of every step. The window is the whole memory: an exported policy has no state, and
the loop keeps the observed steps as it does without a memory, so a chunk stays a function of
observation, noise and weights.

Shape suffixes: B batch, T observed steps, O entries of a step, M features of the memory, N heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softplus

from policies.networks.config import MEMORY_HEADS, MemoryConfig


class WindowMemory(nn.Module):
    """Newest step of a window (B, T, O), with features of all its steps: (B, 1, O + M).

    Args:
        config: kind and size.
        steps: T.
        entries: O.
    """

    def __init__(self, config: MemoryConfig, steps: int, entries: int) -> None:
        super().__init__()
        self.summary = _SUMMARIES[config.kind](entries, config.features, steps)

    def forward(self, window_BTO: Tensor) -> Tensor:
        """See the class."""
        memory_BM = self.summary(window_BTO).to(window_BTO.dtype)
        return torch.cat([window_BTO[:, -1], memory_BM], dim=-1)[:, None]


class _Recurrent(nn.Module):
    """The last state of a gated recurrent unit (Cho et al. 2014), which begins with zeros. As
    torch's `GRUCell`, which ONNX has no translation of; a test compares the two."""

    def __init__(self, entries: int, features: int, steps: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(entries, 3 * features)
        self.states = nn.Linear(features, 3 * features)

    def forward(self, window_BTO: Tensor) -> Tensor:
        state_BM = window_BTO.new_zeros(window_BTO.shape[0], self.states.in_features)
        for step_BX in self.inputs(window_BTO).unbind(1):
            reset_BM, keep_BM, new_BM = step_BX.chunk(3, dim=-1)
            own_reset_BM, own_keep_BM, own_BM = self.states(state_BM).chunk(3, dim=-1)
            reset_BM = torch.sigmoid(reset_BM + own_reset_BM)
            new_BM = torch.tanh(new_BM + reset_BM * own_BM)
            state_BM = torch.lerp(new_BM, state_BM, torch.sigmoid(keep_BM + own_keep_BM))
        return state_BM


class _Attention(nn.Module):
    """What the newest step finds in all steps, by attention of several heads over learned
    positions."""

    def __init__(self, entries: int, features: int, steps: int) -> None:
        super().__init__()
        self.embed = nn.Linear(entries, features)
        self.position_TM = nn.Parameter(0.02 * torch.randn(steps, features))
        self.norm = nn.LayerNorm(features)
        self.query = nn.Linear(features, features)
        self.key_value = nn.Linear(features, 2 * features)
        self.out = nn.Linear(features, features)

    def forward(self, window_BTO: Tensor) -> Tensor:
        step_BTM = self.norm(self.embed(window_BTO) + self.position_TM)
        query_BNTD, key_BNTD, value_BNTD = (
            part.unflatten(-1, (MEMORY_HEADS, -1)).transpose(1, 2)
            for part in (self.query(step_BTM[:, -1:]), *self.key_value(step_BTM).chunk(2, dim=-1))
        )
        found_BNTD = scaled_dot_product_attention(query_BNTD, key_BNTD, value_BNTD)
        return self.out(found_BNTD.transpose(1, 2).flatten(1))


class _RunningMeans(nn.Module):
    """Projections of the steps, each averaged over the window with weights that fall off with age
    at a learned rate: nearly equal ones for slow quantities, the newest step alone for fast
    ones."""

    def __init__(self, entries: int, features: int, steps: int) -> None:
        super().__init__()
        self.embed = nn.Linear(entries, features)
        # Rates from 2 per step to 2 per window.
        share_M = torch.linspace(0.0, 1.0, features)
        self.rate_M = nn.Parameter(torch.log(torch.expm1(2.0 / steps**share_M)))
        self.register_buffer("age_T", torch.arange(steps - 1, -1, -1.0), persistent=False)

    age_T: Tensor

    def forward(self, window_BTO: Tensor) -> Tensor:
        weight_TM = torch.softmax(-self.age_T[:, None] * softplus(self.rate_M), dim=0)
        return (self.embed(window_BTO) * weight_TM).sum(dim=1)


_SUMMARIES = {"gru": _Recurrent, "attention": _Attention, "mean": _RunningMeans}
