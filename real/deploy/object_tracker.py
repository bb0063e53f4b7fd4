"""Receives an object's pose on the board from a tracker.

The tracker is a websocket server of the lab; every frame that it sends is a msgpack map
(`robots.wire.policy`) with `pose`, the x and y [m] and angle [rad] on the board. A pose that is too
old is an error: the arm must not act on it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Annotated

import numpy as np
from pydantic import Field
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidURI
from websockets.sync.client import connect

from robots.config import config
from robots.errors import HandoffError, SafetyError
from robots.wire.policy import unpack


@config
class TrackerConfig:
    """Address of the tracker and time limits."""

    uri: str = ""
    """Address of the tracker: ws:// or wss://, host and port; empty if there is none."""
    max_age: Annotated[float, Field(gt=0.0, le=10.0)] = 0.25
    """Age of the newest pose above which it is an error [s]."""
    first_seconds: Annotated[float, Field(gt=0.0, le=60.0)] = 5.0
    """Time limit for the first pose [s]."""
    wait: Annotated[float, Field(ge=0.0, le=10.0)] = 0.2
    """Time from a lost connection to the next attempt [s]."""


class RemoteTracker:
    """Keeps the newest pose of a tracker, and reconnects when the connection is lost; a context
    manager.

    Args:
        config: address and time limits.

    Raises:
        HandoffError: on entering, no pose within `first_seconds`.
    """

    def __init__(self, config: TrackerConfig) -> None:
        self._config = config
        self._closing = threading.Event()
        self._newest: tuple[np.ndarray, float] | None = None
        self._trouble = "no frame was received"
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)

    def __enter__(self) -> RemoteTracker:
        self._thread.start()
        deadline = time.monotonic() + self._config.first_seconds
        while self._newest is None:
            if time.monotonic() > deadline or not self._thread.is_alive():
                self._closing.set()
                raise HandoffError(
                    f"tracker {self._config.uri}: no pose within {self._config.first_seconds} s ({self._trouble}). Is "
                    "it running, and is the board in view?"
                )
            time.sleep(0.01)
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join(2.0)

    def pose(self) -> np.ndarray:
        """(3,) newest x, y [m] and angle [rad] on the board.

        Raises:
            SafetyError: the pose is too old.
        """
        if self._newest is None:
            raise SafetyError(f"tracker {self._config.uri}: {self._trouble}.")
        pose, received = self._newest
        age = time.monotonic() - received
        if age > self._config.max_age:
            raise SafetyError(
                f"tracker {self._config.uri}: newest pose is {age:.3f} s old, limit {self._config.max_age} s "
                f"({self._trouble}). Is the object hidden, the connection lost?"
            )
        return pose.copy()

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                self._listen()
            except InvalidURI as error:
                self._trouble = f"{error}. Expected such as ws://192.168.1.20:8765"
                return
            except (
                OSError,
                ConnectionClosed,
                InvalidHandshake,
                InvalidMessage,
                HandoffError,
            ) as error:
                self._trouble = str(error)[:200]
            self._closing.wait(self._config.wait)

    def _listen(self) -> None:
        with connect(
            self._config.uri, open_timeout=2.0, max_size=2**16, compression=None
        ) as connection:
            while not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    frame = connection.recv(timeout=0.2)
                    self._newest = (_pose_of(frame), time.monotonic())
                    self._trouble = "it sends no more frames"


def _pose_of(frame: str | bytes) -> np.ndarray:
    message = unpack(frame) if isinstance(frame, bytes) else None
    pose = message.get("pose") if isinstance(message, dict) else None
    try:
        array = np.asarray(pose, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.shape != (3,) or not np.isfinite(array).all():
        raise HandoffError(
            f"a frame without a pose: {str(message)[:80]!r}, expected {{'pose': [x, y, angle]}}"
        )
    return array
