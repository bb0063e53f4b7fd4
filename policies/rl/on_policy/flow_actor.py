"""Makes a flow-matching VLA stochastic (Flow-SDE, Flow-Noise), so that PPO has a log-probability to
work with.

The ODE of a flow is deterministic and has no likelihood. Flow-SDE and Flow-Noise (pi_RL, Chen et
al. 2025, arXiv 2510.25889) make its K steps stochastic during fine-tuning; inference adds no noise:
- `sde` adds the noise of `policies.samplers.flow_matching.sde_grid` and corrects the drift
  accordingly. Either one randomly chosen step per decision is stochastic and trained while the
  others follow the ODE (one ratio per decision), or all steps are, each with its own ratio as in
  DPPO.
- `learned` adds noise to every Euler step, whose standard deviation a small network predicts within
  bounds. All steps form one decision: its log-probability is the sum over the chain.

The value head reads the action expert, as released for pi0. There the value is the mean over the
sampler's steps; here the expert is evaluated once more, for the zero chunk at time 1, so the value
is a function of the observation alone.

Shape suffixes: B batch, K steps, L samples of a chain (K + 1), H horizon, A action, V values, W
width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from policies.families.vla import VlaPolicy
from policies.networks.action_expert import ExpertContext
from policies.policy import Batch, ObservationTensors
from policies.rl.on_policy.config import FlowNoiseConfig, LogProbLevel, Trunk
from policies.rl.on_policy.learned_noise import (
    ENTROPY,
    StepDistribution,
    bounded_std,
    noisy_chain_likelihood,
    sample_noisy_chain,
)
from policies.rl.on_policy.observations import observation_tensors
from policies.rl.on_policy.ppo import ActorEvaluation
from policies.rl.on_policy.rollout import Trace, to_level
from policies.rl.on_policy.token_actor import ChunkSample
from policies.rl.on_policy.value_head import ValueHead
from policies.samplers.chain import (
    ChainConfig,
    one_active_step,
    sample_chain,
    step_log_prob,
)
from policies.samplers.flow_matching import ode_grid, sde_grid

_EACH = ChainConfig(reduce="none")
"""Options for log-probabilities per entry without any clamping."""


class FlowActor:
    """Implements `policies.rl.on_policy.ppo.OnPolicyActor` and `UnitActor`.

    Args:
        policy: policy that is trained in place.
        noise: options of the noise.
        log_prob_level: level of the log-probabilities.
        values: whether chunks or actions have values; None builds no value head.
        hidden: hidden units of the value head.
        keep_reference: whether to keep a copy of the initial policy, for `bc_loss`.
        trunk: input of the value head, see `VlaFinetuneConfig.critic_trunk`.
    """

    def __init__(
        self,
        policy: VlaPolicy,
        noise: FlowNoiseConfig,
        log_prob_level: LogProbLevel,
        values: Literal["chunk", "action"] | None,
        hidden: Sequence[int] = (512, 128),
        keep_reference: bool = False,
        trunk: Trunk = "shared",
    ) -> None:
        self.policy = policy.eval()
        self.noise = noise
        self.log_prob_level: LogProbLevel = log_prob_level
        self.noise_network = NoiseNetwork(policy, noise) if noise.kind == "learned" else None
        self.grid = (
            sde_grid(noise.steps, noise.sde_noise) if noise.kind == "sde" else ode_grid(noise.steps)
        )
        self.denoising_steps = noise.steps if noise.kind == "sde" and not noise.one_step else 1
        self.reference = copy.deepcopy(policy).requires_grad_(False) if keep_reference else None
        """Frozen copy of the initial policy; None without one."""
        outputs = {"chunk": 1, "action": policy.chunk_shape[0]}
        width = policy.expert.width
        self.head = (
            None if values is None else ValueHead(policy, width, hidden, outputs[values], trunk)
        )

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the policy and of its noise network, without the value head."""
        return [
            *self.policy.parameters(),
            *([] if self.noise_network is None else self.noise_network.parameters()),
        ]

    def acting(self) -> list[nn.Module]:
        """See `policies.rl.collection.interfaces.PublishedActor.acting`."""
        return [part for part in (self.policy, self.noise_network, self.head) if part is not None]

    def extra_modules(self) -> dict[str, nn.Module]:
        """Networks of fine-tuning besides the policy, by name."""
        modules = {"reference": self.reference, "head": self.head, "noise": self.noise_network}
        return {name: module for name, module in modules.items() if module is not None}

    def sample_noise(self, rows: int, generator: torch.Generator) -> Trace:
        """See `PresampledNoiseActor.sample_noise`."""
        shape = (self.noise.steps + 1, rows, *self.policy.chunk_shape)
        noise_LBHA = torch.randn(shape, generator=generator, device=generator.device)
        presampled = {"noise": noise_LBHA.transpose(0, 1)}
        if self.noise_network is None and self.noise.one_step:
            presampled["active"] = one_active_step(self.noise.steps, rows, generator).T
        return presampled

    def decide(self, obs: Any, generator: torch.Generator) -> ChunkSample:
        """Samples a chunk for every row; see `TokenActor.decide`."""
        return self.decide_with_noise(obs, self.sample_noise(len(obs), generator))

    @torch.no_grad()
    def decide_with_noise(self, obs: Any, presampled: Trace) -> ChunkSample:
        """See `PresampledNoiseActor.decide_with_noise`."""
        observed = observation_tensors(obs)
        noise_LBHA = presampled["noise"].transpose(0, 1)
        context = self.policy.expert_context(observed)
        value_BV = self._value(observed, context, len(obs))
        if self.noise_network is not None:
            noisy = sample_noisy_chain(self._learned_steps(context), noise_LBHA)
            trace = {"chain": noisy.sample_BLHA[:, None]}
            chunk_BHA = noisy.sample_BLHA[:, -1]
            return ChunkSample(chunk_BHA, trace, noisy.log_prob_BHA[:, None], value_BV)
        # The chain, with one or all steps stochastic.
        active_KB = presampled["active"].T if self.noise.one_step else None
        grid = self.grid.to(noise_LBHA.device)
        chain = sample_chain(
            self.policy.denoise(context), noise_LBHA[0], noise_LBHA[1:], grid, _EACH, active_KB
        )
        # The stochastic steps alone are kept for the update.
        step_BK = torch.arange(self.noise.steps, device=noise_LBHA.device).expand(len(obs), -1)
        if active_KB is not None:
            step_BK = active_KB.int().argmax(dim=0)[:, None]
        trace = {
            "step": step_BK,
            "std": chain.std_KB.T.gather(1, step_BK),
            "sample": _select_steps(chain.sample_LBHA[:-1], step_BK),
            "next": _select_steps(chain.sample_LBHA[1:], step_BK),
        }
        return ChunkSample(chain.clean_BHA, trace, _select_steps(chain.log_prob, step_BK), value_BV)

    @torch.no_grad()
    def value(self, obs: Any) -> Tensor:
        """(B, V) values; the actor needs a value head."""
        observed = observation_tensors(obs)
        value_BV = self._value(observed, self.policy.expert_context(observed), len(obs))
        assert value_BV is not None
        return value_BV

    def evaluate(self, obs: Any, denoising_step: Tensor, trace: Trace) -> ActorEvaluation:
        """See `UnitActor.evaluate`: log-probabilities at the configured level, values and
        entropies."""
        observed = observation_tensors(obs)
        context = self.policy.expert_context(observed)
        if self.noise_network is not None:
            log_prob_BHA, entropy_BHA = noisy_chain_likelihood(
                self._learned_steps(context), trace["chain"]
            )
        else:
            denoise = self.policy.denoise(context)
            steps = (trace["sample"], trace["next"], trace["std"], trace["step"])
            log_prob_BHA = step_log_prob(denoise, *steps, self.grid.to(trace["std"].device), _EACH)
            entropy_BHA = (trace["std"].log() + ENTROPY)[:, None, None].expand_as(log_prob_BHA)
        units = to_level(log_prob_BHA, trace["executed"], self.log_prob_level)
        entropy_BU = to_level(entropy_BHA, trace["executed"], self.log_prob_level).log_prob_RU
        return ActorEvaluation(
            units.log_prob_RU, self._value(observed, context, len(log_prob_BHA)), entropy_BU
        )

    def log_prob(self, obs: Any, denoising_step: Tensor, trace: Trace) -> Tensor:
        """See `OnPolicyActor.log_prob`: summed over the executed actions."""
        return self.evaluate(obs, denoising_step, trace).log_prob.sum(dim=1)

    def bc_loss(self, obs: Any, generator: torch.Generator) -> Tensor:
        """See `OnPolicyActor.bc_loss`: the flow-matching loss on chunks of the initial policy.

        A flow has no likelihood in closed form; this is the imitation loss instead.
        """
        assert self.reference is not None
        observed = observation_tensors(obs)
        with torch.no_grad():
            noise_BHA = torch.randn((len(obs), *self.policy.chunk_shape), generator=generator)
            chunk_BHA = self.reference.sample(observed, noise_BHA.to(self.policy.device))
        padded_BH = torch.zeros(chunk_BHA.shape[:2], dtype=torch.bool, device=chunk_BHA.device)
        rng = np.random.default_rng(int(torch.randint(1 << 31, (1,), generator=generator)))
        return self.policy.loss(Batch(observed, chunk_BHA, padded_BH), rng)

    def _learned_steps(self, context: ExpertContext) -> StepDistribution:
        """Distribution of Euler steps with learned noise, conditioned on observations."""
        return partial(self._step_distribution, context)

    def _step_distribution(
        self, context: ExpertContext, sample_BHA: Tensor, step: int
    ) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the sample after an Euler step with learned noise."""
        assert self.noise_network is not None
        time_B = sample_BHA.new_full((len(sample_BHA),), 1.0 - step / self.noise.steps)
        hidden_BHW = self.policy.expert.hidden(sample_BHA, time_B, context)
        velocity_BHA = self.policy.expert.velocity(hidden_BHW)
        return sample_BHA - velocity_BHA / self.noise.steps, self.noise_network(hidden_BHW)

    def _value(
        self, observed: ObservationTensors, context: ExpertContext, rows: int
    ) -> Tensor | None:
        if self.head is None:
            return None
        source = self.policy
        if self.head.trunk is not None:
            source = cast(VlaPolicy, self.head.trunk)
            context = source.expert_context(observed)
        zeros_BHA = torch.zeros(rows, *self.policy.chunk_shape, device=self.policy.device)
        hidden_BHW = source.expert.hidden(
            zeros_BHA, torch.ones(rows, device=self.policy.device), context
        )
        return self.head(hidden_BHW.mean(dim=1))


class NoiseNetwork(nn.Module):
    """Predicts the standard deviation of a step's noise per entry, within bounds.

    Args:
        policy: policy whose action expert supplies the hidden states.
        noise: bounds and hidden units.
    """

    def __init__(self, policy: VlaPolicy, noise: FlowNoiseConfig) -> None:
        super().__init__()
        self.low = noise.low
        self.high = noise.high
        width, action = policy.expert.width, policy.chunk_shape[1]
        self.layers = nn.Sequential(
            nn.Linear(width, noise.hidden), nn.SiLU(), nn.Linear(noise.hidden, action)
        )

    def forward(self, hidden_BHW: Tensor) -> Tensor:
        """(B, H, A) standard deviations, log-interpolated between the bounds."""
        return bounded_std(self.layers(hidden_BHW), self.low, self.high)


def _select_steps(part_KBHA: Tensor, step_BJ: Tensor) -> Tensor:
    """(B, J, H, A): the steps `step_BJ` of every row."""
    rows_B1 = torch.arange(len(step_BJ), device=step_BJ.device)[:, None]
    return part_KBHA.transpose(0, 1)[rows_B1, step_BJ]
