"""A Gaussian whose mean is a network's answer: what plain PPO acts by, and what a diffusion policy
is compared with.

Shape suffixes: B batch, A action.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from policies.rl.on_policy.rollout import Trace


class GaussianDecision(NamedTuple):
    """What was decided for B rows."""

    action_BA: Tensor
    trace: Trace
    """`action` (B, 1, A)."""
    log_prob_BK: Tensor
    """(B, 1), summed over entries."""


class GaussianActor(nn.Module):
    """Mean of a network, a standard deviation per entry that does not depend on what is seen, as in
    stable-baselines3.

    Args:
        mean: (B, ...) as seen to (B, A); is learned in place.
        entries: A.
        std: of every entry at the start.
    """

    parts = 1

    def __init__(self, mean: nn.Module, entries: int, std: float = 0.5) -> None:
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.full((entries,), float(torch.tensor(std).log())))
        self._before = copy.deepcopy(mean).requires_grad_(False)

    @torch.no_grad()
    def decide(
        self, seen: Tensor, generator: torch.Generator, *, deterministic: bool = False
    ) -> GaussianDecision:
        """Draws an action for every row; `deterministic` takes the mean."""
        mean_BA = self.mean(seen)
        noise_BA = torch.randn(mean_BA.shape, generator=generator)
        action_BA = mean_BA if deterministic else mean_BA + self.log_std.exp() * noise_BA
        trace = {"action": action_BA[:, None]}
        return GaussianDecision(action_BA, trace, self._likely(mean_BA, action_BA)[:, None])

    def log_prob(self, seen: Tensor, part: Tensor, trace: Trace) -> Tensor:
        """See `OnPolicyActor.log_prob`."""
        return self._likely(self.mean(seen), trace["action"])

    def cloning_loss(self, seen: Tensor, generator: torch.Generator) -> Tensor:
        """See `OnPolicyActor.cloning_loss`: of the mean as it was."""
        with torch.no_grad():
            wanted_BA = self._before(seen)
        return -self._likely(self.mean(seen), wanted_BA).mean()

    def _likely(self, mean_BA: Tensor, action_BA: Tensor) -> Tensor:
        return (
            Normal(mean_BA, self.log_std.exp(), validate_args=False).log_prob(action_BA).sum(dim=1)
        )
