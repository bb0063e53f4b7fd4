"""Point-cloud encoder of 3D Diffusion Policy (Ze et al., RSS 2024), a small PointNet.

A shared MLP per point is followed by max pooling over the points (Qi et al. 2017), so that their
order does not matter. This follows the released DP3: LayerNorm, no input or feature transforms.

Shape suffixes: B batch, T observed steps, P points, D entries of a point, F features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robots.errors import HandoffError


class PointCloudEncoder(nn.Module):
    """Features of a point cloud.

    Args:
        entries: D: position [m], followed by optional entries such as colour.
        widths: hidden units of the per-point MLP.
        features: F.
    """

    def __init__(
        self, entries: int = 3, widths: Sequence[int] = (64, 128, 256), features: int = 64
    ) -> None:
        super().__init__()
        self.entries = entries
        layers = []
        for inputs, outputs in zip((entries, *widths[:-1]), widths, strict=True):
            layers += [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU()]
        self.point = nn.Sequential(*layers)
        self.output = nn.Sequential(nn.Linear(widths[-1], features), nn.LayerNorm(features))

    def forward(self, points_BTPD: Tensor) -> Tensor:
        """Features (B, T, F).

        Args:
            points_BTPD: at least one point; the number may differ between calls.

        Raises:
            HandoffError: points with another number of entries, or no points.
        """
        if (
            points_BTPD.ndim != 4
            or points_BTPD.shape[-1] != self.entries
            or not points_BTPD.shape[-2]
        ):
            raise HandoffError(
                f"point cloud encoder: points of shape {tuple(points_BTPD.shape)}, expected (B, T, points, "
                f"{self.entries}) with at least one point. Did the crop of the workspace leave none?"
            )
        return self.output(torch.amax(self.point(points_BTPD), dim=-2))
