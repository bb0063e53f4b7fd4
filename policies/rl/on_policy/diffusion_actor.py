"""DPPO: a diffusion or flow policy whose denoising steps are the actions that PPO learns from.

Ren et al., arXiv 2409.00588, and its released code, irom-princeton/dppo. A chunk is drawn by K
steps from noise; each of the last K' is a Gaussian of its own, with a log-probability, and counts
as a row of PPO with the advantage of the whole decision. The steps before follow the policy as it
was (`frozen_steps`).

For flow policies the steps are those of the flow-SDE (RLinf, arXiv 2510.06710) instead of DDPM's or
DDIM's.

Where paper and released code differ: the joint log-probability of a chunk against the mean over its
entries, each clamped; the code's, which its clips belong to. At a time limit it bootstraps with the
observation after the reset; here with the true one. Evaluation adds no noise at the last step, as
the code.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, K learning parts.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from policies.families.diffusion import DiffusionPolicy
from policies.policy import ObservationTensors
from policies.rl.on_policy.config import DppoConfig
from policies.rl.on_policy.rollout import Trace
from policies.samplers.chain import chain_log_prob, sample_chain, step_log_prob
from robots.errors import HandoffError


class ChainDecision(NamedTuple):
    """What was decided for B rows."""

    chunk_BHA: Tensor
    """Normalised."""
    trace: Trace
    """`here` and `next` (B, K, H, A), `std` (B, K)."""
    log_prob_BK: Tensor


class DenoisingActor:
    """A diffusion policy that acts, learns, and knows how likely it acted; a
    `policies.rl.on_policy.ppo.OnPolicyActor`.

    Args:
        policy: is learned in place: what it samples afterwards is what was learned. A policy of
            pictures is refused.
        config: how it is walked.

    Raises:
        HandoffError: more frozen steps than there are, steps that the schedule has not, or a policy
            of sensors.
    """

    def __init__(self, policy: DiffusionPolicy, config: DppoConfig) -> None:
        if policy.shapes.sensors:
            raise HandoffError(
                "dppo: a policy of pictures or point clouds, expected one of vectors alone."
            )
        if not 0 <= config.frozen_steps < config.steps:
            raise HandoffError(
                f"dppo: {config.frozen_steps} of {config.steps} steps are frozen, expected fewer."
            )
        self.policy, self.config = policy, config
        self.before = copy.deepcopy(policy).requires_grad_(False).eval()
        """The policy as it was."""
        self.grid = policy.chain_grid(
            config.steps, eta=1.0, flow_noise=config.flow_noise, renoise=True
        )
        self._frozen, self._learning = (
            self.grid.part(0, config.frozen_steps),
            self.grid.part(config.frozen_steps),
        )
        self.parts = config.steps - config.frozen_steps
        policy.requires_grad_(False).eval()
        policy.denoiser.requires_grad_(True)

    def parameters(self) -> list[nn.Parameter]:
        """Those of the denoiser."""
        return list(self.policy.denoiser.parameters())

    @torch.no_grad()
    def decide(
        self, seen_BTO: Tensor, generator: torch.Generator, *, deterministic: bool = False
    ) -> ChainDecision:
        """Draws a chunk for every row.

        Args:
            seen_BTO: normalised observations.
            generator: of all chance.
            deterministic: the last step adds no noise, as in evaluation.
        """
        shape = (len(seen_BTO), *self.policy.chunk_shape)
        noise_BHA = torch.randn(shape, generator=generator)
        step_noise = torch.randn((self.config.steps, *shape), generator=generator)
        active_KB = torch.ones(self.config.steps, len(seen_BTO), dtype=torch.bool)
        active_KB[-1] = not deterministic
        frozen, options = self.config.frozen_steps, self.config.chain
        if frozen:
            walk = (self._frozen, options, active_KB[:frozen])
            noise_BHA = sample_chain(
                self.before.velocity(ObservationTensors(seen_BTO)),
                noise_BHA,
                step_noise[:frozen],
                *walk,
            ).clean_BHA
        walk = (self._learning, options, active_KB[frozen:])
        chain = sample_chain(
            self.policy.velocity(ObservationTensors(seen_BTO)),
            noise_BHA,
            step_noise[frozen:],
            *walk,
        )
        trace = {
            "here": chain.sample_LBHA[:-1].transpose(0, 1),
            "next": chain.sample_LBHA[1:].transpose(0, 1),
            "std": chain.std_KB.T,
        }
        return ChainDecision(self.policy.bounded(chain.clean_BHA), trace, chain.log_prob.T)

    def log_prob(self, seen: Tensor, part: Tensor, trace: Trace) -> Tensor:
        """See `OnPolicyActor.log_prob`."""
        return step_log_prob(
            self.policy.velocity(ObservationTensors(seen)),
            trace["here"],
            trace["next"],
            trace["std"],
            part,
            self._learning,
            self.config.chain,
        )

    def cloning_loss(self, seen: Tensor, generator: torch.Generator) -> Tensor:
        """See `OnPolicyActor.cloning_loss`: of chains that the policy draws as it was."""
        shape = (len(seen), *self.policy.chunk_shape)
        with torch.no_grad():
            chain = sample_chain(
                self.before.velocity(ObservationTensors(seen)),
                torch.randn(shape, generator=generator),
                torch.randn((self.config.steps, *shape), generator=generator),
                self.grid,
                self.config.chain,
            )
        frozen = self.config.frozen_steps
        rest = chain._replace(sample_LBHA=chain.sample_LBHA[frozen:], std_KB=chain.std_KB[frozen:])
        return -chain_log_prob(
            self.policy.velocity(ObservationTensors(seen)), rest, self._learning, self.config.chain
        ).mean()
