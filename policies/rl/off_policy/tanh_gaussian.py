"""Defines the tanh-Gaussian policy of SAC, with an explicit gradient.

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


class ActionSample(NamedTuple):
    """Sampled actions and their log-density."""

    action_BA: Tensor
    """Actions in (-1, 1)."""
    log_prob_B: Tensor
    """Log-density of the squashed actions [nat]."""


class TanhGaussian(nn.Module):
    """Gaussian policy squashed by tanh, with actions in (-1, 1).

    Args:
        features: number of features F.
        actions: entries A of an action.
        config: layers and bounds of the log standard deviation.
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
        """Mean and log standard deviation of the Gaussian before tanh, (B, A) each."""
        out = self.network(features_BF)[0]
        if self.fixed is not None:
            return out, torch.full_like(out, self.fixed)
        mean_BA, log_std_BA = out.chunk(2, dim=1)
        return mean_BA, log_std_BA.clamp(*self.bounds)

    def sample(self, features_BF: Tensor, noise_BA: Tensor) -> ActionSample:
        """Reparameterised actions from standard normal `noise_BA`."""
        if self.fixed is None:
            return ActionSample(
                *_TanhNormal.apply(self.network(features_BF)[0], noise_BA, self.bounds)
            )
        mean_BA, log_std_BA = self.moments(features_BF)
        raw_BA = torch.addcmul(mean_BA, log_std_BA.exp(), noise_BA)
        return ActionSample(torch.tanh(raw_BA), tanh_normal_log_prob(noise_BA, log_std_BA, raw_BA))

    def mode(self, features_BF: Tensor) -> Tensor:
        """(B, A) tanh of the mean."""
        return torch.tanh(self.moments(features_BF)[0])

    def log_prob(self, features_BF: Tensor, action_BA: Tensor) -> Tensor:
        """(B,) log-density of given actions, clipped to 1e-6 inside the bounds [nat]."""
        mean_BA, log_std_BA = self.moments(features_BF)
        raw_BA = torch.atanh(action_BA.clamp(-1.0 + 1e-6, 1.0 - 1e-6))
        return tanh_normal_log_prob((raw_BA - mean_BA) / log_std_BA.exp(), log_std_BA, raw_BA)


def tanh_normal_log_prob(noise_BA: Tensor, log_std_BA: Tensor, raw_BA: Tensor) -> Tensor:
    """(B,) log-density of tanh(raw) [nat], where raw = mean + std * noise.

    log(1 - tanh(u)^2) is written as 2 (log 2 - u - softplus(-2 u)), which stays finite for large u.
    """
    half_BA = torch.addcmul(softplus(-2.0 * raw_BA) + raw_BA, noise_BA, noise_BA, value=-0.25)
    constant = noise_BA.shape[1] * (0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0))
    return torch.sub(half_BA, log_std_BA, alpha=0.5).sum(dim=1) * 2.0 - constant


class TanhNormalCache(NamedTuple):
    """Intermediate values of `tanh_normal` for its gradient."""

    scaled_noise_BA: Tensor
    """Standard deviation times noise."""
    action_BA: Tensor
    """Actions after tanh."""
    inside_BA: Tensor
    """Whether the log standard deviation is within its bounds, so that its gradient is not 0."""


def tanh_normal(
    out_BD: Tensor, noise_BA: Tensor, bounds: tuple[float, float], with_log_prob: bool = True
) -> tuple[ActionSample, TanhNormalCache]:
    """Actions from network outputs (B, 2A), mean and log standard deviation, without autograd.

    Args:
        out_BD: network outputs.
        noise_BA: standard normal noise.
        bounds: bounds of the log standard deviation.
        with_log_prob: whether to compute the log-density; otherwise it is zero.
    """
    mean_BA, unclipped_BA = out_BD.chunk(2, dim=1)
    log_std_BA = unclipped_BA.clamp(*bounds)
    scaled_noise_BA = log_std_BA.exp().mul_(noise_BA)
    raw_BA = mean_BA + scaled_noise_BA
    action_BA = torch.tanh(raw_BA)
    log_prob_B = (
        tanh_normal_log_prob(noise_BA, log_std_BA, raw_BA)
        if with_log_prob
        else out_BD.new_zeros(len(out_BD))
    )
    return ActionSample(action_BA, log_prob_B), TanhNormalCache(
        scaled_noise_BA, action_BA, log_std_BA == unclipped_BA
    )


def tanh_normal_gradient(
    cache: TanhNormalCache, action_gradient_BA: Tensor, log_prob_gradient_B1: Tensor
) -> Tensor:
    """(B, 2A) gradient of the network outputs, from those of the actions and of the log-density;
    the latter is (B, 1) or one value for all rows."""
    # Derivatives of tanh, and of log(1 - tanh(u)^2), which is -2 tanh(u).
    raw_gradient_BA = torch.ops.aten.tanh_backward(action_gradient_BA, cache.action_BA)
    raw_gradient_BA.addcmul_(cache.action_BA, log_prob_gradient_B1, value=2.0)
    log_std_gradient_BA = torch.addcmul(
        -log_prob_gradient_B1, raw_gradient_BA, cache.scaled_noise_BA
    ).mul_(cache.inside_BA)
    return torch.cat([raw_gradient_BA, log_std_gradient_BA], dim=1)


class _TanhNormal(torch.autograd.Function):
    """Single autograd node of `tanh_normal`, in place of about thirty."""

    @staticmethod
    def forward(
        ctx: Any, out_BD: Tensor, noise_BA: Tensor, bounds: tuple[float, float]
    ) -> tuple[Tensor, Tensor]:
        sample, cache = tanh_normal(out_BD, noise_BA, bounds)
        ctx.save_for_backward(*cache)
        return sample.action_BA, sample.log_prob_B

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, action_gradient_BA: Tensor, log_prob_gradient_B: Tensor
    ) -> tuple[Tensor, None, None]:
        refuse_second_derivative()
        return (
            tanh_normal_gradient(
                TanhNormalCache(*ctx.saved_tensors),
                action_gradient_BA,
                log_prob_gradient_B[:, None],
            ),
            None,
            None,
        )
