"""Reads and checks the weights of a store's episodes, which say how often a training draws them.

The weight of an episode is the entry `weight` of its metadata: a number from 0 to 1e12, and 1
where it is not stated. Only ratios within one store matter: a window of an episode of weight 2 is
drawn twice as often as one of weight 1. `robots.episodes.curation.weighting` computes weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robots.config import LARGEST
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError

WEIGHT = "weight"
"""Entry of the metadata."""
MOST_WEIGHTS = 1000
"""Largest number of different weights above 0 in a store: each has a data order of its own."""


def episode_weight(metadata: Mapping[str, Any]) -> float | None:
    """Weight of an episode, 1 where none is stated; None if it is no number of 0 to `LARGEST`."""
    weight = metadata.get(WEIGHT, 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        return None
    return float(weight) if 0 <= weight <= LARGEST else None


def store_weights(name: str, store: EpisodeStore) -> np.ndarray:
    """(E,) float64 weights of the episodes of a store.

    Args:
        name: name of the store in messages.
        store: the episodes.

    Raises:
        HandoffError: a weight is no number of 0 to `LARGEST`, all are 0, or there are more than
            `MOST_WEIGHTS` different ones.
    """
    weights = np.ones(store.num_episodes)
    for number in range(store.num_episodes):
        metadata = store.metadata(number)
        weight = episode_weight(metadata)
        if weight is None:
            raise HandoffError(
                f"{name}: weight of episode {number} is {metadata[WEIGHT]!r}, expected a number of 0 to {LARGEST:.0e}. "
                "Was it written by hand?"
            )
        weights[number] = weight
    check_weights(name, weights)
    return weights


def check_weights(name: str, weights_E: np.ndarray) -> None:
    """Checks that a training can draw episodes by their weights.

    Raises:
        HandoffError: all are 0, or there are more than `MOST_WEIGHTS` different ones.
    """
    distinct = len(np.unique(weights_E[weights_E > 0]))
    if len(weights_E) and not distinct:
        raise HandoffError(
            f"{name}: all {len(weights_E)} episodes have the weight 0, expected at least one above 0."
        )
    if distinct > MOST_WEIGHTS:
        raise HandoffError(
            f"{name}: {distinct} different weights of episodes, at most {MOST_WEIGHTS}. Round them, as "
            "`handoff episodes weights` does."
        )
