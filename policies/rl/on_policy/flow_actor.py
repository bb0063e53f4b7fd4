"""A vision-language policy that flows a chunk from noise, as one that acts, learns and knows how
likely it acted.

The flow's ODE has no chance and no likelihood. Flow-SDE and Flow-Noise (pi_RL, Chen et al. 2025,
arXiv 2510.25889) give its K steps both, for practice alone; inference goes without:
- `sde` adds the noise of `policies.samplers.flow_matching.sde_grid` and draws towards the noise
  again what it took away. Of every decision one step, drawn at random, is random and learned from
  while the others follow the ODE, which is one part of a decision; or all are, each a part with a
  ratio of its own, as in DPPO.
- `learned` adds to every step of Euler's noise of a deviation that a small network answers within
  bounds. All steps together are one decision: the log-probability of the whole chain is the sum
  over its steps.

The value is read from the action expert, as released for pi0; there it is the mean over the steps
of the sampler, here the expert is asked once more, of the chunk 0 at time 1: a function of the
observation alone.

Shape suffixes: B batch, K steps, L samples of a chain (K + 1), H horizon, A action, V values, W
width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from policies.families.vla import VlaPolicy
from policies.networks.action_expert import ExpertContext
from policies.policy import Batch, ObservationTensors
from policies.rl.on_policy.config import FlowNoiseConfig, Level, Trunk
from policies.rl.on_policy.observations import observed_of
from policies.rl.on_policy.ppo import Evaluated
from policies.rl.on_policy.rollout import Trace, to_level
from policies.rl.on_policy.token_actor import TokenDecision
from policies.rl.on_policy.value_head import ValueHead
from policies.samplers.chain import (
    ChainConfig,
    Gaussian,
    gaussian_log_prob,
    one_active_step,
    sample_chain,
    step_log_prob,
)
from policies.samplers.flow_matching import ode_grid, sde_grid

_EACH = ChainConfig(reduce="none")
"""Log-probabilities of every entry, of the sampler as it is."""
_ENTROPY = 0.5 * math.log(2.0 * math.pi * math.e)
"""Of a standard normal number [nat]."""


class FlowActor:
    """Implements `policies.rl.on_policy.ppo.OnPolicyActor` and `UnitActor`.

    Args:
        policy: learns in place.
        noise: by which its steps become random.
        level: of its log-probabilities.
        values: what is valued, if anything.
        hidden: units of the value head's layers.
        clones: whether to keep the policy as it was, for `cloning_loss`.
        trunk: what values are read from, see `VlaPracticeConfig.critic_trunk`.
    """

    def __init__(
        self,
        policy: VlaPolicy,
        noise: FlowNoiseConfig,
        level: Level,
        values: Literal["chunk", "action"] | None,
        hidden: Sequence[int] = (512, 128),
        clones: bool = False,
        trunk: Trunk = "shared",
    ) -> None:
        self.policy, self.noise = policy.eval(), noise
        self.level: Level = level
        self.learned = NoiseNetwork(policy, noise) if noise.kind == "learned" else None
        self.grid = (
            sde_grid(noise.steps, noise.level) if noise.kind == "sde" else ode_grid(noise.steps)
        )
        self.parts = noise.steps if noise.kind == "sde" and not noise.one_step else 1
        self.before = copy.deepcopy(policy).requires_grad_(False) if clones else None
        """The policy as it was."""
        outputs = {"chunk": 1, "action": policy.chunk_shape[0]}
        width = policy.expert.width
        self.head = (
            None if values is None else ValueHead(policy, width, hidden, outputs[values], trunk)
        )

    def parameters(self) -> list[nn.Parameter]:
        """Those of the policy and of its noise, without the head of values."""
        return [
            *self.policy.parameters(),
            *([] if self.learned is None else self.learned.parameters()),
        ]

    def acting(self) -> list[nn.Module]:
        """See `policies.rl.collection.interfaces.PublishedActor.acting`."""
        return [part for part in (self.policy, self.learned, self.head) if part is not None]

    def beside(self) -> dict[str, nn.Module]:
        """Networks that fine-tuning has beside the policy, by their names."""
        found = {"before": self.before, "head": self.head, "noise": self.learned}
        return {name: module for name, module in found.items() if module is not None}

    def draw(self, rows: int, generator: torch.Generator) -> Trace:
        """The chance of a decision for so many rows; each entry (rows, ...)."""
        shape = (self.noise.steps + 1, rows, *self.policy.chunk_shape)
        noise_LBHA = torch.randn(shape, generator=generator, device=generator.device)
        chance = {"noise": noise_LBHA.transpose(0, 1)}
        if self.learned is None and self.noise.one_step:
            chance["active"] = one_active_step(self.noise.steps, rows, generator).T
        return chance

    def decide(self, seen: Any, generator: torch.Generator) -> TokenDecision:
        """Flows a chunk for every row; see `TokenActor.decide`."""
        return self.decide_by(seen, self.draw(len(seen), generator))

    @torch.no_grad()
    def decide_by(self, seen: Any, chance: Trace) -> TokenDecision:
        """`decide` with what `draw` has drawn; see `TokenActor.decide_by`."""
        observed, noise_LBHA = observed_of(seen), chance["noise"].transpose(0, 1)
        looked = self.policy.see(observed)
        value_BV = self._value(observed, looked, len(seen))
        if self.learned is not None:
            return self._chained(looked, noise_LBHA, value_BV)
        active_KB, grid = (
            chance["active"].T if self.noise.one_step else None,
            self.grid.to(noise_LBHA.device),
        )
        chain = sample_chain(
            self.policy.denoise(looked), noise_LBHA[0], noise_LBHA[1:], grid, _EACH, active_KB
        )
        step_BK = torch.arange(self.noise.steps, device=noise_LBHA.device).expand(len(seen), -1)
        if active_KB is not None:
            step_BK = active_KB.int().argmax(dim=0)[:, None]
        trace = {
            "step": step_BK,
            "std": chain.std_KB.T.gather(1, step_BK),
            "sample": _at(chain.sample_LBHA[:-1], step_BK),
            "next": _at(chain.sample_LBHA[1:], step_BK),
        }
        return TokenDecision(chain.clean_BHA, trace, _at(chain.log_prob, step_BK), value_BV)

    @torch.no_grad()
    def value(self, seen: Any) -> Tensor:
        """(B, V); of an actor that values."""
        observed = observed_of(seen)
        value_BV = self._value(observed, self.policy.see(observed), len(seen))
        assert value_BV is not None
        return value_BV

    def evaluate(self, seen: Any, part: Tensor, trace: Trace) -> Evaluated:
        """See `UnitActor.evaluate`: log-probabilities of the level, values, and how undecided it
        is."""
        observed = observed_of(seen)
        looked = self.policy.see(observed)
        if self.learned is not None:
            log_prob_BHA, entropy_BHA = self._chain_log_prob(looked, trace["chain"])
        else:
            denoise = self.policy.denoise(looked)
            steps = (trace["sample"], trace["next"], trace["std"], trace["step"])
            log_prob_BHA = step_log_prob(denoise, *steps, self.grid.to(trace["std"].device), _EACH)
            entropy_BHA = (trace["std"].log() + _ENTROPY)[:, None, None].expand_as(log_prob_BHA)
        units = to_level(log_prob_BHA, trace["executed"], self.level)
        entropy_BU = to_level(entropy_BHA, trace["executed"], self.level).log_prob_RU
        return Evaluated(
            units.log_prob_RU, self._value(observed, looked, len(log_prob_BHA)), entropy_BU
        )

    def log_prob(self, seen: Any, part: Tensor, trace: Trace) -> Tensor:
        """See `OnPolicyActor.log_prob`: of all that was executed."""
        return self.evaluate(seen, part, trace).log_prob.sum(dim=1)

    def cloning_loss(self, seen: Any, generator: torch.Generator) -> Tensor:
        """See `OnPolicyActor.cloning_loss`: flow matching on what the policy as it was samples.

        A flow has no likelihood in closed form; this is the loss of imitation, on the same scale.
        """
        assert self.before is not None
        observed = observed_of(seen)
        with torch.no_grad():
            noise_BHA = torch.randn((len(seen), *self.policy.chunk_shape), generator=generator)
            chunk_BHA = self.before.sample(observed, noise_BHA.to(self.policy.device))
        inside_BH = torch.zeros(chunk_BHA.shape[:2], dtype=torch.bool, device=chunk_BHA.device)
        draw = np.random.default_rng(int(torch.randint(1 << 31, (1,), generator=generator)))
        return self.policy.loss(Batch(observed, chunk_BHA, inside_BH), draw)

    def _chained(
        self, looked: ExpertContext, noise_LBHA: Tensor, value_BV: Tensor | None
    ) -> TokenDecision:
        """A chunk by steps of learned noise."""
        samples, log_prob_BHA = [noise_LBHA[0]], torch.zeros_like(noise_LBHA[0])
        for number in range(self.noise.steps):
            mean_BHA, std_BHA = self._next(looked, samples[-1], number)
            samples.append(torch.addcmul(mean_BHA, std_BHA, noise_LBHA[number + 1]))
            log_prob_BHA = log_prob_BHA + _log_normal(samples[-1], mean_BHA, std_BHA)
        trace = {"chain": torch.stack(samples, dim=1)[:, None]}
        return TokenDecision(samples[-1], trace, log_prob_BHA[:, None], value_BV)

    def _chain_log_prob(self, looked: ExpertContext, chain_BLHA: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of a chain, and its entropy, (B, H, A) each, summed over its steps."""
        log_prob_BHA = entropy_BHA = torch.zeros_like(chain_BLHA[:, 0])
        for number in range(self.noise.steps):
            mean_BHA, std_BHA = self._next(looked, chain_BLHA[:, number], number)
            log_prob_BHA = log_prob_BHA + _log_normal(chain_BLHA[:, number + 1], mean_BHA, std_BHA)
            entropy_BHA = entropy_BHA + std_BHA.log() + _ENTROPY
        return log_prob_BHA, entropy_BHA

    def _next(
        self, looked: ExpertContext, sample_BHA: Tensor, number: int
    ) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the sample behind a step of Euler's with learned noise."""
        assert self.learned is not None
        time_B = sample_BHA.new_full((len(sample_BHA),), 1.0 - number / self.noise.steps)
        hidden_BHW = self.policy.expert.hidden(sample_BHA, time_B, looked)
        velocity_BHA = self.policy.expert.velocity(hidden_BHW)
        return sample_BHA - velocity_BHA / self.noise.steps, self.learned(hidden_BHW)

    def _value(
        self, observed: ObservationTensors, looked: ExpertContext, rows: int
    ) -> Tensor | None:
        if self.head is None:
            return None
        source = self.policy
        if self.head.trunk is not None:
            source = cast(VlaPolicy, self.head.trunk)
            looked = source.see(observed)
        nothing_BHA = torch.zeros(rows, *self.policy.chunk_shape, device=self.policy.device)
        hidden_BHW = source.expert.hidden(
            nothing_BHA, torch.ones(rows, device=self.policy.device), looked
        )
        return self.head(hidden_BHW.mean(dim=1))


