"""Computes the statistics of LeRobot's features: min, max, mean, std, count and five quantiles."""

from __future__ import annotations

from math import ceil, prod

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
Statistics = dict[str, np.ndarray]
"""Arrays of the feature's shape by name, (3, 1, 1) for pictures; `count` has the shape (1,)."""

_MOST_ROWS = 100_000
_MOST_VALUES = 2**24
_LARGE_PICTURE = 300
_SMALL_PICTURE = 150


class NumberStatistics:
    """Statistics of a feature of numbers over many episodes.

    All but the quantiles are exact; these are too as long as the data set has at most 100,000 rows,
    and otherwise come from rows at equal distances.
    """

    def __init__(self, shape: tuple[int, ...], total_rows: int) -> None:
        """Starts without rows.

        Args:
            shape: shape of one row.
            total_rows: rows that will be added.
        """
        rows = min(_MOST_ROWS, max(1000, _MOST_VALUES // prod(shape)))
        self._stride = ceil(total_rows / rows)
        self._count = 0
        self._mean = np.zeros(shape)
        self._squares = np.zeros(shape)
        self._low = np.full(shape, np.inf)
        self._high = np.full(shape, -np.inf)
        self._rows: list[np.ndarray] = []

    def add(self, array: np.ndarray) -> None:
        """Adds the rows of one episode, `(T, *shape)`."""
        values = array.astype(np.float64)
        first = -self._count % self._stride
        self._rows.append(values[first :: self._stride])
        count = self._count + len(values)
        mean = values.mean(axis=0)
        difference = mean - self._mean
        # Sums of squared differences of two groups, of Chan, Golub and LeVeque, 1979.
        self._squares += ((values - mean) ** 2).sum(axis=0)
        self._squares += difference**2 * (self._count * len(values) / count)
        self._mean += difference * (len(values) / count)
        self._low = np.minimum(self._low, values.min(axis=0))
        self._high = np.maximum(self._high, values.max(axis=0))
        self._count = count

    def result(self) -> Statistics:
        """The statistics of all rows."""
        levels = np.quantile(np.concatenate(self._rows), list(QUANTILES.values()), axis=0)
        return {
            "min": self._low,
            "max": self._high,
            "mean": self._mean,
            "std": np.sqrt(self._squares / self._count),
            "count": np.array([self._count]),
            **dict(zip(QUANTILES, levels, strict=True)),
        }


class PictureStatistics:
    """Statistics of the three colours in [0, 1], exact over the pictures that are added."""

    def __init__(self) -> None:
        self._histogram = np.zeros((3, 256), np.int64)
        self._count = 0

    def add(self, pictures: np.ndarray) -> None:
        """Adds pictures `(N, height, width, 3)` uint8; of large ones every few rows and columns."""
        height, width = pictures.shape[1:3]
        longest = max(height, width)
        step = longest // _SMALL_PICTURE if longest >= _LARGE_PICTURE else 1
        thinned = pictures[:, ::step, ::step]
        for colour in range(3):
            self._histogram[colour] += np.bincount(thinned[..., colour].ravel(), minlength=256)
        self._count += len(pictures)

    def merge(self, other: PictureStatistics) -> None:
        """Adds the pictures of another one."""
        self._histogram += other._histogram
        self._count += other._count

    def result(self) -> Statistics:
        """The statistics of all pictures."""
        levels = np.arange(256) / 255.0
        total = self._histogram.sum(axis=1)
        mean = self._histogram @ levels / total
        variance = self._histogram @ levels**2 / total - mean**2
        cumulated = np.cumsum(self._histogram, axis=1)
        present = self._histogram > 0
        found = {
            "min": levels[present.argmax(axis=1)],
            "max": levels[255 - present[:, ::-1].argmax(axis=1)],
            "mean": mean,
            "std": np.sqrt(np.maximum(variance, 0.0)),
        }
        for name, share in QUANTILES.items():
            ranks = [np.searchsorted(cumulated[c], share * total[c]) for c in range(3)]
            found[name] = levels[np.minimum(ranks, 255)]
        shaped = {name: values.reshape(3, 1, 1) for name, values in found.items()}
        return {**shaped, "count": np.array([self._count])}


def sampled_frames(length: int) -> np.ndarray:
    """Frames of an episode whose pictures are counted: all of up to 100, and of a longer one
    LeRobot's number, `length^0.75` but at least 100 and at most 10,000."""
    number = max(min(100, length), min(int(length**0.75), 10_000))
    return np.unique(np.round(np.linspace(0, length - 1, number)).astype(int))
