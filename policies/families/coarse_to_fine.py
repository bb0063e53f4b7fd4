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
from policies.networks.coarse_to_fine.bins import decode
from policies.networks.coarse_to_fine.critic import CoarseToFineCritic, highest
from policies.networks.images.picture_features import PictureFeatures
from policies.policy import Batch, ChunkPolicy, ObservationTensors
from policies.policy_config import CoarseToFinePolicyConfig
from robots.errors import HandoffError


class CoarseToFinePolicy(ChunkPolicy):
    """Implements `ChunkPolicy` for a critic over sequences of actions."""

    centre: Tensor
    half_range: Tensor

    def __init__(self, config: CoarseToFinePolicyConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        self.config = config
        cameras = {name: shapes.sensors[name] for name in config.image_fields}
        self.pictures = PictureFeatures(config.image_features, cameras) if cameras else None
        """Averaged features of the pictures; None without cameras."""
        entries = shapes.observation + (0 if self.pictures is None else self.pictures.size)
        self.entries = entries
        self.register_buffer("centre", torch.zeros(entries))
        self.register_buffer("half_range", torch.ones(entries))
        self.critic = CoarseToFineCritic(config.critic, entries, config.horizon, shapes.action)

    @property
    def encoded_shape(self) -> tuple[int, int]:
        """See `ChunkPolicy.encoded_shape`."""
        return self.observation_shape[0], self.entries

    def encode(self, obs: ObservationTensors) -> Tensor:
        """See `ChunkPolicy.encode`."""
        if self.pictures is None or not obs.sensors:
            return obs.vector_BTO
        return torch.cat([obs.vector_BTO, self.pictures(obs.sensors)], dim=-1)

    def sample(self, obs: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Actions (B, H, A) in [-1, 1]; the noise is ignored."""
        input_BF = (self.encode(obs)[:, -1] - self.centre) / self.half_range
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
        weights: normalisation and target critic of the learner; see `CqnAs.acting_weights`.

    Raises:
        HandoffError: a full disk.
    """
    assert isinstance(card.model, CoarseToFinePolicyConfig)
    policy = CoarseToFinePolicy(card.model, card.shapes)
    if policy.pictures is not None:
        policy.pictures.load_pretrained()
    policy.load_state_dict(policy.state_dict() | dict(weights))
    save_policy(path, card, policy.state_dict())
