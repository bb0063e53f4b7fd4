"""Finds out whether Prefect can run a flow here, before one is started."""

from __future__ import annotations

import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from robots.errors import HandoffError

TIMEOUT_SECONDS = 10.0
"""Time limit of the server's answer [s]."""


def check_prefect() -> str | None:
    """Checks that a flow can be started.

    Returns:
        None if it can; a reason if no server is configured, and Prefect cannot start one of its
        own.

    Raises:
        HandoffError: the configured server does not answer.
        ModuleNotFoundError: Prefect is not installed.
    """
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME

    address = PREFECT_API_URL.value()
    if address:
        _check_server(address)
        return None
    return _unwritable(Path(PREFECT_HOME.value()))


def check_configured() -> None:
    """Checks that a server is configured and answers.

    Raises:
        HandoffError: it is not, or does not.
    """
    from prefect.settings import PREFECT_API_URL

    address = PREFECT_API_URL.value()
    if not address:
        raise HandoffError(
            "no Prefect server is configured. Start one by 'handoff server', and set PREFECT_API_URL "
            "as it says."
        )
    _check_server(address)


def _check_server(address: str) -> None:
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/health", timeout=TIMEOUT_SECONDS):
            return
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            # Prefect's own client sends the credentials.
            return
        reason: object = error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
    raise HandoffError(
        f"Prefect's server at {address} does not answer ({reason}). Start it by 'handoff server', or "
        "unset PREFECT_API_URL to run without it."
    )


def _unwritable(folder: Path) -> str | None:
    """Returns a reason if Prefect cannot keep its database in its folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Tried, because permissions tell neither of a full disk nor of a file system that refuses.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        reason = error.strerror or error
        return f"its folder {folder} cannot be written ({reason}); PREFECT_HOME names another one"
    return None
