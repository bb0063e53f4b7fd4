"""Opens cameras: USB cameras of this computer, network cameras, and video files in their place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from robots.config import Delay, Hertz, Pixels, config
from robots.errors import HandoffError

NETWORK_TIMEOUT = 10.0
"""Longest silence of a network camera before it counts as lost [s]."""
OLDEST = 1.0
"""Largest age of a picture by the time that its driver states [s]; a driver that states more has
another clock, and the time of arrival counts."""


@config
class CameraConfig:
    """Source, size and rate of one camera."""

    source: str
    """Source of the images: a number or device (`0`, `/dev/video2`: V4L2), a network camera
    (`rtsp://...`), or a video file."""
    height: Pixels = 240
    """Height of the images on the page and in recordings [px]; the width follows from the camera's
    proportions."""
    rate_hz: Hertz = 30.0
    """Highest rate of images on the page [1/s]."""
    quality: Annotated[int, Field(ge=1, le=100)] = 80
    """JPEG quality on the page, 1 to 100."""
    again: Delay = 1.0
    """Time from a lost camera to the next attempt [s]."""


class Picture(NamedTuple):
    """One picture of a camera."""

    image: np.ndarray
    """(height, width, 3) uint8 RGB."""
    captured: float
    """Time of its capture by `time.monotonic` [s]: the driver's, otherwise that of its arrival."""


class Camera:
    """An open camera.

    Args:
        config: source and size.

    Raises:
        HandoffError: the source cannot be opened, or has no video.
    """

    def __init__(self, config: CameraConfig) -> None:
        import av

        self._config = config
        try:
            self._container = _opened(config.source)
        except av.FFmpegError as error:
            raise HandoffError(
                f"camera {config.source}: cannot be opened ({error.strerror}). "
                "Is it plugged in, or used by another program?"
            ) from None
        if not self._container.streams.video:
            self._container.close()
            raise HandoffError(f"camera {config.source}: sends no images.")
        self._images = _decoded(self._container)
        self.is_file = Path(config.source).is_file()
        """Whether the source is a file, which must be read at its own pace; a camera is live."""

    def read(self) -> Picture:
        """The next picture; waits for it.

        Raises:
            HandoffError: the camera sends no more images.
        """
        import av

        try:
            image = next(self._images)
        except (StopIteration, av.FFmpegError):
            raise HandoffError(
                f"camera {self._config.source}: sends no more images. Was it unplugged?"
            ) from None
        captured = _captured(image, time.monotonic())
        height = self._config.height
        width = max(1, round(image.width * height / image.height))
        pixels = image.to_ndarray(format="rgb24", width=width, height=height, interpolation="AREA")
        return Picture(pixels, captured)

    def close(self) -> None:
        """Closes the camera."""
        self._container.close()


def _captured(image: Any, now: float) -> float:
    """Time of an image's capture by the clock `time.monotonic` [s].

    The drivers of USB cameras stamp images with the kernel's monotonic clock when the exposure was
    read out, tens of milliseconds before they arrive here; other sources count from their own
    beginning, and their images are as old as their arrival.
    """
    stated = None if image.time is None else float(image.time)
    return stated if stated is not None and 0.0 <= now - stated <= OLDEST else now


def _opened(source: str) -> Any:
    """PyAV's container of a device, a network camera or a file."""
    import av

    device = f"/dev/video{source}" if source.isdigit() else source
    if device.startswith("/dev/"):
        return av.open(device, format="v4l2")
    if "://" in device:
        # Over UDP, packets that are lost would leave grey blocks in the images.
        options = {"rtsp_transport": "tcp"} if device.startswith("rtsp") else {}
        return av.open(device, options={**options, "fflags": "nobuffer"}, timeout=NETWORK_TIMEOUT)
    return av.open(device)


def _decoded(container: Any) -> Iterator[Any]:
    """Images of the first video stream; damaged ones are left out."""
    import av

    for packet in container.demux(video=0):
        try:
            yield from packet.decode()
        except av.InvalidDataError:
            continue
