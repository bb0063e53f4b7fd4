"""Computes losses of the state value V from values Q of actions in the data: IQL, f-DVL and XQL.

Each loss depends only on the advantage x = Q - V; its minimiser over V is a statistic of the
distribution of Q at or above the mean. Where paper and released code differ:
- f-DVL (arXiv 2302.08560), chi2: this uses the paper's conjugate restricted to non-negative ratios,
  x + x^2/4 above -2 and -1 below. The released code uses max(x + x^2/4, 0), which rises again below
  -4, so that the minimiser depends on the scale of the rewards (for lambda .75: N(0, 1) gives .65,
  not 1.55, and N(0, 10^2) 1.3, not 13.2). `chi2_loss` offers both.
- If Q hardly varies, the minimiser of the conjugate is above Q, by 2 (2 lambda - 1) / lambda. Use a
  temperature well below the reward of one step (`DualCriticsConfig.temperature`); otherwise longer
  episodes get higher values.
- XQL (arXiv 2301.02328) as in f-DVL's code: the exponent is clipped, the linear part is not. Beyond
  the clip V moves away from Q, which can make this loss diverge.

Shape suffixes: B batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policies.rl.offline.config import (
    DualCriticsConfig,
    ExpectileCriticsConfig,
    GumbelCriticsConfig,
    InSampleCriticsConfig,
)
from robots.errors import HandoffError


def expectile_loss(advantage_B: Tensor, expectile: float) -> Tensor:
    """(B,) squared advantage, weighted by `expectile` above V and 1 - `expectile` below (IQL, arXiv
    2110.06169).

    The minimiser V is that expectile of Q; .5 is the mean.
    """
    return torch.where(advantage_B < 0.0, 1.0 - expectile, expectile) * advantage_B.square()


def chi2_loss(advantage_B: Tensor, weight: float, released: bool = False) -> Tensor:
    """(B,) loss of f-DVL for the chi-squared divergence: weight f*(x) - (1 - weight) x.

    Args:
        advantage_B: advantages x.
        weight: lambda of f-DVL; .5 gives the mean if Q varies little.
        released: whether f* is that of the released code instead of the conjugate; see the module
            docstring.
    """
    parabola_B = advantage_B + advantage_B.square() / 4.0
    conjugate_B = (
        parabola_B.clamp(min=0.0) if released else torch.where(advantage_B < -2.0, -1.0, parabola_B)
    )
    return weight * conjugate_B - (1.0 - weight) * advantage_B


def total_variation_loss(advantage_B: Tensor, weight: float) -> Tensor:
    """(B,) loss of f-DVL for the total variation: weight max(x, 0) - (1 - weight) x.

    The minimiser V is the (2 weight - 1) / weight quantile of Q, so `weight` is in (.5, 1).
    """
    return weight * advantage_B.clamp(min=0.0) - (1.0 - weight) * advantage_B


def gumbel_loss(advantage_B: Tensor, clip: float = 7.0) -> Tensor:
    """(B,) loss of XQL: exp(min(x, clip)) - x - 1, with x in units of the temperature.

    Without clipping, the minimiser V is log E exp(Q).
    """
    return advantage_B.clamp(max=clip).exp() - advantage_B - 1.0


def in_sample_value_loss(advantage_B: Tensor, config: InSampleCriticsConfig) -> Tensor:
    """(B,) loss of the advantage Q - V that the options name; all except the expectile loss divide
    it by the temperature.

    Raises:
        HandoffError: the options name no loss.
    """
    match config:
        case ExpectileCriticsConfig():
            return expectile_loss(advantage_B, config.expectile)
        case DualCriticsConfig(divergence="chi2"):
            scaled_B = advantage_B / config.temperature
            return chi2_loss(scaled_B, config.weight, config.released_chi2)
        case DualCriticsConfig():
            return total_variation_loss(advantage_B / config.temperature, config.weight)
        case GumbelCriticsConfig():
            return gumbel_loss(advantage_B / config.temperature, config.gumbel_clip)
        case _:
            raise HandoffError(
                f"offline: critics of {type(config).__name__} have no loss of V, expected expectile, dual or Gumbel "
                "critics."
            )
