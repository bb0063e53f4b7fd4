"""Pages without a browser, and a line that can be cut: for tests and benchmarks of the console."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from real.console.audit import read_audit
from real.console.process import OpenConsole


class Page:
    """A browser's page in words."""

    def __init__(
        self, opened: OpenConsole, name: str = "ada", token: str | None = None, **options: Any
    ) -> None:
        url, _, known = opened.url.partition("/#")
        self.socket: ClientConnection = connect(
            url.replace("http", "ws") + "/page", max_size=2**22, close_timeout=0.5, **options
        )
        self.sequence = 0
        self.name = name
        self.say(kind="hello", token=known if token is None else token, name=name)

    def say(self, **word: Any) -> None:
        self.socket.send(json.dumps(word))

    def keys(self, *codes: str, visible: bool = True) -> None:
        self.sequence += 1
        self.say(kind="inputs", keys=list(codes), sequence=self.sequence, visible=visible)

    def go(self) -> None:
        self.keys("Enter")
        self.keys()

    def state(self) -> dict[str, Any]:
        """The next word about how things stand."""
        while True:
            word = self.socket.recv(timeout=5.0)
            if isinstance(word, str):
                return json.loads(word)

    def newest(self) -> dict[str, Any]:
        """The newest word about how things stand, for a reader who answers each one: a page answers
        at a steady rate, and one that answers all that a busy machine let wait floods the server."""
        state = self.state()
        with contextlib.suppress(TimeoutError):
            while True:
                word = self.socket.recv(timeout=0)
                if isinstance(word, str):
                    # What is said once, such as the episodes that ended, is kept.
                    state |= json.loads(word)
        return state

    def frame(self) -> bytes:
        """The next picture."""
        while True:
            word = self.socket.recv(timeout=5.0)
            if isinstance(word, bytes):
                return word

    def close_code(self) -> int:
        """With which the server closed the connection."""
        try:
            while True:
                self.socket.recv(timeout=5.0)
        except ConnectionClosed as closed:
            return -1 if closed.rcvd is None else closed.rcvd.code


class CuttableLine:
    """A TCP relay to `port`; once cut it carries nothing and closes nothing, as a pulled cable.

    Args:
        port: at 127.0.0.1, to which connections go on.
    """

    def __init__(self, port: int) -> None:
        self._to, self._cut = port, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cut.set()

    def mend(self) -> None:
        """New connections go through again; those that were cut stay so."""
        self._cut = threading.Event()

    def close(self) -> None:
        self._listener.close()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [near, far]
            threading.Thread(target=self._carry, args=(near, far, self._cut), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket, cut: threading.Event) -> None:
        other = {near: far, far: near}
        try:
            while not cut.is_set():
                for ready in select.select([near, far], [], [], 0.01)[0]:
                    data = ready.recv(65536)
                    if not data:
                        raise OSError
                    if not cut.is_set():
                        other[ready].sendall(data)
        except (OSError, ValueError):
            near.close()
            far.close()


def until(true: Callable[[], bool], seconds: float = 10.0) -> float:
    """Waits until something is true; returns how long that took [s]."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, "it never came true"
        time.sleep(0.001)
    return time.monotonic() - began


def logged(folder: Path, what: str) -> list[dict[str, Any]]:
    """Lines of the audit log about one kind of action."""
    return [line for line in read_audit(folder / "audit.jsonl") if line["what"] == what]
