"""Normalises observations and scales rewards by statistics of everything seen so far.

Source: Elsayed et al., arXiv 2410.14606; `normalization_wrappers.py` of the released code does the
same.

Shape suffixes: O observation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from policies.normalize import MomentStatistics
from robots.errors import HandoffError

EPSILON = 1e-8
"""Added to a variance [C]."""


def sample_deviation(statistics: MomentStatistics) -> np.ndarray:
    """Square root of the sample variance (divisor N - 1) plus `EPSILON`; the variance of a single
    value counts as 1."""
    if statistics.count < 2:
        return np.full(statistics.mean.shape, np.sqrt(1.0 + EPSILON))
    return np.sqrt(statistics.squares / (statistics.count - 1) + EPSILON)


class ObservationNormaliser:
    """Running mean and standard deviation of observations.

    Args:
        entries: O, entries of the observation vector.
    """

    def __init__(self, entries: int) -> None:
        self.statistics = MomentStatistics((entries,))

    def __call__(self, vector_O: np.ndarray) -> np.ndarray:
        """Adds an observation (O,) in physical units; returns it normalised, float32.

        Raises:
            HandoffError: an entry that is not finite.
        """
        self.statistics.update(np.asarray(vector_O, np.float64)[None])
        return self.normalised(vector_O)

    def normalised(self, vector_NO: np.ndarray) -> np.ndarray:
        """Observations (..., O) in physical units, normalised by the statistics so far, float32."""
        centred_NO = vector_NO - self.statistics.mean
        return (centred_NO / sample_deviation(self.statistics)).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Complete state."""
        statistics = self.statistics
        moments = {"mean": statistics.mean, "squares": statistics.squares}
        copies = {name: torch.from_numpy(np.array(one)) for name, one in moments.items()}
        return {"count": statistics.count, **copies}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.statistics.count = state["count"]
        self.statistics.mean = state["mean"].numpy().copy()
        self.statistics.squares = state["squares"].numpy().copy()


class ReturnScale:
    """Divides rewards by the running standard deviation of the discounted return (Welford 1962).

    Args:
        discount: discount per control period.
    """

    def __init__(self, discount: float) -> None:
        self._discount = discount
        self._sum = 0.0
        """Discounted sum of the rewards so far, which the end of an episode sets to its last
        reward."""
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0
        """Sum of the squared distances of the discounted sums from their mean."""

    def __call__(self, reward: float, ended: bool) -> float:
        """Adds a reward; returns it scaled.

        Args:
            reward: reward of a step.
            ended: whether the step ended its episode.

        Raises:
            HandoffError: a reward that is not finite.
        """
        if not math.isfinite(reward):
            raise HandoffError(f"return scale: the reward is {reward}, expected a finite number.")
        self._sum = (0.0 if ended else self._discount * self._sum) + reward
        self._count += 1
        difference = self._sum - self._mean
        self._mean += difference / self._count
        self._squares += difference * (self._sum - self._mean)
        variance = 1.0 if self._count < 2 else self._squares / (self._count - 1)
        return reward / math.sqrt(variance + EPSILON)

    def state_dict(self) -> dict[str, Any]:
        """Complete state."""
        return {
            "sum": self._sum,
            "count": self._count,
            "mean": self._mean,
            "squares": self._squares,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self._sum = state["sum"]
        self._count = state["count"]
        self._mean = state["mean"]
        self._squares = state["squares"]
