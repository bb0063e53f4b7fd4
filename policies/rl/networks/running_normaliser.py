"""Normalises observations by their running mean and standard deviation.

Shape suffixes: N environments, O observation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from policies.normalize import MomentStatistics
from policies.rl.networks.ensemble import Features

NORMALISER_FLOOR = 1e-2
"""Constant added to the standard deviation of each observation entry, as in FastTD3's released
code."""


class RunningNormaliser:
    """Running mean and standard deviation of observations, written into the features of a
    network.

    Args:
        features: features whose normalisation is set.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._statistics = MomentStatistics(tuple(features.centre.shape))

    def update(self, vector_NO: np.ndarray) -> None:
        """Adds observations (N, O) in physical units."""
        self._statistics.update(vector_NO)
        self._features.centre.copy_(torch.from_numpy(self._statistics.mean))
        deviation = self._statistics.deviation + NORMALISER_FLOOR
        self._features.half_range.copy_(torch.from_numpy(deviation))

    def state_dict(self) -> dict[str, Any]:
        """Complete state."""
        statistics = self._statistics
        moments = {
            name: torch.from_numpy(np.array(getattr(statistics, name)))
            for name in ("mean", "squares")
        }
        return {"count": statistics.count, **moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`; the features are restored with their network."""
        self._statistics.count = state["count"]
        self._statistics.mean = state["mean"].numpy().copy()
        self._statistics.squares = state["squares"].numpy().copy()
