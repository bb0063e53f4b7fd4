"""Stochastic policies for continuous actions.

Shape suffixes: B batch, F features, A action.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from policies.rl.config import MlpSizes, SacConfig
from policies.rl.networks import EnsembleMlp


class Draw(NamedTuple):
    """Actions and their log-density."""

    action_BA: Tensor
    log_prob_B: Tensor
    """Of the squashed action [nat]."""


class TanhGaussian(nn.Module):
    """A Gaussian through tanh: actions in (-1, 1).

    Args:
        features: F.
        actions: A.
        config: sizes and bounds.
    """

    def __init__(self, features: int, actions: int, config: SacConfig) -> None:
        super().__init__()
        self.actions = actions
        self.bounds = (config.log_std_min, config.log_std_max)
        self.fixed = None if config.fixed_std is None else math.log(config.fixed_std)
        sizes: MlpSizes = config.actor
        outputs = actions if self.fixed is not None else 2 * actions
        self.network = EnsembleMlp(1, features, sizes, outputs, config.final_scale)

    def moments(self, features_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log of the deviation of the Gaussian before tanh, (B, A) each."""
        out = self.network(features_BF)[0]
        if self.fixed is not None:
            return out, torch.full_like(out, self.fixed)
        mean_BA, log_std_BA = out.chunk(2, dim=1)
        return mean_BA, log_std_BA.clamp(*self.bounds)

    def sample(self, features_BF: Tensor, noise_BA: Tensor) -> Draw:
        """Reparameterised actions for standard normal `noise_BA`."""
        mean_BA, log_std_BA = self.moments(features_BF)
        raw_BA = torch.addcmul(mean_BA, log_std_BA.exp(), noise_BA)
        return Draw(torch.tanh(raw_BA), tanh_normal_log_prob(noise_BA, log_std_BA, raw_BA))

    def mode(self, features_BF: Tensor) -> Tensor:
        """(B, A): tanh of the mean."""
        return torch.tanh(self.moments(features_BF)[0])

    def log_prob(self, features_BF: Tensor, action_BA: Tensor) -> Tensor:
        """(B,) log-density of given actions, which are kept off the bounds by 1e-6 [nat]."""
        mean_BA, log_std_BA = self.moments(features_BF)
        raw_BA = torch.atanh(action_BA.clamp(-1.0 + 1e-6, 1.0 - 1e-6))
        return tanh_normal_log_prob((raw_BA - mean_BA) / log_std_BA.exp(), log_std_BA, raw_BA)


def tanh_normal_log_prob(noise_BA: Tensor, log_std_BA: Tensor, raw_BA: Tensor) -> Tensor:
    """(B,) log-density of tanh(raw), where raw is `noise` deviations away from its mean.

    log(1 - tanh(u)^2) is written as 2 (log 2 - u - softplus(-2 u)), which stays finite for large u.
    """
    normal_BA = -0.5 * noise_BA.square() - log_std_BA - 0.5 * math.log(2.0 * math.pi)
    squash_BA = 2.0 * (math.log(2.0) - raw_BA - softplus(-2.0 * raw_BA))
    return (normal_BA - squash_BA).sum(dim=1)
