"""Measures how far data determine a fit: sensitivities, standard errors, trade-offs and profiles of
a least-squares problem.

Parameters are in unit coordinates: 0 and 1 are the ends of the range that each may come from. The
residuals are a function of them, evaluated for many sets at once. Everything follows from the
Jacobian at the best fit: with noise of variance s^2 the Fisher matrix is F = J^T J / s^2, its
inverse bounds the covariance of any estimate (Cramer and Rao), and an eigenvector of a small
eigenvalue is a change of parameters that the data do not see. The profiles (Raue et al., 2009)
leave the linear model: each of their points is evaluated by the residuals themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from robots.errors import HandoffError

Residuals = Callable[[np.ndarray], np.ndarray]
"""(P, D) sets in unit coordinates -> (P, M) simulated minus measured."""

NORMAL_95 = 1.96
"""Two-sided 95 % quantile of the normal distribution."""
DETERMINED = 0.25
"""Half width of a 95 % interval, as a share of the range, from which on a parameter counts as not
determined."""
NAMED = 0.3
"""Entry of a unit eigenvector from which on its parameter is named."""


class Direction(NamedTuple):
    """A combination of parameters that the data leave open."""

    weights: np.ndarray
    """(D,) unit vector in unit coordinates."""
    half_width: float
    """Of its 95 % interval, in shares of the ranges; may be infinite."""
    about: str
    """The same in words."""


class Identifiability(NamedTuple):
    """Which of D parameters the data determine."""

    sensitivity: np.ndarray
    """(D,) root mean square change of a residual over the whole range, by the slope at the best
    fit."""
    half_width: np.ndarray
    """(D,) of the 95 % interval, in shares of the range, the other parameters being free; may be
    infinite."""
    interval: np.ndarray
    """(D, 2) the 95 % interval within the range, unit coordinates."""
    determined: np.ndarray
    """(D,) bool: the half width is below `DETERMINED`."""
    at_bound: np.ndarray
    """(D,) bool: determined, yet the best value is at an end of its range, which may be too
    narrow."""
    condition: float
    """Ratio of the Fisher matrix's largest to its smallest eigenvalue; may be infinite."""
    open_directions: tuple[Direction, ...]
    """Trade-offs, the widest first."""
    noise: float
    """Standard deviation of a residual that was assumed, its correlation in time included."""
    profile_at: np.ndarray
    """(G,) unit coordinates."""
    profile: np.ndarray
    """(D, G) mean squared residual with one parameter held there and the others adapted."""


def jacobian(residuals: Residuals, best: np.ndarray, step: float = 0.01) -> np.ndarray:
    """(M, D) central differences at `best` (D,); one-sided at the ends of a range.

    Args:
        residuals: of many sets.
        best: unit coordinates.
        step: in unit coordinates.

    Raises:
        HandoffError: a residual is not finite.
    """
    size = len(best)
    high, low = np.minimum(best + step, 1.0), np.maximum(best - step, 0.0)
    sets = np.tile(best, (2 * size, 1))
    sets[np.arange(size), np.arange(size)] = high
    sets[size + np.arange(size), np.arange(size)] = low
    values = residuals(sets)
    if not np.isfinite(values).all():
        raise HandoffError(
            f"identifiability: residuals beside {best.round(3).tolist()} are not finite. Is the simulation unstable?"
        )
    return ((values[:size] - values[size:]) / (high - low)[:, None]).T


def correlation_inflation(blocks: Sequence[np.ndarray]) -> float:
    """By how much correlation in time inflates the variance of a mean: (1 + r) / (1 - r) of a
    first-order process.

    Args:
        blocks: (T, C) residuals of recordings; time runs along the first axis.

    Returns:
        At least 1: anticorrelated residuals are not taken as a gain.
    """
    before = np.concatenate([block[:-1].ravel() for block in blocks])
    after = np.concatenate([block[1:].ravel() for block in blocks])
    power = float(np.sqrt(np.sum(before**2) * np.sum(after**2)))
    r = float(np.sum(before * after)) / power if power > 0.0 else 0.0
    return max(1.0, (1.0 + r) / max(1.0 - r, 1e-3))


