"""Receives observed fields, such as the poses of objects, from a tracker.

The tracker is a websocket server of the lab. Its first message shows the token, if there is one:
a msgpack map (`robots.wire.policy`) with `token`. Every other one has values under the names of the
observed fields, in their units (at push-T's board `pose`: x and y [m] and angle [rad]), and says
how new they are, by at least one of

- `frame`: number of the camera's picture, which rises with every new one,
- `age`: time since the picture was taken [s].

A message may leave out what its picture does not show. One that repeats an old picture is no news;
a value out of its range, or too far from the last one, is not taken; and a value that is too old is
an error: the arm must not act on it.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidURI
from websockets.sync.client import connect
from websockets.uri import parse_uri

from real.deploy.tracked_field import RemoteTrackerConfig, TrackedField
from robots.errors import HandoffError, SafetyError
from robots.wire.addresses import is_loopback
from robots.wire.policy import check_token, unpack

TOKEN_VARIABLE = "HANDOFF_TRACKER_TOKEN"
"""Environment variable of the token that a tracker must show."""


def check_tracker_address(option: str, uri: str) -> None:
    """Checks the address of a tracker, before anything is opened.

    Args:
        option: option of the tracker, for messages.
        uri: address.

    Raises:
        HandoffError: it is not that of a WebSocket.
    """
    try:
        parse_uri(uri)
    except InvalidURI:
        found = f"'{uri}'" if uri else "empty"
        raise HandoffError(
            f"{option}: uri is {found}, expected such as ws://10.0.0.5:9000."
        ) from None


class _Sight(NamedTuple):
    """A value that was taken."""

    value: np.ndarray
    taken_at: float
    """Time at which its picture was taken, as far as is known [s]."""


class RemoteTracker:
    """Keeps the newest values of a tracker, and reconnects when the connection is lost; a context
    manager.

    Args:
        config: address and time limits.
        fields: what it sends, with the limits of each.

    Raises:
        HandoffError: an unusable token, or none for another computer; on entering, a field without
            a value within `first_seconds`.
    """

    def __init__(self, config: RemoteTrackerConfig, fields: Sequence[TrackedField]) -> None:
        self._config = config
        self._fields = {field.name: field for field in fields}
        self._closing = threading.Event()
        self._token = os.environ.get(TOKEN_VARIABLE, "")
        if self._token:
            check_token(self._token)
        elif not is_loopback(urlsplit(config.uri).hostname or "localhost"):
            raise HandoffError(
                f"tracker {config.uri}: at another computer it needs a token in ${TOKEN_VARIABLE}, here and there; "
                "anybody can send a pose."
            )
        self._newest: dict[str, _Sight] = {}
        self._last: _News | None = None
        self._trouble = dict.fromkeys(self._fields, "no frame was received")
        """Why there is no newer value, by field."""
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)

    def __enter__(self) -> RemoteTracker:
        self._thread.start()
        deadline = time.monotonic() + self._config.first_seconds
        while missing := [name for name in self._fields if name not in self._newest]:
            if time.monotonic() > deadline or not self._thread.is_alive():
                self._closing.set()
                raise HandoffError(
                    f"tracker {self._config.uri}: no {missing[0]} within {self._config.first_seconds} s "
                    f"({self._trouble[missing[0]]}). Is it running, and is what it tracks in view?"
                )
            time.sleep(0.01)
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join(2.0)

    def read(self, name: str) -> np.ndarray:
        """(n,) newest value of a field, in its units.

        Raises:
            SafetyError: it is too old.
        """
        if name not in self._newest:
            raise SafetyError(f"tracker {self._config.uri}: {self._trouble[name]}.")
        value, taken_at = self._newest[name]
        age = time.monotonic() - taken_at
        limit = self._fields[name].max_age
        if age > limit:
            raise SafetyError(
                f"tracker {self._config.uri}: newest {name} is {age:.3f} s old, limit {limit} s "
                f"({self._trouble[name]}). Is the object hidden, the connection lost?"
            )
        return value.copy()

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                self._listen()
            except InvalidURI as error:
                self._note(f"{error}. Expected such as ws://192.168.1.20:8765")
                return
            except (
                OSError,
                ConnectionClosed,
                InvalidHandshake,
                InvalidMessage,
                HandoffError,
            ) as error:
                self._note(str(error)[:200])
            self._closing.wait(self._config.wait)

    def _listen(self) -> None:
        with connect(
            self._config.uri, open_timeout=2.0, max_size=2**16, compression=None, proxy=None
        ) as connection:
            shown, first = not self._token, True
            while not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    message = _read(connection.recv(timeout=0.2))
                    if not shown or set(message) == {"token"}:
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

    def _note(self, trouble: str) -> None:
        """Notes for all fields why there is no newer value."""
        self._trouble = dict.fromkeys(self._fields, trouble)

    def _take(self, message: Mapping[str, Any], *, first: bool) -> None:
        """Takes the values of a message that are new and possible; otherwise notes why not.

        Args:
            message: the message.
            first: whether it is the first of a connection, so that pictures may be counted anew.

        Raises:
            HandoffError: a message without any of the fields, with a value of another size, or that
                does not say how new it is.
        """
        values = {
            name: field.read(message[name])
            for name, field in self._fields.items()
            if name in message
        }
        if not values:
            raise HandoffError(
                f"a frame without {' or '.join(self._fields)}: {str(message)[:80]!r}, see the protocol of trackers"
            )
        now, news = time.monotonic(), _news_of(message, values)
        last = self._last
        self._last = news
        if last is not None and _repeats(news, last, first=first):
            self._note(f"it repeats an old picture, number {news.frame}")
            return
        taken_at = now - (news.age or 0.0)
        for name, field in self._fields.items():
            if name not in values:
                self._trouble[name] = "its messages leave the field out"
                continue
            before = self._newest.get(name)
            value, seconds = values[name], 0.0
            if before is not None:
                seconds = max(taken_at - before.taken_at, 0.0)
            why = field.impossible(value, None if before is None else before.value, seconds)
            if why:
                self._trouble[name] = why
                continue
            self._newest[name] = _Sight(value, taken_at)
            self._trouble[name] = "it sends no more frames"


class _News(NamedTuple):
    """What a message says of how new its values are."""

    frame: int | None
    age: float | None
    values: tuple[tuple[float, ...], ...] | None


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


def _news_of(message: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> _News:
    """What a message says of how new its values are.

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
            "a message without `frame`, the rising number of its picture, or `age`, the seconds since it was taken"
        )
    # A message with an age alone is a repetition if it is the same as the last one.
    same = None if frame is not None else tuple(tuple(each.tolist()) for each in values.values())
    return _News(frame, None if age is None else float(age), same)
