"""Computes Bellman targets and losses of Q-functions, for all learners.

Shape suffixes: B batch, E members, C commands.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import mse_loss


def random_subset(members: int, size: int, generator: torch.Generator) -> Tensor:
    """(size,) int64 indices of distinct members, sampled uniformly (REDQ, arXiv 2101.05982)."""
    return torch.randperm(members, generator=generator)[:size]


def bellman_target(reward_B: Tensor, discount_B: Tensor, next_value_B: Tensor) -> Tensor:
    """(B,) r + d V(s'), where the discount d is 0 after termination."""
    return torch.addcmul(reward_B, discount_B, next_value_B)


def squared_error(value_EB: Tensor, target_B: Tensor, weight_B: Tensor | None = None) -> Tensor:
    """Mean squared error to the target over members and rows, optionally weighted by row."""
    if weight_B is None:
        return mse_loss(value_EB, target_B.expand_as(value_EB))
    return ((value_EB - target_B).square() * weight_B).mean()


def double_dqn_value(online_BC: Tensor, target_BC: Tensor) -> Tensor:
    """(B,) value of the target network for the best command of the online network (arXiv
    1509.06461)."""
    return target_BC.gather(1, online_BC.argmax(dim=1, keepdim=True))[:, 0]
