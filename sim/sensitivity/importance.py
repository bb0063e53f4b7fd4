"""Estimates the influence of each factor on success over a design in which all factors vary.

Two figures complement one another. The share of the variance of success that a factor explains by
itself (the first-order index of Sobol' 1993, here the correlation ratio over slices of the factor's
range, corrected for its bias as Kelley's epsilon squared) also notices a factor whose middle is
best; a permutation test tells it from chance. The log odds of a logistic regression on all factors
give the direction and, with an interval, the size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from robots.proportions import wilson

PERMUTATIONS = 10_000
PERMUTATION_SEED = 0
_AT_ONCE = 500
"""Permutations that are computed together."""
PRIOR = 5.0
"""Standard deviation of the normal prior of the log odds between the bounds of a factor. Without
it, a factor that decides every episode has no finite estimate."""
_ITERATIONS = 100


def slices(unit: np.ndarray, count: int) -> np.ndarray:
    """(P,) number of the slice of equal width in which each place lies.

    Args:
        unit: (P,) places, 0 to 1.
        count: number of slices.
    """
    return np.minimum((unit * count).astype(int), count - 1)


def explained_share(solved: np.ndarray, groups: np.ndarray) -> float:
    """Share of the variance of success between groups, 0 if there is none.

    Args:
        solved: (P,) bool or 0 and 1.
        groups: (P,) number of the group of every episode.
    """
    return float(_shares(np.asarray(solved, dtype=float)[None], groups)[0])


def permutation_test(
    solved: np.ndarray, groups: np.ndarray, confidence: float, permutations: int = PERMUTATIONS
) -> dict[str, float]:
    """Tests whether success differs between groups more than by chance.

    Args:
        solved: (P,) bool.
        groups: (P,) number of the group of every episode.
        confidence: level of `chance`, in (0, 1).
        permutations: number of random assignments of the outcomes to the episodes.

    Returns:
        `share` (`explained_share`), `chance`, below which it stays with this probability if the
        factor has no influence, and `p_value`.
    """
    outcome = np.asarray(solved, dtype=float)
    share = explained_share(outcome, groups)
    rng = np.random.default_rng(PERMUTATION_SEED)
    drawn: list[np.ndarray] = []
    for first in range(0, permutations, _AT_ONCE):
        rows = np.tile(outcome, (min(_AT_ONCE, permutations - first), 1))
        drawn.append(_shares(rng.permuted(rows, axis=1), groups))
    shares = np.concatenate(drawn)
    # Equal partitions may differ in their last bits.
    as_large = int(np.sum(shares >= share - 1e-12))
    return {
        "share": share,
        "chance": float(np.quantile(shares, confidence)),
        "p_value": (1 + as_large) / (1 + permutations),
    }


def log_odds(unit: np.ndarray, solved: np.ndarray, confidence: float) -> np.ndarray:
    """Logistic regression of success on all factors.

    Args:
        unit: (P, F) places of the factors between their bounds, 0 to 1.
        solved: (P,) bool.
        confidence: two-sided confidence of the intervals.

    Returns:
        (F, 3) change of the log odds of success from the lower to the upper bound of each factor,
        and the ends of its interval (Wald's, with the normal prior `PRIOR`).
    """
    from scipy.stats import norm

    count = unit.shape[1]
    design = np.column_stack([np.ones(len(unit)), unit - 0.5])
    outcome = np.asarray(solved, dtype=float)
    # The intercept has a prior, too: without one it is infinite if all episodes are solved.
    precision = np.diag(np.full(count + 1, PRIOR**-2))
    weights = np.zeros(count + 1)
    for _ in range(_ITERATIONS):
        rate = 1.0 / (1.0 + np.exp(-design @ weights))
        information = (design.T * (rate * (1.0 - rate))) @ design + precision
        step = np.linalg.solve(information, design.T @ (outcome - rate) - precision @ weights)
        # A step of Newton's method may overshoot where nearly all episodes have one outcome.
        weights = weights + step * min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-300))
        if float(np.abs(step).max()) < 1e-10:
            break
    rate = 1.0 / (1.0 + np.exp(-design @ weights))
    information = (design.T * (rate * (1.0 - rate))) @ design + precision
    deviation = np.sqrt(np.diag(np.linalg.inv(information)))
    half = float(norm.ppf(0.5 + 0.5 * confidence)) * deviation
    return np.column_stack([weights, weights - half, weights + half])[1:]


def success_by_slice(
    solved: np.ndarray, groups: np.ndarray, count: int, confidence: float
) -> list[dict[str, Any]]:
    """Success in every slice: `k` of `n` and the Wilson interval `low`, `high`; None for the ends
    of a slice without episodes."""
    rows: list[dict[str, Any]] = []
    for number in range(count):
        inside = np.asarray(solved)[groups == number]
        k = int(inside.sum())
        n = len(inside)
        low, high = wilson(k, n, confidence) if n else (None, None)
        rows.append({"k": k, "n": n, "low": low, "high": high})
    return rows


def _shares(outcomes: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(R,) explained share of every row of outcomes (R, P)."""
    numbers, members = np.unique(groups, return_inverse=True)
    n = outcomes.shape[1]
    free = n - len(numbers)
    onehot = np.zeros((n, len(numbers)))
    onehot[np.arange(n), members] = 1.0
    size = onehot.sum(axis=0)
    mean = outcomes.mean(axis=1, keepdims=True)
    total = ((outcomes - mean) ** 2).sum(axis=1)
    between = (size * (outcomes @ onehot / size - mean) ** 2).sum(axis=1)
    if free < 1:
        return np.zeros(len(outcomes))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(total > 0.0, between / total, 0.0)
    # Constant outcomes explain nothing.
    unbiased = 1.0 - (1.0 - ratio) * (n - 1) / free
    return np.where(total > 0.0, np.maximum(unbiased, 0.0), 0.0)
