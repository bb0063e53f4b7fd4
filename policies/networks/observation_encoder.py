"""Encodes images, point clouds and instructions and concatenates them with the observation vector.

A frozen trunk of image encoders is shared by all cameras; its feature maps, computed beforehand,
can be given in place of the images.

Every entry of a point is mapped to [-1, 1] by the range of the demonstrations, as in the released
3D Diffusion Policy (Ze et al., RSS 2024); the paper does not specify it. Images need no statistics.
An instruction scales and shifts features of the observation, as FiLM does (Perez et al., AAAI 2018)
and with it BC-Z (Jang et al., CoRL 2021): which observed object an instruction means is a product
of the two, and a network that is given them side by side learns products slowly.

Shape suffixes: B batch, T observed steps, O observation, F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from policies.augmentation.config import ImageAugmentationConfig
from policies.augmentation.images import draw_augmentation
from policies.card import Shapes
from policies.chunk_policy_config import EncodedPolicyConfig, InstructedPolicyConfig
from policies.language.instruction_features import InstructionFeatures
from policies.language.sentence_encoder import SentenceEncoder
from policies.networks.config import (
    CnnEncoderConfig,
    FolderEncoderConfig,
    FrozenEncoderConfig,
    ImageEncoderConfig,
    ResnetEncoderConfig,
    TrainedEncoderConfig,
)
from policies.networks.field_estimator import FieldEstimator
from policies.networks.field_modules import FieldModules
from policies.networks.images.efficientnet_lite import EfficientNetLite0, pretrained_weights
from policies.networks.images.folder_trunk import FolderTrunk
from policies.networks.images.image_encoder import (
    ImageEncoder,
    MapReadOut,
    cropped_images,
    random_corners,
)
from policies.networks.images.image_model import ImageModel, read_image_model
from policies.networks.images.image_size import EncodedSize, encoded_size
from policies.networks.memory import WindowMemory
from policies.networks.point_encoder import PointCloudEncoder
from policies.normalize import MinMaxNormalizer, MinMaxStatistics
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.policy import ObservationTensors


class ObservationEncoder(nn.Module):
    """One encoder per camera and per point cloud, and one of the instruction; without them it
    returns the vector unchanged.

    Args:
        config: sensors and the sizes of their encoders.
        shapes: shapes of the sensors' data.
        sentences: sentence encoder of a policy with `language`.
        image_model: description of the image model of an encoder of the kind `folder`; None reads
            it from the configured folder.

    Raises:
        HandoffError: a sensor without data, images smaller than the crop, or no sentence encoder
            for a policy with `language`.
    """

    def __init__(
        self,
        config: EncodedPolicyConfig,
        shapes: Shapes,
        sentences: SentenceEncoder | None = None,
        image_model: ImageModel | None = None,
    ) -> None:
        super().__init__()
        image, point = config.image_encoder, config.point_encoder
        missing = sorted({*config.sensor_fields} - shapes.sensors.keys())
        if missing:
            raise HandoffError(
                f"policy: no data for the sensors {missing}; the data have {sorted(shapes.sensors)}. Another task?"
            )
        self.augmentation = (
            image.augmentation
            if isinstance(image, TrainedEncoderConfig)
            else ImageAugmentationConfig()
        )
        self.sizes = {
            name: encoded_size(image, shapes.sensors[name], name) for name in config.image_fields
        }
        self.trunk = _frozen_trunk(image, image_model) if self.sizes else None
        """Shared by all cameras, in evaluation mode always; None for encoders that are trained."""
        self.images = FieldModules(
            {name: self._image_encoder(image, size) for name, size in self.sizes.items()}
        )
        self.points = FieldModules(
            {
                name: PointCloudEncoder(shapes.sensors[name][-1], point.widths, point.features)
                for name in config.point_fields
            }
        )
        self.normalize_points = FieldModules(
            {name: MinMaxNormalizer(shapes.sensors[name][-1]) for name in config.point_fields}
        )
        self.entries = shapes.observation
        """O, entries of the observation vector of one step."""
        self.features = len(self.images) * image.features + len(self.points) * point.features
        """F, number of features of the sensors and of estimated entries, which follow the
        observation vector of one step."""
        self.estimator = None
        if shapes.estimated:
            self.estimator = FieldEstimator(self.entries + self.features, shapes.estimated)
            self.features += shapes.estimated
        inputs = self.entries + self.features
        self.outputs = inputs
        """Entries of one step of the encoded observation: those of the observation, the instruction
        and the memory."""
        self.language = instruction_features(config, sentences, 2)
        self.modulated = None
        if config.language is not None and inputs:
            self.modulated = nn.Linear(inputs, config.language.features)
            self.outputs += config.language.features
        self.steps = config.n_obs_steps
        """Steps of the encoded observation: one with a memory, else T."""
        self.memory = None
        if config.memory is not None:
            self.memory = WindowMemory(config.memory, config.n_obs_steps, self.outputs)
            self.steps = 1
            self.outputs += config.memory.features

    def _image_encoder(self, config: ImageEncoderConfig, size: EncodedSize) -> nn.Module:
        if isinstance(config, ResnetEncoderConfig | CnnEncoderConfig):
            return ImageEncoder(
                size.crop,
                config.keypoints,
                config.features,
                config.channels,
                size.resized,
                config.kernel if isinstance(config, CnnEncoderConfig) else None,
            )
        assert self.trunk is not None
        return MapReadOut(self.trunk.channels, config)

    def instruction_modules(self) -> tuple[nn.Module, ...]:
        """Trained projections through which an instruction scales and shifts encoded features;
        empty for a policy without `language`."""
        return tuple(part for part in (self.language, self.modulated) if part is not None)

    def load_pretrained(self) -> None:
        """Sets the weights of a frozen trunk to the pretrained ones.

        Raises:
            HandoffError: see `FolderTrunk.load_pretrained`.
        """
        if isinstance(self.trunk, EfficientNetLite0):
            self.trunk.load(pretrained_weights())
        elif self.trunk is not None:
            self.trunk.load_pretrained()

    def maps(self, name: str, image_BTHWC: Tensor) -> Tensor:
        """Feature maps (B, T, C, rows, columns) of a camera's images by the frozen trunk.

        Args:
            name: the camera.
            image_BTHWC: uint8 RGB.
        """
        assert self.trunk is not None
        return self.trunk(self.trunk_input(name, image_BTHWC)).unflatten(0, image_BTHWC.shape[:2])

    def trunk_input(self, name: str, image_BTHWC: Tensor) -> Tensor:
        """What the frozen trunk sees of a camera's images: (B T, 3, rows, columns) in [0, 1]."""
        size = self.sizes[name]
        part_NHWC = cropped_images(image_BTHWC, size.resized, size.crop)
        return part_NHWC.permute(0, 3, 1, 2).float() / 255.0

    def fit_sensors(self, episodes: Iterable[Mapping[str, np.ndarray]]) -> None:
        """Fits the point normalisers to the range of the points, one episode after another.

        Args:
            episodes: per point cloud (steps, points, entries); other sensors are ignored.

        Raises:
            HandoffError: no data, an entry that is not finite, or a point cloud that is missing.
        """
        normalizers = {
            name: part
            for name, part in self.normalize_points.items()
            if isinstance(part, MinMaxNormalizer)
        }
        statistics = {
            name: MinMaxStatistics(len(part.centre)) for name, part in normalizers.items()
        }
        for episode in episodes if statistics else ():
            for name, point_statistics in statistics.items():
                point_statistics.update(episode[name].reshape(-1, episode[name].shape[-1]))
        for name, part in normalizers.items():
            part.fit(statistics[name])

    def forward(
        self, obs: ObservationTensors, generator: np.random.Generator | None = None
    ) -> Tensor:
        """Encoded observation (B, steps, outputs): vector, features of the sensors, with an
        instruction a projection of both that the instruction scales and shifts, and with a memory a
        summary of all steps beside the newest.

        Args:
            obs: see `ObservationTensors`; with a frozen trunk also its feature maps, (B, T, C,
                rows, columns), in place of images.
            generator: source of random crops and augmentation, and of noise on the instruction's
                embedding; None uses centre crops of the images as they are, and no noise.

        Raises:
            HandoffError: see `InstructionFeatures.forward`.
        """
        encoded_BTO = self._instructed(obs, generator)
        return encoded_BTO if self.memory is None else self.memory(encoded_BTO)

    def _instructed(self, obs: ObservationTensors, generator: np.random.Generator | None) -> Tensor:
        encoded_BTO = self.encode_sensors(obs, generator)
        if self.language is None or self.modulated is None:
            return encoded_BTO
        rows = obs.vector_BTO.shape[0]
        language_BF = self.language(obs.instructions, rows, obs.embedding_BW, generator)
        scale_B1F, shift_B1F = language_BF[:, None].chunk(2, dim=-1)
        modulated_BTF = self.modulated(encoded_BTO) * scale_B1F + shift_B1F
        return torch.cat([encoded_BTO, modulated_BTF.to(encoded_BTO.dtype)], dim=-1)

    def encode_sensors(
        self, obs: ObservationTensors, generator: np.random.Generator | None = None
    ) -> Tensor:
        """Vector, features of the sensors and estimates (B, T, O + F); those that were encoded
        before, a vector with features and without sensors, are returned as they are. For the
        arguments see `forward`."""
        if not obs.sensors and obs.vector_BTO.shape[-1] == self.entries + self.features:
            return obs.vector_BTO
        parts = [obs.vector_BTO]
        parts += [self._features(name, obs.sensors[name], generator) for name in self.images]
        for name, encoder in self.points.items():
            parts.append(encoder(self.normalize_points[name](obs.sensors[name])))
        encoded_BTF = torch.cat(parts, dim=-1) if len(parts) > 1 else obs.vector_BTO
        if self.estimator is None:
            return encoded_BTF
        return torch.cat([encoded_BTF, self.estimator(encoded_BTF)], dim=-1)

    def _features(
        self, name: str, image_BTHWC: Tensor, generator: np.random.Generator | None
    ) -> Tensor:
        """Features (B, T, F) of a camera's images, or of their feature maps by a frozen trunk."""
        encoder = self.images[name]
        if self.trunk is not None:
            computed = image_BTHWC.is_floating_point()
            return encoder(image_BTHWC if computed else self.maps(name, image_BTHWC))
        if generator is None:
            return encoder(image_BTHWC)
        crop_generator = torch.Generator().manual_seed(int(generator.integers(1 << 62)))
        resized, crop = self.sizes[name]
        corner_BT2 = random_corners(image_BTHWC.shape[:2], resized, crop, crop_generator)
        augmentation = draw_augmentation(self.augmentation, len(image_BTHWC), crop_generator)
        if augmentation is not None:
            augmentation = augmentation.to(image_BTHWC.device)
        return encoder(image_BTHWC, corner_BT2.to(image_BTHWC.device), augmentation)


def _frozen_trunk(
    config: ImageEncoderConfig, image_model: ImageModel | None
) -> EfficientNetLite0 | FolderTrunk | None:
    """An untrained trunk; None for encoders that are trained."""
    match config:
        case FrozenEncoderConfig():
            return EfficientNetLite0(config.stride).requires_grad_(False)
        case FolderEncoderConfig():
            return FolderTrunk(image_model or read_image_model(Path(config.folder)))
        case _:
            return None


def instruction_features(
    config: InstructedPolicyConfig, sentences: SentenceEncoder | None, times: int = 1
) -> InstructionFeatures | None:
    """The untrained projection of the instruction to `times` the configured number of features;
    None for a policy without `language`.

    Raises:
        HandoffError: a policy with `language` without its sentence encoder.
    """
    if config.language is None:
        return None
    if sentences is None:
        raise HandoffError(
            "policy: language is set, but the family was given no sentence encoder. Does its class take one?"
        )
    features = times * config.language.features
    return InstructionFeatures(
        sentences, features, config.default_instruction, config.language.noise
    )
