"""Computes confidence intervals and paired tests for small numbers of episodes with binary or
bounded scores."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from robots.errors import HandoffError
from robots.proportions import clopper_pearson, wilson


def success_rate(
    successes: Sequence[bool] | np.ndarray, confidence: float = 0.95
) -> dict[str, int | float]:
    """Success rate of episodes: `k` of `n`, Wilson interval `low`, `high`, Clopper-Pearson interval
    `exact_low`, `exact_high`."""
    k, n = int(np.sum(successes)), len(successes)
    low, high = wilson(k, n, confidence)
    exact_low, exact_high = clopper_pearson(k, n, confidence)
    return {
        "k": k,
        "n": n,
        "low": low,
        "high": high,
        "exact_low": exact_low,
        "exact_high": exact_high,
    }


def bootstrap_mean(
    values: Sequence[float] | np.ndarray,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean (Efron 1979).

    Args:
        values: `(n,)`, one per episode.
        seed: seed of the resampling; the same seed gives the same interval.
        confidence: two-sided, in (0, 1).
        resamples: bootstrap samples drawn.

    Raises:
        HandoffError: no values.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.size == 0:
        raise HandoffError("bootstrap: 0 values, at least 1 is needed. Were episodes run?")
    picks = np.random.default_rng(seed).integers(0, values.size, size=(resamples, values.size))
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(values[picks].mean(axis=1), [tail, 100.0 - tail])
    return float(low), float(high)


def mcnemar(
    first: Sequence[bool] | np.ndarray, second: Sequence[bool] | np.ndarray
) -> dict[str, int | float]:
    """Exact McNemar test (two-sided binomial on the discordant pairs) of two agents on the same
    episodes.

    Returns:
        `only_first` and `only_second`, the numbers of episodes that only one of them solved, and
        `p_value`.
    """
    first, second = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    _check_paired(first, second)
    only_first, only_second = int(np.sum(first & ~second)), int(np.sum(~first & second))
    n = only_first + only_second
    tail = sum(comb(n, i) for i in range(min(only_first, only_second) + 1))
    return {
        "only_first": only_first,
        "only_second": only_second,
        "p_value": min(1.0, 2 * tail / 2**n),
    }


def paired_difference(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> dict[str, float]:
    """Mean of `second - first` over the same episodes with its bootstrap interval: `mean`, `low`,
    `high`."""
    first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    _check_paired(first, second)
    low, high = bootstrap_mean(second - first, seed, confidence, resamples)
    return {"mean": float(np.mean(second - first)), "low": low, "high": high}


def _check_paired(first: np.ndarray, second: np.ndarray) -> None:
    if first.shape != second.shape:
        raise HandoffError(
            f"paired comparison: {first.shape} and {second.shape} episodes, expected the same episodes in the same "
            "order. Were the agents evaluated with different seeds?"
        )
