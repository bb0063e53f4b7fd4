"""A vision-language policy that answers with action tokens, as one that acts, learns and knows how
likely it acted.

RLinf-VLA (arXiv 2510.06710): every token is drawn from the softmax of its logits at a temperature,
over the bins alone; a light head on the backbone's hidden state at the first action token values
what is seen, as a whole or for every action of the chunk. Different from RLinf's code, a token's
own hidden state is read, not that one place before it, as in `policies.families.token_vla`.

Shape suffixes: B batch, K parts (one), H horizon, A action, U units, V values, W width.
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
from policies.rl.on_policy.config import Level, Trunk
from policies.rl.on_policy.observations import observed_of
from policies.rl.on_policy.ppo import Evaluated
from policies.rl.on_policy.rollout import Trace, to_level
from policies.rl.on_policy.value_head import ValueHead


class TokenDecision(NamedTuple):
    """What was decided for B rows."""

    chunk_BHA: Tensor
    """Normalised."""
    trace: Trace
    """See `evaluate` of the actor."""
    log_prob_BKHA: Tensor
    value_BV: Tensor | None


class TokenActor:
    """Implements `policies.rl.on_policy.ppo.OnPolicyActor` and `UnitActor`.

    Args:
        policy: learns in place.
        level: of its log-probabilities.
        values: what is valued, if anything.
        hidden: units of the value head's layers.
        temperature: of the tokens in practice; inference keeps its own.
        clones: whether to keep the policy as it was, for `cloning_loss`.
        trunk: what values are read from, see `VlaPracticeConfig.critic_trunk`.

    Raises:
        HandoffError: a temperature at which no token has a log-probability.
    """

    parts = 1

    def __init__(
        self,
        policy: TokenVlaPolicy,
        level: Level,
        values: Literal["chunk", "action"] | None,
        hidden: Sequence[int] = (512, 128),
        temperature: float = 1.0,
        clones: bool = False,
        trunk: Trunk = "shared",
    ) -> None:
        check_temperature(temperature)
        self.policy, self.temperature = policy.eval(), temperature
        self.level: Level = level
        self.before = copy.deepcopy(policy).requires_grad_(False) if clones else None
        """The policy as it was."""
        outputs = {"chunk": 1, "action": policy.chunk_shape[0]}
        width = policy.backbone.width
        self.head = (
            None if values is None else ValueHead(policy, width, hidden, outputs[values], trunk)
        )
        """To values of the hidden state at the first action token."""

    def parameters(self) -> list[nn.Parameter]:
        """Those of the policy, without the head of values."""
        return list(self.policy.parameters())

    def acting(self) -> list[nn.Module]:
        """See `policies.rl.collection.interfaces.PublishedActor.acting`."""
        return [part for part in (self.policy, self.head) if part is not None]

    def beside(self) -> dict[str, nn.Module]:
        """Networks that fine-tuning has beside the policy, by their names."""
        found = {"before": self.before, "head": self.head}
        return {name: module for name, module in found.items() if module is not None}

    def draw(self, rows: int, generator: torch.Generator) -> Trace:
        """The chance of a decision for so many rows; each entry (rows, ...)."""
        shape = (rows, *self.policy.chunk_shape)
        return {"noise": torch.randn(shape, generator=generator, device=generator.device)}

    def decide(self, seen: Any, generator: torch.Generator) -> TokenDecision:
        """Draws a chunk for every row.

        Args:
            seen: see `policies.rl.collection.chunk_env.ChunkWorlds`.
            generator: of all chance.
        """
        return self.decide_by(seen, self.draw(len(seen), generator))

    @torch.no_grad()
    def decide_by(self, seen: Any, chance: Trace) -> TokenDecision:
        """`decide` with what `draw` has drawn: a function of its arguments and the weights
        alone."""
        observed, policy, noise_BHA = observed_of(seen), self.policy, chance["noise"]
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
        return TokenDecision(
            policy.values(tokens_BHA),
            trace,
            log_prob_BHA[:, None],
            self._value(observed, hidden_BHAW),
        )

    @torch.no_grad()
    def value(self, seen: Any) -> Tensor:
        """(B, V); of an actor that values."""
        observed = observed_of(seen)
        value_BV = self._value(observed, self._hidden(self.policy, observed))
        assert value_BV is not None
        return value_BV

    def evaluate(self, seen: Any, part: Tensor, trace: Trace) -> Evaluated:
        """See `UnitActor.evaluate`: log-probabilities of the level, values, and how undecided it
        is."""
        tokens_BHA, observed = trace["tokens"], observed_of(seen)
        hidden_BHAW = self.policy.hidden(observed, tokens_BHA)
        logits_BHAK = self.policy.head(hidden_BHAW)
        log_prob_BHA = token_log_prob(logits_BHAK, tokens_BHA, self.temperature)
        entropy_BHA = token_entropy(logits_BHAK, self.temperature)
        units = to_level(log_prob_BHA, trace["executed"], self.level)
        entropy_BU = to_level(entropy_BHA, trace["executed"], self.level).log_prob_RU
        return Evaluated(units.log_prob_RU, self._value(observed, hidden_BHAW), entropy_BU)

    def log_prob(self, seen: Any, part: Tensor, trace: Trace) -> Tensor:
        """See `OnPolicyActor.log_prob`: of all that was executed."""
        return self.evaluate(seen, part, trace).log_prob.sum(dim=1)

    def cloning_loss(self, seen: Any, generator: torch.Generator) -> Tensor:
        """See `OnPolicyActor.cloning_loss`: mean over tokens that the policy draws as it was."""
        assert self.before is not None
        observed = observed_of(seen)
        with torch.no_grad():
            noise_BHA = torch.randn((len(seen), *self.policy.chunk_shape), generator=generator)
            noise_BHA = noise_BHA.to(self.policy.device)
            tokens_BHA = self.before.act(observed, noise_BHA, self.temperature).tokens_BHA
        return -self.policy.log_prob(observed, tokens_BHA, self.temperature).mean()

    def _hidden(self, policy: TokenVlaPolicy, observed: ObservationTensors) -> Tensor:
        """What values are read from; the first action token sees none of them."""
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
