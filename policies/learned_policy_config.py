"""Configurations of policies that reinforcement learners save. Imports no torch."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from policies.chunk_policy_config import ChunkPolicyConfig
from policies.networks.coarse_to_fine.config import CoarseToFineConfig
from policies.networks.config import PictureFeaturesConfig, TrunkConfig
from robots.config import Count, Finite, Positive, config
from robots.wire.actor_card import ActorCard


@config
class LearnedActorConfig(ChunkPolicyConfig):
    """The actor of an off-policy learner, acting by its mode. It is not pretrained but published by
    `policies.rl.hil.learner`."""

    pretrained: ClassVar[bool] = False
    """Always False: the actor is not trained from demonstrations."""

    kind: Literal["actor"] = "actor"
    anchor_field: str | None = None
    """Always None: the actions are absolute."""
    horizon: Count = 1
    """Actions predicted per inference: always 1."""
    n_action_steps: Count = 1
    """Actions executed per inference."""
    card: ActorCard
    """Architecture of the actor's networks. With a gripper critic, `observation_fields` must
    contain `width_target`, because the command to hold repeats that opening."""
    trunk: TrunkConfig | None = None
    """Frozen trunk whose maps of the pictures of `image_fields` a trained read-out encodes; None
    without one, where the pictures are seen as `image_features`."""
    gripper_width_max: Positive = 0.08
    """Largest opening of the gripper [m]; used only with a gripper critic."""
    image_features: PictureFeaturesConfig = field(default_factory=PictureFeaturesConfig)
    """Features that the actor sees of the pictures of `image_fields`, after the vector."""


@config
class CoarseToFinePolicyConfig(ChunkPolicyConfig):
    """The critic of CQN-AS, acting by the sequence of actions of highest value. It is not
    pretrained but trained by the stage `reinforce`."""

    pretrained: ClassVar[bool] = False
    """Always False: the critic is not trained from demonstrations alone."""

    kind: Literal["coarse_to_fine"] = "coarse_to_fine"
    anchor_field: str | None = None
    """Always None: the actions are absolute."""
    horizon: Count = 4
    """Steps of a sequence of actions."""
    n_action_steps: Count = 1
    """Actions executed per sequence where sequences are not averaged."""
    critic: CoarseToFineConfig = field(default_factory=CoarseToFineConfig)
    """The critic."""
    temporal_ensemble: Finite = 0.01
    """Coefficient of temporal ensembling; see `ActConfig.temporal_ensemble`."""
    image_features: PictureFeaturesConfig = field(default_factory=PictureFeaturesConfig)
    """Features that the critic sees of the pictures of `image_fields`, after the vector."""

    @property
    def ensemble(self) -> float | None:
        """See `ChunkPolicyConfig.ensemble`."""
        return self.temporal_ensemble
