"""The one policy-gradient loss: PPO with the options that its users differ in.

PPO (Schulman et al., arXiv 1707.06347) on Gaussians, on the denoising steps of a diffusion or flow
policy (DPPO, arXiv
2409.00588; RL-100, arXiv 2510.14830; DiWA) and on tokens is the same loss over rows that have a
log-probability now, one from when they were acted upon, and an advantage. Options, each off by
default:
- a lower and an upper clip of their own (DAPO, arXiv 2503.14476), per row where denoising steps
  differ (DPPO);
- a bound on what a row with a negative advantage may weigh (dual clip, Ye et al., arXiv
  1912.09729);
- a proximal policy apart from the one that acted, for data that are some updates old (AReaL, arXiv
  2505.24298);
- a cost and its multiplier (PPO-Lagrangian, Ray et al. 2019);
- a rate that follows the divergence (RL-100, as in rsl_rl), and a divergence at which an epoch ends
  (DPPO).

Where systems differ: DPPO and stable-baselines3 normalise advantages in every minibatch, RLinf and
RL-100 once over the whole rollout. Here it is once, over all workers: the update then does not
depend on how rows are dealt out.

Sums, not means, are what workers share: a loss is divided by the number of valid rows of the whole
minibatch, which every worker is told, so the gradients of 1, 2 or 4 workers add up to the same.
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
"""Sum over all workers of a tensor; alone: the tensor itself."""


class Surrogate(NamedTuple):
    """The policy's part of the loss, and what it looks like."""

    loss: Tensor
    """Sum over this worker's rows, over the number of rows of all workers."""
    kl: Tensor
    """Divergence of the policy from the proximal one, in the same measure (Schulman's estimator,
    never negative)."""
    clipped: Tensor
    """Share of the rows that the clip holds, in the same measure."""
    ratio: Tensor
    """Largest ratio, of this worker's rows."""


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
    """PPO's clipped objective, to be minimised.

    Args:
        config: its options.
        log_prob: any shape, of what was done, under the policy that learns.
        proximal: likewise under the policy that the ratio is bounded against.
        advantage: likewise.
        valid: bool, rows that count; None: all.
        rows: number of rows that count, of all workers; None: of these.
        clip: in place of `config.clip`, per row; of both sides.
        behaviour: log-probabilities under the policy that acted, where it is not the proximal one.
    """
    log_ratio = log_prob - proximal
    ratio = log_ratio.exp()
    low = config.clip if clip is None else clip
    high = (config.clip_high or config.clip) if clip is None else clip
    bounded = torch.minimum(
        torch.maximum(ratio, ratio.new_ones(()) - low), ratio.new_ones(()) + high
    )
    gain = torch.minimum(ratio * advantage, bounded * advantage)
    if config.dual_clip is not None:
        gain = torch.where(advantage < 0.0, torch.maximum(gain, config.dual_clip * advantage), gain)
    if behaviour is not None:
        weight = (proximal - behaviour).detach().exp()
        gain = gain * (
            weight if config.behaviour_cap is None else weight.clamp(max=config.behaviour_cap)
        )
    with torch.no_grad():
        divergence = ratio - 1.0 - log_ratio
        held = ((ratio < 1.0 - low) | (ratio > 1.0 + high)).to(gain.dtype)
    if valid is not None:
        gain, divergence, held = (
            torch.where(valid, part, part.new_zeros(())) for part in (gain, divergence, held)
        )
    count = rows if rows is not None else float(gain.numel() if valid is None else valid.sum())
    count = max(count, 1.0)
    # A worker may have no row of a small minibatch.
    largest = ratio.detach().max() if ratio.numel() else ratio.new_ones(())
    return Surrogate(-gain.sum() / count, divergence.sum() / count, held.sum() / count, largest)


def clipped_value_loss(
    config: PpoConfig,
    value: Tensor,
    target: Tensor,
    before: Tensor,
    *,
    valid: Tensor | None = None,
    rows: float | None = None,
) -> Tensor:
    """Half the squared error of values, or Huber's, clipped as configured; summed and divided as
    `surrogate` is.

    Args:
        config: its options.
        value: any shape, of the critic that learns.
        target: likewise, the returns.
        before: likewise, the values of the rollout.
        valid: bool, rows that count; None: all.
        rows: number of rows that count, of all workers; None: of these.
    """
    error = _error(value - target, config.value_huber)
    if config.value_clip is not None:
        near = before + (value - before).clamp(-config.value_clip, config.value_clip)
        error = torch.maximum(error, _error(near - target, config.value_huber))
    if valid is not None:
        error = torch.where(valid, error, error.new_zeros(()))
    count = rows if rows is not None else float(error.numel() if valid is None else valid.sum())
    return 0.5 * error.sum() / max(count, 1.0)


