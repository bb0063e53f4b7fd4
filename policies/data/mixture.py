"""Mixes batches from several stores by weight; every window occurs once per epoch of its store.

The number of a store's windows in a batch is rounded so that its total since the first update
deviates from its weighted share by at most one window per store of the mixture. Batches are a pure
function of the update's number.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from policies.data.windows import shuffled_batch, shuffled_span
from robots.errors import HandoffError


class MixedWindows(NamedTuple):
    """Windows of several stores, numbered consecutively, one store after another."""

    counts: tuple[int, ...]
    """Number of windows of every store."""
    weights: tuple[float, ...]
    """Sampling weight of every store; only their ratios matter."""

    def batch(self, size: int, step: int, seed: int) -> np.ndarray:
        """Window indices (size,) of update `step`, grouped by store; see `shuffled_batch` for a
        single store.

        Args:
            size: batch size.
            step: number of the update.
            seed: seed of the data order.
        """
        if len(self.counts) == 1:
            return shuffled_batch(size, self.counts[0], step, seed)
        start_counts, end_counts = (
            windows_taken(size * step, self.weights),
            windows_taken(size * (step + 1), self.weights),
        )
        parts, first = [], 0
        for store, count in enumerate(self.counts):
            window_indices = shuffled_span(
                start_counts[store], end_counts[store] - start_counts[store], count, seed, store
            )
            parts.append(first + window_indices)
            first += count
        return np.concatenate(parts)


def new_mixture(
    names: tuple[str, ...], counts: tuple[int, ...], weights: tuple[float, ...]
) -> MixedWindows:
    """Checks and builds a mixture.

    Raises:
        HandoffError: duplicate store, a store without windows, or a weight that is not a finite
            number above 0.
    """
    if len(set(names)) < len(names):
        raise HandoffError(
            f"mixture: stores {list(names)}, expected each once. Use the sum of its weights."
        )
    for name, count, weight in zip(names, counts, weights, strict=True):
        if not count:
            raise HandoffError(
                f"{name}: no training windows. Are its episodes shorter than the horizon, or all held out?"
            )
        if not 0 < weight < float("inf"):
            raise HandoffError(
                f"{name}: weight is {weight}, expected a finite number above 0. Leave the store out?"
            )
    return MixedWindows(counts, weights)


def windows_taken(windows: int, weights: tuple[float, ...]) -> list[int]:
    """How many of the first `windows` windows each store contributed.

    Each store gets its rounded share of what the previous stores left, so that the counts add up,
    never decrease as `windows` grows, and deviate from their share by at most one window per store.
    """
    remaining, remaining_weight = windows, sum(map(Fraction, weights))
    counts = []
    for weight in map(Fraction, weights):
        share = weight / remaining_weight
        count = (2 * remaining * share.numerator + share.denominator) // (2 * share.denominator)
        counts.append(count)
        remaining, remaining_weight = remaining - count, remaining_weight - weight
    return counts
