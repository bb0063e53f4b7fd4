"""Defines the networks of SAC: critics, actor, temperature, optional gripper critic and encoder."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import torch
from torch import nn

from policies.rl.networks.ensemble import EnsembleMlp, Features, move_towards
from policies.rl.networks.image_encoder import Encoder
from policies.rl.off_policy.config import SacConfig
from policies.rl.off_policy.tanh_gaussian import TanhGaussian
from policies.rl.replay.transitions import Sizes


class SacNetworks(nn.Module):
    """All networks of a SAC learner with their target networks. With images or their feature maps,
    `features` is an `Encoder`."""

    def __init__(
        self, config: SacConfig, sizes: Sizes, backbones: Mapping[str, nn.Module] | None = None
    ) -> None:
        super().__init__()
        self.features: Features = Features(sizes)
        self.features_target: Features | None = None
        if sizes.pictures or sizes.maps:
            self.features = Encoder(config.encoder, sizes, backbones)
            self.features_target = deepcopy(self.features).requires_grad_(False)
        continuous = sizes.action - (config.gripper is not None)
        self.critic = EnsembleMlp(config.critics, self.features.size + continuous, config.critic, 1)
        self.critic_target = deepcopy(self.critic).requires_grad_(False)
        self.actor = TanhGaussian(self.features.size, continuous, config)
        self.log_temperature = nn.Parameter(torch.tensor(float(np.log(config.init_temperature))))
        self.gripper: EnsembleMlp | None = None
        self.gripper_target: EnsembleMlp | None = None
        if config.gripper is not None:
            self.gripper = EnsembleMlp(1, self.features.size, config.gripper.network, 3)
            self.gripper_target = deepcopy(self.gripper).requires_grad_(False)
        self.actor_mean: TanhGaussian | None = None
        self.gripper_mean: EnsembleMlp | None = None
        if config.actor_ema is not None:
            self.actor_mean = deepcopy(self.actor).requires_grad_(False)
            self.gripper_mean = (
                None if self.gripper is None else deepcopy(self.gripper).requires_grad_(False)
            )

    def acting(self) -> tuple[TanhGaussian, EnsembleMlp | None]:
        """Actor and gripper critic that the policy acts with: the averages if there are any."""
        return (
            (self.actor, self.gripper)
            if self.actor_mean is None
            else (self.actor_mean, self.gripper_mean)
        )

    def update_ema(self, step: float) -> None:
        """Moves the weight averages, if there are any, by the fraction `step` towards the current
        weights."""
        for mean, current in ((self.actor_mean, self.actor), (self.gripper_mean, self.gripper)):
            if mean is not None and current is not None:
                move_towards(mean, current, step)
