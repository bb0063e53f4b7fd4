"""A vision-language backbone that answers with action tokens (OpenVLA, arXiv 2406.09246; OFT, arXiv
2502.19645).

One token per entry of the chunk, N = H * A of them, step by step and within a step entry by entry,
after the tokens of the observation. The input at every place is a learned query. Decoded in
parallel, that is the whole input and the tokens see one another in both directions, as in OFT;
decoded autoregressively, the embedding of the token before is added to it and a token sees only
those before it, as in OpenVLA. Both see the whole observation.

Where papers and released code differ from this file: OFT's action embeddings are zero, told apart
by their rotary positions alone, and a token is read one place before its own, as next words are;
here at its own. OpenVLA writes over the 256 rarest words of the vocabulary; here the bins have
tables of their own, which `tokens: vocabulary` starts from the rows of those words, so that the
words stay as they were and a vocabulary need not be that large. Pictures and words see one another,
as in OFT; see `policies.networks.vlm`. Logits are of the bins alone, as in RLinf (arXiv
2510.06710). Chunks that reach past the end of their episode, which OFT's code leaves out, are
learned as far as they are inside. OFT prefers to regress the values of actions; that head is not
here, as it gives no probabilities to reinforce.

Shape suffixes: B batch, L tokens of the observation, N action tokens, H horizon, A action, K bins,
W width.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from policies.card import Shapes
from policies.families.action_tokens import (
    QuantileNormalizer,
    check_temperature,
    draw_tokens,
    to_tokens,
    to_values,
    token_entropy,
    token_log_prob,
    vocabulary_ids,
)
from policies.families.vision_language import VisionLanguagePolicy
from policies.networks.vlm import KeyValues
from policies.normalize import MomentStatistics
from policies.policy import Batch, ObservationTensors, repeatable_dropout
from policies.policy_config import TokenVlaConfig
from robots.errors import HandoffError


class DrawnTokens(NamedTuple):
    """Tokens that a policy chose, for reinforcement learning."""

    tokens_BHA: Tensor
    log_prob_BHA: Tensor
    """Of each, given the observation and, decoded autoregressively, the tokens before it."""


class _Seen(NamedTuple):
    """What the action tokens attend to."""

    key_values: KeyValues
    mask_BL: Tensor


class TokenVlaPolicy(VisionLanguagePolicy):
    """Chooses one of K bins for every entry of the chunk; see `VisionLanguagePolicy`.

    Args:
        config: of the family.
        shapes: sizes that the data give.
        saved: see `VisionLanguagePolicy`.

    Raises:
        HandoffError: see `VisionLanguagePolicy`; fewer than two bins, a temperature below 0, or a
            vocabulary that is smaller than the bins which are to start from it.
    """

    def __init__(self, config: TokenVlaConfig, shapes: Shapes, saved: Path | None = None) -> None:
        if config.bins < 2:
            raise HandoffError(
                f"policy: bins is {config.bins}, expected at least 2. OpenVLA has 256."
            )
        if not config.temperature >= 0.0:
            raise HandoffError(
                f"policy: temperature is {config.temperature:g}, expected at least 0."
            )
        from_words = config.tokens == "vocabulary" and saved is None
        super().__init__(config, shapes, saved, head=from_words)
        self.config = config
        self.causal = config.decoding == "autoregressive"
        self.normalize_action = QuantileNormalizer(self.chunk_shape, config.quantile)
        width, count = self.backbone.width, shapes.action * config.horizon
        self.query_NW = nn.Parameter(self.backbone.deviation * torch.randn(count, width))
        self.head = nn.Linear(width, config.bins, bias=False)
        self.embedding = nn.Embedding(config.bins, width) if self.causal else None
        for table in (self.head, self.embedding):
            if table is not None:
                nn.init.normal_(table.weight, std=self.backbone.deviation)
        if from_words:
            self._start_from_words()

    @property
    def sampler(self) -> str:
        """See `ChunkPolicy.sampler`."""
        return f"tokens-{len(self.query_NW)}" if self.causal else "one-step"

    def fit_action(self, moments: MomentStatistics, chunks: Callable[[], np.ndarray]) -> None:
        """See `ChunkPolicy.fit_action`; the outermost bins lie at quantiles."""
        self.normalize_action.fit(chunks())

    def shared_settings(self) -> dict[str, object]:
        """See `ChunkPolicy.shared_settings`."""
        return {"bins": self.config.bins}

    def sample(self, observed: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A), at the temperature of the
        configuration.

        Noise draws the tokens as `draw_tokens` says; at temperature 0 it has no influence, but
        stays an input.
        """
        tokens_BHA, _ = self._decode(observed, noise_BHA, self.config.temperature)
        return self.values(tokens_BHA) + 0.0 * noise_BHA

    def loss(self, batch: Batch, draw: np.random.Generator) -> Tensor:
        """Mean cross-entropy of the demonstrated tokens inside their episode."""
        tokens_BHA = to_tokens(batch.chunk_BHA, self.config.bins)
        with repeatable_dropout(draw, tokens_BHA.device) if self.training else nullcontext():
            logits_BHAK = self.logits(batch.observed, tokens_BHA)
        error_BHA = cross_entropy(logits_BHAK.float().movedim(-1, 1), tokens_BHA, reduction="none")
        inside_BH = (~batch.padded_BH).float()
        return (error_BHA.mean(dim=-1) * inside_BH).sum() / inside_BH.sum().clamp(min=1.0)

    def values(self, tokens_BHA: Tensor) -> Tensor:
        """The normalised chunk (B, H, A) that the tokens stand for."""
        return to_values(tokens_BHA, self.config.bins)

    def act(
        self, observed: ObservationTensors, noise_BHA: Tensor, temperature: float = 1.0
    ) -> DrawnTokens:
        """The tokens that the noise draws, and their log-probabilities at the same temperature.

        Raises:
            HandoffError: a temperature at which no token has a log-probability.
        """
        check_temperature(temperature)
        tokens_BHA, logits_BHAK = self._decode(observed, noise_BHA, temperature)
        return DrawnTokens(tokens_BHA, token_log_prob(logits_BHAK, tokens_BHA, temperature))

    def log_prob(
        self, observed: ObservationTensors, tokens_BHA: Tensor, temperature: float = 1.0
    ) -> Tensor:
        """Log-probability (B, H, A) of every token, given the observation and the tokens before it,
        see `DrawnTokens`.

        Who wants the entropy too calls `logits` once, then `token_log_prob` and `token_entropy`.
        """
        return token_log_prob(self.logits(observed, tokens_BHA), tokens_BHA, temperature)

    def entropy(
        self,
        observed: ObservationTensors,
        tokens_BHA: Tensor | None = None,
        temperature: float = 1.0,
    ) -> Tensor:
        """Entropy (B, H, A) [nat] of every token's distribution; arguments of `logits`."""
        return token_entropy(self.logits(observed, tokens_BHA), temperature)

    def logits(self, observed: ObservationTensors, tokens_BHA: Tensor | None = None) -> Tensor:
        """Logits (B, H, A, K) of the bins; arguments and errors of `hidden`."""
        return self.head(self.hidden(observed, tokens_BHA))

    def hidden(self, observed: ObservationTensors, tokens_BHA: Tensor | None = None) -> Tensor:
        """What the backbone makes of every action token, (B, H, A, W), in one pass; a critic may
        read it.

        Args:
            observed: normalised.
            tokens_BHA: given which those after them are predicted; read only if decoding is
                autoregressive.

        Raises:
            HandoffError: there are no tokens though decoding is autoregressive.
        """
        seen, rows = self._see(observed), len(observed.vector_BTO)
        input_BNW = self.query_NW.expand(rows, -1, -1)
        if self.embedding is not None:
            if tokens_BHA is None:
                raise HandoffError(
                    "policy: an autoregressive policy has logits only given tokens. Take those it drew."
                )
            before_BNW = self.embedding(tokens_BHA.flatten(1)[:, :-1])
            input_BNW = torch.cat([input_BNW[:, :1], input_BNW[:, 1:] + before_BNW], dim=1)
        hidden_BNW, _ = self._read(seen, input_BNW, 0)
        return hidden_BNW.unflatten(1, self.chunk_shape)

    def _see(self, observed: ObservationTensors) -> _Seen:
        prefix = self.prefix(observed)
        return _Seen(self.backbone.forward_prefix(prefix), prefix.mask_BL)

    def _read(self, seen: _Seen, input_BNW: Tensor, first: int) -> tuple[Tensor, KeyValues]:
        """Hidden states of the action tokens from number `first` on, and the keys and values of all
        so far."""
        rows, count = input_BNW.shape[:2]
        number_N = torch.arange(first + count, device=input_BNW.device)
        own_NN = (
            number_N <= number_N[first:, None]
            if self.causal
            else number_N.new_ones(count, count).bool()
        )
        allowed_BNK = torch.cat(
            [seen.mask_BL[:, None].expand(-1, count, -1), own_NN.expand(rows, -1, -1)], dim=2
        )
        position_BN = seen.mask_BL.sum(dim=1, keepdim=True) + number_N[first:]
        return self.backbone.forward_text(input_BNW, allowed_BNK, position_BN, seen.key_values)

    def _decode(
        self, observed: ObservationTensors, noise_BHA: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Tokens (B, H, A) and the logits (B, H, A, K) they were drawn from."""
        if self.embedding is None:
            logits_BHAK = self.logits(observed)
            return draw_tokens(logits_BHAK, noise_BHA, temperature), logits_BHAK
        seen, noise_BN = self._see(observed), noise_BHA.flatten(1)
        tokens: list[Tensor] = []
        logits: list[Tensor] = []
        for number, query_W in enumerate(self.query_NW):
            input_BW = query_W.expand(len(noise_BN), -1)
            if tokens:
                input_BW = input_BW + self.embedding(tokens[-1])
            hidden_B1W, key_values = self._read(seen, input_BW[:, None], number)
            seen = seen._replace(key_values=key_values)
            logits.append(self.head(hidden_B1W[:, 0]))
            tokens.append(draw_tokens(logits[-1], noise_BN[:, number], temperature))
        shape = self.chunk_shape
        return torch.stack(tokens, dim=1).unflatten(1, shape), torch.stack(logits, dim=1).unflatten(
            1, shape
        )

    @torch.no_grad()
    def _start_from_words(self) -> None:
        """Takes the rows of the rarest words over, after which the language head is no longer
        needed."""
        words = self.backbone.source.tokenizer.get_vocab_size(with_added_tokens=False)
        ids_K = vocabulary_ids(words, self.config.bins)
        embedding_VW = self.backbone.text.embed_tokens.weight
        head_VW = embedding_VW if self.backbone.head is None else self.backbone.head.weight
        self.head.weight.copy_(head_VW[ids_K])
        if self.embedding is not None:
            self.embedding.weight.copy_(embedding_VW[ids_K])
        self.backbone.head = None
