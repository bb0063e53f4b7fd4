"""Options of CQN-AS. Imports no torch.

Every default names its source: [C] is the released code of CQN-AS (arXiv 2411.12155) for RLBench,
on a GPU.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field

from policies.networks.coarse_to_fine.config import CoarseToFineConfig
from robots.config import Count, Finite, LearningRate, NonNegative, Positive, config


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
