"""Image encoders: that of Diffusion Policy (Chi et al., RSS 2023), and the read-out of a frozen
trunk's feature maps.

The first is ResNet-18 (He et al. 2016) with GroupNorm instead of BatchNorm, because batch
statistics do not work with averaged weights, then spatial softmax (Finn et al. 2016; Levine et al.
2016): every keypoint is the mean position of one map's activation. It is implemented here because
torchvision has no build for the CPU build of torch; a test checks the published number of
parameters. `StridedCnn` is a small network in its place, a few convolutions as in Levine et al.
2016 (arXiv 1504.00702), with GroupNorm and with a stride in every convolution instead of the first
alone.

This follows the released diffusion_policy (robomimic's encoder with random crops): in training
every image has an independent random crop, also within one window; in evaluation the crop is
centred. Larger images are resized before the crop, with anti-aliasing, as in LeRobot's diffusion
policy; `policies.networks.images.image_size` computes the sizes. `SpatialEmbeddings` is the pooling
of SERL's encoders instead.

Shape suffixes: B batch, T observed steps, N images, H height, W width (both [px]), C channels, K
keypoints, E spatial embeddings, P places of a map, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, relu

from policies.augmentation.images import ImageAugmentation, augment
from policies.networks.config import MapReadOutConfig
from robots.errors import HandoffError

RESNET_18 = (64, 128, 256, 512)
"""Channels of the four stages of ResNet-18."""
_BLOCKS = 2
_GROUP = 16
"""Channels per group of a GroupNorm."""


class ImageEncoder(nn.Module):
    """Features of a camera's images: resizing, crop, trunk, spatial softmax, linear layer.

    Args:
        crop: height and width of the crop [px].
        keypoints: K.
        features: F.
        channels: channels of the trunk's stages.
        resized: height and width to which images are resized before the crop [px]; None keeps
            their size.
        kernel: kernel size of the first convolution of a `StridedCnn` [px]; None makes the trunk a
            `ResNet18`.
    """

    def __init__(
        self,
        crop: tuple[int, int] = (84, 84),
        keypoints: int = 32,
        features: int = 64,
        channels: tuple[int, ...] = RESNET_18,
        resized: tuple[int, int] | None = None,
        kernel: int | None = None,
    ) -> None:
        super().__init__()
        self.crop = crop
        self.resized = resized
        self.trunk = ResNet18(channels) if kernel is None else StridedCnn(channels, kernel)
        self.softmax = SpatialSoftmax(channels[-1], keypoints)
        self.output = nn.Linear(2 * keypoints, features)

    def forward(
        self,
        image_BTHWC: Tensor,
        corner_BT2: Tensor | None = None,
        augmentation: ImageAugmentation | None = None,
    ) -> Tensor:
        """Features (B, T, F).

        Args:
            image_BTHWC: uint8 RGB.
            corner_BT2: top and left of every crop [px] in the resized image, from
                `random_corners`; None uses a centre crop.
            augmentation: drawn changes of the resized images before the crop; None changes nothing.

        Raises:
            HandoffError: images that are not uint8 RGB, or smaller than the crop.
        """
        corner_N2 = None if corner_BT2 is None else corner_BT2.flatten(0, 1)
        part_NHWC = cropped_images(image_BTHWC, self.resized, self.crop, corner_N2, augmentation)
        # The view keeps the channels-last memory layout, which is fastest for convolutions.
        scaled_NCHW = (part_NHWC.float() * (2.0 / 255.0) - 1.0).permute(0, 3, 1, 2)
        keypoint_NK2 = self.softmax(self.trunk(scaled_NCHW))
        return relu(self.output(keypoint_NK2.flatten(1))).unflatten(0, image_BTHWC.shape[:2])


class MapReadOut(nn.Module):
    """Features of a frozen trunk's maps: two convolutions, the mean positions of their activations,
    a linear layer, LayerNorm and tanh. The positions tell where a thing lies to a fraction of a
    cell.

    Args:
        inputs: channels of the maps.
        config: sizes.
    """

    def __init__(self, inputs: int, config: MapReadOutConfig) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(inputs, config.channels, 1)
        self.maps = nn.Conv2d(config.channels, config.keypoints, 3, padding=1)
        self.sharpness = nn.Parameter(torch.ones(()))
        self.output = nn.Linear(2 * config.keypoints, config.features)
        self.norm = nn.LayerNorm(config.features)

    def forward(self, map_BTCHW: Tensor) -> Tensor:
        """Features (B, T, F)."""
        map_NCHW = map_BTCHW.flatten(0, 1).to(self.reduce.weight.dtype)
        logit_NKHW = self.maps(relu(self.reduce(map_NCHW))) * self.sharpness.exp()
        keypoint_NK2 = expected_positions(logit_NKHW.float())
        features_NF = torch.tanh(self.norm(self.output(keypoint_NK2.flatten(1))))
        return features_NF.unflatten(0, map_BTCHW.shape[:2])


class ResNet18(nn.Module):
    """Maps (N, 3, H, W) to (N, 512, H / 32, W / 32), rounded up, without global pooling.

    Args:
        channels: channels of the stages; every stage after the first halves height and width.

    Raises:
        HandoffError: no stage, or channels that are not a multiple of the group size.
    """

    def __init__(self, channels: tuple[int, ...] = RESNET_18) -> None:
        super().__init__()
        _check_channels(channels)
        first = channels[0]
        self.stem = nn.Sequential(
            _convolution(3, first, 7, 2), _norm(first), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, inputs = [], first
        for stage, outputs in enumerate(channels):
            for block in range(_BLOCKS):
                stride = 2 if block == 0 and stage > 0 else 1
                blocks.append(BasicBlock(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, image_NCHW: Tensor) -> Tensor:
        """Feature maps."""
        return self.blocks(self.stem(image_NCHW))


class StridedCnn(nn.Module):
    """Maps (N, 3, H, W) to (N, C, H / 2^L, W / 2^L), rounded up, by L convolutions, each with a
    stride of 2, GroupNorm and ReLU.

    Args:
        channels: channels of the L convolutions.
        kernel: kernel size of the first convolution [px]; the others have 3.

    Raises:
        HandoffError: no convolution, channels that are not a multiple of the group size, or an even
            kernel.
    """

    def __init__(self, channels: tuple[int, ...], kernel: int) -> None:
        super().__init__()
        _check_channels(channels)
        if kernel % 2 == 0:
            raise HandoffError(
                f"image encoder: kernel {kernel}, expected an odd number of pixels, such as 5."
            )
        layers: list[nn.Module] = []
        for number, outputs in enumerate(channels):
            inputs = channels[number - 1] if number else 3
            layers += [
                _convolution(inputs, outputs, 3 if number else kernel, 2),
                _norm(outputs),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, image_NCHW: Tensor) -> Tensor:
        """Feature maps."""
        return self.layers(image_NCHW)


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions; the shortcut is a projection where sizes change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(inputs, outputs, 3, stride),
            _norm(outputs),
            nn.ReLU(),
            _convolution(outputs, outputs, 3, 1),
            _norm(outputs),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(_convolution(inputs, outputs, 1, stride), _norm(outputs))
        )

    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        return relu(self.body(hidden_NCHW) + self.shortcut(hidden_NCHW))


class SpatialSoftmax(nn.Module):
    """Mean position (x, y) of every keypoint's activation, from -1 (left, top) to 1 (right,
    bottom)."""

    def __init__(self, channels: int, keypoints: int) -> None:
        super().__init__()
        self.maps = nn.Conv2d(channels, keypoints, 1)

    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        """(N, C, H, W) to (N, K, 2)."""
        return expected_positions(self.maps(hidden_NCHW).float())


def expected_positions(logit_NKHW: Tensor) -> Tensor:
    """Expected positions (N, K, 2): x, y in [-1, 1] under the spatial softmax of every map."""
    height, width = logit_NKHW.shape[-2:]
    share_NKHW = logit_NKHW.flatten(2).softmax(-1).unflatten(-1, (height, width))
    x_W, y_H = (
        torch.linspace(-1.0, 1.0, count, device=logit_NKHW.device) for count in (width, height)
    )
    return torch.stack([share_NKHW.sum(-2) @ x_W, share_NKHW.sum(-1) @ y_H], dim=-1)


def cropped_images(
    image_BTHWC: Tensor,
    resized: tuple[int, int] | None,
    crop: tuple[int, int],
    corner_N2: Tensor | None = None,
    augmentation: ImageAugmentation | None = None,
) -> Tensor:
    """The parts (N, *crop, 3) of images that an encoder sees, in their range; N = B T.

    Args:
        image_BTHWC: uint8 RGB.
        resized: height and width to which they are resized [px]; None keeps their size.
        crop: height and width of the crop [px].
        corner_N2: top and left of every crop [px] in the resized image; None takes centre crops.
        augmentation: drawn changes of the resized images before the crop; None changes nothing.

    Raises:
        HandoffError: images that are not uint8 RGB, or smaller than the crop.
    """
    if image_BTHWC.dtype != torch.uint8 or image_BTHWC.ndim != 5 or image_BTHWC.shape[-1] != 3:
        raise HandoffError(
            f"image encoder: images are {image_BTHWC.dtype} of shape {tuple(image_BTHWC.shape)}, expected uint8 "
            "(B, T, height, width, 3). Were they scaled, or put channels first?"
        )
    images_NHWC = resize_images(image_BTHWC.flatten(0, 1), resized)
    if augmentation is not None:
        images_NHWC = augment(images_NHWC, augmentation)
    return crop_images(images_NHWC, crop, corner_N2)


def resize_images(image_NHWC: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Images of `size`, float32 in the range of the given ones, by bilinear interpolation with
    anti-aliasing; every pixel contributes. Images that have the size are returned as they are.

    Args:
        image_NHWC: uint8.
        size: height and width [px]; None keeps the images' own.
    """
    if size is None or size == (image_NHWC.shape[1], image_NHWC.shape[2]):
        return image_NHWC
    if image_NHWC.device.type == "cpu" and not torch.compiler.is_compiling():
        # One by one they stay in the processor's cache as float32, which is twice as fast.
        return torch.cat([_resized(image_1HWC, size) for image_1HWC in image_NHWC.split(1)])
    return _resized(image_NHWC, size)


