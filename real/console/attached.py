"""Serves another web application under the console's address, to pages that have shown the token.

A page exchanges the token for a cookie, which its links then carry. The cookie holds a number of
this server and not the token, since browsers send it to every port of this computer.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple

PATH = "/results"
"""Path of the application."""
LARGEST_TOKEN = 200
"""Largest size of a token [bytes]."""
PERIOD = 1.0
"""Time between two looks at what waits [s]."""

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class AttachedApp(NamedTuple):
    """A web application, and what it has to tell the people at the console."""

    app: AsgiApp
    start: str
    """Path of the page that the console links to, below the application's."""
    waiting: Callable[[], Sequence[str]]
    """Returns what waits for a person there, e.g. names of runs; called in a thread."""


Attach = Callable[[], AttachedApp]
"""Makes the application in the server's process; it must be picklable."""


class AttachedPages:
    """The application behind the token.

    Args:
        attached: the application.
        is_token: whether a text is the token of the pages.
    """

    def __init__(self, attached: AttachedApp, is_token: Callable[[str], bool]) -> None:
        self._attached = attached
        self._is_token = is_token
        self._session = secrets.token_urlsafe(32)
        self._cookie = f"handoff-{secrets.token_hex(4)}"
        self.waiting: tuple[str, ...] = ()
        """What waited at the last look."""

    @property
    def link(self) -> str:
        """Path of the page that the console links to."""
        return f"{PATH}/{self._attached.start}"

    async def watch(self) -> None:
        """Looks for what waits, as long as the server runs."""
        while True:
            self.waiting = tuple(await asyncio.to_thread(self._attached.waiting))
            await asyncio.sleep(PERIOD)

    async def enter(self, token: bytes) -> dict[str, str] | None:
        """Returns the headers that set the cookie of a page; None if the token is wrong, after a
        delay that slows down guessing."""
        if len(token) > LARGEST_TOKEN or not self._is_token(token.decode("utf-8", "replace")):
            await asyncio.sleep(0.5)
            return None
        cookie = f"{self._cookie}={self._session}; Path={PATH}; HttpOnly; SameSite=Strict"
        return {"set-cookie": cookie, "cache-control": "no-store"}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Passes a request on if it carries the cookie."""
        from starlette.responses import PlainTextResponse

        if scope["type"] == "http" and self._has_cookie(dict(scope["headers"])):
            await self._attached.app(scope, receive, send)
            return
        text = "This page opens from the console, whose token it needs."
        await PlainTextResponse(text, status_code=401)(scope, receive, send)

    def _has_cookie(self, headers: dict[bytes, bytes]) -> bool:
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        given = cookies.get(self._cookie)
        return given is not None and hmac.compare_digest(
            given.value.encode(), self._session.encode()
        )
