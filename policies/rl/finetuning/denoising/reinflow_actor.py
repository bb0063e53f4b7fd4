"""Makes a flow policy an actor of PPO by learned noise in its Euler steps (ReinFlow).

Zhang et al., arXiv 2505.22094, and the released code, ReinFlow/ReinFlow. A network predicts the
standard deviation of the noise that every step adds, within bounds, from observation and step; the
chain from noise to chunk is then a Markov chain of known likelihood, and a decision has one ratio
of the whole chain. Velocity and noise are trained together, with an entropy bonus and, as an
option, a penalty on the distance to chunks of the initial policy. After fine-tuning the noise is
removed.

Paper and released code differ: the paper's log-probability is the sum over the chain, the code's
the mean over steps and entries, for which its clip ranges and entropy weight are tuned; the code is
the default. Of the code, its bounds on the mean log-probability and on intermediate samples are
left out, as the policy's own sampler clips the end alone, and so is its schedule that lowers the
upper bound of the noise.

Flow-Noise (pi_RL), which `policies.rl.on_policy.flow_actor` has for a `vla`, is the same with a
network on the hidden states of the action expert.

Shape suffixes: B batch, K steps, L samples of a chain (K + 1), H horizon, A action.
"""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from policies.families.diffusion import DiffusionPolicy
from policies.networks.mlp import sinusoidal_embedding
from policies.policy import ObservationTensors
from policies.rl.finetuning.denoising.config import ReinFlowFinetuneConfig
from policies.rl.on_policy.config import LearnedNoiseConfig
from policies.rl.on_policy.diffusion_actor import trained_modules
from policies.rl.on_policy.learned_noise import (
    StepDistribution,
    bounded_std,
    noisy_chain_likelihood,
    sample_noisy_chain,
)
from policies.rl.on_policy.observations import observation_tensors
from policies.rl.on_policy.ppo import ActorEvaluation
from policies.rl.on_policy.rollout import Trace

STEP_FEATURES = 16
"""Size of the embedding of a step, as in the released code."""


class NoisyFlowSample(NamedTuple):
    """Sampled chunks, with their chains."""

    chunk_BHA: Tensor
    """Normalised action chunks."""
    trace: Trace
    """`chain` (B, 1, L, H, A), samples from noise to the clean chunk before it is clipped."""
    log_prob_BK: Tensor
    """(B, 1)."""


class StepNoise(nn.Module):
    """Predicts the standard deviation of a step's noise per entry, within bounds.

    Args:
        policy: policy whose encoded observations it reads.
        steps: K, number of sampler steps.
        noise: bounds and hidden units.
    """

    embedding_KE: Tensor

    def __init__(self, policy: DiffusionPolicy, steps: int, noise: LearnedNoiseConfig) -> None:
        super().__init__()
        self.noise = noise
        self.chunk_shape = policy.chunk_shape
        self.register_buffer(
            "embedding_KE", sinusoidal_embedding(steps, STEP_FEATURES), persistent=False
        )
        inputs = policy.encoder.steps * policy.encoder.outputs + STEP_FEATURES
        sizes = (inputs, *noise.hidden, math.prod(policy.chunk_shape))
        layers: list[nn.Module] = []
        for pair in pairwise(sizes):
            layers += [nn.Linear(*pair), nn.Tanh()]
        # The output is unbounded.
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, encoded_BTO: Tensor, step: int) -> Tensor:
        """(B, H, A) standard deviations at a step, from encoded observations."""
        features_BF = encoded_BTO.flatten(1)
        step_BE = self.embedding_KE[step].expand(len(features_BF), -1)
        output_BHA = self.layers(torch.cat([features_BF, step_BE], dim=1)).unflatten(
            1, self.chunk_shape
        )
        return bounded_std(output_BHA, self.noise.low, self.noise.high)