def _resized(image_NHWC: Tensor, size: tuple[int, int]) -> Tensor:
    image_NCHW = image_NHWC.permute(0, 3, 1, 2).float()
    return interpolate(image_NCHW, size, mode="bilinear", antialias=True).permute(0, 2, 3, 1)


def random_corners(
    shape: tuple[int, ...], size: tuple[int, int], crop: tuple[int, int], generator: torch.Generator
) -> Tensor:
    """Top and left (*shape, 2) [px] of independent crops, uniform over all positions that fit.

    Args:
        shape: leading axes of the images.
        size: height and width of the images [px].
        crop: height and width of the crops [px].
        generator: random number generator.
    """
    check_crop(size, crop)
    corners = [
        torch.randint(0, whole - part + 1, shape, generator=generator)
        for whole, part in zip(size, crop, strict=True)
    ]
    return torch.stack(corners, dim=-1)


def crop_images(image_NHWC: Tensor, crop: tuple[int, int], corner_N2: Tensor | None) -> Tensor:
    """Crops (N, *crop, C) at the given corners, or centre crops without corners.

    Raises:
        HandoffError: the images are smaller than the crop.
    """
    size = (image_NHWC.shape[1], image_NHWC.shape[2])
    check_crop(size, crop)
    if corner_N2 is None:
        top, left = ((whole - part) // 2 for whole, part in zip(size, crop, strict=True))
        return image_NHWC[:, top : top + crop[0], left : left + crop[1]]
    row_NH, column_NW = (
        corner_N2[:, axis, None] + torch.arange(crop[axis], device=image_NHWC.device)
        for axis in (0, 1)
    )
    index_N = torch.arange(len(image_NHWC), device=image_NHWC.device)
    return image_NHWC[index_N[:, None, None], row_NH[:, :, None], column_NW[:, None, :]]


def check_crop(size: tuple[int, ...], crop: tuple[int, int]) -> None:
    """Checks that a crop fits into an image; both are height and width [px].

    Raises:
        HandoffError: the crop is larger than the image, or empty.
    """
    if not (0 < crop[0] <= size[0] and 0 < crop[1] <= size[1]):
        raise HandoffError(
            f"image encoder: a crop of {crop[0]}x{crop[1]} px from images of {size[0]}x{size[1]} px, expected one "
            "that fits (height x width). Does the camera record a smaller size?"
        )


def _check_channels(channels: tuple[int, ...]) -> None:
    if not channels or any(width < _GROUP or width % _GROUP for width in channels):
        raise HandoffError(
            f"image encoder: channels {channels}, expected at least one, multiples of {_GROUP}."
        )


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // _GROUP, channels)


class SpatialEmbeddings(nn.Module):
    """E learned spatial weightings, with which each channel of a feature map is summed over all
    positions.

    Initial weights have a standard deviation of (C H W)^-1/2, as in the released code of SERL
    (arXiv 2401.16013).
    """

    def __init__(self, count: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        scale = (channels * height * width) ** -0.5
        self.place_ECHW = nn.Parameter(scale * torch.randn(count, channels, height, width))

    def forward(self, map_BCHW: Tensor) -> Tensor:
        """(B, E C) weighted sums."""
        # The few weightings first: on a CPU that takes less than half of an einsum's time.
        place_CEP = self.place_ECHW.flatten(2).transpose(0, 1).contiguous()
        sum_CEB = torch.bmm(place_CEP, map_BCHW.flatten(2).permute(1, 2, 0))
        return sum_CEB.permute(2, 1, 0).flatten(1)
