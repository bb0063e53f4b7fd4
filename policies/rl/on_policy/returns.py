"""Computes generalised advantage estimates and n-step returns of rollouts.

A rollout is T decisions in N environments that reset themselves. The next value is that of the true
observation after a decision, also where an episode ended: a truncated episode is bootstrapped, a
terminated one is not. The released DPPO bootstraps with the observation after the reset.

If a decision is a chunk, its reward is the discounted sum over the executed actions, and everything
after it is discounted by g^length. lambda counts decisions, as in DPPO.

Shape suffixes: T decisions, N environments, H steps of a chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Advantages(NamedTuple):
    """Advantages and returns of generalised advantage estimation."""

    advantage_TN: Tensor
    return_TN: Tensor
    """Value targets: advantage plus value."""


class NStep(NamedTuple):
    """n-step returns, without the bootstrap value."""

    reward_TN: Tensor
    discount_TN: Tensor
    """g^(number of summed rewards); 0 where the task ended among them."""
    last_TN: Tensor
    """int64, index of the last decision of each sum."""


def gae(
    reward_TN: Tensor,
    value_TN: Tensor,
    next_value_TN: Tensor,
    terminated_TN: Tensor,
    truncated_TN: Tensor,
    discount: float | Tensor,
    gae_lambda: float,
) -> Advantages:
    """Generalised advantage estimation (Schulman et al., arXiv 1506.02438).

    Args:
        reward_TN: rewards; for chunks, those of `chunk_reward`.
        value_TN: values of the observations before the decisions.
        next_value_TN: values of the true observations after the decisions; see `next_values`.
        terminated_TN: bool, the task ended.
        truncated_TN: bool, the time limit ended it.
        discount: g, or (T, N) g^length for chunks of unequal length.
        gae_lambda: lambda, per decision.
    """
    alive_TN = (~terminated_TN).to(reward_TN.dtype)
    continues_TN = alive_TN * (~truncated_TN)
    error_TN = reward_TN + discount * alive_TN * next_value_TN - value_TN
    decay_TN = discount * gae_lambda * continues_TN
    advantage_TN = torch.empty_like(error_TN)
    next_advantage_N = torch.zeros_like(error_TN[0])
    for t in range(len(error_TN) - 1, -1, -1):
        next_advantage_N = torch.addcmul(error_TN[t], decay_TN[t], next_advantage_N)
        advantage_TN[t] = next_advantage_N
    return Advantages(advantage_TN, advantage_TN + value_TN)


def next_values(
    value_TN: Tensor, last_value_N: Tensor, final_value_TN: Tensor, ended_TN: Tensor
) -> Tensor:
    """(T, N) values of the true observations after the decisions, without a second forward pass.

    Args:
        value_TN: values of the observations before the decisions.
        last_value_N: values of the observations after the last decision.
        final_value_TN: values of the true final observations; used where `ended_TN`.
        ended_TN: bool, terminated or truncated.
    """
    next_TN = torch.cat([value_TN[1:], last_value_N[None]])
    return torch.where(ended_TN, final_value_TN, next_TN)


def chunk_reward(reward_TNH: Tensor, length_TN: Tensor, discount: float) -> Tensor:
    """(T, N) discounted sums of the first `length` rewards; later ones were not executed."""
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
