"""Opens cameras: USB cameras of this computer, RealSense cameras, network cameras, and video files
in their place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from real.cameras.config import CameraConfig, CameraOptionError, device_of, kind_of
from real.cameras.picture_size import new_converter, resized
from robots.errors import HandoffError

NETWORK_TIMEOUT = 10.0
"""Longest silence of a network camera before it counts as lost [s]."""
OLDEST = 1.0
"""Largest age of a picture by the time that its driver states [s]; a driver that states more has
another clock, and the time of arrival counts."""


class Picture(NamedTuple):
    """One picture of a camera."""

    image: np.ndarray
    """(height, width, 3) uint8 RGB."""
    captured: float
    """Time of its capture by `time.monotonic` [s]: the driver's, otherwise that of its arrival."""
    own_size: tuple[int, int] | None = None
    """Width and height of the camera's own picture [px], before crop and resizing; None if it is
    rendered in its size."""


class PictureStream(Protocol):
    """An open camera of one kind."""

    live: bool
    """Whether pictures come at the camera's pace; those of a file must be read at their own."""

    def read(self) -> tuple[Any, float | None]:
        """Waits for the next picture; returns PyAV's frame, and the time of its capture that the
        driver states by `time.monotonic` [s], or None.

        Raises:
            HandoffError: the camera sends no more images.
        """
        ...

    def close(self) -> None:
        """Closes the camera."""
        ...


class Camera:
    """An open camera.

    Args:
        config: source, size and exposure.

    Raises:
        CameraOptionError: the camera does not take an option.
        HandoffError: the source cannot be opened, or has no video.
    """

    def __init__(self, config: CameraConfig) -> None:
        self._config = config
        self._stream = _stream(config)
        self._converter = new_converter()
        self.is_file = not self._stream.live
        """Whether the source is a file, which must be read at its own pace; a camera is live."""

    def read(self) -> Picture:
        """The next picture; waits for it.

        Raises:
            CameraOptionError: the options of its size do not fit the camera's pictures.
            HandoffError: the camera sends no more images.
        """
        image, stated = self._stream.read()
        captured = _captured(stated, time.monotonic())
        pixels = resized(image, self._config, self._converter)
        return Picture(pixels, captured, (image.width, image.height))

    def read_whole(self) -> np.ndarray:
        """The next picture, (height, width, 3) uint8 RGB in the camera's own size; waits for it.

        Raises:
            HandoffError: the camera sends no more images.
        """
        return self._stream.read()[0].to_ndarray(format="rgb24")

    def close(self) -> None:
        """Closes the camera."""
        self._stream.close()


class VideoSource:
    """A V4L2 device, a network camera or a file, read by PyAV; see `PictureStream`.

    Args:
        config: source, rate and exposure.

    Raises:
        CameraOptionError: the camera does not take an option.
        HandoffError: the source cannot be opened, or has no video.
    """

    def __init__(self, config: CameraConfig) -> None:
        import av

        self._source = config.source
        kind = kind_of(config.source)
        self.live = kind != "file"
        if kind == "v4l2":
            from real.cameras.v4l2_controls import lock_controls

            lock_controls(config)
        try:
            self._container = _opened(config.source, config.capture_hz)
        except av.FFmpegError as error:
            if kind == "file" and isinstance(error, FileNotFoundError):
                # A file does not appear as a camera does whose cable is put in.
                raise CameraOptionError(
                    f"camera {config.source}: cannot be opened ({error.strerror}). Is the path right?"
                ) from None
            raise HandoffError(
                f"camera {config.source}: cannot be opened ({error.strerror}). "
                "Is it plugged in, or used by another program?"
            ) from None
        if not self._container.streams.video:
            self._container.close()
            raise HandoffError(f"camera {config.source}: sends no images.")
        self._images = _decoded(self._container)

    def read(self) -> tuple[Any, float | None]:
        """See `PictureStream`."""
        import av

        try:
            image = next(self._images)
        except (StopIteration, av.FFmpegError):
            raise HandoffError(
                f"camera {self._source}: sends no more images. Was it unplugged?"
            ) from None
        return image, None if image.time is None else float(image.time)

    def close(self) -> None:
        """See `PictureStream`."""
        self._container.close()


def _stream(config: CameraConfig) -> PictureStream:
    """Opens the camera behind a source."""
    if kind_of(config.source) == "realsense":
        from real.cameras.realsense import RealSenseSource

        return RealSenseSource(config)
    return VideoSource(config)


def _captured(stated: float | None, now: float) -> float:
    """Time of an image's capture by the clock `time.monotonic` [s].

    The drivers of USB cameras stamp images with the kernel's monotonic clock when the exposure was
    read out, tens of milliseconds before they arrive here; other sources count from their own
    beginning, and their images are as old as their arrival.

    Args:
        stated: time that the driver states [s]; None for one that states none.
        now: time of arrival [s].
    """
    return stated if stated is not None and 0.0 <= now - stated <= OLDEST else now


def _opened(source: str, capture_hz: float | None = None) -> Any:
    """PyAV's container of a device, a network camera or a file."""
    import av

    device = device_of(source)
    match kind_of(source):
        case "v4l2":
            rate = {} if capture_hz is None else {"framerate": f"{capture_hz:g}"}
            return av.open(device, format="v4l2", options=rate)
        case "network":
            # Over UDP, packets that are lost would leave grey blocks in the images.
            options = {"rtsp_transport": "tcp"} if device.startswith("rtsp") else {}
            options["fflags"] = "nobuffer"
            return av.open(device, options=options, timeout=NETWORK_TIMEOUT)
        case _:
            return av.open(device)


def _decoded(container: Any) -> Iterator[Any]:
    """Images of the first video stream; damaged ones are left out."""
    import av

    for packet in container.demux(video=0):
        try:
            yield from packet.decode()
        except av.InvalidDataError:
            continue
