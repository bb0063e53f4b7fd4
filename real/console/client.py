"""The robot's end of the line to the console: a thread that connects, again and again, sends and
receives.

Nothing in it makes the acting thread wait. A command that is older than the watchdog says nothing
any more: without a console, or with one that has stopped, the arm holds still.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidURI
from websockets.sync.client import ClientConnection, connect

from real.console.arbiter import STILL, Command, Mode
from real.console.messages import read_command
from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Label
from robots.wire.policy import check_token, pack, unpack

NOBODY = Command(Mode.HOLD, STILL, "", -1, Label.NONE, 0)
"""Without a console."""
WAITING_WORDS = 2000
"""Words kept for a console that is away; older ones are forgotten. What must not be lost is in the
episode store."""


@config
class LineConfig:
    """Which console, and how long it may be silent."""

    uri: str = "ws://127.0.0.1:8700/robot"
    """ws:// or wss://, host, port and path."""
    watchdog: float = 0.15
    """Age of a command from which on the arm holds still [s]."""
    connect_seconds: float = 2.0
    """Limit for one attempt to connect [s]."""
    wait: float = 0.2
    """Time from a lost connection to the next attempt [s]."""


class Line:
    """Runs from `start` to `close`.

    Args:
        config: see there.
        token: that the console wants to see of a robot's side.
        about: what pages show of the task: `task`, `stage`, `rate_hz`.

    Raises:
        HandoffError: an unusable token.
    """

    def __init__(self, config: LineConfig, token: str, about: Mapping[str, Any]) -> None:
        check_token(token)
        self._config, self._token, self._about = config, token, dict(about)
        self._closing, self._more = threading.Event(), threading.Condition()
        self._words: deque[bytes] = deque(maxlen=WAITING_WORDS)
        self._scene: bytes | None = None
        self._newest: tuple[Command, float, int] = (NOBODY, -np.inf, 0)
        self._connections = 0
        self._thread = threading.Thread(target=self._work, name="console", daemon=True)

    def start(self) -> None:
        """Begins to connect."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; a second call does nothing."""
        self._closing.set()
        with self._more:
            self._more.notify_all()
        if self._thread.is_alive():
            self._thread.join(self._config.connect_seconds + 1.0)

    @property
    def connection(self) -> int:
        """Number of the connection; another one counts its labels anew."""
        return self._newest[2]

    def command(self) -> Command:
        """What is to be done now: hold still unless the console has said otherwise just before."""
        command, heard, _ = self._newest
        age = time.monotonic() - heard
        return (
            command
            if age <= self._config.watchdog
            else command._replace(mode=_stilled(command.mode), hand=STILL)
        )

    def tell(self, word: Mapping[str, Any], scene: bytes | None = None) -> None:
        """Sends a word as soon as may be, and the newest scene, of which older ones are skipped."""
        packed = pack(dict(word))
        with self._more:
            self._words.append(packed)
            self._scene = scene or self._scene
            self._more.notify_all()

    def _work(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(
                OSError, ConnectionClosed, InvalidHandshake, InvalidMessage, HandoffError
            ):
                self._talk()
            self._closing.wait(self._config.wait)

    def _talk(self) -> None:
        try:
            connection = connect(
                self._config.uri,
                open_timeout=self._config.connect_seconds,
                max_size=2**16,
                compression=None,
            )
        except InvalidURI as error:
            raise HandoffError(
                f"console: {error}. Expected such as ws://127.0.0.1:8700/robot."
            ) from None
        ended = threading.Event()
        with connection:
            connection.send(
                pack({"kind": "hello", "role": "robot", "token": self._token, "about": self._about})
            )
            self._connections += 1
            sender = threading.Thread(
                target=self._send, args=(connection, ended), name="console-out", daemon=True
            )
            sender.start()
            try:
                while not self._closing.is_set():
                    with contextlib.suppress(TimeoutError):
                        frame = connection.recv(timeout=0.2)
                        command = read_command(
                            unpack(frame if isinstance(frame, bytes) else frame.encode())
                        )
                        self._newest = (command, time.monotonic(), self._connections)
            finally:
                ended.set()
                with self._more:
                    self._more.notify_all()

    def _send(self, connection: ClientConnection, ended: threading.Event) -> None:
        with contextlib.suppress(OSError, ConnectionClosed):
            while not (ended.is_set() or self._closing.is_set()):
                with self._more:
                    self._more.wait_for(
                        lambda: (
                            self._words or self._scene or ended.is_set() or self._closing.is_set()
                        )
                    )
                    words, scene = list(self._words), self._scene
                    self._words.clear()
                    self._scene = None
                for word in words:
                    connection.send(word)
                if scene is not None:
                    connection.send(pack({"kind": "scene", "scene": scene}))


def _stilled(mode: Mode) -> Mode:
    return mode if mode is Mode.STOP else Mode.HOLD