def _error(difference: Tensor, huber: float | None) -> Tensor:
    """Its square; beyond `huber` twice Huber's, which goes on as a straight line."""
    if huber is None:
        return difference.square()
    return 2.0 * torch.nn.functional.huber_loss(
        difference, torch.zeros_like(difference), reduction="none", delta=huber
    )


def standardised(
    advantage: Tensor, valid: Tensor | None = None, reduce: Reduce = lambda part: part
) -> Tensor:
    """Advantages less their mean, over their standard deviation; both over the valid rows of all
    workers.

    The sums are taken in double precision, so that how rows are dealt out changes the result by
    rounding alone. Rows that do not count become 0. Advantages that are all the same become 0.

    Args:
        advantage: any shape.
        valid: bool, rows that count; None: all.
        reduce: sums over workers.
    """
    counted = torch.ones_like(advantage, dtype=torch.bool) if valid is None else valid
    wide = torch.where(counted, advantage, advantage.new_zeros(())).double()
    count, total = reduce(torch.stack([counted.sum().double(), wide.sum()]))
    mean = total / count.clamp(min=1.0)
    centred = torch.where(counted, wide - mean, wide.new_zeros(()))
    variance = reduce(centred.square().sum()) / count.clamp(min=1.0)
    # Rounding alone must not be blown up to advantages of size 1.
    flat = variance.sqrt() <= 1e-7 * (mean.abs() + 1e-12)
    return torch.where(flat, torch.zeros_like(centred), centred / (variance.sqrt() + 1e-8)).to(
        advantage.dtype
    )


def step_clips(steps: int, clip: float, least: float, rate: float = 3.0) -> Tensor:
    """(K,) clips of the K denoising steps that learn, the noisiest first: from `least` up to `clip`
    (DPPO).

    `least + (clip - least) (e^(rate t) - 1) / (e^rate - 1)` with t from 0 to 1; one step alone has
    `clip`, where the released code divides by zero.

    Raises:
        HandoffError: no steps, or clips that fall.
    """
    if steps < 1 or not 0.0 < least <= clip < 1.0:
        raise HandoffError(
            f"ppo: clips of {steps} steps from {least} to {clip}, expected at least one, rising below 1."
        )
    if steps == 1:
        return torch.tensor([clip])
    share = torch.arange(steps, dtype=torch.float64) / (steps - 1)
    return (least + (clip - least) * torch.expm1(rate * share) / math.expm1(rate)).float()


def step_discounts(steps: int, discount: float) -> Tensor:
    """(K,) weights of the advantage at the K denoising steps that learn: g^(K - i - 1), so 1 at the
    last (DPPO)."""
    return discount ** torch.arange(steps - 1, -1, -1, dtype=torch.float32)


@dataclass
class Lagrangian:
    """The multiplier of a cost, raised while the cost of episodes exceeds its limit
    (PPO-Lagrangian).

    The integral alone overshoots and swings; `gain` adds what the cost is beyond its limit now,
    which damps it (Stooke et al., arXiv 2007.03964). A limit of infinity leaves PPO as it is, bit
    for bit.
    """

    limit: float
    """Of an episode's summed cost."""
    rate: float = 0.035
    """Of the integral per unit of cost beyond the limit, and rollout."""
    gain: float = 0.0
    """Of the multiplier per unit of cost that is beyond the limit, or below it, now."""
    integral: float = 0.001
    multiplier: float = field(init=False)

    def __post_init__(self) -> None:
        if self.limit == math.inf:
            self.integral = 0.0
        self.multiplier = self.integral

    def update(self, cost: float) -> None:
        """After a rollout with this mean cost of its episodes."""
        if self.limit < math.inf:
            self.integral = max(0.0, self.integral + self.rate * (cost - self.limit))
            self.multiplier = max(0.0, self.integral + self.gain * (cost - self.limit))

    def combine(self, advantage: Tensor, cost_advantage: Tensor) -> Tensor:
        """`(A - m A_cost) / (1 + m)`: of one scale however large the multiplier grows."""
        if self.multiplier == 0.0:
            return advantage
        return (advantage - self.multiplier * cost_advantage) / (1.0 + self.multiplier)


def followed_rate(
    rate: float, kl: float, target: float, lowest: float = 1e-6, highest: float = 1e-2
) -> float:
    """The next learning rate: 1.5 times smaller above twice the target divergence, larger below
    half of it."""
    if kl > 2.0 * target:
        return max(lowest, rate / 1.5)
    return min(highest, rate * 1.5) if kl < 0.5 * target else rate
