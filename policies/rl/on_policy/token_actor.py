"""Makes a token VLA an actor of PPO: samples action tokens, and evaluates their log-probabilities
and values.

RLinf-VLA (arXiv 2510.06710): every token is sampled from the softmax of its logits at a
temperature, over the action bins alone; a small head on the backbone's hidden state at the first
action token predicts the value of the chunk or of each of its actions. RLinf's code reads the
hidden state one position earlier; here it is that of the token itself, as in
`policies.families.token_vla`.

Shape suffixes: B batch, K denoising steps (one), H horizon, A action, U units, V values, W width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from policies.families.action_tokens import (
    check_temperature,
    draw_tokens,
    token_entropy,
    token_log_prob,
)
from policies.families.token_vla import TokenVlaPolicy
from policies.policy import ObservationTensors
from policies.rl.on_policy.config import LogProbLevel, Trunk
from policies.rl.on_policy.observations import observation_tensors
from policies.rl.on_policy.ppo import ActorEvaluation
from policies.rl.on_policy.rollout import Trace, to_level
from policies.rl.on_policy.value_head import ValueHead


class ChunkSample(NamedTuple):
    """Sampled chunks of B rows, with log-probabilities and values."""

    chunk_BHA: Tensor
    """Normalised action chunks."""
    trace: Trace
    """Tensors that the actor's `evaluate` needs."""
    log_prob_BKHA: Tensor
    value_BV: Tensor | None


