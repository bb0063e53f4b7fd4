"""The console's server as a process of its own, so that neither pictures nor pages can delay the
arm's loop."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from real.console.bindings import stored_bindings
from real.console.client import LineConfig
from real.console.server import BINDINGS, ConsoleConfig
from robots.errors import HandoffError
from robots.processes import end_with_parent

TOKEN_VARIABLE = "HANDOFF_TOKEN"
"""Environment variable with the token that pages must show; without it one is made up."""
ROBOT_VARIABLE = "HANDOFF_CONSOLE"
"""Environment variable that tells a session's processes where the console is:
`<uri> <robot's token>`."""
START_SECONDS = 20.0
"""For the server to listen."""
LOCAL = ("127.0.0.1", "::1", "localhost")


class Open(NamedTuple):
    """A console that listens."""

    url: str
    """For a browser; the token stands behind `#`, which browsers do not send."""
    uri: str
    """For the robot's side."""
    robot_token: str
    process: Any

    def line(self) -> LineConfig:
        """How the robot's side finds it."""
        return LineConfig(uri=self.uri)


@contextmanager
def open_console(config: ConsoleConfig, folder: Path) -> Iterator[Open]:
    """Starts the server, tells this process's children where it is, and ends it.

    A server that is killed is started again by `keep`.

    Args:
        config: see there; port 0 takes a free one.
        folder: of the audit log and the bindings.

    Raises:
        HandoffError: no token for another address than this machine's, stored bindings that are
            refused, the port is taken, or the server does not start.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token and config.host not in LOCAL:
        raise HandoffError(
            f"console: listening at {config.host} needs a token in ${TOKEN_VARIABLE}; who has it can move the arm."
        )
    # The server reads them too; read here, a refusal is one line for the person who starts the
    # session.
    stored_bindings(folder / BINDINGS)
    token, robot_token = token or secrets.token_urlsafe(18), secrets.token_urlsafe(18)
    config = replace(config, port=config.port or _free_port(config.host))
    process = _start(config, token, robot_token, folder)
    host = f"[{config.host}]" if ":" in config.host else config.host
    uri = f"ws://{host}:{config.port}/robot"
    before = os.environ.get(ROBOT_VARIABLE)
    os.environ[ROBOT_VARIABLE] = f"{uri} {robot_token}"
    try:
        yield Open(f"http://{host}:{config.port}/#{token}", uri, robot_token, process)
    finally:
        if before is None:
            del os.environ[ROBOT_VARIABLE]
        else:
            os.environ[ROBOT_VARIABLE] = before
        process.end()


def console_line() -> tuple[LineConfig, str]:
    """Where the console of this session is, and the robot's token.

    Raises:
        HandoffError: none was opened.
    """
    told = os.environ.get(ROBOT_VARIABLE, "").split(" ")
    if len(told) != 2:
        raise HandoffError(
            "operator: no console is open. `handoff hil` and `handoff console` open one."
        )
    return LineConfig(uri=told[0]), told[1]


class _Kept:
    """The server's process, started again when it is killed."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._arguments, self._ending = arguments, threading.Event()
        self._context = multiprocessing.get_context("spawn")
        self._process = self._begin()
        self._thread = threading.Thread(target=self._keep, name="console-keeper", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.is_alive()

    def end(self) -> None:
        """Ends it."""
        self._ending.set()
        self._process.terminate()
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
        self._thread.join(5.0)

    def _begin(self) -> Any:
        process = self._context.Process(
            target=_serve, args=self._arguments, name="handoff-console", daemon=True
        )
        process.start()
        return process

    def _keep(self) -> None:
        while not self._ending.is_set():
            self._process.join(0.2)
            # One that ended by itself could not listen; only a killed one is started again.
            if not self._process.is_alive() and not self._ending.is_set():
                if (self._process.exitcode or 0) >= 0:
                    return
                self._process = self._begin()


def _start(config: ConsoleConfig, token: str, robot_token: str, folder: Path) -> _Kept:
    kept = _Kept((config, token, robot_token, folder))
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit:
        if not kept.alive():
            break
        try:
            socket.create_connection((config.host, config.port), 0.5).close()
            return kept
        except OSError:
            time.sleep(0.05)
    kept.end()
    raise HandoffError(
        f"console: no server at {config.host}:{config.port}; its own words stand above. Is the port taken (port 0 "
        "finds a free one), or no SpaceMouse plugged in?"
    )


def _serve(config: ConsoleConfig, token: str, robot_token: str, folder: Path) -> None:
    """The process."""
    import uvicorn

    from real.console.app import application
    from real.console.server import LARGEST_FRAME, Console

    end_with_parent()
    console = Console(config, token, robot_token, folder)
    settings = uvicorn.Config(
        application(console),
        host=config.host,
        port=config.port,
        log_level="warning",
        ws_max_size=LARGEST_FRAME,
        # Pictures are packed already.
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(settings).run()


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
