"""Real cameras for the console: a process per camera reads pictures and sends them on, so that no
camera delays an arm.

A camera that is missing or falls out is looked for again and again; the page shows how old its
picture is.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from robots.processes import end_with_parent
from robots.wire.policy import pack

if TYPE_CHECKING:
    from real.console.process import Open

LONGEST_NAME = 60
"""ASCII characters of a camera's name."""


@config
class CameraConfig:
    """One camera."""

    source: str
    """A number or device (`0`, `/dev/video2`: V4L2), a network camera (`rtsp://...`), or a video file."""
    height: int = 240
    """Of the pictures that pages see [px]; the width follows the camera's."""
    rate_hz: float = 30.0
    """Of the pictures that pages see, at most."""
    quality: int = 80
    """Of the JPEGs, 1 to 100."""
    again: float = 1.0
    """From a lost camera to the next attempt [s]."""


@contextmanager
def filmed(cameras: Mapping[str, CameraConfig], console: Open) -> Iterator[None]:
    """Shows the cameras at the console as long as the block runs.

    Args:
        cameras: by the names that pages show.
        console: that is open.

    Raises:
        HandoffError: a name that cannot travel, or settings that make no picture.
    """
    for name, settings in cameras.items():
        frame(name, np.zeros((2, 2, 3), np.uint8))
        if settings.height < 1 or settings.rate_hz <= 0.0 or not 1 <= settings.quality <= 100:
            raise HandoffError(f"camera {name}: {settings} makes no picture.")
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(
            target=_film_for_ever,
            args=(name, settings, console.uri, console.robot_token),
            name=f"handoff-{name}",
        )
        for name, settings in cameras.items()
    ]
    for process in processes:
        process.daemon = True
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(5.0)


def frame(name: str, image: np.ndarray, quality: int = 80) -> bytes:
    """One picture as it travels to the pages: length of the name, the name, a JPEG.

    Args:
        name: of the camera, at most 60 ASCII characters.
        image: (height, width, 3) uint8 RGB.
        quality: of the JPEG.

    Raises:
        HandoffError: a name that cannot travel.
    """
    import cv2

    head = name.encode("ascii", "replace")
    if not 1 <= len(head) <= LONGEST_NAME:
        raise HandoffError(f"camera: name of {len(head)} characters, expected 1 to {LONGEST_NAME}.")
    _, packed = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    return bytes([len(head)]) + head + packed.tobytes()


class Camera:
    """An open camera.

    Args:
        config: which.

    Raises:
        HandoffError: it cannot be opened.
    """

    def __init__(self, config: CameraConfig) -> None:
        import cv2

        self._config, self._cv2 = config, cv2
        self._capture: Any = cv2.VideoCapture(
            int(config.source) if config.source.isdigit() else config.source
        )
        if not self._capture.isOpened():
            self._capture.release()
            raise HandoffError(
                f"camera {config.source}: cannot be opened. Is it plugged in, used by another program?"
            )
        self.waits = Path(config.source).is_file()
        """A file, whose next picture waits; a camera's does not."""
        # Two would be a picture late; drivers that cannot do it say so by returning False, which
        # changes nothing.
        self._capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)

    def read(self) -> np.ndarray:
        """(height, width, 3) uint8 RGB, the next picture; waits for it.

        Raises:
            HandoffError: no more pictures come.
        """
        good, image = self._capture.read()
        if not good:
            raise HandoffError(
                f"camera {self._config.source}: no more pictures come. Was it unplugged?"
            )
        height = self._config.height
        width = max(1, round(image.shape[1] * height / image.shape[0]))
        small = self._cv2.resize(image, (width, height), interpolation=self._cv2.INTER_AREA)
        return np.ascontiguousarray(small[..., ::-1])

    def close(self) -> None:
        """Gives it back."""
        self._capture.release()


def _film_for_ever(name: str, config: CameraConfig, uri: str, token: str) -> None:
    """The process: camera and console are looked for again and again, until it is ended."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

    end_with_parent()
    pause, said = threading.Event(), ""
    while True:
        try:
            _film(name, config, uri, token)
        except (HandoffError, OSError, ConnectionClosed, InvalidHandshake, InvalidMessage) as error:
            if str(error) != said:
                said = str(error)
                sys.stderr.write(f"{name}: {said}\n")
        pause.wait(config.again)


def _film(name: str, config: CameraConfig, uri: str, token: str) -> None:
    from websockets.sync.client import connect

    camera = Camera(config)
    try:
        with connect(uri, max_size=2**20, compression=None) as connection:
            connection.send(
                pack({"kind": "hello", "role": "camera", "token": token, "draws": False})
            )
            due = time.monotonic()
            while True:
                image = camera.read()
                if camera.waits:
                    time.sleep(max(0.0, due - time.monotonic()))
                # A camera that is faster than wanted is read all the same, or its pictures would
                # grow old in a buffer.
                elif time.monotonic() < due:
                    continue
                due = max(due + 1.0 / config.rate_hz, time.monotonic())
                connection.send(frame(name, image, config.quality))
    finally:
        camera.close()
