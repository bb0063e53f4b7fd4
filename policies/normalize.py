"""Normalisation, fitted to the data and saved with the policy: min-max for observations, standard
for chunks.

Statistics take the data in part after part, so that never all of it has to be in memory.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from robots.errors import HandoffError

_CONSTANT = 1e-9
"""Range below which an entry is taken for a constant; it is then only centred [unit of the
entry]."""


class MinMaxStatistics:
    """Smallest and largest value of every entry, from as many parts as there are."""

    def __init__(self, size: int) -> None:
        """Of vectors with `size` entries."""
        self.low = np.full(size, np.inf)
        self.high = np.full(size, -np.inf)

    def update(self, rows: np.ndarray) -> None:
        """Takes in `(N, size)`.

        Raises:
            HandoffError: wrong size, or a value that is not finite.
        """
        if rows.ndim != 2 or rows.shape[1] != len(self.low):
            raise HandoffError(
                f"normaliser: rows of shape {rows.shape}, expected (N, {len(self.low)})."
            )
        if not np.isfinite(rows).all():
            row, entry = (int(i) for i in np.argwhere(~np.isfinite(rows))[0])
            raise HandoffError(
                f"normaliser: entry {entry} of row {row} is {rows[row, entry]}, expected finite. Was a sensor lost?"
            )
        if len(rows):
            self.low = np.minimum(self.low, rows.min(axis=0))
            self.high = np.maximum(self.high, rows.max(axis=0))


class MomentStatistics:
    """Mean and deviation of every entry in float64, from as many parts as there are (Chan, Golub
    and LeVeque 1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Of values with `shape`."""
        self.count = 0
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)
        """Sum of the squared distances from the mean."""

    def update(self, values: np.ndarray) -> None:
        """Takes in `(N, *shape)`.

        Raises:
            HandoffError: wrong shape, or a value that is not finite.
        """
        if values.shape[1:] != self.mean.shape:
            raise HandoffError(
                f"normaliser: values of shape {values.shape}, expected (N, *{self.mean.shape})."
            )
        if not np.isfinite(values).all():
            raise HandoffError(
                f"normaliser: {len(values)} values, expected all of them finite. Was a sensor lost?"
            )
        if not len(values):
            return
        mean = values.mean(axis=0, dtype=np.float64)
        apart, total = mean - self.mean, self.count + len(values)
        self.squares += np.square(values - mean).sum(axis=0) + np.square(apart) * (
            self.count * len(values) / total
        )
        self.mean += apart * (len(values) / total)
        self.count = total

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviation of every entry, of the values themselves (not an estimate for
        others)."""
        return np.sqrt(self.squares / max(1, self.count))


class StandardNormalizer(nn.Module):
    """Maps every entry to mean 0 and standard deviation 1/2, so that most of it lies in [-1, 1],
    and back."""

    centre: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        """The identity on entries of `shape`, until `fit` or a loaded state sets it."""
        super().__init__()
        self.register_buffer("centre", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def fit(self, values: np.ndarray) -> None:
        """Takes mean and deviation of `values`, `(N, *shape)`, over.

        Raises:
            HandoffError: there are none, or one is not finite.
        """
        statistics = MomentStatistics(tuple(self.centre.shape))
        statistics.update(values)
        self.fit_moments(statistics)

    def fit_moments(self, statistics: MomentStatistics) -> None:
        """Takes mean and deviation over.

        Raises:
            HandoffError: the statistics have seen no data.
        """
        if not statistics.count:
            raise HandoffError(
                "normaliser: no data seen, expected at least one value. Is every episode too short?"
            )
        deviation = statistics.deviation
        self.centre.copy_(torch.from_numpy(statistics.mean))
        self.scale.copy_(torch.from_numpy(np.where(deviation > _CONSTANT, 2.0 * deviation, 1.0)))

    def forward(self, value: Tensor) -> Tensor:
        """Physical to normalised."""
        return (value - self.centre) / self.scale

    def inverse(self, value: Tensor) -> Tensor:
        """Normalised to physical."""
        return value * self.scale + self.centre


class MinMaxNormalizer(nn.Module):
    """Maps every entry of the last axis to [-1, 1] and back; the two maps are inverses."""

    centre: Tensor
    half_range: Tensor

    def __init__(self, size: int) -> None:
        """The identity on `size` entries, until `fit` or a loaded state sets it."""
        super().__init__()
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("half_range", torch.ones(size))

    def fit(self, statistics: MinMaxStatistics) -> None:
        """Takes the range over.

        Raises:
            HandoffError: the statistics have seen no data.
        """
        low, high = statistics.low, statistics.high
        if not np.isfinite(low).all():
            raise HandoffError(
                "normaliser: no data seen, expected at least one row. Is the store empty?"
            )
        spread = high - low
        half_range = np.where(spread > _CONSTANT, spread / 2, 1.0)
        self.centre.copy_(torch.from_numpy((low + high) / 2))
        self.half_range.copy_(torch.from_numpy(half_range))

    def forward(self, value: Tensor) -> Tensor:
        """Physical to normalised."""
        return (value - self.centre) / self.half_range

    def inverse(self, value: Tensor) -> Tensor:
        """Normalised to physical."""
        return value * self.half_range + self.centre
