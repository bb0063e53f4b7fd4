"""Stochastic policies for continuous actions.

Shape suffixes: B batch, F features, A action.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from policies.rl.networks.config import MlpSizes
from policies.rl.networks.ensemble import EnsembleMlp
from policies.rl.networks.fused_mlp import refuse_second_derivative
from policies.rl.off_policy.config import SacConfig


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
        if self.fixed is None:
            return Draw(*_TanhNormal.apply(self.network(features_BF)[0], noise_BA, self.bounds))
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
    half_BA = torch.addcmul(softplus(-2.0 * raw_BA) + raw_BA, noise_BA, noise_BA, value=-0.25)
    constant = noise_BA.shape[1] * (0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0))
    return torch.sub(half_BA, log_std_BA, alpha=0.5).sum(dim=1) * 2.0 - constant


class Kept(NamedTuple):
    """What the gradient of `tanh_normal` needs."""

    swing_BA: Tensor
    """Deviation times noise."""
    action_BA: Tensor
    inside_BA: Tensor
    """Whether the deviation is within its bounds, and so passes its gradient on."""


def tanh_normal(
    out_BD: Tensor, noise_BA: Tensor, bounds: tuple[float, float], with_log_prob: bool = True
) -> tuple[Draw, Kept]:
    """Actions from a network's answers (B, 2A), mean and log of the deviation, without autograd.

    Args:
        out_BD: the answers.
        noise_BA: standard normal.
        bounds: of the deviation's logarithm.
        with_log_prob: whether the density is worked out; else it is zero.
    """
    mean_BA, free_BA = out_BD.chunk(2, dim=1)
    log_std_BA = free_BA.clamp(*bounds)
    swing_BA = log_std_BA.exp().mul_(noise_BA)
    raw_BA = mean_BA + swing_BA
    action_BA = torch.tanh(raw_BA)
    log_prob_B = (
        tanh_normal_log_prob(noise_BA, log_std_BA, raw_BA)
        if with_log_prob
        else out_BD.new_zeros(len(out_BD))
    )
    return Draw(action_BA, log_prob_B), Kept(swing_BA, action_BA, log_std_BA == free_BA)


def tanh_normal_gradient(kept: Kept, of_action_BA: Tensor, of_log_prob_B1: Tensor) -> Tensor:
    """(B, 2A) gradient of the answers, from those of the actions and of the log-density, (B, 1) or
    one for all."""
    # Of tanh, and of log(1 - tanh(u)^2), whose derivative is -2 tanh(u).
    of_raw_BA = torch.ops.aten.tanh_backward(of_action_BA, kept.action_BA)
    of_raw_BA.addcmul_(kept.action_BA, of_log_prob_B1, value=2.0)
    of_log_std_BA = torch.addcmul(-of_log_prob_B1, of_raw_BA, kept.swing_BA).mul_(kept.inside_BA)
    return torch.cat([of_raw_BA, of_log_std_BA], dim=1)


class _TanhNormal(torch.autograd.Function):
    """`tanh_normal` as one node of autograd's graph instead of thirty."""

    @staticmethod
    def forward(
        ctx: Any, out_BD: Tensor, noise_BA: Tensor, bounds: tuple[float, float]
    ) -> tuple[Tensor, Tensor]:
        draw, kept = tanh_normal(out_BD, noise_BA, bounds)
        ctx.save_for_backward(*kept)
        return draw.action_BA, draw.log_prob_B

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, of_action_BA: Tensor, of_log_prob_B: Tensor
    ) -> tuple[Tensor, None, None]:
        refuse_second_derivative()
        return (
            tanh_normal_gradient(Kept(*ctx.saved_tensors), of_action_BA, of_log_prob_B[:, None]),
            None,
            None,
        )
