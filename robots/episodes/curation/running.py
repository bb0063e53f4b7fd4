"""Computes moments, quantiles and numbers of distinct rows in one pass and bounded memory."""

from __future__ import annotations

import numpy as np

_BITS = 14
"""Bits of a hash that choose one of 16384 registers; the standard error is 0.8 %."""
_REST = 64 - _BITS


class RunningMoments:
    """Smallest and largest value, mean and standard deviation of every column (Chan, Golub and
    LeVeque, 1983, for the union of two sets).

    Args:
        columns: number of columns, D.
    """

    def __init__(self, columns: int) -> None:
        self.count = 0
        self.low = np.full(columns, np.inf)
        self.high = np.full(columns, -np.inf)
        self.mean = np.zeros(columns)
        self._squares = np.zeros(columns)

    def add(self, rows: np.ndarray) -> None:
        """Adds rows `(T, D)`."""
        if len(rows) == 0:
            return
        rows = rows.astype(np.float64)
        mean = rows.mean(axis=0)
        difference, total = mean - self.mean, self.count + len(rows)
        self._squares += ((rows - mean) ** 2).sum(axis=0)
        self._squares += difference**2 * self.count * len(rows) / total
        self.mean += difference * len(rows) / total
        self.count = total
        self.low = np.minimum(self.low, rows.min(axis=0))
        self.high = np.maximum(self.high, rows.max(axis=0))

    @property
    def std(self) -> np.ndarray:
        """(D,) standard deviation of the population: the sum of squares is divided by the count."""
        return np.sqrt(self._squares / max(self.count, 1))


class QuantileSample:
    """A uniform sample of rows, from which quantiles are computed: all rows, and so exact, up to
    `size` of them. Beyond that, the share of the rows below a quantile q has the standard error
    `sqrt(q (1 - q) / size)`.

    Args:
        size: largest number of rows that are kept.
        seed: seed of the sample.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._rng = np.random.default_rng(seed)
        self._priorities: list[np.ndarray] = []
        self._parts: list[np.ndarray] = []
        self._length = 0
        self.exact = True

    def add(self, rows: np.ndarray) -> None:
        """Adds rows `(T, D)`. Of all rows, those with the lowest random priorities are kept."""
        self._priorities.append(self._rng.random(len(rows)))
        self._parts.append(rows.copy())
        self._length += len(rows)
        # Joining the parts costs as much as all rows that are kept, so it is done seldom.
        if self._length > 2 * self._size:
            self._thin()

    def quantiles(self, shares: tuple[float, ...]) -> np.ndarray:
        """(Q, D) quantiles at the shares, interpolated linearly between neighbouring values."""
        if self._length > self._size:
            self._thin()
        if self._length == 0:
            return np.zeros((len(shares), 0))
        rows = np.concatenate(self._parts).astype(np.float64)
        return np.quantile(rows, shares, axis=0)

    def _thin(self) -> None:
        priority, rows = np.concatenate(self._priorities), np.concatenate(self._parts)
        kept = np.argpartition(priority, self._size - 1)[: self._size]
        self._priorities = [priority[kept]]
        self._parts = [rows[kept]]
        self._length = self._size
        self.exact = False


class DistinctRows:
    """Number of distinct rows of whole numbers: exact for up to `exact_rows` of them, and estimated
    by HyperLogLog (Flajolet et al., 2007) with 16384 registers beyond.

    Args:
        exact_rows: largest number of distinct rows that are counted exactly.
    """

    def __init__(self, exact_rows: int) -> None:
        self._exact_rows = exact_rows
        self._hashes: np.ndarray | None = np.zeros(0, np.uint64)
        self._registers = np.zeros(1 << _BITS, np.uint8)

    @property
    def exact(self) -> bool:
        """Whether the number is exact."""
        return self._hashes is not None

    def add(self, rows: np.ndarray) -> None:
        """Adds rows `(T, D)` of whole numbers."""
        hashes = hash_rows(rows)
        index = (hashes >> np.uint64(_REST)).astype(np.int64)
        # The lower 50 bits are exact in a float, whose exponent counts the leading zeros.
        rest = (hashes & np.uint64((1 << _REST) - 1)).astype(np.float64)
        rank = (_REST + 1 - np.frexp(rest)[1]).astype(np.uint8)
        np.maximum.at(self._registers, index, rank)
        if self._hashes is not None:
            self._hashes = np.union1d(self._hashes, hashes)
            if len(self._hashes) > self._exact_rows:
                self._hashes = None

    @property
    def count(self) -> int:
        """Number of distinct rows."""
        return self.estimate if self._hashes is None else len(self._hashes)

    @property
    def estimate(self) -> int:
        """The number by HyperLogLog, with linear counting where many registers are empty."""
        size = 1 << _BITS
        alpha = 0.7213 / (1.0 + 1.079 / size)
        raw = alpha * size**2 / np.exp2(-self._registers.astype(np.float64)).sum()
        empty = int((self._registers == 0).sum())
        if raw <= 2.5 * size and empty:
            raw = size * np.log(size / empty)
        return round(float(raw))


def hash_rows(rows: np.ndarray) -> np.ndarray:
    """(T,) uint64 hashes of rows `(T, D)` of whole numbers; SplitMix64 mixes every column in."""
    hashes = np.zeros(len(rows), np.uint64)
    for column in rows.T:
        mixed = (hashes ^ column.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes = mixed ^ (mixed >> np.uint64(31))
    return hashes
