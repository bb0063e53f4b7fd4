"""Options of CQN-AS. Imports no torch.

Every default names its source: [C] is the released code of CQN-AS (arXiv 2411.12155) for RLBench,
on a GPU.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field

from robots.config import Count, Finite, LearningRate, NonNegative, Positive, config
from robots.errors import HandoffError


@config
class CoarseToFineConfig:
    """Critic of CQN-AS: value distributions of the bins of every action entry, for every step of a
    sequence and every level of refinement."""

    levels: Annotated[int, Field(ge=1, le=16)] = 3
    """Levels of refinement L [C]; an action is known to 2 / bins^L."""
    bins: Annotated[int, Field(ge=2, le=1000)] = 5
    """Bins per level into which the interval that the level before chose is divided [C]."""
    atoms: Annotated[int, Field(ge=2, le=10_000)] = 51
    """Atoms of a value distribution [C]."""
    low: Finite = -2.0
    """Lowest atom of the value distributions; returns below it count as it [C]."""
    high: Finite = 2.0
    """Highest atom of the value distributions; returns above it count as it [C]."""
    features: Count = 64
    """Features of the observation in each of the two streams, values and advantages [C]."""
    units: Count = 512
    """Units of the two hidden layers and of the recurrent layer in each stream [C]."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise HandoffError(
                f"cqn_as: atoms of the values from {self.low} to {self.high} (low, high), expected low < high."
            )


@config
class CqnAsConfig:
    """CQN-AS: a critic over sequences of actions, trained by temporal differences and, on
    demonstrations, to prefer their actions."""

    critic: CoarseToFineConfig = field(default_factory=CoarseToFineConfig)
    """The critic."""
    horizon: Count = 4
    """Steps K of a sequence of actions; 4 for RLBench, 16 for BiGym [C], 1 is CQN."""
    learning_rate: LearningRate = 5e-5
    """Learning rate (AdamW) [C]."""
    weight_decay: NonNegative = 0.1
    """Weight decay of AdamW [C]."""
    tau: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    """Share by which the target critic, which also acts, follows the critic after every
    update [C]."""
    value_weight: NonNegative = 0.1
    """Weight of the cross-entropy to the Bellman target [C]."""
    imitation_weight: NonNegative = 1.0
    """Weight of both losses on demonstrations: that the value distribution of the demonstrated bin
    dominates those of the others, and that its mean is higher by `margin` [C]."""
    margin: NonNegative = 0.01
    """Margin between the values of the demonstrated bin and of another one [C]."""
    indifference: NonNegative = 1e-4
    """Spread of the values of all bins below which one of them is drawn at random in training [C];
    the exported policy takes the first of them."""
    noise: NonNegative = 0.01
    """Standard deviation of the noise on executed actions in training [action units] [C]."""
    temporal_ensemble: Finite = 0.01
    """Coefficient m of temporal ensembling: the critic is asked at every step, and all sequences
    that contain the step are averaged with weight exp(-m * i) for the i-th oldest [C]."""
    self_imitation: bool = True
    """Whether the policy's own episodes that ended in success count as demonstrations [C]."""
    normalise: bool = True
    """Whether observations are normalised by their running mean and standard deviation, as by the
    other learners here; the released code does not normalise [C]."""
    max_grad_norm: Positive | None = None
    """Maximum gradient norm; None does not clip [C]."""