class NoiseNetwork(nn.Module):
    """Deviation of a step's noise for every entry, between bounds, from the expert's hidden state.

    Args:
        policy: whose expert.
        noise: bounds and hidden units.
    """

    def __init__(self, policy: VlaPolicy, noise: FlowNoiseConfig) -> None:
        super().__init__()
        self.low, self.high = math.log(noise.low), math.log(noise.high)
        width, action = policy.expert.width, policy.chunk_shape[1]
        self.layers = nn.Sequential(
            nn.Linear(width, noise.hidden), nn.SiLU(), nn.Linear(noise.hidden, action)
        )

    def forward(self, hidden_BHW: Tensor) -> Tensor:
        """(B, H, A), geometrically between the bounds."""
        return (self.low + (self.high - self.low) * self.layers(hidden_BHW).sigmoid()).exp()


def _log_normal(value_BHA: Tensor, mean_BHA: Tensor, std_BHA: Tensor) -> Tensor:
    """(B, H, A) of every entry [nat]."""
    standard_BHA = (value_BHA - mean_BHA) / std_BHA
    one_B = standard_BHA.new_ones(len(standard_BHA))
    # Of a standard normal number, and of how much wider it was made.
    return (
        gaussian_log_prob(standard_BHA, Gaussian(torch.zeros_like(mean_BHA), one_B), _EACH)
        - std_BHA.log()
    )


def _at(part_KBHA: Tensor, step_BJ: Tensor) -> Tensor:
    """(B, J, H, A): of every row its steps."""
    rows_B1 = torch.arange(len(step_BJ), device=step_BJ.device)[:, None]
    return part_KBHA.transpose(0, 1)[rows_B1, step_BJ]
