"""Defines a Gaussian policy with a learned mean, the actor of plain PPO and the baseline of
diffusion policies.

Shape suffixes: B batch, A action.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from policies.rl.on_policy.rollout import Trace


class GaussianSample(NamedTuple):
    """Sampled actions and their log-probabilities."""

    action_BA: Tensor
    trace: Trace
    """`action` (B, 1, A)."""
    log_prob_BK: Tensor
    """(B, 1), summed over entries."""


class GaussianActor(nn.Module):
    """A network for the mean and a standard deviation per entry that does not depend on the
    observation, as in stable-baselines3.

    Args:
        mean: maps observations (B, ...) to means (B, A); trained in place.
        entries: A, entries of an action.
        std: initial standard deviation of every entry.
    """

    denoising_steps = 1

    def __init__(self, mean: nn.Module, entries: int, std: float = 0.5) -> None:
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.full((entries,), float(torch.tensor(std).log())))
        self._reference = copy.deepcopy(mean).requires_grad_(False)

    @torch.no_grad()
    def decide(
        self, obs: Tensor, generator: torch.Generator, *, deterministic: bool = False
    ) -> GaussianSample:
        """Samples an action for every row; `deterministic` takes the mean."""
        mean_BA = self.mean(obs)
        noise_BA = torch.randn(mean_BA.shape, generator=generator, device=mean_BA.device)
        action_BA = mean_BA if deterministic else mean_BA + self.log_std.exp() * noise_BA
        trace = {"action": action_BA[:, None]}
        return GaussianSample(action_BA, trace, self._log_prob(mean_BA, action_BA)[:, None])

    def log_prob(self, obs: Tensor, denoising_step: Tensor, trace: Trace) -> Tensor:
        """See `OnPolicyActor.log_prob`."""
        return self._log_prob(self.mean(obs), trace["action"])

    def bc_loss(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """See `OnPolicyActor.bc_loss`: negative log-likelihood of the initial mean."""
        with torch.no_grad():
            target_BA = self._reference(obs)
        return -self._log_prob(self.mean(obs), target_BA).mean()

    def _log_prob(self, mean_BA: Tensor, action_BA: Tensor) -> Tensor:
        return (
            Normal(mean_BA, self.log_std.exp(), validate_args=False).log_prob(action_BA).sum(dim=1)
        )
