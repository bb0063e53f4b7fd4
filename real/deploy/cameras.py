"""Streams real cameras to the console, each from a process of its own, so that no camera delays an
arm.

A camera that is missing or fails is reopened until it works; the page shows the age of its image.
"""

from __future__ import annotations

import io
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from robots.config import Delay, Hertz, Pixels, config
from robots.errors import HandoffError
from robots.processes import end_with_parent
from robots.wire.policy import pack

if TYPE_CHECKING:
    from real.console.process import OpenConsole

LONGEST_NAME = 60
"""Largest number of ASCII characters in a camera's name."""
NETWORK_TIMEOUT = 10.0
"""Longest silence of a network camera before it counts as lost [s]."""


@config
class CameraConfig:
    """Source, size and rate of one camera."""

    source: str
    """Source of the images: a number or device (`0`, `/dev/video2`: V4L2), a network camera
    (`rtsp://...`), or a video file."""
    height: Pixels = 240
    """Height of the images on the page [px]; the width follows from the camera's proportions."""
    rate_hz: Hertz = 30.0
    """Highest rate of images on the page [1/s]."""
    quality: Annotated[int, Field(ge=1, le=100)] = 80
    """JPEG quality, 1 to 100."""
    again: Delay = 1.0
    """Time from a lost camera to the next attempt [s]."""


@contextmanager
def camera_streams(cameras: Mapping[str, CameraConfig], console: OpenConsole) -> Iterator[None]:
    """Streams cameras to the console as long as the block runs.

    Args:
        cameras: cameras by the names that pages show.
        console: an open console.

    Raises:
        HandoffError: a name that cannot be sent, or settings without an image.
    """
    from real.console.process import without_robot_token

    for name, settings in cameras.items():
        frame(name, np.zeros((2, 2, 3), np.uint8))
        if settings.height < 1 or settings.rate_hz <= 0.0 or not 1 <= settings.quality <= 100:
            raise HandoffError(
                f"camera {name}: {settings}, expected a height and rate above 0 and a quality of 1 to 100."
            )
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(
            target=_stream_and_reconnect,
            args=(name, settings, console.uri, console.camera_token),
            name=f"handoff-{name}",
        )
        for name, settings in cameras.items()
    ]
    for process in processes:
        process.daemon = True
        # It reads what a network sends, so it has no token but its own.
        with without_robot_token():
            process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(5.0)


def frame(name: str, image: np.ndarray, quality: int = 80) -> bytes:
    """An image as a message to the pages: length of the name, the name, a JPEG.

    Args:
        name: name of the camera, 1 to 60 ASCII characters.
        image: (height, width, 3) uint8 RGB.
        quality: JPEG quality, 1 to 100.

    Raises:
        HandoffError: a name that is empty or too long.
    """
    from PIL import Image

    head = name.encode("ascii", "replace")
    if not 1 <= len(head) <= LONGEST_NAME:
        raise HandoffError(f"camera: name of {len(head)} characters, expected 1 to {LONGEST_NAME}.")
    packed = io.BytesIO()
    Image.fromarray(image).save(packed, "JPEG", quality=quality)
    return bytes([len(head)]) + head + packed.getvalue()


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

    def read(self) -> np.ndarray:
        """(height, width, 3) uint8 RGB, the next image; waits for it.

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
        height = self._config.height
        width = max(1, round(image.width * height / image.height))
        return image.to_ndarray(format="rgb24", width=width, height=height, interpolation="AREA")

    def close(self) -> None:
        """Closes the camera."""
        self._container.close()


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


def _stream_and_reconnect(name: str, config: CameraConfig, uri: str, token: str) -> None:
    """Streams a camera, and reconnects to camera and console; target of its process."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

    end_with_parent()
    pause = threading.Event()
    reported = ""
    while True:
        try:
            _stream(name, config, uri, token)
        except (HandoffError, OSError, ConnectionClosed, InvalidHandshake, InvalidMessage) as error:
            if str(error) != reported:
                reported = str(error)
                sys.stderr.write(f"{name}: {reported}\n")
        pause.wait(config.again)


def _stream(name: str, config: CameraConfig, uri: str, token: str) -> None:
    """Streams a camera until it or the console is lost."""
    from websockets.sync.client import connect

    camera = Camera(config)
    try:
        with connect(uri, max_size=2**20, compression=None, proxy=None) as connection:
            connection.send(
                pack({"kind": "hello", "role": "camera", "token": token, "draws": False})
            )
            due = time.monotonic()
            while True:
                image = camera.read()
                if camera.is_file:
                    time.sleep(max(0.0, due - time.monotonic()))
                # Images above the rate are read and dropped; left in a buffer they would delay
                # those that follow.
                elif time.monotonic() < due:
                    continue
                due = max(due + 1.0 / config.rate_hz, time.monotonic())
                connection.send(frame(name, image, config.quality))
    finally:
        camera.close()
