"""Wraps the actor of an off-policy learner as a `ChunkPolicy`, so that it can be evaluated, served
and exported like any other policy.

Pictures are features of a frozen network, which the policy computes itself: it takes pictures, not
features, also when it is exported.

It predicts one deterministic action: the mean brought into [-1, 1] by tanh or by a clip, and with a
separate gripper critic the command of highest value, written as the environment's action entry
(`robots.control.gripper_commands`). The noise is ignored. Normalisation is that of the learner, so
the normaliser of observations stays the identity, and that of actions has the bounds of the
environment's actions.

Pictures go through the learner's frozen trunk, which is a part of the policy: it reads pictures,
not feature maps, so the exported graph does too.

Shape suffixes: B batch, T observed steps, O observation, F features, H horizon (1), A action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from policies.card import PolicyCard, Shapes
from policies.checkpoint import save_policy
from policies.networks.images.efficientnet_lite import EfficientNetLite0, pretrained_trunk
from policies.networks.images.image_encoder import SpatialEmbeddings
from policies.networks.images.picture_features import PictureFeatures
from policies.networks.mlp import NORM_EPSILON, new_mlp
from policies.policy import Batch, ChunkPolicy, ObservationTensors
from policies.policy_config import LearnedActorConfig
from policies.rl.networks.ensemble import network_features
from robots.errors import HandoffError
from robots.wire.learner import Parameters

WIDTH_TARGET = "width_target"


class LearnedActor(ChunkPolicy):
    """Implements `ChunkPolicy` for an actor whose architecture is given by its configuration.

    Raises:
        HandoffError: a horizon other than 1, observations or actions of another size, or a gripper
            critic without `width_target` among the observation fields.
    """

    centre: Tensor
    half_range: Tensor

    def __init__(self, config: LearnedActorConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        card = config.card
        cameras = {name: shapes.sensors[name] for name in config.image_fields}
        averaged = bool(cameras) and config.trunk is None and not card.maps
        pictures = PictureFeatures(config.image_features, cameras) if averaged else None
        entries = shapes.observation + (0 if pictures is None else pictures.size)
        if (card.observation, card.action) != (entries, shapes.action) or config.horizon != 1:
            raise HandoffError(
                f"learned actor: expected {card.observation} observation entries, {card.action} action entries and "
                f"horizon 1, got {entries}, {shapes.action} and {config.horizon}. Another task?"
            )
        if card.hand is not None and WIDTH_TARGET not in shapes.entries:
            raise HandoffError(
                f"learned actor: it commands a gripper, so it must observe '{WIDTH_TARGET}'; it observes "
                f"{sorted(shapes.entries)}."
            )
        self.pictures = pictures
        """Averaged features of the pictures; None for an actor without cameras, or with a trunk
        whose maps have a trained read-out."""
        self.card = card
        self.width_max = config.gripper_width_max
        self.target_entry = shapes.entries[WIDTH_TARGET][0] if card.hand is not None else 0
        self.register_buffer("centre", torch.zeros(card.observation))
        self.register_buffer("half_range", torch.ones(card.observation))
        self.trunk: nn.Module | None = None
        if card.maps:
            self._add_encoders(config, shapes)
        self.actor = new_mlp(card.actor)
        self.hand = None if card.hand is None else new_mlp(card.hand)

    @property
    def encoded_shape(self) -> tuple[int, int]:
        """See `ChunkPolicy.encoded_shape`."""
        return self.observation_shape[0], self.card.observation

    def encode(self, obs: ObservationTensors) -> Tensor:
        """See `ChunkPolicy.encode`."""
        if self.pictures is None or not obs.sensors:
            return obs.vector_BTO
        return torch.cat([obs.vector_BTO, self.pictures(obs.sensors)], dim=-1)

    def sample(self, obs: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Actions (B, 1, A) in the environment's units; the noise is ignored."""
        vector_BO = self.encode(obs)[:, -1]
        features_BF = self._features(vector_BO)
        if self.trunk is not None:
            features_BF = self._encoded(features_BF, obs.sensors)
        continuous = self.card.action - (self.hand is not None)
        mean_BA = self.actor(features_BF)[:, :continuous]
        action_BA = torch.tanh(mean_BA) if self.card.bound == "tanh" else mean_BA.clamp(-1.0, 1.0)
        if self.hand is not None:
            command_B = self.hand(features_BF).argmax(dim=1) - 1
            target_B = vector_BO[:, self.target_entry]
            hold_B = (2.0 * target_B / self.width_max - 1.0).clamp(-1.0, 1.0)
            gripper_B = torch.where(command_B == 0, hold_B, command_B.to(hold_B.dtype))
            action_BA = torch.cat([action_BA, gripper_B[:, None]], dim=1)
        return action_BA[:, None]

    def loss(self, batch: Batch, generator: np.random.Generator) -> Tensor:
        """Not available.

        Raises:
            HandoffError: always.
        """
        raise HandoffError(
            "learned actor: it is not pretrained from demonstrations. Train it with the stage `correct` or `reinforce`."
        )

    def _add_encoders(self, config: LearnedActorConfig, shapes: Shapes) -> None:
        """Adds the trunk, and the encoders of its maps and of the vector.

        Raises:
            HandoffError: no trunk, or pictures of other fields or another size than the maps'.
        """
        card = self.card
        expected = {
            camera.field: (camera.channels, camera.rows, camera.columns) for camera in card.maps
        }
        if config.trunk is None or set(expected) != set(shapes.sensors):
            raise HandoffError(
                f"learned actor: it reads feature maps of {sorted(expected)}, expected a trunk and these pictures; the "
                f"trunk is {config.trunk}, the pictures are {sorted(shapes.sensors)}."
            )
        trunk = EfficientNetLite0(config.trunk.stride)
        for name, (height, width, _) in shapes.sensors.items():
            size = tuple(-(-side // config.trunk.stride) for side in (height, width))
            if (trunk.channels, *size) != expected[name]:
                raise HandoffError(
                    f"learned actor: pictures of {name} make maps of {(trunk.channels, *size)}, expected "
                    f"{expected[name]}. Another camera?"
                )
        self.trunk = trunk.requires_grad_(False).eval()
        self.maps = nn.ModuleList(
            nn.ModuleDict(
                {
                    "sums": SpatialEmbeddings(
                        camera.embeddings, camera.channels, camera.rows, camera.columns
                    ),
                    "reduce": _reduction(camera.embeddings * camera.channels, camera.width),
                }
            )
            for camera in card.maps
        )
        vector = card.observation + sum(
            count for _, _, count, _ in (*card.relative_features, *card.scaled_features)
        )
        self.vector = _reduction(vector, card.vector_width)

    def _encoded(self, features_BF: Tensor, sensors: Mapping[str, Tensor]) -> Tensor:
        """(B, F) features of the cameras in order, then of the vector."""
        assert self.trunk is not None
        parts = []
        for camera, encoder in zip(self.card.maps, self.maps, strict=True):
            assert isinstance(encoder, nn.ModuleDict)
            picture_BCHW = sensors[camera.field][:, -1].permute(0, 3, 1, 2).float() / 255.0
            parts.append(encoder["reduce"](encoder["sums"](self.trunk(picture_BCHW))))
        return torch.cat([*parts, self.vector(features_BF)], dim=1)

    def _features(self, vector_BO: Tensor) -> Tensor:
        normalised_BO = (vector_BO - self.centre) / self.half_range
        return network_features(
            vector_BO, normalised_BO, self.card.relative_features, self.card.scaled_features
        )


def weights_of(parameters: Parameters) -> dict[str, Tensor]:
    """State dictionary of a `LearnedActor` from published parameters."""
    card, arrays = parameters.card, parameters.arrays
    state = {name: torch.from_numpy(arrays[name]) for name in ("centre", "half_range")}
    for part, network in (("actor", card.actor), ("hand", card.hand)):
        if network is None:
            continue
        index = 0
        for layer in range(len(network.layers) - 1):
            state[f"{part}.{index}.weight"] = torch.from_numpy(
                arrays[f"{part}.{layer}.weight"]
            ).T.contiguous()
            state[f"{part}.{index}.bias"] = torch.from_numpy(arrays[f"{part}.{layer}.bias"])
            if network.layer_norm and layer < len(network.layers) - 2:
                state[f"{part}.{index + 1}.weight"] = torch.from_numpy(
                    arrays[f"{part}.{layer}.gain"]
                )
                state[f"{part}.{index + 1}.bias"] = torch.from_numpy(
                    arrays[f"{part}.{layer}.shift"]
                )
            index += 3 if network.layer_norm else 2
    reductions = {"vector": "vector"} if card.maps else {}
    for index in range(len(card.maps)):
        state[f"maps.{index}.sums.place_ECHW"] = torch.from_numpy(arrays[f"map.{index}.place"])
        reductions[f"map.{index}"] = f"maps.{index}.reduce"
    for name, module in reductions.items():
        state[f"{module}.0.weight"] = torch.from_numpy(arrays[f"{name}.weight"]).T.contiguous()
        state[f"{module}.0.bias"] = torch.from_numpy(arrays[f"{name}.bias"])
        state[f"{module}.1.weight"] = torch.from_numpy(arrays[f"{name}.gain"])
        state[f"{module}.1.bias"] = torch.from_numpy(arrays[f"{name}.shift"])
    return state


def save_actor(
    path: Path,
    card: PolicyCard,
    parameters: Parameters,
    bounds: tuple[Sequence[float], Sequence[float]] | None = None,
) -> None:
    """Writes published parameters into the directory `path` as a saved policy, for
    `handoff evaluate` and export.

    Args:
        path: existing directory.
        card: card whose model is a `LearnedActorConfig` of the same architecture.
        parameters: published parameters.
        bounds: (A,) lower and upper bounds of the environment's actions, to which the actor's -1
            and 1 are mapped; None if they are the same.

    Raises:
        HandoffError: card and parameters disagree, or a full disk.
    """
    if not isinstance(card.model, LearnedActorConfig) or card.model.card != parameters.card:
        raise HandoffError(
            f"{path}: the card describes another network than the published one. Was its task changed?"
        )
    actor = LearnedActor(card.model, card.shapes)
    if actor.pictures is not None:
        actor.pictures.load_pretrained()
    if card.model.trunk is not None:
        assert actor.trunk is not None
        actor.trunk.load_state_dict(pretrained_trunk(card.model.trunk.stride).state_dict())
    # The normalisers of `ChunkPolicy` are not published: that of observations stays the identity.
    actor.load_state_dict(actor.state_dict() | weights_of(parameters))
    if bounds is not None:
        low, high = (torch.tensor(bound) for bound in bounds)
        actor.normalize_action.centre.copy_((low + high) / 2)
        actor.normalize_action.scale.copy_((high - low) / 2)
    save_policy(path, card, actor.state_dict())


def _reduction(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.LayerNorm(width, eps=NORM_EPSILON), nn.Tanh())
