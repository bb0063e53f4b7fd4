"""Pictures and point clouds to vectors beside the observed one: what the policies' networks are conditioned on.

Shape suffixes: B batch, T observed steps, O observation, F features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from policies.config import Shapes
from policies.networks.pointcloud import PointCloudEncoder
from policies.networks.vision import ImageEncoder, random_corners
from policies.policy_config import EncodedPolicyConfig

if TYPE_CHECKING:
    from policies.chunk_policy import Observed


class ObservationEncoder(nn.Module):
    """One encoder per camera and per point cloud; without either it hands the vector through.

    Args:
        config: which sensors, and the sizes of their encoders.
        shapes: of the sensors' data.
    """

    def __init__(self, config: EncodedPolicyConfig, shapes: Shapes) -> None:
        super().__init__()
        image, point = config.image_encoder, config.point_encoder
        self.crop = image.crop
        self.images = nn.ModuleDict(
            {name: ImageEncoder(image.crop, image.keypoints, image.features) for name in config.image_fields}
        )
        self.points = nn.ModuleDict(
            {
                name: PointCloudEncoder(shapes.sensors[name][-1], point.widths, point.features)
                for name in config.point_fields
            }
        )
        self.features = len(self.images) * image.features + len(self.points) * point.features
        """F, numbers that it adds to the vector of one step."""

    def forward(self, observed: Observed, draw: np.random.Generator | None = None) -> Tensor:
        """(B, T, O + F).

        Args:
            observed: see `Observed`.
            draw: where the places of random crops come from; None crops in the middle.
        """
        parts = [observed.vector_BTO]
        for name, encoder in self.images.items():
            image_BTHWC = observed.sensors[name]
            corner_BT2 = None
            if draw is not None:
                generator = torch.Generator().manual_seed(int(draw.integers(1 << 62)))
                rows, steps, height, width = image_BTHWC.shape[:4]
                corner_BT2 = random_corners((rows, steps), (height, width), self.crop, generator)
                corner_BT2 = corner_BT2.to(image_BTHWC.device)
            parts.append(encoder(image_BTHWC, corner_BT2))
        parts += [encoder(observed.sensors[name]) for name, encoder in self.points.items()]
        return torch.cat(parts, dim=-1) if len(parts) > 1 else observed.vector_BTO
