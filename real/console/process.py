"""Runs the console's server in its own process, so that neither images nor pages delay the arm's
loop."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from real.console.attached import Attach
from real.console.client import ConsoleClientConfig
from real.console.control.bindings import stored_bindings
from real.console.server import BINDINGS, ConsoleConfig
from robots.errors import HandoffError
from robots.processes import KeptProcess
from robots.wire.addresses import is_loopback
from robots.wire.policy import TOKEN_VARIABLE, check_token

ROBOT_VARIABLE = "HANDOFF_CONSOLE"
"""Environment variable with the console's address for a session's processes: `<uri> <token of the
robot's process> <watchdog of the robot's process, s>`."""
START_SECONDS = 20.0
"""Time limit for the server to listen [s]."""
END_SECONDS = 5.0
"""Time limit for the server to end after it was asked to [s]."""


class OpenConsole(NamedTuple):
    """A console that listens."""

    url: str
    """Address for a browser; the token stands behind `#`, which browsers do not send."""
    uri: str
    """Address for the robot's process."""
    robot_token: str
    """Token that the robot's process must show."""
    camera_token: str
    """Token that a process that sends images must show; it cannot take the robot's place."""
    process: Any
    """Process of the server."""

    def client_config(self) -> ConsoleClientConfig:
        """Configuration of a client of this console."""
        return ConsoleClientConfig(uri=self.uri)


@contextmanager
def open_console(
    config: ConsoleConfig, folder: Path, attach: Attach | None = None
) -> Iterator[OpenConsole]:
    """Runs the server as long as the block runs, and sets `ROBOT_VARIABLE` for child processes.

    A server that is killed is started again.

    Args:
        config: host, port and time limits; port 0 takes a free port.
        folder: folder of the audit log and the bindings.
        attach: see `ConsoleServer`.

    Raises:
        HandoffError: no token for an address that other machines can reach, an unusable one, stored
            bindings that are refused, a port that is taken, or a server that does not start.
    """
    token, port = check_address(config)
    # The server reads the bindings, too. Reading them here as well turns a refusal into one line
    # for the person who starts the session.
    stored_bindings(folder / BINDINGS)
    token = token or secrets.token_urlsafe(18)
    robot_token, camera_token = secrets.token_urlsafe(18), secrets.token_urlsafe(18)
    config = replace(config, port=port)
    process = _start(config, (config, token, robot_token, camera_token, folder, attach))
    host = f"[{config.host}]" if ":" in config.host else config.host
    uri = f"ws://{host}:{config.port}/robot"
    outer = os.environ.get(ROBOT_VARIABLE)
    os.environ[ROBOT_VARIABLE] = f"{uri} {robot_token} {config.arbiter.watchdog}"
    try:
        url = f"http://{host}:{config.port}/#{token}"
        yield OpenConsole(url, uri, robot_token, camera_token, process)
    finally:
        if outer is None:
            del os.environ[ROBOT_VARIABLE]
        else:
            os.environ[ROBOT_VARIABLE] = outer
        process.end()


def check_address(config: ConsoleConfig) -> tuple[str, int]:
    """Checks that a console can listen, before a session makes a folder; returns the token of
    `TOKEN_VARIABLE`, empty where there is none, and the port, a free one for 0.

    Raises:
        HandoffError: no token for an address that other machines can reach, an unusable one, or a
            port that is taken.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token:
        check_token(token)
    if not 0 <= config.port <= 65535:
        raise HandoffError(f"console: port is {config.port}, expected 0 to 65535.")
    if not token and not is_loopback(config.host):
        raise HandoffError(
            f"console: listening at {config.host} needs a token in ${TOKEN_VARIABLE}; anybody "
            "with the token can move the arm."
        )
    return token, _checked_port(config.host, config.port)


@contextmanager
def without_robot_token() -> Iterator[None]:
    """Context in which a process is started that must not take the robot's place."""
    held = os.environ.pop(ROBOT_VARIABLE, None)
    try:
        yield
    finally:
        if held is not None:
            os.environ[ROBOT_VARIABLE] = held


def console_address() -> tuple[ConsoleClientConfig, str]:
    """Address of this session's console, and the token of the robot's process.

    Raises:
        HandoffError: no console is open.
    """
    parts = os.environ.get(ROBOT_VARIABLE, "").split(" ")
    if len(parts) != 3:
        raise HandoffError(
            "operator: no console is open. `handoff hil` and `handoff console` open one."
        )
    # The robot's side is as patient as the server is with its pages.
    return ConsoleClientConfig(uri=parts[0], watchdog=float(parts[2])), parts[1]


def _start(config: ConsoleConfig, arguments: tuple[Any, ...]) -> KeptProcess:
    """A server that listens.

    Args:
        config: its address.
        arguments: those of `_serve`.
    """
    # A server that ended by itself could not listen.
    server = KeptProcess("handoff-console", _serve, arguments, seconds=END_SECONDS)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if not server.alive():
            break
        try:
            socket.create_connection((config.host, config.port), 0.5).close()
            return server
        except OSError:
            time.sleep(0.05)
    server.end()
    raise HandoffError(
        f"console: no server at {config.host}:{config.port}; its error is printed above. Is no "
        "SpaceMouse plugged in?"
    )


def _serve(
    config: ConsoleConfig,
    token: str,
    robot_token: str,
    camera_token: str,
    folder: Path,
    attach: Attach | None,
) -> None:
    """Runs the server; target of its process."""
    import uvicorn

    from real.console.app import application
    from real.console.server import LARGEST_FRAME, ConsoleServer
    from robots.wire.web_server import limited_protocols

    console = ConsoleServer(config, token, robot_token, camera_token, folder, attach=attach)
    settings = uvicorn.Config(
        application(console),
        host=config.host,
        port=config.port,
        log_level="warning",
        ws_max_size=LARGEST_FRAME,
        # Images are compressed already.
        ws_per_message_deflate=False,
        **limited_protocols(),
    )

    class Server(uvicorn.Server):
        """A server whose pages know that the session is over before their connections close."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await console.say_goodbye()
            await super().shutdown(sockets)

    Server(settings).run()


def _checked_port(host: str, port: int) -> int:
    """The port if the server can listen there, a free one for 0.

    Raises:
        HandoffError: another program listens there, or the address is none of this computer's.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # As the server does: connections that ended lately do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            other = (
                f"another program has port {port}, such as the console of another session. "
                "--port 0 takes a free one."
                if error.errno == errno.EADDRINUSE
                else f"{error.strerror}."
            )
            raise HandoffError(f"console: cannot listen at {host}:{port}: {other}") from None
        return probe.getsockname()[1]
