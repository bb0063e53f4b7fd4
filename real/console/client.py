"""Connects the robot's process to the console: a thread that reconnects, sends and receives.

The acting thread never waits for it. A command that is older than the watchdog allows does not
count: without a console, or with one that has stopped, the arm holds still. It then holds until the
console has sent a hold of its own, which a person must end, even if newer commands arrive.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidURI
from websockets.sync.client import ClientConnection, connect

from real.console.control.commands import STANDSTILL, STILL, ControlCommand, Mode
from real.console.messages import read_command
from robots.config import Delay, Seconds, config
from robots.errors import HandoffError
from robots.interfaces import Label
from robots.wire.policy import check_token, pack, unpack

NO_COMMAND = ControlCommand(Mode.HOLD, STILL, "", -1, Label.NONE, 0)
"""Command that holds before the console has sent one."""
WAITING_MESSAGES = 2000
"""Largest number of messages kept for a console that is disconnected; the oldest are dropped. The
episode store has everything that must not be lost."""


@config
class ConsoleClientConfig:
    """Address of the console and time limits of the connection."""

    uri: str = "ws://127.0.0.1:8700/robot"
    """Address of the console: ws:// or wss://, host, port and path."""
    watchdog: Seconds = 0.15
    """Age of the newest command above which the arm holds still [s]."""
    connect_seconds: Seconds = 2.0
    """Time limit for one attempt to connect [s]."""
    wait: Delay = 0.2
    """Time from a lost connection to the next attempt [s]."""


class ConsoleClient:
    """The robot's end of the connection to the console; runs from `start` to `close`.

    Args:
        config: address and time limits.
        token: token that the console expects from the robot's process.
        about: description of the task that pages show: `task`, `stage`, `rate_hz`.

    Raises:
        HandoffError: an unusable token.
    """

    def __init__(self, config: ConsoleClientConfig, token: str, about: Mapping[str, Any]) -> None:
        check_token(token)
        self._config = config
        self._token = token
        # So that the console knows one that comes back from another one.
        self._about = {**about, "client": secrets.token_hex(8)}
        self._closing = threading.Event()
        self._queued = threading.Condition()
        self._messages: deque[bytes] = deque(maxlen=WAITING_MESSAGES)
        self._scene: bytes | None = None
        self._description: tuple[bytes, bytes | None] | None = None
        """The newest message, and scene, that describe the present."""
        self._newest: tuple[ControlCommand, float, int] = (NO_COMMAND, -np.inf, 0)
        """The newest command, the time at which it came [s], and the number of its connection."""
        self._held = True
        """Whether the arm holds still until the console commands it to hold."""
        self._connections = 0
        self._thread = threading.Thread(target=self._work, name="console", daemon=True)

    def start(self) -> None:
        """Begins to connect."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; a second call does nothing."""
        self._closing.set()
        with self._queued:
            self._queued.notify_all()
        if self._thread.is_alive():
            self._thread.join(self._config.connect_seconds + 1.0)

    @property
    def connection(self) -> int:
        """Number of the connection; the numbers of labels start again with every connection."""
        return self._newest[2]

    def command(self) -> ControlCommand:
        """The newest command, or one to hold still if that is older than the watchdog allows."""
        command, received, _ = self._newest
        self._check_age(received)
        if self._held:
            return command._replace(mode=_hold_mode(command.mode), hand=STILL)
        return command

    def send(self, message: Mapping[str, Any], scene: bytes | None = None) -> None:
        """Queues a message, and a scene that replaces one that is still queued; never waits."""
        packed = pack(dict(message))
        with self._queued:
            self._messages.append(packed)
            self._scene = scene or self._scene
            self._queued.notify_all()

    def describe(self, message: Mapping[str, Any], scene: bytes | None = None) -> None:
        """Queues a message that describes the present, such as the beginning of an episode, and a
        scene; both are sent again whenever the connection is opened again, until the next."""
        self._description = pack(dict(message)), scene
        self.send(message, scene)

    def show(self, scene: bytes) -> None:
        """Queues a scene for those who draw it."""
        with self._queued:
            self._scene = scene
            self._queued.notify_all()

    def await_hold(self) -> None:
        """Holds the arm still until a command to hold, or to stop, comes."""
        self._held = True

    def _check_age(self, received: float) -> None:
        """Holds the arm if the newest command, received at that time [s], is too old, and says so
        to the console, whose pages would show that the arm moves."""
        age = time.monotonic() - received
        if age > self._config.watchdog and not self._held:
            self._held = True
            self.send({"kind": "hold", "why": f"The robot heard nothing for {1e3 * age:.0f} ms."})

    def _receive(self, command: ControlCommand) -> None:
        """Takes a command; one that moves nothing ends the hold of the robot's side."""
        self._check_age(self._newest[1])
        self._newest = (command, time.monotonic(), self._connections)
        if command.mode in STANDSTILL:
            self._held = False

    def _work(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(
                OSError, ConnectionClosed, InvalidHandshake, InvalidMessage, HandoffError
            ):
                self._connect()
            self._closing.wait(self._config.wait)

    def _connect(self) -> None:
        """One connection: greets, starts the sending thread, and receives until it breaks."""
        try:
            connection = connect(
                self._config.uri,
                open_timeout=self._config.connect_seconds,
                max_size=2**16,
                compression=None,
                # The token must reach nobody else.
                proxy=None,
            )
        except InvalidURI as error:
            raise HandoffError(
                f"console: {error}. Expected an address such as ws://127.0.0.1:8700/robot."
            ) from None
        ended = threading.Event()
        with connection:
            connection.send(
                pack({"kind": "hello", "role": "robot", "token": self._token, "about": self._about})
            )
            self._connections += 1
            self._describe_again()
            # One thread sends, this one receives; whichever fails first ends the other.
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
                        self._receive(command)
            finally:
                ended.set()
                with self._queued:
                    self._queued.notify_all()

    def _describe_again(self) -> None:
        """Queues the description before what waits for the console, unless it waits itself."""
        if self._description is None:
            return
        message, scene = self._description
        with self._queued:
            if message not in self._messages:
                self._messages.appendleft(message)
            self._scene = self._scene or scene
            self._queued.notify_all()

    def _send(self, connection: ClientConnection, ended: threading.Event) -> None:
        with contextlib.suppress(OSError, ConnectionClosed):
            while not (ended.is_set() or self._closing.is_set()):
                with self._queued:
                    self._queued.wait_for(
                        lambda: (
                            self._messages
                            or self._scene
                            or ended.is_set()
                            or self._closing.is_set()
                        )
                    )
                    messages = list(self._messages)
                    scene = self._scene
                    self._messages.clear()
                    self._scene = None
                for message in messages:
                    connection.send(message)
                if scene is not None:
                    connection.send(pack({"kind": "scene", "scene": scene}))


def _hold_mode(mode: Mode) -> Mode:
    """The mode that replaces `mode` while the arm must hold still."""
    return mode if mode in STANDSTILL else Mode.HOLD
