"""Options of MR.Q. Imports no torch.

Every default names its source: [C] is the released code of MR.Q (arXiv 2501.16142), for one
environment on a GPU.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field

from policies.rl.off_policy.fast_td3_config import PerEnvNoiseConfig
from policies.rl.replay.config import LapConfig
from robots.config import Count, LearningRate, NonNegative, Positive, config
from robots.errors import HandoffError

SymlogReward = Annotated[float, Field(ge=-80.0, le=80.0)]
"""Symlog of a reward, which single precision can represent."""


@config
class MrqEncoderConfig:
    """Encoders of states and of pairs of state and action, and the losses that train them."""

    state_size: Count = 512
    """Entries S of a state's embedding [C]."""
    action_size: Count = 256
    """Entries of an action's embedding [C]."""
    pair_size: Count = 512
    """Entries P of the embedding of a pair of state and action [C]."""
    units: Count = 512
    """Units of the two hidden layers of each encoder [C]."""
    learning_rate: LearningRate = 1e-4
    """Learning rate of the encoders (AdamW) [C]."""
    weight_decay: NonNegative = 1e-4
    """Weight decay of AdamW for the encoders [C]."""
    horizon: Count = 5
    """Steps H over which the embeddings are unrolled [C]."""
    dynamics_weight: NonNegative = 1.0
    """Weight of the squared error of predicted embeddings [C]."""
    reward_weight: NonNegative = 0.1
    """Weight of the cross-entropy of predicted rewards [C]."""
    terminal_weight: NonNegative = 0.1
    """Weight of the squared error of predicted terminations, which counts once a task has
    terminated [C]."""
    bins: Annotated[int, Field(ge=2, le=10_000)] = 65
    """Atoms K of the reward distribution [C]."""
    low: SymlogReward = -10.0
    """Symlog of the lowest atom of the reward distribution [C]."""
    high: SymlogReward = 10.0
    """Symlog of the highest atom of the reward distribution [C]."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise HandoffError(
                f"mrq: atoms of the reward from {self.low} to {self.high} (low, high), expected low < high."
            )


@config
class MrqConfig:
    """MR.Q: TD3 on embeddings that are trained to predict embeddings, rewards and terminations."""

    encoder: MrqEncoderConfig = field(default_factory=MrqEncoderConfig)
    """Encoders and their losses."""
    value_units: Count = 512
    """Units of the three hidden layers of both value networks [C]."""
    value_learning_rate: LearningRate = 3e-4
    """Learning rate of the value networks (AdamW) [C]."""
    value_weight_decay: NonNegative = 1e-4
    """Weight decay of AdamW for the value networks [C]."""
    value_max_grad_norm: Positive | None = 20.0
    """Maximum gradient norm of the value networks [C]; None does not clip."""
    policy_units: Count = 512
    """Units of the two hidden layers of the policy [C]."""
    policy_learning_rate: LearningRate = 3e-4
    """Learning rate of the policy (AdamW) [C]."""
    policy_weight_decay: NonNegative = 1e-4
    """Weight decay of AdamW for the policy [C]."""
    pre_activation_weight: NonNegative = 1e-5
    """Weight of the squared outputs of the policy before tanh in its loss [C]."""
    target_every: Count = 250
    """Updates between two synchronisations of the target networks, each followed by as many updates
    of the encoders [C]."""
    target_noise: NonNegative = 0.2
    """Standard deviation of the noise on the target action [action units] [C]."""
    target_noise_clip: NonNegative = 0.3
    """Clip range of the target noise [action units] [C]."""
    priorities: LapConfig = LapConfig()
    """Prioritised sampling of transitions and of the beginnings of unrolls [C]."""
    noise: PerEnvNoiseConfig = PerEnvNoiseConfig(spread="linear", low=0.2, high=0.2)
    """Exploration noise per environment; the same standard deviation of .2 in all [C]."""
    normalise: bool = True
    """Whether observations are normalised by their running mean and standard deviation, as by the
    other learners here; the released code does not normalise [C]."""
