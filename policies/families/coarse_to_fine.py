"""Wraps the critic of CQN-AS as a `ChunkPolicy`, so that it can be evaluated, served and exported
like any other policy.

It predicts the sequence of actions of highest value to the target critic, which acted in training;
the noise is ignored. Normalisation is that of the learner, so the normalisers of `ChunkPolicy` stay
the identity. Pictures are features of a frozen network, which the policy computes itself.

Shape suffixes: B batch, T observed steps, O observation, F features, H horizon, A action.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from policies.card import PolicyCard, Shapes
from policies.checkpoint import save_policy
from policies.networks.images.picture_features import PictureFeatures
from policies.policy import Batch, ChunkPolicy, ObservationTensors
from policies.policy_config import CoarseToFinePolicyConfig
from policies.rl.coarse_to_fine.bins import decode
from policies.rl.coarse_to_fine.networks import CoarseToFineCritic, highest
from policies.rl.networks.ensemble import Features
from policies.rl.replay.transitions import Sizes
from robots.errors import HandoffError


class CoarseToFinePolicy(ChunkPolicy):
    """Implements `ChunkPolicy` for a critic over sequences of actions."""

    def __init__(self, config: CoarseToFinePolicyConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        self.config = config
        cameras = {name: shapes.sensors[name] for name in config.image_fields}
        self.pictures = PictureFeatures(config.image_features, cameras) if cameras else None
        """Averaged features of the pictures; None without cameras."""
        entries = shapes.observation + (0 if self.pictures is None else self.pictures.size)
        self.features = Features(Sizes(observation=entries, action=shapes.action))
        self.critic = CoarseToFineCritic(
            config.critic, self.features.size, config.horizon, shapes.action
        )

    @property
    def encoded_shape(self) -> tuple[int, int]:
        """See `ChunkPolicy.encoded_shape`."""
        return self.observation_shape[0], self.features.size

    def encode(self, obs: ObservationTensors) -> Tensor:
        """See `ChunkPolicy.encode`."""
        if self.pictures is None or not obs.sensors:
            return obs.vector_BTO
        return torch.cat([obs.vector_BTO, self.pictures(obs.sensors)], dim=-1)

    def sample(self, obs: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Actions (B, H, A) in [-1, 1]; the noise is ignored."""
        input_BF = self.features(self.encode(obs)[:, -1])
        return decode(self.critic.best(input_BF, highest), self.config.critic.bins)

    def loss(self, batch: Batch, generator: np.random.Generator) -> Tensor:
        """Not available.

        Raises:
            HandoffError: always.
        """
        raise HandoffError(
            "coarse_to_fine: it is not pretrained from demonstrations. Train it with the stage `reinforce` and the "
            "algorithm cqn_as."
        )


def save_critic(path: Path, card: PolicyCard, weights: Mapping[str, Tensor]) -> None:
    """Writes a learner's critic into the directory `path` as a saved policy.

    Args:
        path: existing directory.
        card: card whose model is a `CoarseToFinePolicyConfig`.
        weights: features and target critic of the learner.

    Raises:
        HandoffError: a full disk.
    """
    assert isinstance(card.model, CoarseToFinePolicyConfig)
    policy = CoarseToFinePolicy(card.model, card.shapes)
    if policy.pictures is not None:
        policy.pictures.load_pretrained()
    policy.load_state_dict(policy.state_dict() | dict(weights))
    save_policy(path, card, policy.state_dict())
