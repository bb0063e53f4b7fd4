"""Writes the frozen trunk of image encoders as ONNX, so that the process of a robot needs no
torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from policies.networks.images.efficientnet_lite import EfficientNetLite0
from policies.networks.images.onnx_function import quiet_translation

if TYPE_CHECKING:
    import onnx

OPSET = 21


class TrunkOnPictures(nn.Module):
    """A trunk with pictures (N, H, W, 3) uint8 RGB in, and float16 maps (N, C, h, w) out."""

    def __init__(self, trunk: EfficientNetLite0) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, picture_NHWC: Tensor) -> Tensor:
        """The maps of the pictures."""
        return self.trunk(picture_NHWC.permute(0, 3, 1, 2).float() / 255.0).half()


def trunk_to_onnx(trunk: EfficientNetLite0, height: int, width: int) -> onnx.ModelProto:
    """One graph with the input `picture` (N, height, width, 3) uint8 RGB and the output `map`
    (N, C, h, w) float16, of any N."""
    with quiet_translation():
        program = torch.onnx.export(
            TrunkOnPictures(trunk).eval(),
            (torch.zeros(2, height, width, 3, dtype=torch.uint8),),
            dynamo=True,
            input_names=["picture"],
            output_names=["map"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    return program.model_proto
