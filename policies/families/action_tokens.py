"""Discretises every entry of a chunk into one of K bins (OpenVLA, Kim et al. 2024, arXiv
2406.09246), and computes token probabilities.

This follows the paper: K bins of equal width between the 1st and the 99th percentile of the
training actions, decoded to their K centres. The released `ActionTokenizer` takes
`linspace(-1, 1, 256)` for the edges, which makes
255 bins and 255 centres: its 256th token represents the value 1 only and is decoded to the centre
of the 255th. Percentiles here are computed per entry and step of the chunk, since chunks are
relative to their first step; there per entry over all steps. The released statistics exclude the
gripper from the percentiles; here an entry whose two percentiles are equal, such as one that
changes in less than 1% of the steps, is binned between its extremes.

Tokens are sampled from standard normal noise z by inverse transform sampling: the first token whose
cumulative probability exceeds Phi(z). The same noise always gives the same tokens.

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
"""Range up to which an entry counts as constant and is only centred [unit of the entry]."""
_BELOW_ONE = 1.0 - 2.0**-53
"""Largest double below 1; keeps Phi below every total probability despite rounding."""


class QuantileNormalizer(StandardNormalizer):
    """Maps every entry so that its `quantile` becomes -1 and its `1 - quantile` becomes 1, and
    back."""

    def __init__(self, shape: tuple[int, ...], quantile: float) -> None:
        """Starts as the identity on values of `shape`, until `fit` or a loaded state sets it.

        Args:
            shape: shape of one value.
            quantile: fraction of the values below -1, and of those above 1; 0 maps the extremes.

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
        """Fits the quantiles of `values`, `(N, *shape)`.

        Raises:
            HandoffError: no values, or one that is not finite.
        """
        if not len(values) or not np.isfinite(values).all():
            raise HandoffError(
                f"normaliser: {len(values)} values, expected at least one and all of them finite."
            )
        low, high = np.quantile(values, [self.quantile, 1.0 - self.quantile], axis=0)
        constant = high - low <= _CONSTANT
        low, high = (
            np.where(constant, values.min(axis=0), low),
            np.where(constant, values.max(axis=0), high),
        )
        self.centre.copy_(torch.from_numpy((low + high) / 2))
        self.scale.copy_(torch.from_numpy(np.where(high - low > _CONSTANT, (high - low) / 2, 1.0)))


def to_tokens(value: Tensor, bins: int) -> Tensor:
    """Bin index, 0 to `bins - 1` (int64), of every value; values outside [-1, 1] get the outermost
    bin."""
    return ((value.clamp(-1.0, 1.0) + 1.0) * (bins / 2)).floor().long().clamp(max=bins - 1)


def to_values(tokens: Tensor, bins: int) -> Tensor:
    """Centre of every token's bin; at most 1/`bins` from any value of [-1, 1] in that bin."""
    return (2 * tokens + 1 - bins) / bins


def vocabulary_ids(size: int, bins: int) -> Tensor:
    """Vocabulary ids (K,) that OpenVLA uses for its bins: the last and therefore rarest of `size`,
    in descending order.

    Raises:
        HandoffError: the vocabulary is smaller than the number of bins.
    """
    if size < bins:
        raise HandoffError(
            f"policy: a vocabulary of {size} entries is smaller than the {bins} bins that tokens 'vocabulary' needs. "
            "Choose tokens 'own', or fewer bins."
        )
    return size - 1 - torch.arange(bins)


def draw_tokens(logits_BHAK: Tensor, noise_BHA: Tensor, temperature: float) -> Tensor:
    """Tokens (B, H, A) sampled from the softmax of `logits / temperature` by inverse transform of
    the noise; the most likely token at temperature 0.

    Args:
        logits_BHAK: logits of the bins.
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
    """Log-probability (B, H, A) of every token under the softmax of `logits / temperature`.

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
    """Raises HandoffError if `temperature` is 0 or less, where log-probabilities are undefined."""
    if not temperature > 0.0:
        raise HandoffError(
            f"policy: temperature is {temperature:g}, expected more than 0: at 0 decoding is deterministic."
        )
