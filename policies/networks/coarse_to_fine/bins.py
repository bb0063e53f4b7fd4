"""Represents actions in [-1, 1] by bins: a level divides the interval that the level before chose.

Shape suffixes: ... any leading dimensions, L levels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def width_of(level: int, bins: int) -> float:
    """Width of the bins of a level, of which the first is 0."""
    return 2.0 / bins ** (level + 1)


def refine(low: Tensor, chosen: Tensor, level: int, bins: int) -> Tensor:
    """Lower bounds of the chosen bins.

    Args:
        low: (...) lower bounds of the intervals that are divided.
        chosen: (...) indices of bins.
        level: level of these bins.
        bins: bins per level.
    """
    return low + chosen * width_of(level, bins)


def encode(action: Tensor, levels: int, bins: int) -> tuple[Tensor, Tensor]:
    """(..., L) int64 indices of the bins that contain actions (...), and (..., L) centres of the
    intervals that each level divides. Actions outside [-1, 1] lie in the outermost bins."""
    low = torch.full_like(action, -1.0)
    indices, centres = [], []
    for level in range(levels):
        width = width_of(level, bins)
        centres.append(low + 0.5 * bins * width)
        index = ((action - low) / width).floor().clamp(0, bins - 1)
        indices.append(index.long())
        low = refine(low, index, level, bins)
    return torch.stack(indices, dim=-1), torch.stack(centres, dim=-1)


def decode(index: Tensor, bins: int) -> Tensor:
    """(...) centres of the finest bins, from (..., L) indices of every level's bin."""
    low = torch.full(index.shape[:-1], -1.0, device=index.device)
    levels = index.shape[-1]
    for level in range(levels):
        low = refine(low, index[..., level], level, bins)
    return low + 0.5 * width_of(levels - 1, bins)
