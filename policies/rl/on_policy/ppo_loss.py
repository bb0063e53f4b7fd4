"""Computes the PPO loss and its variants: one policy-gradient loss for all on-policy methods.

PPO (Schulman et al., arXiv 1707.06347) on Gaussians, on the denoising steps of a diffusion or flow
policy (DPPO, arXiv 2409.00588; RL-100, arXiv 2510.14830; DiWA) and on tokens is the same loss over
rows with a new log-probability, an old one and an advantage. Options, each off by default:
- separate lower and upper clip ranges (DAPO, arXiv 2503.14476), per row where denoising steps
  differ (DPPO);
- a bound on the ratio of rows with a negative advantage (dual clip, Ye et al., arXiv 1912.09729);
- SPO's quadratic penalty instead of the clip of such rows (Xie et al., arXiv 2401.16025), as in
  FPO++ (Yi et al., arXiv 2602.02481), and a bound on the logarithm of a ratio (FPO);
- a proximal policy that differs from the acting one, for stale data (AReaL, arXiv 2505.24298);
- a cost and its multiplier (PPO-Lagrangian, Ray et al. 2019);
- a learning rate adapted to the divergence (RL-100, as in rsl_rl), and a divergence at which epochs
  stop (DPPO).

Implementations differ: DPPO and stable-baselines3 normalise advantages per minibatch, RLinf and
RL-100 once over the whole rollout. Here it is once over the rollout and all workers, so the update
does not depend on how rows are split into minibatches.

Workers share sums, not means: every worker divides its loss by the number of valid rows of the
whole minibatch, so the gradients of 1, 2 or 4 workers add up to the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from policies.rl.on_policy.config import PpoConfig
from robots.errors import HandoffError

Reduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all workers; the identity for one worker."""


class Surrogate(NamedTuple):
    """Policy loss and its statistics."""

    loss: Tensor
    """Sum over this worker's rows, divided by the number of rows of all workers."""
    kl: Tensor
    """Divergence of the policy from the proximal one (Schulman's non-negative estimator), summed
    and divided like `loss`."""
    clipped: Tensor
    """Share of the rows whose ratio is outside the clip range, summed and divided like `loss`."""
    ratio: Tensor
    """Largest ratio of this worker's rows."""


def surrogate(
    config: PpoConfig,
    log_prob: Tensor,
    proximal: Tensor,
    advantage: Tensor,
    *,
    valid: Tensor | None = None,
    rows: float | None = None,
    clip: Tensor | None = None,
    behaviour: Tensor | None = None,
) -> Surrogate:
    """PPO's clipped objective as a loss.

    Args:
        config: options of the loss.
        log_prob: log-probabilities under the learning policy, any shape.
        proximal: log-probabilities under the proximal policy, same shape.
        advantage: advantages, same shape.
        valid: bool, rows that count; None counts all.
        rows: number of valid rows over all workers; None counts those of `valid`.
        clip: clip range per row for both sides, instead of `config.clip`.
        behaviour: log-probabilities under the acting policy, if it is not the proximal one.
    """
    log_ratio = log_prob - proximal
    if config.log_ratio_limit is not None:
        log_ratio = log_ratio.clamp(-config.log_ratio_limit, config.log_ratio_limit)
    ratio = log_ratio.exp()
    low = config.clip if clip is None else clip
    high = (config.clip_high or config.clip) if clip is None else clip
    bounded = torch.minimum(
        torch.maximum(ratio, ratio.new_ones(()) - low), ratio.new_ones(()) + high
    )
    objective = torch.minimum(ratio * advantage, bounded * advantage)
    if config.negative == "quadratic":
        penalty = advantage.abs() * (ratio - 1.0).square() / (2.0 * low)
        objective = torch.where(advantage < 0.0, ratio * advantage - penalty, objective)
    if config.dual_clip is not None:
        objective = torch.where(
            advantage < 0.0, torch.maximum(objective, config.dual_clip * advantage), objective
        )
    if behaviour is not None:
        weight = (proximal - behaviour).detach().exp()
        objective = objective * (
            weight if config.behaviour_cap is None else weight.clamp(max=config.behaviour_cap)
        )
    with torch.no_grad():
        divergence = ratio - 1.0 - log_ratio
        clipped = ((ratio < 1.0 - low) | (ratio > 1.0 + high)).to(objective.dtype)
    if valid is not None:
        objective, divergence, clipped = (
            torch.where(valid, tensor, tensor.new_zeros(()))
            for tensor in (objective, divergence, clipped)
        )
    count = rows if rows is not None else float(objective.numel() if valid is None else valid.sum())
    count = max(count, 1.0)
    # A worker may have no rows of a small minibatch.
    max_ratio = ratio.detach().max() if ratio.numel() else ratio.new_ones(())
    return Surrogate(
        -objective.sum() / count, divergence.sum() / count, clipped.sum() / count, max_ratio
    )


