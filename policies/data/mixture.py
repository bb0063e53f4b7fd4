"""Mixes batches from several stores, and from the episodes of a store, by weight.

The episodes of a store that have the same weight form a group. Every window occurs once per epoch
of its group; a store whose weights are all equal is one group. The number of a store's windows in a
batch is rounded so that its total since the first update deviates from its weighted share by at
most one window per store of the mixture; within a store, that of a group deviates by at most one
window per group. Batches are a pure function of the update's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import NamedTuple

import numpy as np

from policies.data.windows import shuffled_batch, shuffled_span
from robots.errors import HandoffError


@dataclass(frozen=True, eq=False)
class WindowGroups:
    """Windows of one store in groups whose episodes have the same weight."""

    windows: tuple[np.ndarray, ...]
    """Ascending window indices of every group, counted from the store's first window."""
    shares: tuple[int, ...]
    """Share of every group: number of windows times weight; only their ratios matter."""

    def span(self, first: int, stop: int, seed: int, orders: range) -> np.ndarray:
        """Window indices of the positions `[first, stop)` in the store's endless sequence, one
        group after another.

        Args:
            first: number of the store's windows in the batches before.
            stop: the same with this batch.
            seed: seed of the data order.
            orders: number of each group's sequence, see `shuffled_span`.
        """
        taken = zip(_taken(first, self.shares), _taken(stop, self.shares), strict=True)
        parts = [
            windows[shuffled_span(start, end - start, len(windows), seed, order)]
            for (start, end), windows, order in zip(taken, self.windows, orders, strict=True)
            if end > start
        ]
        return np.concatenate([np.zeros(0, np.int64), *parts])


class MixedWindows(NamedTuple):
    """Windows of several stores, numbered consecutively, one store after another."""

    counts: tuple[int, ...]
    """Number of windows of every store."""
    weights: tuple[float, ...]
    """Sampling weight of every store; only their ratios matter."""
    groups: tuple[WindowGroups | None, ...] = ()
    """Groups of every store, None for one whose episodes have equal weights; empty if all have."""

    def batch(self, size: int, step: int, seed: int) -> np.ndarray:
        """Window indices (size,) of update `step`, grouped by store; see `shuffled_batch` for a
        single store.

        Args:
            size: batch size.
            step: number of the update.
            seed: seed of the data order.
        """
        if len(self.counts) == 1 and not self.groups:
            return shuffled_batch(size, self.counts[0], step, seed)
        start_counts, end_counts = (
            windows_taken(size * step, self.weights),
            windows_taken(size * (step + 1), self.weights),
        )
        parts, first = [], 0
        stores = len(self.counts)
        for store, count in enumerate(self.counts):
            start, end = start_counts[store], end_counts[store]
            groups = self.groups[store] if self.groups else None
            if groups is None:
                window_indices = shuffled_span(start, end - start, count, seed, store)
            else:
                # The first group has the order that the whole store would have.
                orders = range(store, store + stores * len(groups.shares), stores)
                window_indices = groups.span(start, end, seed, orders)
            parts.append(first + window_indices)
            first += count
        return np.concatenate(parts)


def new_mixture(
    names: tuple[str, ...],
    counts: tuple[int, ...],
    weights: tuple[float, ...],
    episode_weights: Sequence[np.ndarray] = (),
) -> MixedWindows:
    """Checks and builds a mixture.

    Args:
        names: names of the stores.
        counts: number of windows of every store.
        weights: sampling weight of every store.
        episode_weights: (count,) weight above 0 of the episode of every window, by store; empty if
            all are equal.

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
                f"{name}: no training windows. Are its episodes shorter than the horizon, all held out or of weight 0?"
            )
        if not 0 < weight < float("inf"):
            raise HandoffError(
                f"{name}: weight is {weight}, expected a finite number above 0. Leave the store out?"
            )
    groups = tuple(window_groups(weight_N) for weight_N in episode_weights)
    return MixedWindows(counts, weights, groups if any(groups) else ())


def window_groups(weight_N: np.ndarray) -> WindowGroups | None:
    """Groups of a store's N windows by the weights of their episodes; None if all are equal."""
    values, group_N = np.unique(weight_N, return_inverse=True)
    if len(values) < 2:
        return None
    windows = tuple(np.flatnonzero(group_N == group) for group in range(len(values)))
    # The decimal number that was written, so that 0.1 is a tenth.
    exact = [
        Fraction(repr(float(value))) * len(members)
        for value, members in zip(values, windows, strict=True)
    ]
    return WindowGroups(windows, _whole_numbers(exact))


def windows_taken(windows: int, weights: tuple[float, ...]) -> list[int]:
    """How many of the first `windows` windows each store contributed.

    Each store gets its rounded share of what the previous stores left, so that the counts add up,
    never decrease as `windows` grows, and deviate from their share by at most one window per store.
    """
    return _taken(windows, _whole_weights(weights))


@lru_cache(maxsize=16)
def _whole_weights(weights: tuple[float, ...]) -> tuple[int, ...]:
    return _whole_numbers([Fraction(weight) for weight in weights])


def _whole_numbers(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Whole numbers with the same ratios, which cost a fraction of the time of fractions."""
    denominator = lcm(*(weight.denominator for weight in weights))
    return tuple(int(weight * denominator) for weight in weights)


def _taken(windows: int, weights: tuple[int, ...]) -> list[int]:
    remaining, remaining_weight = windows, sum(weights)
    counts = []
    for weight in weights:
        count = (2 * remaining * weight + remaining_weight) // (2 * remaining_weight)
        counts.append(count)
        remaining, remaining_weight = remaining - count, remaining_weight - weight
    return counts