class TokenActor:
    """Implements `policies.rl.on_policy.ppo.OnPolicyActor` and `UnitActor`.

    Args:
        policy: policy that is trained in place.
        log_prob_level: level of the log-probabilities.
        values: whether chunks or actions have values; None builds no value head.
        hidden: hidden units of the value head.
        temperature: temperature of the tokens during fine-tuning; inference keeps its own.
        keep_reference: whether to keep a copy of the initial policy, for `bc_loss`.
        trunk: input of the value head, see `VlaFinetuneConfig.critic_trunk`.

    Raises:
        HandoffError: a temperature that is not above 0.
    """

    denoising_steps = 1

    def __init__(
        self,
        policy: TokenVlaPolicy,
        log_prob_level: LogProbLevel,
        values: Literal["chunk", "action"] | None,
        hidden: Sequence[int] = (512, 128),
        temperature: float = 1.0,
        keep_reference: bool = False,
        trunk: Trunk = "shared",
    ) -> None:
        check_temperature(temperature)
        self.policy = policy.eval()
        self.temperature = temperature
        self.log_prob_level: LogProbLevel = log_prob_level
        self.reference = copy.deepcopy(policy).requires_grad_(False) if keep_reference else None
        """Frozen copy of the initial policy; None without one."""
        outputs = {"chunk": 1, "action": policy.chunk_shape[0]}
        width = policy.backbone.width
        self.head = (
            None if values is None else ValueHead(policy, width, hidden, outputs[values], trunk)
        )
        """Value head on the hidden state at the first action token; None without values."""

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the policy, without the value head."""
        return list(self.policy.parameters())

    def acting(self) -> list[nn.Module]:
        """See `policies.rl.collection.interfaces.PublishedActor.acting`."""
        return [part for part in (self.policy, self.head) if part is not None]

    def extra_modules(self) -> dict[str, nn.Module]:
        """Networks of fine-tuning besides the policy, by name."""
        modules = {"reference": self.reference, "head": self.head}
        return {name: module for name, module in modules.items() if module is not None}

    def sample_noise(self, rows: int, generator: torch.Generator) -> Trace:
        """See `PresampledNoiseActor.sample_noise`."""
        shape = (rows, *self.policy.chunk_shape)
        return {"noise": torch.randn(shape, generator=generator, device=generator.device)}

    def decide(self, obs: Any, generator: torch.Generator) -> ChunkSample:
        """Samples a chunk for every row.

        Args:
            obs: see `policies.rl.collection.chunk_env.ChunkEnv`.
            generator: supplies all randomness.
        """
        return self.decide_with_noise(obs, self.sample_noise(len(obs), generator))

    @torch.no_grad()
    def decide_with_noise(self, obs: Any, presampled: Trace) -> ChunkSample:
        """See `PresampledNoiseActor.decide_with_noise`."""
        observed = observation_tensors(obs)
        policy = self.policy
        noise_BHA = presampled["noise"]
        if policy.causal:
            tokens_BHA = policy.act(observed, noise_BHA, self.temperature).tokens_BHA
            hidden_BHAW = policy.hidden(observed, tokens_BHA)
            logits_BHAK = policy.head(hidden_BHAW)
        else:
            hidden_BHAW = policy.hidden(observed)
            logits_BHAK = policy.head(hidden_BHAW)
            tokens_BHA = draw_tokens(logits_BHAK, noise_BHA, self.temperature)
        log_prob_BHA = token_log_prob(logits_BHAK, tokens_BHA, self.temperature)
        trace = {"tokens": tokens_BHA[:, None]}
        return ChunkSample(
            policy.values(tokens_BHA),
            trace,
            log_prob_BHA[:, None],
            self._value(observed, hidden_BHAW),
        )

    @torch.no_grad()
    def value(self, obs: Any) -> Tensor:
        """(B, V) values; the actor needs a value head."""
        observed = observation_tensors(obs)
        value_BV = self._value(observed, self._hidden(self.policy, observed))
        assert value_BV is not None
        return value_BV

    def evaluate(self, obs: Any, denoising_step: Tensor, trace: Trace) -> ActorEvaluation:
        """See `UnitActor.evaluate`: log-probabilities at the configured level, values and
        entropies."""
        tokens_BHA, observed = trace["tokens"], observation_tensors(obs)
        hidden_BHAW = self.policy.hidden(observed, tokens_BHA)
        logits_BHAK = self.policy.head(hidden_BHAW)
        log_prob_BHA = token_log_prob(logits_BHAK, tokens_BHA, self.temperature)
        entropy_BHA = token_entropy(logits_BHAK, self.temperature)
        units = to_level(log_prob_BHA, trace["executed"], self.log_prob_level)
        entropy_BU = to_level(entropy_BHA, trace["executed"], self.log_prob_level).log_prob_RU
        return ActorEvaluation(units.log_prob_RU, self._value(observed, hidden_BHAW), entropy_BU)

    def log_prob(self, obs: Any, denoising_step: Tensor, trace: Trace) -> Tensor:
        """See `OnPolicyActor.log_prob`: summed over the executed actions."""
        return self.evaluate(obs, denoising_step, trace).log_prob.sum(dim=1)

    def bc_loss(self, obs: Any, generator: torch.Generator) -> Tensor:
        """See `OnPolicyActor.bc_loss`: mean negative log-likelihood of tokens of the initial
        policy."""
        assert self.reference is not None
        observed = observation_tensors(obs)
        with torch.no_grad():
            noise_BHA = torch.randn((len(obs), *self.policy.chunk_shape), generator=generator)
            noise_BHA = noise_BHA.to(self.policy.device)
            tokens_BHA = self.reference.act(observed, noise_BHA, self.temperature).tokens_BHA
        return -self.policy.log_prob(observed, tokens_BHA, self.temperature).mean()

    def _hidden(self, policy: TokenVlaPolicy, observed: ObservationTensors) -> Tensor:
        """Hidden states for the value head; the first action token attends to no action token."""
        tokens = None
        if policy.causal:
            shape = (len(observed.vector_BTO), *policy.chunk_shape)
            tokens = torch.zeros(shape, dtype=torch.long, device=policy.device)
        return policy.hidden(observed, tokens)

    def _value(self, observed: ObservationTensors, hidden_BHAW: Tensor) -> Tensor | None:
        if self.head is None:
            return None
        if self.head.trunk is not None:
            hidden_BHAW = self._hidden(self.head.trunk, observed)  # type: ignore[arg-type]
        return self.head(hidden_BHAW[:, 0, 0].float())