def clipped_value_loss(
    config: PpoConfig,
    value: Tensor,
    target: Tensor,
    old_value: Tensor,
    *,
    valid: Tensor | None = None,
    rows: float | None = None,
) -> Tensor:
    """Half the squared or Huber error of values, clipped as configured; summed and divided like
    `surrogate`.

    Args:
        config: options of the loss.
        value: values of the learning critic, any shape.
        target: returns, same shape.
        old_value: values at the time of the rollout, same shape.
        valid: bool, rows that count; None counts all.
        rows: number of valid rows over all workers; None counts those of `valid`.
    """
    error = _value_error(value - target, config.value_huber)
    if config.value_clip is not None:
        clipped_value = old_value + (value - old_value).clamp(-config.value_clip, config.value_clip)
        error = torch.maximum(error, _value_error(clipped_value - target, config.value_huber))
    if valid is not None:
        error = torch.where(valid, error, error.new_zeros(()))
    count = rows if rows is not None else float(error.numel() if valid is None else valid.sum())
    return 0.5 * error.sum() / max(count, 1.0)


def _value_error(difference: Tensor, huber: float | None) -> Tensor:
    """Squared error, or twice the Huber loss with delta `huber`."""
    if huber is None:
        return difference.square()
    return 2.0 * torch.nn.functional.huber_loss(
        difference, torch.zeros_like(difference), reduction="none", delta=huber
    )


def standardised(
    advantage: Tensor, valid: Tensor | None = None, reduce: Reduce = lambda tensor: tensor
) -> Tensor:
    """Advantages normalised by mean and standard deviation over the valid rows of all workers.

    Sums are taken in double precision, so that splitting rows over workers changes the result only
    by rounding. Invalid rows and constant advantages become 0.

    Args:
        advantage: any shape.
        valid: bool, rows that count; None counts all.
        reduce: sums a tensor over workers.
    """
    mask = torch.ones_like(advantage, dtype=torch.bool) if valid is None else valid
    masked = torch.where(mask, advantage, advantage.new_zeros(())).double()
    count, total = reduce(torch.stack([mask.sum().double(), masked.sum()]))
    mean = total / count.clamp(min=1.0)
    centred = torch.where(mask, masked - mean, masked.new_zeros(()))
    variance = reduce(centred.square().sum()) / count.clamp(min=1.0)
    # Rounding errors must not be scaled up to advantages of size 1.
    constant = variance.sqrt() <= 1e-7 * (mean.abs() + 1e-12)
    return torch.where(constant, torch.zeros_like(centred), centred / (variance.sqrt() + 1e-8)).to(
        advantage.dtype
    )


def step_clips(steps: int, clip: float, clip_min: float, rate: float = 3.0) -> Tensor:
    """(K,) clip ranges of the K trained denoising steps, the noisiest first, from `clip_min` to
    `clip` (DPPO).

    `clip_min + (clip - least) (e^(rate t) - 1) / (e^rate - 1)` with t from 0 to 1; a single
    step has `clip`, where the released code divides by zero.

    Raises:
        HandoffError: no steps, or `clip_min` above `clip`.
    """
    if steps < 1 or not 0.0 < clip_min <= clip < 1.0:
        raise HandoffError(
            f"ppo: {steps} denoising steps with clip_min {clip_min} and clip {clip}, expected at least one step and "
            "0 < clip_min <= clip < 1."
        )
    if steps == 1:
        return torch.tensor([clip])
    progress = torch.arange(steps, dtype=torch.float64) / (steps - 1)
    return (clip_min + (clip - clip_min) * torch.expm1(rate * progress) / math.expm1(rate)).float()


def step_discounts(steps: int, discount: float) -> Tensor:
    """(K,) weights of the advantage at the K trained denoising steps: g^(K - i - 1), 1 at the last
    (DPPO)."""
    return discount ** torch.arange(steps - 1, -1, -1, dtype=torch.float32)


@dataclass
class Lagrangian:
    """Lagrange multiplier of a cost, raised while the cost of episodes exceeds its limit
    (PPO-Lagrangian).

    Integral control alone overshoots and oscillates; `gain` adds a proportional term that damps it
    (Stooke et al., arXiv 2007.03964). An infinite limit gives exactly the PPO update.
    """

    limit: float
    """Limit on the summed cost of an episode."""
    rate: float = 0.035
    """Integral gain per unit of cost beyond the limit and rollout."""
    gain: float = 0.0
    """Proportional gain per unit of cost beyond the limit."""
    integral: float = 0.001
    multiplier: float = field(init=False)

    def __post_init__(self) -> None:
        if self.limit == math.inf:
            self.integral = 0.0
        self.multiplier = self.integral

    def update(self, cost: float) -> None:
        """Updates the multiplier with the mean episode cost of a rollout."""
        if self.limit < math.inf:
            self.integral = max(0.0, self.integral + self.rate * (cost - self.limit))
            self.multiplier = max(0.0, self.integral + self.gain * (cost - self.limit))

    def combine(self, advantage: Tensor, cost_advantage: Tensor) -> Tensor:
        """`(A - m A_cost) / (1 + m)`, whose scale does not grow with the multiplier m."""
        if self.multiplier == 0.0:
            return advantage
        return (advantage - self.multiplier * cost_advantage) / (1.0 + self.multiplier)


def adaptive_learning_rate(
    rate: float, kl: float, target: float, lowest: float = 1e-6, highest: float = 1e-2
) -> float:
    """The next learning rate: divided by 1.5 above twice the target divergence, multiplied by 1.5
    below half of it."""
    if kl > 2.0 * target:
        return max(lowest, rate / 1.5)
    return min(highest, rate * 1.5) if kl < 0.5 * target else rate
