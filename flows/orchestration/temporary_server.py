"""Starts Prefect's temporary server, which serves one run where no server is configured.

Prefect starts it by itself, and stops it when the program ends as it should. A program that is
killed would leave it behind, with its port and a fifth of a gigabyte of memory, for ever.
"""

from __future__ import annotations

import atexit
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from robots.errors import HandoffError

END = 'read -r line; kill "$0"; sleep 10; kill -9 "$0"'
"""Waits for the end of its input, which comes with the end of the process that holds the other end
of the pipe; then ends the server."""


def start_temporary_server() -> int | None:
    """Starts the server, unless one is configured, such that it ends with this process even if
    that is killed.

    Returns:
        Number of the server's process; None if a server is configured.

    Raises:
        HandoffError: the server does not answer.
    """
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value():
        return None
    # The same object for every caller, also for Prefect's own clients.
    server = SubprocessASGIServer()
    if server.running and server.server_process is not None:
        return server.server_process.pid
    with _sessions_of_their_own():
        try:
            server.start()
        except RuntimeError as error:
            raise HandoffError(_no_answer(error)) from error
    assert server.server_process is not None
    number = server.server_process.pid
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", END, str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C at a terminal reaches all processes of its session.
        start_new_session=True,
    )
    # Handlers run in the reverse order: the server's own, which stops it, follows this one.
    atexit.register(_end, watcher)
    return number


@contextmanager
def _sessions_of_their_own() -> Iterator[None]:
    """Context in which Prefect starts its server in a session of its own.

    Otherwise Ctrl-C at a terminal would end the server together with the run, which then could not
    report its end, and would wait for the server for minutes.
    """
    from prefect.server.api import server

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(*arguments, **{**options, "start_new_session": True})

    given = server.subprocess
    started = ModuleType(given.__name__)
    started.__dict__.update({**vars(given), "Popen": start})
    server.subprocess = started  # type: ignore[assignment]  Prefect has no option for it
    try:
        yield
    finally:
        server.subprocess = given


def _no_answer(error: RuntimeError) -> str:
    from prefect.settings import PREFECT_HOME, PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS

    seconds = PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS
    said = " ".join(str(error).split())
    return (
        f"Prefect's temporary server did not answer within {seconds.value()} s ({said[:300]}). Is the machine busy? "
        f"Run it again, set {seconds.name} to more, or start a server with `handoff server`. Its database is in "
        f"{PREFECT_HOME.value()}."
    )


def _end(watcher: subprocess.Popen[bytes]) -> None:
    watcher.kill()
    watcher.wait()
