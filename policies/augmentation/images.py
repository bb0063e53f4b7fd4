"""Augments batches of pictures: shift, change of the camera's pose, colour jitter.

The shift is that of DrQ (Kostrikov et al., ICLR 2021, arXiv 2004.13649): a crop of the image padded
by repeating its edges. The change of pose is a homography, which is exact for a camera that only
turns and an approximation for one that moves. Brightness, contrast, saturation and hue are one
affine map of RGB, clipped once at its end; the hue turns in the plane of YIQ's colour differences
instead of HSV's circle, which keeps the luminance.

One draw holds for all pictures of a window, because augmentation that differed between its steps
would look like motion of the camera.

Shape suffixes: B windows, T observed steps, N = B T images, H height, W width (both [px]), C
channels, U uniform numbers of a draw.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from policies.augmentation.config import ImageAugmentationConfig

LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luminance (ITU-R BT.601)."""
YIQ = (LUMINANCE, (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135))
"""Rows: luminance and the two colour differences of NTSC."""
_UNIFORM = 10
"""Numbers of a draw: two each of the shift and the perspective, one of each other quantity."""


class ImageAugmentation(NamedTuple):
    """Drawn augmentation of B windows; None for a part that is off."""

    windows: int
    """B."""
    pad: int
    """Largest shift [px]."""
    offset_2B: Tensor | None
    """Rows and columns of the crop from the padded image [px]."""
    homography_B33: Tensor | None
    """Maps coordinates of the augmented image to those of the given one; both are measured from
    the centre in halves of the width."""
    factor_B3: Tensor | None
    """Factors of brightness, contrast and saturation."""
    hue_B: Tensor | None
    """Rotation of the hue [rad]."""

    def to(self, device: torch.device) -> ImageAugmentation:
        """The same draw on another device."""
        moved = [None if part is None else part.to(device) for part in self[2:]]
        return ImageAugmentation(self.windows, self.pad, *moved)


def draw_augmentation(
    config: ImageAugmentationConfig, windows: int, generator: torch.Generator
) -> ImageAugmentation | None:
    """Draws the augmentation of B windows of one camera; None if all of it is off, without a draw.

    Every quantity has numbers of its own, so enabling one leaves the draws of the others.

    Args:
        config: largest changes.
        windows: B.
        generator: random number generator, on the CPU.
    """
    if not config.enabled:
        return None
    # In double precision no draw rounds up to 1, which would shift too far.
    uniform_BU = torch.rand((windows, _UNIFORM), generator=generator, dtype=torch.float64)
    signed_BU = 2.0 * uniform_BU - 1.0
    pad = config.shift
    offset_2B = (uniform_BU[:, :2] * (2 * pad + 1)).long().T if pad > 0 else None
    homography_B33 = _homographies(config, signed_BU[:, 2:6]) if config.warps else None
    factor_B3 = None
    hue_B = None
    if config.recolours:
        largest_3 = torch.tensor([config.brightness, config.contrast, config.saturation])
        factor_B3 = (1.0 + largest_3 * signed_BU[:, 6:9]).float()
        hue_B = (2.0 * math.pi * config.hue * signed_BU[:, 9]).float()
    return ImageAugmentation(windows, pad, offset_2B, homography_B33, factor_B3, hue_B)


