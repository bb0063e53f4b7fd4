"""Action tokens: every entry of a chunk as one of K bins (OpenVLA, Kim et al. 2024, arXiv
2406.09246), and their odds.

Followed is the paper: K bins of equal width between the 1st and the 99th percentile of the training
actions, decoded to their K centres. The released `ActionTokenizer` takes `linspace(-1, 1, 256)` for
the edges, which makes 255 bins and 255
centres: its 256th token stands for the value 1 alone and is decoded to the centre of the 255th.
Here a percentile is that of one entry at one step of the chunk, since chunks are relative to their
first step; there it is that of one entry over all steps. The released statistics leave the gripper
out of the percentiles; here an entry whose two percentiles are the same, such as one that changes
in fewer than a hundredth of the steps, is binned between its extremes.

A token is drawn with its share of standard normal noise z: the first token whose cumulative
probability exceeds Phi(z), which is uniform. The same noise thus always draws the same tokens.

Shape suffixes: N chunks, B batch, H horizon, A action, K bins.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from policies.normalize import StandardNormalizer
from robots.errors import HandoffError

_CONSTANT = 1e-9
"""Range below which an entry is taken for a constant; it is then only centred [unit of the
entry]."""
_BELOW_ONE = 1.0 - 2.0**-53
"""Largest double below 1: no cumulative probability may be reached by rounding Phi up."""


class QuantileNormalizer(StandardNormalizer):
    """Maps every entry so that its `quantile` becomes -1 and its `1 - quantile` becomes 1, and
    back."""

    def __init__(self, shape: tuple[int, ...], quantile: float) -> None:
        """The identity on entries of `shape`, until `fit` or a loaded state sets it.

        Args:
            shape: of one value.
            quantile: share of the values below -1, and of those above 1; 0 maps the extremes.

        Raises:
            HandoffError: `quantile` is not in [0, 0.5).
        """
        super().__init__(shape)
        if not 0.0 <= quantile < 0.5:
            raise HandoffError(
                f"normaliser: quantile is {quantile:g}, expected one in [0, 0.5). OpenVLA has 0.01."
            )
        self.quantile = quantile

    def fit(self, values: np.ndarray) -> None:
        """Takes the quantiles of `values`, `(N, *shape)`, over.

        Raises:
            HandoffError: there are none, or one is not finite.
        """
        if not len(values) or not np.isfinite(values).all():
            raise HandoffError(
                f"normaliser: {len(values)} values, expected at least one and all of them finite."
            )
        low, high = np.quantile(values, [self.quantile, 1.0 - self.quantile], axis=0)
        same = high - low <= _CONSTANT
        low, high = (
            np.where(same, values.min(axis=0), low),
            np.where(same, values.max(axis=0), high),
        )
        self.centre.copy_(torch.from_numpy((low + high) / 2))
        self.scale.copy_(torch.from_numpy(np.where(high - low > _CONSTANT, (high - low) / 2, 1.0)))


def to_tokens(value: Tensor, bins: int) -> Tensor:
    """The bin, 0 to `bins - 1` (int64), of every value; those outside [-1, 1] fall into the
    outermost bin."""
    return ((value.clamp(-1.0, 1.0) + 1.0) * (bins / 2)).floor().long().clamp(max=bins - 1)


def to_values(tokens: Tensor, bins: int) -> Tensor:
    """The centre of every bin; at most 1/`bins` from a value inside [-1, 1] that became it."""
    return (2 * tokens + 1 - bins) / bins


def vocabulary_ids(size: int, bins: int) -> Tensor:
    """(K,) words that OpenVLA takes for its bins: the last ones, hence the rarest, of `size`, the
    last for bin 0.

    Raises:
        HandoffError: the vocabulary is smaller.
    """
    if size < bins:
        raise HandoffError(
            f"policy: a vocabulary of {size} words has not the {bins} that tokens 'vocabulary' takes. "
            "Choose tokens 'own', or fewer bins."
        )
    return size - 1 - torch.arange(bins)


def draw_tokens(logits_BHAK: Tensor, noise_BHA: Tensor, temperature: float) -> Tensor:
    """Tokens (B, H, A) that the noise draws from the softmax of `logits / temperature`; the
    likeliest at 0.

    Args:
        logits_BHAK: of the bins.
        noise_BHA: standard normal.
        temperature: at least 0.
    """
    if temperature == 0.0:
        return logits_BHAK.argmax(dim=-1)
    cumulative_BHAK = (logits_BHAK.double() / temperature).softmax(dim=-1).cumsum(dim=-1)
    cumulative_BHAK = cumulative_BHAK / cumulative_BHAK[..., -1:]
    uniform_BHA1 = torch.special.ndtr(noise_BHA.double()).clamp(max=_BELOW_ONE)[..., None]
    return (cumulative_BHAK <= uniform_BHA1).sum(dim=-1)


def token_log_prob(logits_BHAK: Tensor, tokens_BHA: Tensor, temperature: float) -> Tensor:
    """Log-probability (B, H, A) of every token, given by the softmax of `logits / temperature`.

    Raises:
        HandoffError: see `check_temperature`.
    """
    check_temperature(temperature)
    log_prob_BHAK = log_softmax(logits_BHAK.float() / temperature, dim=-1)
    return log_prob_BHAK.gather(-1, tokens_BHA[..., None]).squeeze(-1)


def token_entropy(logits_BHAK: Tensor, temperature: float) -> Tensor:
    """Entropy (B, H, A) [nat] of the softmax of `logits / temperature`.

    Raises:
        HandoffError: see `check_temperature`.
    """
    check_temperature(temperature)
    log_prob_BHAK = log_softmax(logits_BHAK.float() / temperature, dim=-1)
    return -(log_prob_BHAK.exp() * log_prob_BHAK).sum(dim=-1)


def check_temperature(temperature: float) -> None:
    """Raises HandoffError unless a token has a probability other than 0 and 1 at `temperature`."""
    if not temperature > 0.0:
        raise HandoffError(
            f"policy: temperature is {temperature:g}, expected more than 0: at 0 the likeliest token is certain."
        )
