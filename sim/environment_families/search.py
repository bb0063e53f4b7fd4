"""Finds the place of the lowest score between the bounds of parameters, from few noisy episodes.

A design over all parameters and the corners of their ranges come first; then places around the
lowest ones are tried, closer in every round. All candidates play the same episodes, so two of them
differ in their parameters alone. A lowest score of many is low by chance, too: episodes that the
search has not seen have to confirm it (`sim.environment_families.worst_case`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import NamedTuple

import numpy as np

from robots.config import Count, PositiveShare, Seed, Share, Whole, config
from sim.environment_families.draw import corner_places
from sim.sensitivity.design import DesignConfig

Scores = Callable[[np.ndarray, int], np.ndarray]
"""Plays the candidates at places (C, F) in a round, and returns their scores (C, E), one for each
of the same E episodes."""


@config
class SearchConfig:
    """Effort of a search for the worst parameters."""

    design: DesignConfig = field(default_factory=lambda: DesignConfig(points=16))
    """Candidates of the first round."""
    corners: bool = True
    """Whether the first round also has all combinations of lower and upper bounds."""
    rounds: Whole = 2
    """Number of rounds around the lowest candidates so far."""
    parents: Count = 4
    """Number of the lowest candidates around which a round tries others."""
    children: Count = 2
    """Candidates of a round around each parent."""
    spread: PositiveShare = 0.2
    """Standard deviation of a child's places in the first of these rounds, as a share of the
    ranges; it halves from round to round."""
    episodes: Count = 20
    """Episodes of every candidate, from the same starts."""
    finalists: Count = 3
    """Number of the lowest candidates that play further episodes."""
    final_episodes: Count = 100
    """Episodes of every finalist and of every known member, from starts that the search has not
    seen; as many again confirm the lowest finalist and the lowest known member."""
    tolerance: Share = 0.05
    """Difference of the mean score by which the worst candidate must be below the worst known
    member to become a member itself."""
    seed: Seed = 0
    """Seed of the children's places."""


class Candidate(NamedTuple):
    """One place that was tried."""

    places: np.ndarray
    """(F,) places between the bounds, 0 to 1."""
    round: int
    """Round in which it was tried; 0 is the design."""
    scores: np.ndarray
    """(E,) scores of its episodes."""

    @property
    def mean(self) -> float:
        """Mean score."""
        return float(np.mean(self.scores))


def count_candidates(config: SearchConfig, size: int) -> int:
    """Number of candidates of a search over `size` parameters."""
    first = config.design.points + (2**size if config.corners else 0)
    return first + config.rounds * config.parents * config.children


def search_worst(design: np.ndarray, config: SearchConfig, scores: Scores) -> list[Candidate]:
    """Searches for the lowest mean score.

    Args:
        design: (P, F) places of the first round, besides the corners.
        config: effort.
        scores: plays the candidates of a round.

    Returns:
        All candidates, the lowest mean first; of equal ones the one that was tried first.
    """
    size = design.shape[1]
    places = np.concatenate([corner_places(size), design]) if config.corners else design
    tried = _played(places, 0, scores)
    rng = np.random.default_rng(config.seed)
    for number in range(1, config.rounds + 1):
        parents = np.array([each.places for each in _sorted(tried)[: config.parents]])
        spread = config.spread * 0.5 ** (number - 1)
        noise = rng.standard_normal((config.parents, config.children, size))[: len(parents)]
        children = (parents[:, None] + spread * noise).reshape(-1, size)
        # Clipping moves many of them onto the bounds, where the worst parameters often are.
        tried += _played(np.clip(children, 0.0, 1.0), number, scores)
    return _sorted(tried)


def _played(places: np.ndarray, number: int, scores: Scores) -> list[Candidate]:
    rows = scores(places, number)
    return [Candidate(each, number, row) for each, row in zip(places, rows, strict=True)]


def _sorted(candidates: list[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda each: each.mean)
