"""Makes a diffusion or flow policy an actor of PPO whose denoising steps are the actions (DPPO).

Ren et al., arXiv 2409.00588, and the released code, irom-princeton/dppo. A chunk is sampled by K
denoising steps; each of the last K' is a Gaussian with its own log-probability and counts as a row
of PPO with the advantage of the whole decision. The steps before them use the initial weights
(`frozen_steps`).

For flow policies the steps are those of the flow-SDE (RLinf, arXiv 2510.06710) instead of DDPM's or
DDIM's.

Paper and released code differ: the paper uses the joint log-probability of a chunk, the code the
mean over its clamped entries, which its clip ranges are tuned for; the code is followed. At a time
limit the code bootstraps with the observation after the reset, here with the true one. Evaluation
adds no noise at the last step, as in the code.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, K trained denoising
steps.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from policies.families.diffusion import DiffusionPolicy
from policies.rl.on_policy.config import DppoConfig
from policies.rl.on_policy.observations import observation_tensors
from policies.rl.on_policy.rollout import Trace
from policies.samplers.chain import chain_log_prob, sample_chain, step_log_prob
from robots.errors import HandoffError


class ChainSample(NamedTuple):
    """Sampled chunks, with the denoising chain and its log-probabilities."""

    chunk_BHA: Tensor
    """Normalised action chunks."""
    trace: Trace
    """`sample` and `next` (B, K, H, A), samples before and after each step, and `std` (B, K)."""
    log_prob_BK: Tensor


class DenoisingActor:
    """A diffusion policy with log-probabilities of its denoising steps; implements
    `policies.rl.on_policy.ppo.OnPolicyActor`.

    Args:
        policy: policy that is trained in place.
        config: options of the denoising chain.

    Raises:
        HandoffError: no trained steps, or steps that the schedule does not have.
    """

    def __init__(self, policy: DiffusionPolicy, config: DppoConfig) -> None:
        if not 0 <= config.frozen_steps < config.steps:
            raise HandoffError(
                f"dppo: frozen_steps is {config.frozen_steps} of {config.steps} steps, expected 0 or more, "
                "and fewer than all."
            )
        self.policy = policy
        self.config = config
        self.reference = copy.deepcopy(policy).requires_grad_(False).eval()
        """Frozen copy of the initial policy."""
        self.grid = policy.chain_grid(
            config.steps, eta=1.0, flow_noise=config.flow_noise, renoise=True
        )
        self._frozen_grid = self.grid.part(0, config.frozen_steps)
        self._trained_grid = self.grid.part(config.frozen_steps)
        self.denoising_steps = config.steps - config.frozen_steps
        policy.requires_grad_(False).eval()
        for module in trained_modules(policy):
            module.requires_grad_(True)

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the denoiser, and of the projections of a policy with an instruction."""
        return [
            parameter
            for module in trained_modules(self.policy)
            for parameter in module.parameters()
        ]

    def extra_modules(self) -> dict[str, nn.Module]:
        """Networks of fine-tuning besides the policy, by name."""
        return {"reference": self.reference}

    @torch.no_grad()
    def decide(
        self, obs: Any, generator: torch.Generator, *, deterministic: bool = False
    ) -> ChainSample:
        """Samples a chunk for every row.

        Args:
            obs: normalised observations (B, T, O), or a TensorDict of them and the instructions;
                see `policies.rl.collection.chunk_env.ChunkEnv`.
            generator: supplies all randomness.
            deterministic: whether the last step adds no noise, as in evaluation.
        """
        observed = observation_tensors(obs)
        shape = (len(obs), *self.policy.chunk_shape)
        noise_BHA = torch.randn(shape, generator=generator)
        step_noise = torch.randn((self.config.steps, *shape), generator=generator)
        active_KB = torch.ones(self.config.steps, len(obs), dtype=torch.bool)
        active_KB[-1] = not deterministic
        frozen, options = self.config.frozen_steps, self.config.chain
        # First steps with the initial weights.
        if frozen:
            chain_options = (self._frozen_grid, options, active_KB[:frozen])
            noise_BHA = sample_chain(
                self.reference.velocity(observed),
                noise_BHA,
                step_noise[:frozen],
                *chain_options,
            ).clean_BHA
        # Trained steps.
        chain_options = (self._trained_grid, options, active_KB[frozen:])
        chain = sample_chain(
            self.policy.velocity(observed),
            noise_BHA,
            step_noise[frozen:],
            *chain_options,
        )
        trace = {
            "sample": chain.sample_LBHA[:-1].transpose(0, 1),
            "next": chain.sample_LBHA[1:].transpose(0, 1),
            "std": chain.std_KB.T,
        }
        return ChainSample(self.policy.clip_chunk(chain.clean_BHA), trace, chain.log_prob.T)

    def log_prob(self, obs: Any, denoising_step: Tensor, trace: Trace) -> Tensor:
        """See `OnPolicyActor.log_prob`."""
        return step_log_prob(
            self.policy.velocity(observation_tensors(obs)),
            trace["sample"],
            trace["next"],
            trace["std"],
            denoising_step,
            self._trained_grid,
            self.config.chain,
        )

    def bc_loss(self, obs: Any, generator: torch.Generator) -> Tensor:
        """See `OnPolicyActor.bc_loss`: negative log-likelihood of chains of the initial policy."""
        observed = observation_tensors(obs)
        shape = (len(obs), *self.policy.chunk_shape)
        with torch.no_grad():
            chain = sample_chain(
                self.reference.velocity(observed),
                torch.randn(shape, generator=generator),
                torch.randn((self.config.steps, *shape), generator=generator),
                self.grid,
                self.config.chain,
            )
        frozen = self.config.frozen_steps
        trained_part = chain._replace(
            sample_LBHA=chain.sample_LBHA[frozen:], std_KB=chain.std_KB[frozen:]
        )
        return -chain_log_prob(
            self.policy.velocity(observed),
            trained_part,
            self._trained_grid,
            self.config.chain,
        ).mean()


def trained_modules(policy: DiffusionPolicy) -> list[nn.Module]:
    """Parts of a policy that fine-tuning trains: the denoiser, and the projections through which an
    instruction acts on features; encoders stay."""
    return [policy.denoiser, *policy.encoder.instruction_modules()]
