"""Encodes images and point clouds and concatenates them with the observation vector.

Every entry of a point is mapped to [-1, 1] by the range of the demonstrations, as in the released
3D Diffusion Policy (Ze et al., RSS 2024); the paper does not specify it. Images need no statistics.

Shape suffixes: B batch, T observed steps, O observation, F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from policies.augmentation.images import draw_augmentation
from policies.card import Shapes
from policies.chunk_policy_config import EncodedPolicyConfig
from policies.networks.field_modules import FieldModules
from policies.networks.image_encoder import ImageEncoder, random_corners
from policies.networks.image_size import encoded_size
from policies.networks.point_encoder import PointCloudEncoder
from policies.normalize import MinMaxNormalizer, MinMaxStatistics
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.policy import ObservationTensors


class ObservationEncoder(nn.Module):
    """One encoder per camera and per point cloud; without sensors it returns the vector unchanged.

    Args:
        config: sensors and the sizes of their encoders.
        shapes: shapes of the sensors' data.

    Raises:
        HandoffError: a sensor without data, or images smaller than the crop.
    """

    def __init__(self, config: EncodedPolicyConfig, shapes: Shapes) -> None:
        super().__init__()
        image, point = config.image_encoder, config.point_encoder
        missing = sorted({*config.sensor_fields} - shapes.sensors.keys())
        if missing:
            raise HandoffError(
                f"policy: no data for the sensors {missing}; the data have {sorted(shapes.sensors)}. Another task?"
            )
        self.augmentation = image.augmentation
        self.sizes = {
            name: encoded_size(image, shapes.sensors[name], name) for name in config.image_fields
        }
        self.images = FieldModules(
            {
                name: ImageEncoder(
                    size.crop, image.keypoints, image.features, image.channels, size.resized
                )
                for name, size in self.sizes.items()
            }
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
        """F, number of features added to the observation vector of one step."""

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
        """Encoded observation (B, T, O + F); one that was encoded before, a vector with features
        and without sensors, is returned as it is.

        Args:
            obs: see `ObservationTensors`.
            generator: source of random crops and augmentation; None uses centre crops of the
                images as they are.
        """
        if not obs.sensors and obs.vector_BTO.shape[-1] == self.entries + self.features:
            return obs.vector_BTO
        parts = [obs.vector_BTO]
        for name, encoder in self.images.items():
            image_BTHWC = obs.sensors[name]
            corner_BT2 = None
            augmentation = None
            if generator is not None:
                crop_generator = torch.Generator().manual_seed(int(generator.integers(1 << 62)))
                resized, crop = self.sizes[name]
                corner_BT2 = random_corners(image_BTHWC.shape[:2], resized, crop, crop_generator)
                corner_BT2 = corner_BT2.to(image_BTHWC.device)
                # Drawn after the corners, so that crops are the same with and without it.
                augmentation = draw_augmentation(
                    self.augmentation, len(image_BTHWC), crop_generator
                )
                if augmentation is not None:
                    augmentation = augmentation.to(image_BTHWC.device)
            parts.append(encoder(image_BTHWC, corner_BT2, augmentation))
        for name, encoder in self.points.items():
            parts.append(encoder(self.normalize_points[name](obs.sensors[name])))
        return torch.cat(parts, dim=-1) if len(parts) > 1 else obs.vector_BTO
