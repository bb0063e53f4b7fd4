"""Losses of a state's value V given values Q of the actions that the data hold: IQL, f-DVL and XQL.

Each looks at the advantage x = Q - V alone; minimised over V, it turns the law of Q into one number
at or above its mean. Followed where paper and released code differ:
- f-DVL (arXiv 2302.08560), chi2: the paper's conjugate restricted to non-negative ratios, x + x^2/4
  above -2 and -1 below. The released code takes max(x + x^2/4, 0), which rises again below -4; the
  minimiser then depends on the scale of the rewards (for lambda .75: N(0, 1) gives .65, not 1.55,
  and N(0, 10^2) 1.3, not 13.2). `chi2_loss` offers both.
- The conjugate's minimiser lies above Q itself where Q hardly varies: by 2 (2 lambda - 1) / lambda.
  Divide the advantage by a temperature well below one step's reward, as `IqlConfig.temperature`
  does, or time is rewarded.
- XQL (arXiv 2301.02328) in f-DVL's code: the exponent is clipped, the linear part is not. Beyond
  the clip V moves away from Q, which is one way in which this loss diverges.

Shape suffixes: B batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policies.rl.offline.config import IqlConfig


def expectile_loss(advantage_B: Tensor, level: float) -> Tensor:
    """(B,) squared advantage, weighted by `level` above V and by 1 - `level` below (IQL, arXiv
    2110.06169).

    Least where V is the expectile `level` of Q; .5 is the mean.
    """
    return torch.where(advantage_B < 0.0, 1.0 - level, level) * advantage_B.square()


def chi2_loss(advantage_B: Tensor, level: float, released: bool = False) -> Tensor:
    """(B,) f-DVL's loss for the chi-squared divergence: level f*(x) - (1 - level) x.

    Args:
        advantage_B: x.
        level: lambda; .5 gives the mean of a Q that varies little.
        released: takes the code's f* instead of the conjugate; see the header.
    """
    curve_B = advantage_B + advantage_B.square() / 4.0
    floor_B = curve_B.clamp(min=0.0) if released else torch.where(advantage_B < -2.0, -1.0, curve_B)
    return level * floor_B - (1.0 - level) * advantage_B


def total_variation_loss(advantage_B: Tensor, level: float) -> Tensor:
    """(B,) f-DVL's loss for the total variation: level max(x, 0) - (1 - level) x.

    Least where V is the (2 level - 1) / level quantile of Q, so `level` lies in (.5, 1).
    """
    return level * advantage_B.clamp(min=0.0) - (1.0 - level) * advantage_B


def gumbel_loss(advantage_B: Tensor, clip: float = 7.0) -> Tensor:
    """(B,) XQL's loss: exp(min(x, clip)) - x - 1, with x in units of the temperature.

    Least, as long as nothing is clipped, where V is log E exp(Q).
    """
    return advantage_B.clamp(max=clip).exp() - advantage_B - 1.0


def in_sample_value_loss(advantage_B: Tensor, config: IqlConfig) -> Tensor:
    """(B,) the configured loss of Q - V; all but the expectile see it divided by the
    temperature."""
    scaled_B = advantage_B / config.temperature
    match config.value:
        case "expectile":
            return expectile_loss(advantage_B, config.level)
        case "chi2":
            return chi2_loss(scaled_B, config.level, config.released_chi2)
        case "tv":
            return total_variation_loss(scaled_B, config.level)
        case "gumbel":
            return gumbel_loss(scaled_B, config.gumbel_clip)
