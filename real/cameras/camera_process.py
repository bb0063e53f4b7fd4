"""Runs every camera in a process of its own, so that none delays an arm: the process sends pictures
to the console's pages, and shares the newest one.

A camera that is missing or fails is opened again until it works; the page shows the age of its
image, and whoever reads the newest picture sees the time of its capture.
"""

from __future__ import annotations

import io
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
from setproctitle import setproctitle

from real.cameras.camera import Camera
from real.cameras.config import CameraConfig, CameraOptionError, check_camera
from real.cameras.newest_picture import NewestPicture
from robots.errors import HandoffError
from robots.processes import end_with_parent
from robots.signals import blocked_interrupt
from robots.wire.policy import pack

if TYPE_CHECKING:
    from real.console.process import OpenConsole

LONGEST_NAME = 60
"""Largest number of ASCII characters in a camera's name."""


@contextmanager
def camera_streams(
    cameras: Mapping[str, CameraConfig], console: OpenConsole
) -> Iterator[dict[str, NewestPicture]]:
    """Streams cameras to the console as long as the block runs, and yields their newest pictures.

    Args:
        cameras: cameras by the names that pages show.
        console: an open console.

    Raises:
        HandoffError: a name that cannot be sent, or options that the kind of camera does not have.
    """
    from real.console.process import without_robot_token

    for name, settings in cameras.items():
        frame(name, np.zeros((2, 2, 3), np.uint8))
        check_camera(name, settings)
    with ExitStack() as stack:
        newest = {
            name: stack.enter_context(NewestPicture(settings.height))
            for name, settings in cameras.items()
        }
        context = multiprocessing.get_context("spawn")
        for name, settings in cameras.items():
            process = context.Process(
                target=_stream_and_reconnect,
                args=(name, settings, newest[name].name, console.uri, console.camera_token),
                name=f"handoff-{name}",
                daemon=True,
            )
            # It reads what a network sends, so it has no token but its own. Ctrl-C at the terminal
            # ends the session, which then ends this process.
            with without_robot_token(), blocked_interrupt():
                process.start()
            stack.callback(process.join, 5.0)
            stack.callback(process.terminate)
        yield newest


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


def _stream_and_reconnect(
    name: str, config: CameraConfig, memory: str, uri: str, token: str
) -> None:
    """Streams a camera, and reconnects to camera and console; target of its process."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

    end_with_parent()
    setproctitle(f"handoff: camera {name}")
    newest = NewestPicture(config.height, memory)
    pause = threading.Event()
    reported = ""
    while True:
        try:
            _stream(name, config, newest, uri, token)
        except (HandoffError, OSError, ConnectionClosed, InvalidHandshake, InvalidMessage) as error:
            newest.fail(str(error), lasting=isinstance(error, CameraOptionError))
            if str(error) != reported:
                reported = str(error)
                sys.stderr.write(f"{name}: {reported}\n")
        pause.wait(config.again)


def _stream(name: str, config: CameraConfig, newest: NewestPicture, uri: str, token: str) -> None:
    """Streams a camera until it or the console is lost."""
    from websockets.sync.client import connect

    camera = Camera(config)
    try:
        with connect(uri, max_size=2**20, compression=None, proxy=None) as connection:
            hello = {"kind": "hello", "role": "camera", "token": token, "cameras": [name]}
            connection.send(pack({**hello, "draws": False}))
            due = time.monotonic()
            while True:
                picture = camera.read()
                if camera.is_file:
                    time.sleep(max(0.0, due - time.monotonic()))
                    picture = picture._replace(captured=time.monotonic())
                newest.write(picture)
                # Images above the rate are not sent; left in a buffer they would delay those that
                # follow.
                if time.monotonic() < due:
                    continue
                due = max(due + 1.0 / config.rate_hz, time.monotonic())
                connection.send(frame(name, picture.image, config.quality))
    finally:
        camera.close()
