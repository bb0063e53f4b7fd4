"""Computes confidence intervals of proportions for small numbers of episodes."""

from __future__ import annotations

from math import lgamma, sqrt
from statistics import NormalDist

import numpy as np

from robots.errors import HandoffError


def wilson(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion (E. B. Wilson, JASA 22, 1927); sound for small n and
    near 0 and 1.

    Args:
        k: successes, 0 <= k <= n.
        n: trials, at least 1.
        confidence: two-sided, in (0, 1).

    Raises:
        HandoffError: k or n out of range.
    """
    _check_trials("wilson", k, n)
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    centre = (k + z * z / 2.0) / (n + z * z)
    half = z * sqrt(k * (n - k) / n + z * z / 4.0) / (n + z * z)
    return max(0.0, centre - half), min(1.0, centre + half)


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact interval of a proportion (Clopper and Pearson, Biometrika 26, 1934): its coverage is at
    least `confidence`.

    The lower end is the rate at which k or more successes have the probability (1 - confidence) /
    2; the upper end is the same for k or fewer. Both come from bisection on the exact binomial
    tail.

    Args:
        k: successes, 0 <= k <= n.
        n: trials, at least 1.
        confidence: two-sided, in (0, 1).

    Raises:
        HandoffError: k or n out of range.
    """
    _check_trials("clopper-pearson", k, n)
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if k == 0 else _rate_of_tail(k, n, tail)
    high = 1.0 if k == n else 1.0 - _rate_of_tail(n - k, n, tail)
    return low, high


def _check_trials(interval: str, k: int, n: int) -> None:
    if n < 1 or not 0 <= k <= n:
        raise HandoffError(
            f"{interval}: {k} successes of {n} trials, expected 0 <= k <= n and n >= 1. Were episodes run?"
        )


def _rate_of_tail(k: int, n: int, tail: float) -> float:
    """The success rate at which `k >= 1` or more successes of `n` have probability `tail`."""
    counts = np.arange(k, n + 1)
    log_binomial = np.array(
        [lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) for i in counts.tolist()]
    )
    low, high = 0.0, 1.0
    while (rate := (low + high) / 2.0) not in (low, high):
        logarithms = log_binomial + counts * np.log(rate) + (n - counts) * np.log1p(-rate)
        if np.exp(logarithms).sum() < tail:
            low = rate
        else:
            high = rate
    return rate
