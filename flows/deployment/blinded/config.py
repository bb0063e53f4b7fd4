"""Defines the options of a blinded comparison."""

from __future__ import annotations

from robots.config import Count, OpenShare, Seed, config


@config
class BlindedConfig:
    """Length, error and order of a blinded comparison."""

    pairs: Count = 30
    """Largest number of pairs; one has an episode of every policy, from the same start."""
    alpha: OpenShare = 0.05
    """Probability of calling any two policies different that are equal, over all pairs of policies
    and all looks at the results."""
    seed: Seed | None = None
    """Seed of the hidden order, which anybody who knows it can compute; None draws one that nobody
    knows."""
    preference: bool = False
    """Whether the person is asked after every pair which episode was better."""
    permutations: Count = 10_000
    """Samples of the null distribution of the sequential test."""
