"""Cuts and resizes pictures to the size that a policy was trained with."""

from __future__ import annotations

from typing import Any

import numpy as np

from real.cameras.config import CameraConfig, CameraOptionError

TOLERANCE = 0.01
"""Largest relative difference between the proportions of a picture and those that are asked for."""


def resized(image: Any, camera: CameraConfig) -> np.ndarray:
    """The picture of a camera in the size of its options, averaged over the area of every pixel.

    Args:
        image: PyAV's frame in the camera's own size.
        camera: crop, height and width.

    Returns:
        (height, width, 3) uint8 RGB.

    Raises:
        CameraOptionError: the crop exceeds the picture, or the proportions after it are not those
            of height and width.
    """
    if camera.crop is not None:
        image = _cropped(image, camera)
    height = camera.height
    width = max(1, round(image.width * height / image.height))
    if camera.width is not None:
        _check_proportions(image, camera)
        width = camera.width
    return image.to_ndarray(format="rgb24", width=width, height=height, interpolation="AREA")


def frame_of(image: np.ndarray) -> Any:
    """PyAV's frame of an image (height, width, 3) uint8 RGB."""
    import av

    return av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")


def _cropped(image: Any, camera: CameraConfig) -> Any:
    assert camera.crop is not None
    left, top, width, height = camera.crop
    if left + width > image.width or top + height > image.height:
        raise CameraOptionError(
            f"camera {camera.source}: crop {list(camera.crop)} (left, top, width, height) exceeds the camera's "
            f"pictures of {image.width} x {image.height} px. Give a smaller one."
        )
    pixels = image.to_ndarray(format="rgb24")
    return frame_of(pixels[top : top + height, left : left + width])


def _check_proportions(image: Any, camera: CameraConfig) -> None:
    assert camera.width is not None
    wanted, ratio = camera.width / camera.height, image.width / image.height
    if abs(ratio / wanted - 1.0) <= TOLERANCE:
        return
    cut = "pictures" if camera.crop is None else "crop"
    left, top, width, height = _centred(image.width, image.height, wanted)
    if camera.crop is not None:
        left, top = left + camera.crop[0], top + camera.crop[1]
    raise CameraOptionError(
        f"camera {camera.source}: its {cut} of {image.width} x {image.height} px cannot be resized to "
        f"{camera.width} x {camera.height} px without distortion. Cut them as the training data were, e.g. in the "
        f"middle with crop=[{left},{top},{width},{height}] (left, top, width, height)."
    )


def _centred(width: int, height: int, ratio: float) -> tuple[int, int, int, int]:
    """The largest rectangle of these proportions in the middle: left, top, width, height [px]."""
    inner_width = min(width, round(height * ratio))
    inner_height = min(height, round(width / ratio))
    return (width - inner_width) // 2, (height - inner_height) // 2, inner_width, inner_height
