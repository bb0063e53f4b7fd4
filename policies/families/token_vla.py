"""A vision-language backbone that predicts action tokens (OpenVLA, arXiv 2406.09246; OFT, arXiv
2502.19645).

The observation tokens are followed by one token per entry of the chunk, N = H * A in total, ordered
by step and within a step by entry. The input of every action token is a learned query. In parallel
decoding the query is the whole input and action tokens attend to one another in both directions, as
in OFT; in autoregressive decoding the embedding of the previous token is added and attention is
causal, as in OpenVLA. Both attend to the whole observation.

Differences from the papers and released code: OFT's action embeddings are zero and differ by their
rotary positions only, and a token is read one position earlier, as in next-token prediction; here
it is read at its own position. OpenVLA overwrites the 256 rarest vocabulary entries; here the bins
have separate tables, which `tokens: vocabulary` initialises from those entries, so that the
vocabulary stays unchanged and may be smaller. Image and text tokens attend to one another, as in
OFT; see `policies.networks.vlm`. Logits cover the bins only, as in RLinf (arXiv 2510.06710). Chunks
that extend past the end of their episode, which OFT's code excludes, are trained on their valid
part. OFT prefers a regression head; it is not implemented, because it gives no probabilities for
reinforcement learning.

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
    """Sampled tokens with their log-probabilities, for reinforcement learning."""

    tokens_BHA: Tensor
    log_prob_BHA: Tensor
    """Log-probability of each token, given the observation and, in autoregressive decoding, the
    previous tokens."""


class _Context(NamedTuple):
    """Encoded observation that the action tokens attend to."""

    key_values: KeyValues
    mask_BL: Tensor


class TokenVlaPolicy(VisionLanguagePolicy):
    """Predicts one of K bins for every entry of the chunk; see `VisionLanguagePolicy`.

    Args:
        config: configuration of the family.
        shapes: sizes given by the data.
        saved: see `VisionLanguagePolicy`.

    Raises:
        HandoffError: see `VisionLanguagePolicy`; fewer than two bins, a temperature below 0, or a
            vocabulary that is smaller than the number of bins initialised from it.
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
        from_vocabulary = config.tokens == "vocabulary" and saved is None
        super().__init__(config, shapes, saved, head=from_vocabulary)
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
        if from_vocabulary:
            self._copy_vocabulary()

    @property
    def sampler(self) -> str:
        """See `ChunkPolicy.sampler`."""
        return f"tokens-{len(self.query_NW)}" if self.causal else "one-step"

    def fit_action(self, moments: MomentStatistics, chunks: Callable[[], np.ndarray]) -> None:
        """See `ChunkPolicy.fit_action`; the outermost bins are at quantiles."""
        self.normalize_action.fit(chunks())

    def shared_settings(self) -> dict[str, object]:
        """See `ChunkPolicy.shared_settings`."""
        return {"bins": self.config.bins}

    def sample(self, obs: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A), at the configured temperature.

        Tokens are sampled by `draw_tokens`; at temperature 0 the noise has no effect, but remains
        an input of exported graphs.
        """
        tokens_BHA, _ = self._decode(obs, noise_BHA, self.config.temperature)
        return self.values(tokens_BHA) + 0.0 * noise_BHA

    def loss(self, batch: Batch, generator: np.random.Generator) -> Tensor:
        """Mean cross-entropy of the demonstrated tokens, without padded actions."""
        tokens_BHA = to_tokens(batch.chunk_BHA, self.config.bins)
        with repeatable_dropout(generator, tokens_BHA.device) if self.training else nullcontext():
            logits_BHAK = self.logits(batch.obs, tokens_BHA)
        error_BHA = cross_entropy(logits_BHAK.float().movedim(-1, 1), tokens_BHA, reduction="none")
        inside_BH = (~batch.padded_BH).float()
        return (error_BHA.mean(dim=-1) * inside_BH).sum() / inside_BH.sum().clamp(min=1.0)

    def values(self, tokens_BHA: Tensor) -> Tensor:
        """Normalised chunk (B, H, A) of the tokens."""
        return to_values(tokens_BHA, self.config.bins)

    def act(
        self, obs: ObservationTensors, noise_BHA: Tensor, temperature: float = 1.0
    ) -> DrawnTokens:
        """Samples tokens and returns them with their log-probabilities at the same temperature.

        Raises:
            HandoffError: see `check_temperature`.
        """
        check_temperature(temperature)
        tokens_BHA, logits_BHAK = self._decode(obs, noise_BHA, temperature)
        return DrawnTokens(tokens_BHA, token_log_prob(logits_BHAK, tokens_BHA, temperature))

    def log_prob(
        self, obs: ObservationTensors, tokens_BHA: Tensor, temperature: float = 1.0
    ) -> Tensor:
        """Log-probability (B, H, A) of every token, see `DrawnTokens`.

        To get the entropy as well, call `logits` once, then `token_log_prob` and `token_entropy`.
        """
        return token_log_prob(self.logits(obs, tokens_BHA), tokens_BHA, temperature)

    def entropy(
        self,
        obs: ObservationTensors,
        tokens_BHA: Tensor | None = None,
        temperature: float = 1.0,
    ) -> Tensor:
        """Entropy (B, H, A) [nat] of every token's distribution; arguments of `logits`."""
        return token_entropy(self.logits(obs, tokens_BHA), temperature)

    def logits(self, obs: ObservationTensors, tokens_BHA: Tensor | None = None) -> Tensor:
        """Logits (B, H, A, K) of the bins; arguments and errors of `hidden`."""
        return self.head(self.hidden(obs, tokens_BHA))

    def hidden(self, obs: ObservationTensors, tokens_BHA: Tensor | None = None) -> Tensor:
        """Backbone features (B, H, A, W) of every action token, in one pass; also an input for
        critics.

        Args:
            obs: normalised.
            tokens_BHA: previous tokens; used in autoregressive decoding only.

        Raises:
            HandoffError: autoregressive decoding without tokens.
        """
        context, rows = self._context(obs), len(obs.vector_BTO)
        input_BNW = self.query_NW.expand(rows, -1, -1)
        if self.embedding is not None:
            if tokens_BHA is None:
                raise HandoffError(
                    "policy: an autoregressive policy needs tokens to compute logits. Pass the sampled tokens."
                )
            previous_BNW = self.embedding(tokens_BHA.flatten(1)[:, :-1])
            input_BNW = torch.cat([input_BNW[:, :1], input_BNW[:, 1:] + previous_BNW], dim=1)
        hidden_BNW, _ = self._forward(context, input_BNW, 0)
        return hidden_BNW.unflatten(1, self.chunk_shape)

    def _context(self, obs: ObservationTensors) -> _Context:
        prefix = self.prefix(obs)
        return _Context(self.backbone.forward_prefix(prefix), prefix.mask_BL)

    def _forward(
        self, context: _Context, input_BNW: Tensor, first: int
    ) -> tuple[Tensor, KeyValues]:
        """Hidden states of the action tokens from index `first` on, and the keys and values of all
        tokens so far."""
        rows, count = input_BNW.shape[:2]
        number_N = torch.arange(first + count, device=input_BNW.device)
        causal_NN = (
            number_N <= number_N[first:, None]
            if self.causal
            else number_N.new_ones(count, count).bool()
        )
        allowed_BNK = torch.cat(
            [context.mask_BL[:, None].expand(-1, count, -1), causal_NN.expand(rows, -1, -1)], dim=2
        )
        position_BN = context.mask_BL.sum(dim=1, keepdim=True) + number_N[first:]
        return self.backbone.forward_text(input_BNW, allowed_BNK, position_BN, context.key_values)

    def _decode(
        self, obs: ObservationTensors, noise_BHA: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Tokens (B, H, A) and the logits (B, H, A, K) they were sampled from."""
        if self.embedding is None:
            logits_BHAK = self.logits(obs)
            return draw_tokens(logits_BHAK, noise_BHA, temperature), logits_BHAK
        context, noise_BN = self._context(obs), noise_BHA.flatten(1)
        tokens: list[Tensor] = []
        logits: list[Tensor] = []
        for number, query_W in enumerate(self.query_NW):
            input_BW = query_W.expand(len(noise_BN), -1)
            if tokens:
                input_BW = input_BW + self.embedding(tokens[-1])
            hidden_B1W, key_values = self._forward(context, input_BW[:, None], number)
            context = context._replace(key_values=key_values)
            logits.append(self.head(hidden_B1W[:, 0]))
            tokens.append(draw_tokens(logits[-1], noise_BN[:, number], temperature))
        shape = self.chunk_shape
        return torch.stack(tokens, dim=1).unflatten(1, shape), torch.stack(logits, dim=1).unflatten(
            1, shape
        )

    @torch.no_grad()
    def _copy_vocabulary(self) -> None:
        """Copies the rows of the rarest vocabulary entries; the language head is not needed
        afterwards."""
        vocabulary = self.backbone.source.tokenizer.get_vocab_size(with_added_tokens=False)
        ids_K = vocabulary_ids(vocabulary, self.config.bins)
        embedding_VW = self.backbone.text.embed_tokens.weight
        head_VW = embedding_VW if self.backbone.head is None else self.backbone.head.weight
        self.head.weight.copy_(head_VW[ids_K])
        if self.embedding is not None:
            self.embedding.weight.copy_(embedding_VW[ids_K])
        self.backbone.head = None
