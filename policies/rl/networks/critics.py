"""Losses and targets of critics. None of them knows an algorithm.

Shape suffixes: B batch, E members.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import mse_loss


def random_subset(members: int, size: int, generator: torch.Generator) -> Tensor:
    """(size,) int64: different members, every set of them as likely as any other (REDQ, arXiv
    2101.05982)."""
    return torch.randperm(members, generator=generator)[:size]


def bellman_target(reward_B: Tensor, discount_B: Tensor, next_value_B: Tensor) -> Tensor:
    """r + g^n m V(s')."""
    return torch.addcmul(reward_B, discount_B, next_value_B)


def squared_error(value_EB: Tensor, target_B: Tensor, weight_B: Tensor | None = None) -> Tensor:
    """Mean over members and rows of the squared distance from the target."""
    if weight_B is None:
        return mse_loss(value_EB, target_B.expand_as(value_EB))
    return ((value_EB - target_B).square() * weight_B).mean()


def double_dqn_value(online_BC: Tensor, target_BC: Tensor) -> Tensor:
    """(B,): the target network's value of the command that the online network prefers (arXiv
    1509.06461)."""
    return target_BC.gather(1, online_BC.argmax(dim=1, keepdim=True))[:, 0]
