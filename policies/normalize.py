"""Normalisers fitted to the data and saved with the policy: min-max for observations, standard for
chunks.

Statistics are computed incrementally, so that the data need not fit in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robots.errors import HandoffError

_CONSTANT = 1e-9
"""Standard deviation up to which an entry of an action is only centred [unit of the entry]."""
_CONSTANT_RANGE = 1e-4
"""Range up to which an observed entry counts as constant and is only centred [unit of the entry],
as in Diffusion Policy's code. The opening of a gripper that stays open varies by micrometres where
it is recorded; scaled to [-1, 1], a tenth of a millimetre later would be a hundred."""


class MinMaxStatistics:
    """Running minimum and maximum of every entry."""

    def __init__(self, size: int) -> None:
        """Starts empty, for vectors with `size` entries."""
        self.low = np.full(size, np.inf)
        self.high = np.full(size, -np.inf)

    def update(self, rows: np.ndarray) -> None:
        """Adds rows `(N, size)`.

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
    """Running mean and standard deviation of every entry in float64 (Chan, Golub and LeVeque
    1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Starts empty, for values of `shape`."""
        self.count = 0
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)
        """Sum of the squared distances from the mean."""

    def update(self, values: np.ndarray) -> None:
        """Adds values `(N, *shape)`.

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
        difference, total = mean - self.mean, self.count + len(values)
        self.squares += np.square(values - mean).sum(axis=0) + np.square(difference) * (
            self.count * len(values) / total
        )
        self.mean += difference * (len(values) / total)
        self.count = total

    @property
    def deviation(self) -> np.ndarray:
        """Population standard deviation of every entry (divisor N, not N - 1)."""
        return np.sqrt(self.squares / max(1, self.count))


class DeviceMoments:
    """`MomentStatistics` as tensors of the device of the values, which are never read on the host
    except by `check`.

    Args:
        shape: shape of a value.
        device: device of the values.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.count = 0
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.squares = torch.zeros(shape, dtype=torch.float64, device=device)
        """Sum of the squared distances from the mean."""

    def update(self, values: Tensor) -> None:
        """Adds values `(N, *shape)`, N at least 1. One that is not finite makes the moments not
        finite from then on, which `check` reports."""
        values = values.double()
        mean = values.mean(dim=0)
        difference, total = mean - self.mean, self.count + len(values)
        self.squares = (
            self.squares
            + (values - mean).square().sum(dim=0)
            + difference.square() * (self.count * len(values) / total)
        )
        self.mean = self.mean + difference * (len(values) / total)
        self.count = total

    @property
    def deviation(self) -> Tensor:
        """Population standard deviation of every entry (divisor N, not N - 1)."""
        return (self.squares / max(1, self.count)).sqrt()

    def check(self) -> None:
        """Reads on the host whether all values were finite.

        Raises:
            HandoffError: one was not.
        """
        # A value that is not finite leaves a mean that is not, and no later one mends it.
        entries = torch.nonzero(~self.mean.isfinite()).tolist()
        if entries:
            raise HandoffError(
                f"normaliser: values of the entries {entries[:8]}, expected all of them finite. Was a sensor lost?"
            )

    def state_dict(self) -> dict[str, Any]:
        """Complete state, for `load_state_dict`."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`, from any device."""
        self.count = state["count"]
        self.mean = state["mean"].to(self.mean.device)
        self.squares = state["squares"].to(self.squares.device)


class StandardNormalizer(nn.Module):
    """Maps every entry to mean 0 and standard deviation 1/2, so that most values lie in [-1, 1],
    and back."""

    centre: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Starts as the identity on values of `shape`, until `fit` or a loaded state sets it."""
        super().__init__()
        self.register_buffer("centre", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def fit(self, values: np.ndarray) -> None:
        """Fits mean and standard deviation to `values`, `(N, *shape)`.

        Raises:
            HandoffError: no values, or one that is not finite.
        """
        statistics = MomentStatistics(tuple(self.centre.shape))
        statistics.update(values)
        self.fit_moments(statistics)

    def fit_moments(self, statistics: MomentStatistics) -> None:
        """Takes mean and standard deviation from `statistics`.

        Raises:
            HandoffError: the statistics are empty.
        """
        if not statistics.count:
            raise HandoffError(
                "normaliser: no data, expected at least one value. Is every episode too short?"
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
    """Maps every entry of the last axis to [-1, 1] and back."""

    centre: Tensor
    half_range: Tensor

    def __init__(self, size: int) -> None:
        """Starts as the identity on `size` entries, until `fit` or a loaded state sets it."""
        super().__init__()
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("half_range", torch.ones(size))

    def fit(self, statistics: MinMaxStatistics) -> None:
        """Takes the range from `statistics`.

        Raises:
            HandoffError: the statistics are empty.
        """
        low, high = statistics.low, statistics.high
        if not np.isfinite(low).all():
            raise HandoffError(
                "normaliser: no data, expected at least one row. Is the store empty?"
            )
        spread = high - low
        half_range = np.where(spread > _CONSTANT_RANGE, spread / 2, 1.0)
        self.centre.copy_(torch.from_numpy((low + high) / 2))
        self.half_range.copy_(torch.from_numpy(half_range))

    def forward(self, value: Tensor) -> Tensor:
        """Physical to normalised."""
        return (value - self.centre) / self.half_range

    def inverse(self, value: Tensor) -> Tensor:
        """Normalised to physical."""
        return value * self.half_range + self.centre
