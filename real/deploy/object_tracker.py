"""Receives an object's pose on the board from a tracker.

The tracker is a websocket server of the lab. Its first message shows the token, if there is one:
a msgpack map (`robots.wire.policy`) with `token`. Every other one has `pose`, the x and y [m] and
angle [rad] on the board, and says how new it is, by at least one of

- `frame`: number of the camera's picture, which rises with every new one,
- `age`: time since the picture was taken [s].

A message that repeats an old picture is no news, a pose off the board or too far from the last one
is not taken, and a pose that is too old is an error: the arm must not act on it.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import threading
import time
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidURI
from websockets.sync.client import connect

from real.motion.governor import Coordinate
from robots.config import config
from robots.errors import HandoffError, SafetyError
from robots.wire.addresses import is_loopback
from robots.wire.policy import check_token, unpack

TOKEN_VARIABLE = "HANDOFF_TRACKER_TOKEN"
"""Environment variable of the token that the tracker must show."""
SLACK = 0.01
"""Distance that noise may move a pose from one picture to the next [m]."""
SLACK_ANGLE = 0.1
"""Angle that noise may turn a pose from one picture to the next [rad]."""


@config
class TrackerConfig:
    """Address of the tracker, its limits of time and of poses."""

    uri: str = ""
    """Address of the tracker: ws:// or wss://, host and port; empty if there is none."""
    max_age: Annotated[float, Field(gt=0.0, le=10.0)] = 0.25
    """Age of the newest pose above which it is an error [s]."""
    first_seconds: Annotated[float, Field(gt=0.0, le=60.0)] = 5.0
    """Time limit for the first pose [s]."""
    wait: Annotated[float, Field(ge=0.0, le=10.0)] = 0.2
    """Time from a lost connection to the next attempt [s]."""
    low: tuple[Coordinate, Coordinate] = (0.0, 0.0)
    """Lower corner of the board, within which the object must be [m]."""
    high: tuple[Coordinate, Coordinate] = (0.512, 0.512)
    """Upper corner of the board [m]."""
    max_speed: Annotated[float, Field(gt=0.0, le=5.0)] = 1.0
    """Speed of the object above which a pose is not taken [m/s]; a pusher moves it with at most
    0.5."""
    max_turn: Annotated[float, Field(gt=0.0, le=50.0)] = 15.0
    """Speed of its rotation above which a pose is not taken [rad/s]."""


class _Sight(NamedTuple):
    """A pose that was taken."""

    pose: np.ndarray
    taken_at: float
    """Time at which its picture was taken, as far as is known [s]."""