def analyse(
    residuals: Residuals,
    best: np.ndarray,
    names: Sequence[str],
    noise: float,
    profile_points: int = 9,
) -> Identifiability:
    """What the data say about each parameter near the best fit.

    Args:
        residuals: of many sets.
        best: (D,) unit coordinates of the best fit.
        names: (D,) of the parameters.
        noise: standard deviation of a residual, more than 0; inflate it where residuals are
            correlated.
        profile_points: G; 0 leaves the profiles out.

    Raises:
        HandoffError: no noise, or residuals that are not finite.
    """
    if not noise > 0.0:
        raise HandoffError(
            f"identifiability: noise is {noise}, expected more than 0. Set a floor for exact data."
        )
    J = jacobian(residuals, best)
    fisher = J.T @ J / noise**2
    eigenvalues, vectors = np.linalg.eigh(fisher)
    # Below the rounding errors of the largest eigenvalue nothing is known.
    unseen = eigenvalues <= max(eigenvalues[-1], 0.0) * len(best) * np.finfo(float).eps
    # Spread of a direction; infinite when unseen.
    variance = np.where(unseen, np.inf, 1.0 / np.where(unseen, 1.0, eigenvalues))
    shares = np.where(vectors**2 > 1e-12, vectors**2, 0.0)
    spread = np.where(shares > 0.0, np.where(shares > 0.0, shares, 1.0) * variance, 0.0).sum(axis=1)
    half_width = NORMAL_95 * np.sqrt(spread)
    determined = half_width < DETERMINED
    grid = np.linspace(0.0, 1.0, profile_points) if profile_points else np.zeros(0)
    widths = NORMAL_95 * np.sqrt(variance)
    return Identifiability(
        sensitivity=np.sqrt(np.mean(J**2, axis=0)),
        half_width=half_width,
        interval=np.clip(np.stack([best - half_width, best + half_width], axis=1), 0.0, 1.0),
        determined=determined,
        at_bound=determined & ((best < 0.01) | (best > 0.99)),
        condition=float("inf") if unseen.any() else float(eigenvalues[-1] / eigenvalues[0]),
        open_directions=tuple(
            Direction(vectors[:, i], float(widths[i]), _in_words(vectors[:, i], names))
            for i in range(len(best))
            if widths[i] >= DETERMINED
        ),
        noise=noise,
        profile_at=grid,
        profile=_profiles(residuals, best, J, grid),
    )


def _profiles(
    residuals: Residuals, best: np.ndarray, J: np.ndarray, grid: np.ndarray
) -> np.ndarray:
    """(D, G): the lower of two mean squares, with the others left at their best and with them moved
    as J advises."""
    size = len(best)
    profile = np.zeros((size, len(grid)))
    for i in range(size) if len(grid) else ():
        others = np.arange(size) != i
        fixed = np.tile(best, (len(grid), 1))
        fixed[:, i] = grid
        adapted = fixed.copy()
        if others.any():
            # The least-squares answer of the others to a move of parameter i; tiny singular values
            # are left alone.
            answer = -np.linalg.lstsq(J[:, others], J[:, i], rcond=1e-6)[0]
            adapted[:, others] = np.clip(
                best[others] + (grid - best[i])[:, None] * answer, 0.0, 1.0
            )
        errors = np.mean(residuals(np.concatenate([fixed, adapted])) ** 2, axis=1)
        profile[i] = np.minimum(errors[: len(grid)], errors[len(grid) :])
    return profile


def _in_words(weights: np.ndarray, names: Sequence[str]) -> str:
    order = [int(i) for i in np.argsort(-np.abs(weights), kind="stable")]
    chosen = [i for i in order if abs(weights[i]) >= NAMED] or [order[0]]
    if len(chosen) == 1:
        return f"{names[chosen[0]]} is not determined"
    same = [names[i] for i in chosen if weights[i] * weights[chosen[0]] > 0]
    opposite = [names[i] for i in chosen if weights[i] * weights[chosen[0]] < 0]
    if not opposite:
        return f"{', '.join(same)} trade off: the data do not see them rise together"
    return f"{', '.join(same)} and {', '.join(opposite)} trade off: the data do not see the one rise as the other falls"
