"""Limits a web server: who may ask it, under which names, how many connections it holds, and how
long and how large a beginning may be.

Uvicorn waits without a limit for the headers of a request, and takes messages of one size from
everybody. A page of another site can open websockets to any address that its browser reaches, also
by a name of its own that leads to this computer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

NAMES_VARIABLE = "HANDOFF_HOST_NAMES"
"""Environment variable with further names of this computer, separated by commas, under which
browsers reach its servers, e.g. that of a proxy."""
MOST_CONNECTIONS = 128
"""Largest number of connections of a server; further ones are closed at once."""
REQUEST_SECONDS = 5.0
"""Time limit for the headers of a request, and for an idle connection [s]."""
FIRST_MESSAGE = 2**14
"""Largest message of a websocket whose sender has shown no token yet [bytes]."""
LARGER = "handoff.larger_messages"
"""Key in the scope of a websocket of a function that allows messages of the size that it is
given [bytes]."""

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


def same_site(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a page of this server; programs send no origin."""
    origin = headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc == headers.get("host")
    except ValueError:
        return False


@cache
def own_names() -> frozenset[str]:
    """Names of this computer, lower case."""
    given = os.environ.get(NAMES_VARIABLE, "").split(",")
    name = socket.gethostname()
    found = {"localhost", name, f"{name}.local", socket.getfqdn(), *map(str.strip, given)}
    return frozenset(one.lower() for one in found if one)


def is_own_name(host: str, names: Collection[str]) -> bool:
    """Whether the header `Host` names this computer: by an address, which no other site can have
    chosen, or by one of `names`."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name.lower() in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def guarded(
    app: AsgiApp, refused: Callable[[str, str], None] = lambda address, why: None
) -> AsgiApp:
    """Refuses requests under a name that is not this computer's, and websockets of other sites.

    Args:
        app: the application.
        refused: called with the address of who was refused, and why.
    """

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await app(scope, receive, send)
            return
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        host = headers.get("host", "")
        why = ""
        if not is_own_name(host, own_names()):
            why = f"'{host[:100]}' is no name of this computer; {NAMES_VARIABLE} adds names"
        elif scope["type"] == "websocket" and not same_site(headers):
            why = f"a page of {headers.get('origin', '')[:100]}"
        if not why:
            await app(scope, receive, send)
            return
        client = scope.get("client")
        refused("unknown" if client is None else f"{client[0]}:{client[1]}", why)
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        body = f"{why}.\n".encode()
        content = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 421, "headers": content})
        await send({"type": "http.response.body", "body": body})

    return guard


def limited_protocols(
    *,
    most: int = MOST_CONNECTIONS,
    seconds: float = REQUEST_SECONDS,
    first: int = FIRST_MESSAGE,
) -> dict[str, Any]:
    """Options of `uvicorn.Config` for a server with limits.

    Args:
        most: largest number of connections.
        seconds: time limit for the headers of a request, and for an idle connection [s].
        first: largest message of a websocket, until the function `LARGER` in its scope allows
            more [bytes].
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    class LimitedHttp(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
                return
            self._idle = False
            self._checked = self.loop.call_later(seconds, self._check)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if hasattr(self, "_checked"):
                self._checked.cancel()

        def _check(self) -> None:
            """Closes a connection that has not finished its request; one between two requests at
            the second check."""
            # An upgraded connection is a websocket's, with limits of its own.
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return
            answered = self.cycle is not None and self.cycle.response_complete
            if self.scope is None or (answered and self._idle):
                self.transport.abort()
                return
            self._idle = answered
            self._checked = self.loop.call_later(seconds, self._check)

    class LimitedWebSocket(WebSocketsSansIOProtocol):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.conn.max_message_size = first

        def handle_connect(self, event: Any) -> None:
            super().handle_connect(event)
            if hasattr(self, "scope"):
                self.scope[LARGER] = self._allow  # type: ignore[typeddict-unknown-key]

        def _allow(self, size: int) -> None:
            self.conn.max_message_size = size

    return {
        "http": LimitedHttp,
        "ws": LimitedWebSocket,
        "timeout_keep_alive": int(seconds),
        "timeout_graceful_shutdown": 1,
    }
