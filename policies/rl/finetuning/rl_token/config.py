"""Options of fine-tuning by RL tokens; imports no torch.

Every default names its source: [P] is the paper (Xu et al., "RL Token: Bootstrapping Online RL with
Vision-Language-Action Models", arXiv 2604.23073), whose authors published no code; the others are
ours.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from policies.networks.config import TokenEncoderConfig
from policies.rl.finetuning.base import FrozenPolicyConfig
from policies.rl.networks.config import MlpSizes
from policies.training.config import TrainingConfig
from robots.config import (
    Count,
    LearningRate,
    NonNegative,
    Positive,
    PositiveShare,
    Repetitions,
    Share,
    config,
)
from robots.errors import HandoffError


@config
class TokenTrainingConfig:
    """Options of the RL token, which is learned before the first rollout and then stays; see
    `policies.rl.finetuning.rl_token.token_training`."""

    width: Count = 32
    """Entries of the token, even; 2048 for a model of that width [P]."""
    heads: Count = 4
    """Attention heads of the encoder; divides `width`."""
    layers: Count = 1
    """Transformer layers of the encoder."""
    decisions: Repetitions = 20
    """Decisions per environment of the frozen policy at the start, whose states train the token;
    the paper takes demonstrations [P]. Feature tokens are held in memory, in half precision."""
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=2000, learning_rate=1e-3, batch_size=128)
    )
    """Training of encoder and decoder."""

    def __post_init__(self) -> None:
        self.encoder(1)

    def encoder(self, features: int) -> TokenEncoderConfig:
        """Sizes of the encoder of feature tokens with so many entries.

        Raises:
            HandoffError: a width that is odd or no multiple of `heads`.
        """
        if self.width % 2:
            raise HandoffError(f"rl token: width is {self.width}, expected an even number.")
        return TokenEncoderConfig(
            features=features, width=self.width, heads=self.heads, layers=self.layers
        )


@config
class RlTokenFinetuneConfig(FrozenPolicyConfig):
    """Options of RL tokens (arXiv 2604.23073): the policy stays as it is, and a small off-policy
    actor refines its chunks, from a token of its features; see
    `policies.rl.finetuning.rl_token.finetuning`."""

    learns_beside: ClassVar[str | None] = "refines the sampled chunks"
    """Always the same: the actor's part."""

    kind: Literal["rl_token"] = "rl_token"
    token: TokenTrainingConfig = field(default_factory=TokenTrainingConfig)
    """Size and training of the RL token."""
    limit: Positive = 0.5
    """Bound on every entry of an edit [normalised units], in which the demonstrated chunks have a
    standard deviation of 1/2. The paper's actor is not bounded, but for `bc_weight`."""
    bc_weight: NonNegative = 1.0
    """Weight of the mean squared distance between the refined chunk and the reference in the loss
    of the actor, in units of the return per squared normalised unit."""
    dropout: Share = 0.5
    """Share of the rows of a minibatch in which the actor does not see the reference [P], so that
    it learns from token and state what to do. In acting it always sees it."""
    noise: Positive = 0.1
    """Standard deviation of the exploration noise of every entry of a chunk [normalised units];
    also that of the next chunk in the Bellman target."""
    shared_noise: Share = 0.5
    """Share of the variance of that noise which all actions of a chunk have in common, so that they
    do not cancel one another; 0 draws every action's noise by itself [P]."""
    critics: Count = 2
    """Critics in the ensemble, over which target and actor take the minimum [P]."""
    critic: MlpSizes = MlpSizes(hidden=(256, 256), activation="relu")
    """Layers of a critic: two of 256 units [P]; LayerNorm is ours."""
    actor: MlpSizes = MlpSizes(hidden=(256, 256), activation="relu")
    """Layers of the actor: two of 256 units [P]; LayerNorm is ours."""
    learning_rate: LearningRate = 3e-4
    """Learning rate of critics and actor."""
    tau: PositiveShare = 0.005
    """Polyak coefficient of the target critics per critic step."""
    batch_size: Count = 256
    """Transitions per critic step."""
    minibatches: Count = 2
    """Critic steps per update, each on a minibatch of its own, before one step of the actor [P]."""