def augment(image_NHWC: Tensor, draw: ImageAugmentation) -> Tensor:
    """Augmented images of the same shape: uint8 as given if they are only shifted, otherwise
    float32 in [0, 255].

    Args:
        image_NHWC: RGB in [0, 255], uint8 or float32, the T steps of a window one after another.
        draw: see `draw_augmentation`, on the device of the images.
    """
    # Products of bfloat16 would sample a fraction of a pixel beside the place.
    with torch.autocast(image_NHWC.device.type, enabled=False):
        return _augment(image_NHWC, draw, len(image_NHWC) // draw.windows)


def _augment(image_NHWC: Tensor, draw: ImageAugmentation, steps: int) -> Tensor:
    if draw.homography_B33 is not None:
        image_NHWC = warp(image_NHWC, draw.homography_B33.repeat_interleave(steps, 0))
    if draw.offset_2B is not None:
        image_NHWC = random_shift(image_NHWC, draw.offset_2B.repeat_interleave(steps, 1), draw.pad)
    if draw.factor_B3 is not None and draw.hue_B is not None:
        factor_N3 = draw.factor_B3.repeat_interleave(steps, 0)
        image_NHWC = recolour(image_NHWC, factor_N3, draw.hue_B.repeat_interleave(steps, 0))
    return image_NHWC


def random_shift(image_NHWC: Tensor, offset_2N: Tensor, pad: int) -> Tensor:
    """Random shift of images: crops at `offset_2N` from images padded by repeating their edges.

    Args:
        image_NHWC: images of any dtype.
        offset_2N: int64 rows and columns in [0, 2 pad]; (0, 0) moves the content down and right,
            and `pad` leaves it in place.
        pad: padding [px].
    """
    count, height, width, _ = image_NHWC.shape
    steps_H, steps_W = (
        torch.arange(size, device=image_NHWC.device) - pad for size in (height, width)
    )
    rows_NH = (steps_H + offset_2N[0][:, None]).clamp(0, height - 1)
    columns_NW = (steps_W + offset_2N[1][:, None]).clamp(0, width - 1)
    index_N11 = torch.arange(count, device=image_NHWC.device)[:, None, None]
    return image_NHWC[index_N11, rows_NH[:, :, None], columns_NW[:, None, :]]


def warp(image_NHWC: Tensor, homography_N33: Tensor) -> Tensor:
    """Images as float32, sampled bilinearly where the homographies point; edges are repeated.

    Args:
        image_NHWC: images.
        homography_N33: see `ImageAugmentation.homography_B33`.
    """
    height, width = image_NHWC.shape[1:3]
    device = image_NHWC.device
    y_H = ((torch.arange(height, device=device) + 0.5) * 2.0 - height) / width
    x_W = (torch.arange(width, device=device) + 0.5) * 2.0 / width - 1.0
    y_HW, x_HW = torch.meshgrid(y_H, x_W, indexing="ij")
    place_HW3 = torch.stack([x_HW, y_HW, torch.ones_like(x_HW)], dim=-1)
    source_NP3 = place_HW3.reshape(1, -1, 3) @ homography_N33.transpose(1, 2)
    source_NP2 = source_NP3[..., :2] / source_NP3[..., 2:]
    # The sampler measures y in halves of the height.
    scale_2 = torch.tensor([1.0, width / height], device=device)
    grid_NHW2 = (source_NP2 * scale_2).unflatten(1, (height, width))
    sampled_NCHW = grid_sample(
        image_NHWC.permute(0, 3, 1, 2).float(),
        grid_NHW2,
        mode="bilinear",
        padding_mode="border",
        align_corners=False,
    )
    return sampled_NCHW.permute(0, 2, 3, 1)


def recolour(image_NHWC: Tensor, factor_N3: Tensor, hue_N: Tensor) -> Tensor:
    """Images as float32 in [0, 255] with other brightness, contrast, saturation and hue.

    Args:
        image_NHWC: RGB in [0, 255].
        factor_N3: factors of brightness, contrast and saturation.
        hue_N: rotation of the hue [rad].
    """
    height, width = image_NHWC.shape[1:3]
    pixel_NP3 = image_NHWC.flatten(1, 2).float()
    brightness_N, contrast_N, saturation_N = factor_N3.unbind(1)
    yiq_33 = torch.tensor(YIQ, device=image_NHWC.device)
    cos_N, sin_N = saturation_N * hue_N.cos(), saturation_N * hue_N.sin()
    turn_N33 = torch.zeros(len(image_NHWC), 3, 3, device=image_NHWC.device)
    turn_N33[:, 0, 0] = 1.0
    turn_N33[:, 1, 1] = turn_N33[:, 2, 2] = cos_N
    turn_N33[:, 1, 2] = -sin_N
    turn_N33[:, 2, 1] = sin_N
    map_N33 = torch.linalg.inv(yiq_33) @ turn_N33 @ yiq_33
    # Saturation and hue keep the luminance, so the mean is that of the given image.
    mean_N = (pixel_NP3.mean(1) * yiq_33[0]).sum(1)
    offset_N11 = ((1.0 - contrast_N) * brightness_N * mean_N)[:, None, None]
    scaled_N33 = map_N33 * (contrast_N * brightness_N)[:, None, None]
    changed_NP3 = torch.baddbmm(offset_N11, pixel_NP3, scaled_N33.transpose(1, 2))
    return changed_NP3.clamp_(0.0, 255.0).unflatten(1, (height, width))


def _homographies(config: ImageAugmentationConfig, signed_B4: Tensor) -> Tensor:
    """(B, 3, 3) homographies of rotation, zoom and perspective, float32."""
    angle_B = config.rotation * signed_B4[:, 0]
    scale_B = 1.0 + config.zoom * signed_B4[:, 1]
    homography_B33 = torch.zeros(len(signed_B4), 3, 3, dtype=torch.float64)
    homography_B33[:, 0, 0] = homography_B33[:, 1, 1] = scale_B * angle_B.cos()
    homography_B33[:, 0, 1] = -scale_B * angle_B.sin()
    homography_B33[:, 1, 0] = scale_B * angle_B.sin()
    homography_B33[:, 2, :2] = config.perspective * signed_B4[:, 2:4]
    homography_B33[:, 2, 2] = 1.0
    return homography_B33.float()
