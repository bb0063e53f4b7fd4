"""Options of the critic of CQN-AS, which is learned with its policy and saved as one. Imports no
torch.

The defaults are those of the released code of CQN-AS (arXiv 2411.12155) for RLBench.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from robots.config import Count, Finite, config
from robots.errors import HandoffError


@config
class CoarseToFineConfig:
    """Critic of CQN-AS: value distributions of the bins of every action entry, for every step of a
    sequence and every level of refinement."""

    levels: Annotated[int, Field(ge=1, le=16)] = 3
    """Levels of refinement L; an action is known to 2 / bins^L."""
    bins: Annotated[int, Field(ge=2, le=1000)] = 5
    """Bins per level into which the interval that the level before chose is divided."""
    atoms: Annotated[int, Field(ge=2, le=10_000)] = 51
    """Atoms of a value distribution."""
    low: Finite = -2.0
    """Lowest atom of the value distributions; returns below it count as it."""
    high: Finite = 2.0
    """Highest atom of the value distributions; returns above it count as it."""
    features: Count = 64
    """Features of the observation in each of the two streams, values and advantages."""
    units: Count = 512
    """Units of the two hidden layers and of the recurrent layer in each stream."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise HandoffError(
                f"cqn_as: atoms of the values from {self.low} to {self.high} (low, high), expected low < high."
            )
