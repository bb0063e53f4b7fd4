"""Mixes batches from several stores: shares by weight, every window once per epoch of its store.

The share of a store in one batch is rounded so that what it contributed since the first update is
never more than one window per store in the mixture from its weight's share. Everything is a pure
function of the number of the update.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from policies.data.windows import shuffled_batch, shuffled_span
from robots.errors import HandoffError


class MixedWindows(NamedTuple):
    """Windows that are numbered through, one store after another."""

    counts: tuple[int, ...]
    """Windows of every store."""
    weights: tuple[float, ...]
    """Of every store, in any unit."""

    def batch(self, size: int, step: int, seed: int) -> np.ndarray:
        """Windows for update number `step`: (size,), one store after another; see `shuffled_batch`
        for a single store.

        Args:
            size: of the batch.
            step: number of the update.
            seed: of the orders.
        """
        if len(self.counts) == 1:
            return shuffled_batch(size, self.counts[0], step, seed)
        before, after = taken(size * step, self.weights), taken(size * (step + 1), self.weights)
        parts, first = [], 0
        for store, count in enumerate(self.counts):
            chosen = shuffled_span(before[store], after[store] - before[store], count, seed, store)
            parts.append(first + chosen)
            first += count
        return np.concatenate(parts)


def new_mixture(
    names: tuple[str, ...], counts: tuple[int, ...], weights: tuple[float, ...]
) -> MixedWindows:
    """Checks what a mixture is made of.

    Raises:
        HandoffError: a store that is named twice, one without a window, or a weight that is not a
            finite number above
            0.
    """
    if len(set(names)) < len(names):
        raise HandoffError(
            f"mixture: stores {list(names)}, expected each once. Give it the sum of its weights."
        )
    for name, count, weight in zip(names, counts, weights, strict=True):
        if not count:
            raise HandoffError(
                f"{name}: no window to learn from. Are its episodes shorter than the horizon, or all held out?"
            )
        if not 0 < weight < float("inf"):
            raise HandoffError(
                f"{name}: weight is {weight}, expected a finite number above 0. Leave the store out?"
            )
    return MixedWindows(counts, weights)


def taken(windows: int, weights: tuple[float, ...]) -> list[int]:
    """How many of the first `windows` windows every store gave.

    Each store takes its rounded share of what those before it left, so that all counts add up, none
    ever falls as `windows` rises, and each stays within one window per store of its share.
    """
    left, weight_left = windows, sum(map(Fraction, weights))
    counts = []
    for weight in map(Fraction, weights):
        share = weight / weight_left
        count = (2 * left * share.numerator + share.denominator) // (2 * share.denominator)
        counts.append(count)
        left, weight_left = left - count, weight_left - weight
    return counts
