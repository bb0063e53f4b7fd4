"""Draws designs over all factors at once: points that fill the box of their ranges evenly, so that
the influence of each factor is estimated while all others vary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from robots.config import Count, Seed, config
from robots.errors import HandoffError
from sim.sensitivity.factors import DUMMY, Factor, Value


@config
class DesignConfig:
    """Points of a design over the ranges of all factors."""

    kind: Literal["latin_hypercube", "sobol", "random"] = "latin_hypercube"
    """Distribution of the points. latin_hypercube: each factor's range is divided into as many
    slices as there are points, with one in each. sobol: a scrambled Sobol sequence, which also
    fills pairs of factors evenly. random: independent and uniform."""
    points: Count = 256
    """Number of points, at each of which one episode is played; a power of two for `sobol`."""
    seed: Seed = 0
    """Seed of the points."""

    def __post_init__(self) -> None:
        if self.kind == "sobol" and self.points & (self.points - 1):
            raise HandoffError(
                f"design: {self.points} points, expected a power of two for sobol, such as 256."
            )


def ranged(factors: Mapping[str, Factor]) -> dict[str, Factor]:
    """The factors with a range, which a design varies."""
    return {name: factor for name, factor in factors.items() if factor.low is not None}


def draw_design(factors: Mapping[str, Factor], config: DesignConfig) -> np.ndarray:
    """Draws the points of a design, in random order.

    Args:
        factors: factors with a range.
        config: distribution, number and seed.

    Returns:
        (P, F + 1) places between the factors' bounds, 0 to 1; the last column is that of the factor
        without an effect.
    """
    from scipy.stats import qmc

    size = len(factors) + 1
    rng = np.random.default_rng(config.seed)
    match config.kind:
        case "latin_hypercube":
            unit = qmc.LatinHypercube(size, rng=rng).random(config.points)
        case "sobol":
            unit = qmc.Sobol(size, rng=rng).random(config.points)
        case "random":
            unit = rng.random((config.points, size))
    # The starts are played in order, and a sequence is not without one.
    return rng.permutation(unit)


def values_at(factors: Mapping[str, Factor], unit: np.ndarray) -> dict[str, Value]:
    """The values of a point by factor.

    Args:
        factors: factors with a range.
        unit: (F + 1,) a row of `draw_design`.
    """
    values: dict[str, Value] = {}
    for at, (name, factor) in zip(unit, factors.items(), strict=False):
        values[name] = factor.rounded(float(factor.place(at)))
    return {**values, DUMMY: float(unit[-1])}
