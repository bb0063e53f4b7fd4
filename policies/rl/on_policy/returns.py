"""Advantages and returns of rollouts.

A rollout is T decisions in N worlds that start anew by themselves. What a decision leads to is
valued at the true observation after it, also where an episode ended: a time limit is bootstrapped
behind, a terminal is not. The released DPPO takes the observation after the reset there; the true
one is the default here, and the only choice.

A decision may be a chunk: its reward is then the discounted sum of what was executed of it, and
g^length stands before all that comes after. lambda counts decisions, as in DPPO.

Shape suffixes: T decisions, N worlds, H steps of a chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Advantages(NamedTuple):
    """What generalised advantage estimation gives."""

    advantage_TN: Tensor
    return_TN: Tensor
    """The value's target: advantage plus value."""


class NStep(NamedTuple):
    """Sums over up to n decisions from each one on."""

    reward_TN: Tensor
    discount_TN: Tensor
    """g^n_eff; 0 where the task ended within them."""
    last_TN: Tensor
    """int64: the last decision of each sum."""


def gae(
    reward_TN: Tensor,
    value_TN: Tensor,
    next_value_TN: Tensor,
    terminated_TN: Tensor,
    truncated_TN: Tensor,
    discount: float | Tensor,
    trace: float,
) -> Advantages:
    """Generalised advantage estimation (Schulman et al., arXiv 1506.02438).

    Args:
        reward_TN: of a chunk the sum of `chunk_reward`.
        value_TN: of the observations that were decided upon.
        next_value_TN: of the true observations after the decisions; see `next_values`.
        terminated_TN: bool, the task ended.
        truncated_TN: bool, the time limit ended it.
        discount: g, or (T, N) g^length of chunks of unequal length.
        trace: lambda, per decision.
    """
    alive_TN = (~terminated_TN).to(reward_TN.dtype)
    linked_TN = alive_TN * (~truncated_TN)
    error_TN = reward_TN + discount * alive_TN * next_value_TN - value_TN
    fade_TN = discount * trace * linked_TN
    advantage_TN = torch.empty_like(error_TN)
    behind_N = torch.zeros_like(error_TN[0])
    for t in range(len(error_TN) - 1, -1, -1):
        behind_N = torch.addcmul(error_TN[t], fade_TN[t], behind_N)
        advantage_TN[t] = behind_N
    return Advantages(advantage_TN, advantage_TN + value_TN)


def next_values(
    value_TN: Tensor, last_value_N: Tensor, final_value_TN: Tensor, ended_TN: Tensor
) -> Tensor:
    """(T, N) values of the true observations after the decisions, without asking a network twice.

    Args:
        value_TN: of the observations that were decided upon.
        last_value_N: of what is observed after the last decision.
        final_value_TN: of the true final observations; looked at where `ended_TN`.
        ended_TN: bool, terminated or truncated.
    """
    after_TN = torch.cat([value_TN[1:], last_value_N[None]])
    return torch.where(ended_TN, final_value_TN, after_TN)


def chunk_reward(reward_TNH: Tensor, length_TN: Tensor, discount: float) -> Tensor:
    """(T, N) discounted sums of the first `length` rewards; what stands behind them was not
    executed."""
    step_H = torch.arange(reward_TNH.shape[-1], device=reward_TNH.device)
    weight_TNH = discount**step_H * (step_H < length_TN[..., None])
    return torch.where(weight_TNH > 0, reward_TNH * weight_TNH, 0.0).sum(dim=-1)


def n_step(
    reward_TN: Tensor, terminated_TN: Tensor, truncated_TN: Tensor, discount: float, n: int
) -> NStep:
    """Sums of up to `n` rewards, fewer at an episode's end and at the rollout's.

    A value target is `reward + discount * next_value.gather(0, last)`, with the values of
    `next_values`.
    """
    steps = len(reward_TN)
    last_TN = torch.arange(steps, device=reward_TN.device)[:, None].expand_as(reward_TN).clone()
    sum_TN, discount_TN = torch.zeros_like(reward_TN), torch.ones_like(reward_TN)
    running_TN = torch.ones_like(terminated_TN)
    for k in range(n):
        at_TN = last_TN + (1 if k else 0)
        running_TN = running_TN & (at_TN < steps)
        at_TN = at_TN.clamp(max=steps - 1)
        terminated, truncated = terminated_TN.gather(0, at_TN), truncated_TN.gather(0, at_TN)
        sum_TN = torch.where(running_TN, sum_TN + discount_TN * reward_TN.gather(0, at_TN), sum_TN)
        discount_TN = torch.where(running_TN, discount_TN * discount * ~terminated, discount_TN)
        last_TN = torch.where(running_TN, at_TN, last_TN)
        running_TN = running_TN & ~terminated & ~truncated
    return NStep(sum_TN, discount_TN, last_TN)