class ReinFlowActor:
    """Implements `policies.rl.on_policy.ppo.OnPolicyActor` and `UnitActor`.

    Args:
        policy: flow policy that is trained in place.
        config: options of steps and noise.
    """

    denoising_steps = 1

    def __init__(self, policy: DiffusionPolicy, config: ReinFlowFinetuneConfig) -> None:
        self.policy = policy.eval().requires_grad_(False)
        self.config = config
        self.reference = copy.deepcopy(policy)
        """Frozen copy of the initial policy."""
        self.step_noise = StepNoise(policy, config.steps, config.noise)
        for module in trained_modules(policy):
            module.requires_grad_(True)

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the denoiser, of the projections of a policy with an instruction, and of
        the noise."""
        modules = (*trained_modules(self.policy), self.step_noise)
        return [parameter for module in modules for parameter in module.parameters()]

    def extra_modules(self) -> dict[str, nn.Module]:
        """Networks of fine-tuning besides the policy, by name."""
        return {"reference": self.reference, "step_noise": self.step_noise}

    @torch.no_grad()
    def decide(self, obs: Any, generator: torch.Generator) -> NoisyFlowSample:
        """Samples a chunk for every row, with noise in every step.

        Args:
            obs: normalised observations (B, T, O), or a TensorDict of them and the instructions;
                see `policies.rl.collection.chunk_env.ChunkEnv`.
            generator: supplies all randomness.
        """
        shape = (self.config.steps + 1, len(obs), *self.policy.chunk_shape)
        noise_LBHA = torch.randn(shape, generator=generator)
        noise_LBHA[1:].clamp_(-self.config.noise.clip, self.config.noise.clip)
        chain = sample_noisy_chain(self._steps(observation_tensors(obs)), noise_LBHA)
        trace = {"chain": chain.sample_BLHA[:, None]}
        chunk_BHA = self.policy.clip_chunk(chain.sample_BLHA[:, -1])
        return NoisyFlowSample(chunk_BHA, trace, self._log_prob(chain.log_prob_BHA)[:, None])

    def evaluate(self, obs: Any, denoising_step: Tensor, trace: Trace) -> ActorEvaluation:
        """See `UnitActor.evaluate`: log-probability of the chain, and the mean entropy of the noise
        over steps and entries."""
        steps = self._steps(observation_tensors(obs))
        likelihood = noisy_chain_likelihood(steps, trace["chain"])
        entropy_B = likelihood.entropy_BHA.mean(dim=(1, 2)) / self.config.steps
        log_prob_B = self._log_prob(likelihood.log_prob_BHA)
        return ActorEvaluation(log_prob_B[:, None], entropy=entropy_B[:, None])

    def log_prob(self, obs: Any, denoising_step: Tensor, trace: Trace) -> Tensor:
        """See `OnPolicyActor.log_prob`."""
        return self.evaluate(obs, denoising_step, trace).log_prob[:, 0]

    def bc_loss(self, obs: Any, generator: torch.Generator) -> Tensor:
        """See `OnPolicyActor.bc_loss`: squared distance to the chunks that the initial policy makes
        of the same noise, both without step noise, which bounds the Wasserstein distance."""
        observed = observation_tensors(obs)
        noise_BHA = torch.randn((len(obs), *self.policy.chunk_shape), generator=generator)
        with torch.no_grad():
            target_BHA = self.reference.sample(observed, noise_BHA)
        return mse_loss(self.policy.sample(observed, noise_BHA), target_BHA)

    def _steps(self, observed: ObservationTensors) -> StepDistribution:
        """Distribution of Euler's steps with learned noise."""
        velocity, count = self.policy.velocity(observed), self.config.steps
        with torch.no_grad():
            encoded_BTO = self.reference.encoder(observed)

        def step(sample_BHA: Tensor, number: int) -> tuple[Tensor, Tensor]:
            time_B = sample_BHA.new_full((len(sample_BHA),), 1.0 - number / count)
            mean_BHA = sample_BHA - velocity(sample_BHA, time_B) / count
            return mean_BHA, self.step_noise(encoded_BTO, number)

        return step

    def _log_prob(self, log_prob_BHA: Tensor) -> Tensor:
        """(B,) log-probability of chains, reduced over entries and steps."""
        if self.config.reduce == "sum":
            return log_prob_BHA.sum(dim=(1, 2))
        return log_prob_BHA.mean(dim=(1, 2)) / self.config.steps
