"""Analyses the identifiability of a least-squares fit: sensitivities, standard errors, trade-offs
and profiles.

Parameters are in unit coordinates: 0 and 1 are the ends of each parameter's range. The residuals
are a function of them, evaluated for many sets at once. Everything follows from the Jacobian at the
best
fit: with noise of variance s^2 the Fisher matrix is F = J^T J / s^2, its inverse bounds the
covariance of any unbiased estimate (Cramer and Rao), and an eigenvector of a small eigenvalue is a
change of parameters to which the data are insensitive. The profiles (Raue et al., 2009) do not use
the linear model: each of their points evaluates the residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from robots.errors import HandoffError

Residuals = Callable[[np.ndarray], np.ndarray]
"""Maps sets in unit coordinates (P, D) to residuals (P, M), simulated minus measured."""

NORMAL_95 = 1.96
"""Two-sided 95 % quantile of the normal distribution."""
DETERMINED = 0.25
"""Half width of a 95 % interval, as a fraction of the range, below which a parameter counts as
determined."""
NAMED = 0.3
"""Minimum entry of a unit eigenvector for its parameter to be named."""


class Direction(NamedTuple):
    """A combination of parameters that the data do not determine."""

    weights: np.ndarray
    """(D,) unit vector in unit coordinates."""
    half_width: float
    """Half width of its 95 % interval, as a fraction of the ranges; may be infinite."""
    about: str
    """Description in words."""


class Identifiability(NamedTuple):
    """Identifiability of D parameters."""

    sensitivity: np.ndarray
    """(D,) root mean square change of a residual over the whole range, extrapolated from the slope
    at the best fit."""
    half_width: np.ndarray
    """(D,) half width of the 95 % interval as a fraction of the range, with the other parameters
    free; may be infinite."""
    interval: np.ndarray
    """(D, 2) the 95 % interval within the range, unit coordinates."""
    determined: np.ndarray
    """(D,) bool: the half width is below `DETERMINED`."""
    at_bound: np.ndarray
    """(D,) bool: determined, but the best value is at an end of its range, which may be too
    narrow."""
    condition: float
    """Ratio of the Fisher matrix's largest to its smallest eigenvalue; may be infinite."""
    open_directions: tuple[Direction, ...]
    """Trade-offs, the widest first."""
    noise: float
    """Assumed standard deviation of a residual, inflated by its correlation in time."""
    profile_at: np.ndarray
    """(G,) points of the profiles, unit coordinates."""
    profile: np.ndarray
    """(D, G) mean squared residual with one parameter fixed at these points and the others
    adapted."""