class RemoteTracker:
    """Keeps the newest pose of a tracker, and reconnects when the connection is lost; a context
    manager.

    Args:
        config: address and time limits.

    Raises:
        HandoffError: an unusable token, or none for another computer; on entering, no pose within
            `first_seconds`.
    """

    def __init__(self, config: TrackerConfig) -> None:
        self._config = config
        self._closing = threading.Event()
        self._token = os.environ.get(TOKEN_VARIABLE, "")
        if self._token:
            check_token(self._token)
        elif not is_loopback(urlsplit(config.uri).hostname or "localhost"):
            raise HandoffError(
                f"tracker {config.uri}: at another computer it needs a token in ${TOKEN_VARIABLE}, here and there; "
                "anybody can send a pose."
            )
        self._newest: _Sight | None = None
        self._last: _News | None = None
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
        pose, taken_at = self._newest
        age = time.monotonic() - taken_at
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
            self._config.uri, open_timeout=2.0, max_size=2**16, compression=None, proxy=None
        ) as connection:
            shown, first = not self._token, True
            while not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    message = _read(connection.recv(timeout=0.2))
                    if not shown or ("token" in message and "pose" not in message):
                        self._check_token(message)
                        shown = True
                        continue
                    self._take(message, first=first)
                    first = False

    def _check_token(self, message: Mapping[str, Any]) -> None:
        given = message.get("token")
        if not self._token:
            return
        if not isinstance(given, str) or not hmac.compare_digest(
            given.encode(), self._token.encode()
        ):
            raise HandoffError(f"its first message does not show the token of ${TOKEN_VARIABLE}")

    def _take(self, message: Mapping[str, Any], *, first: bool) -> None:
        """Takes the pose of a message if it is new and possible; otherwise notes why not.

        Args:
            message: the message.
            first: whether it is the first of a connection, so that pictures may be counted anew.

        Raises:
            HandoffError: a message without a pose, or that does not say how new it is.
        """
        pose, now = _pose_of(message), time.monotonic()
        news = _news_of(message)
        last = self._last
        self._last = news
        if last is not None and _repeats(news, last, first=first):
            self._trouble = f"it repeats an old picture, number {news.frame}"
            return
        taken_at = now - (news.age or 0.0)
        why = self._impossible(pose, taken_at)
        if why:
            self._trouble = why
            return
        self._newest = _Sight(pose, taken_at)
        self._trouble = "it sends no more frames"

    def _impossible(self, pose: np.ndarray, taken_at: float) -> str:
        """Why the object cannot be there; empty if it can."""
        config, where = self._config, np.round(pose, 3).tolist()
        if not ((pose[:2] >= config.low) & (pose[:2] <= config.high)).all():
            return f"pose {where} is off the board, {list(config.low)} to {list(config.high)} m"
        if abs(pose[2]) > 2.0 * math.pi:
            return f"pose {where} has an angle beyond one turn; is it in degrees?"
        if self._newest is None:
            return ""
        before, seconds = self._newest.pose, max(taken_at - self._newest.taken_at, 0.0)
        moved = float(np.linalg.norm(pose[:2] - before[:2]))
        turned = abs(math.remainder(pose[2] - before[2], 2.0 * math.pi))
        if (
            moved > config.max_speed * seconds + SLACK
            or turned > config.max_turn * seconds + SLACK_ANGLE
        ):
            return f"pose {where} is {moved:.3f} m and {turned:.2f} rad from that of {seconds:.3f} s before"
        return ""


class _News(NamedTuple):
    """What a message says of how new its pose is."""

    frame: int | None
    age: float | None
    pose: tuple[float, ...] | None


def _read(frame: str | bytes) -> Mapping[str, Any]:
    message = unpack(frame) if isinstance(frame, bytes) else None
    if not isinstance(message, dict):
        raise HandoffError(f"a frame that is no map: {str(message)[:80]!r}")
    return message


def _repeats(news: _News, last: _News, *, first: bool) -> bool:
    """Whether a message shows no newer picture than the last one."""
    if news.frame is None or last.frame is None:
        return news == last
    return news.frame == last.frame or (not first and news.frame < last.frame)


def _news_of(message: Mapping[str, Any]) -> _News:
    """What a message says of how new its pose is.

    Raises:
        HandoffError: nothing.
    """
    frame, age = message.get("frame"), message.get("age")
    if frame is not None and (isinstance(frame, bool) or not isinstance(frame, int)):
        raise HandoffError(f"`frame` is {frame!r}, expected the number of the picture")
    if age is not None and (
        isinstance(age, bool) or not isinstance(age, int | float) or not 0.0 <= age <= 86_400.0
    ):
        raise HandoffError(f"`age` is {age!r}, expected the seconds since the picture was taken")
    if frame is None and age is None:
        raise HandoffError(
            "a pose without `frame`, the rising number of its picture, or `age`, the seconds since it was taken"
        )
    # A message with an age alone is a repetition if it is the same as the last one.
    pose = None if frame is not None else tuple(np.ravel(message["pose"]).tolist())
    return _News(frame, None if age is None else float(age), pose)


def _pose_of(message: Mapping[str, Any]) -> np.ndarray:
    try:
        array = np.asarray(message.get("pose"), dtype=np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.shape != (3,) or not np.isfinite(array).all():
        raise HandoffError(
            f"a frame without a pose: {str(message)[:80]!r}, expected {{'pose': [x, y, angle]}}"
        )
    return array
