"""Cuts and resizes pictures to the size that a policy was trained with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from real.cameras.config import CameraConfig, CameraOptionError

if TYPE_CHECKING:
    from av.video.reformatter import VideoReformatter

TOLERANCE = 0.01
"""Largest relative difference between the proportions of a picture and those that are asked for."""


def resized(
    image: Any, camera: CameraConfig, converter: VideoReformatter | None = None
) -> np.ndarray:
    """The picture of a camera in the size of its options, averaged over the area of every pixel.

    Args:
        image: PyAV's frame in the camera's own size.
        camera: crop, height and width.
        converter: keeps its tables from picture to picture; None makes one.

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
    return _pixels(_reformatted(image, width, height, converter))


def new_converter() -> VideoReformatter:
    """A converter of pictures, see `resized`."""
    from av.video.reformatter import VideoReformatter

    return VideoReformatter()


def _reformatted(image: Any, width: int, height: int, converter: VideoReformatter | None) -> Any:
    """The frame in RGB and in that size."""
    from av.video.reformatter import Interpolation

    # One thread: the cores belong to the arm, and threads would wait for each other.
    return (converter or new_converter()).reformat(
        image, width, height, "rgb24", interpolation=Interpolation.AREA, threads=1
    )


def _pixels(frame: Any) -> np.ndarray:
    """The pixels (height, width, 3) of a frame in RGB, in its own memory if its lines have no
    padding."""
    plane = frame.planes[0]
    lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    rows = np.ascontiguousarray(lines[: frame.height, : 3 * frame.width])
    return rows.reshape(frame.height, frame.width, 3)


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
