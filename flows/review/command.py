"""Implements `handoff episodes review`: a page at which people go through recorded episodes."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path

from flows.review.app import review_app
from flows.review.data_set import open_reviewed, why_not_edited
from flows.review.episode_rows import Shown
from flows.review.review_log import ReviewLog
from flows.review.session import ReviewSession
from robots.errors import HandoffError
from robots.wire.addresses import is_loopback
from robots.wire.policy import TOKEN_VARIABLE, check_token
from robots.wire.web_server import AsgiApp


def review_command(
    path: Path,
    *,
    out: Path | None,
    form: str | None,
    shown: Shown,
    host: str,
    port: int,
    say: Callable[[str], None],
) -> None:
    """Serves the page of a review until it is interrupted.

    Args:
        path: the data set, or the artifact with it.
        out: folder of the log and of the stores that are written; None takes `NAME_review` in the
            working directory.
        form: see `open_demonstrations`.
        shown: episodes that a new page lists.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        say: called with each line for the terminal.

    Raises:
        HandoffError: a data set that cannot be read, a folder of another review or in use, an
            unusable token, or a port that is taken.
    """
    token = _token(host)
    unedited = why_not_edited(path, form)
    folder = default_folder(path) if out is None else out
    with (
        open_reviewed(path, form) as data,
        nullcontext() if unedited else closing(ReviewLog(folder)) as log,
        closing(_listening(host, port)) as listener,
    ):
        session = ReviewSession(path, data, log, unedited, shown)
        say(f"review  {len(data.outlines)} episodes of {path}")
        say(f"note    {unedited}" if unedited else f"folder  {folder}")
        shown_host = f"[{host}]" if ":" in host else host
        say(f"page    http://{shown_host}:{listener.getsockname()[1]}/#{token}")
        _serve(review_app(session, token), listener)


def default_folder(path: Path) -> Path:
    """Folder of the review of a data set: its name with `_review`, in the working directory."""
    name = path.name or path.resolve().name
    return Path(f"{name.removesuffix('.zip').removesuffix('.zarr')}_review")


def _token(host: str) -> str:
    """The token in the environment, or a new one for an address that others cannot reach."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token:
        check_token(token)
    elif not is_loopback(host):
        raise HandoffError(
            f"review: listening at {host} needs a token in ${TOKEN_VARIABLE}; traffic is not encrypted, so a tunnel "
            "to 127.0.0.1 is better."
        )
    return token or secrets.token_urlsafe(18)


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens at the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise HandoffError(
            f"review: cannot listen at {host}:{port} ({error.strerror}). Is another review open there? --port 0 takes "
            "a free port."
        ) from None
    return listener


def _serve(app: AsgiApp, listener: socket.socket) -> None:
    """Serves the application until a signal ends it."""
    import uvicorn

    from robots.wire.web_server import limited_protocols

    config = uvicorn.Config(app, log_level="warning", **limited_protocols())
    uvicorn.Server(config).run(sockets=[listener])