def jacobian(residuals: Residuals, best: np.ndarray, step: float = 0.01) -> np.ndarray:
    """(M, D) Jacobian by central differences at `best` (D,); one-sided at the ends of a range.

    Args:
        residuals: residuals of many sets.
        best: unit coordinates of the best fit.
        step: step in unit coordinates.

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
            f"identifiability: residuals near {best.round(3).tolist()} are not finite. Is the simulation unstable?"
        )
    return ((values[:size] - values[size:]) / (high - low)[:, None]).T


def correlation_inflation(blocks: Sequence[np.ndarray]) -> float:
    """Factor by which correlation in time inflates the variance of a mean: (1 + r) / (1 - r) for a
    first-order process.

    Args:
        blocks: (T, C) residuals of recordings, with time along the first axis.

    Returns:
        The factor, at least 1: anticorrelated residuals do not reduce the variance.
    """
    current = np.concatenate([block[:-1].ravel() for block in blocks])
    following = np.concatenate([block[1:].ravel() for block in blocks])
    power = float(np.sqrt(np.sum(current**2) * np.sum(following**2)))
    r = float(np.sum(current * following)) / power if power > 0.0 else 0.0
    return max(1.0, (1.0 + r) / max(1.0 - r, 1e-3))


def analyse(
    residuals: Residuals,
    best: np.ndarray,
    names: Sequence[str],
    noise: float,
    profile_points: int = 9,
) -> Identifiability:
    """Analyses the identifiability of each parameter near the best fit.

    Args:
        residuals: residuals of many sets.
        best: (D,) unit coordinates of the best fit.
        names: (D,) names of the parameters.
        noise: standard deviation of a residual, positive; inflate it if residuals are correlated.
        profile_points: G; 0 omits the profiles.

    Raises:
        HandoffError: noise that is not positive, or residuals that are not finite.
    """
    if not noise > 0.0:
        raise HandoffError(
            f"identifiability: noise is {noise}, expected a positive value. Set a noise floor for exact data."
        )
    J = jacobian(residuals, best)
    fisher = J.T @ J / noise**2
    eigenvalues, vectors = np.linalg.eigh(fisher)
    # Eigenvalues below the rounding error of the largest one carry no information: the variance
    # along their directions is infinite.
    null = eigenvalues <= max(eigenvalues[-1], 0.0) * len(best) * np.finfo(float).eps
    variance = np.where(null, np.inf, 1.0 / np.where(null, 1.0, eigenvalues))
    weights = np.where(vectors**2 > 1e-12, vectors**2, 0.0)
    total = np.where(weights > 0.0, np.where(weights > 0.0, weights, 1.0) * variance, 0.0).sum(
        axis=1
    )
    half_width = NORMAL_95 * np.sqrt(total)
    determined = half_width < DETERMINED
    grid = np.linspace(0.0, 1.0, profile_points) if profile_points else np.zeros(0)
    widths = NORMAL_95 * np.sqrt(variance)
    return Identifiability(
        sensitivity=np.sqrt(np.mean(J**2, axis=0)),
        half_width=half_width,
        interval=np.clip(np.stack([best - half_width, best + half_width], axis=1), 0.0, 1.0),
        determined=determined,
        at_bound=determined & ((best < 0.01) | (best > 0.99)),
        condition=float("inf") if null.any() else float(eigenvalues[-1] / eigenvalues[0]),
        open_directions=tuple(
            Direction(vectors[:, i], float(widths[i]), _describe(vectors[:, i], names))
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
    """(D, G) mean squared residuals: the smaller of two, with the other parameters kept at their
    best and with them adapted linearly by J."""
    size = len(best)
    profile = np.zeros((size, len(grid)))
    for i in range(size) if len(grid) else ():
        others = np.arange(size) != i
        fixed = np.tile(best, (len(grid), 1))
        fixed[:, i] = grid
        adapted = fixed.copy()
        if others.any():
            # Least-squares change of the others per change of parameter i; tiny singular values are
            # ignored.
            slope = -np.linalg.lstsq(J[:, others], J[:, i], rcond=1e-6)[0]
            adapted[:, others] = np.clip(best[others] + (grid - best[i])[:, None] * slope, 0.0, 1.0)
        errors = np.mean(residuals(np.concatenate([fixed, adapted])) ** 2, axis=1)
        profile[i] = np.minimum(errors[: len(grid)], errors[len(grid) :])
    return profile


def _describe(weights: np.ndarray, names: Sequence[str]) -> str:
    order = [int(i) for i in np.argsort(-np.abs(weights), kind="stable")]
    largest = [i for i in order if abs(weights[i]) >= NAMED] or [order[0]]
    if len(largest) == 1:
        return f"{names[largest[0]]} is not determined"
    same = [names[i] for i in largest if weights[i] * weights[largest[0]] > 0]
    opposite = [names[i] for i in largest if weights[i] * weights[largest[0]] < 0]
    if not opposite:
        return f"{', '.join(same)} trade off: the data do not determine a common increase"
    return (
        f"{', '.join(same)} and {', '.join(opposite)} trade off: the data do not determine an increase of the former "
        "with a decrease of the latter"
    )
