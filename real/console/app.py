"""Builds the console's web application: routes of the page, its files and its websockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from real.console.attached import LARGEST_TOKEN, PATH
from real.console.server import HELLO_SECONDS, ConsoleServer
from robots.errors import HandoffError
from robots.wire.web_server import LARGER, AsgiApp, guarded, same_site

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.websockets import WebSocket

STATIC = Path(__file__).parent / "static"


LARGEST_SCENE_MESSAGE = 2**20
"""Largest message of a browser to the scene [bytes]."""


def application(console: ConsoleServer) -> AsgiApp:
    """The web application that serves a console."""
    from starlette.applications import Starlette
    from starlette.responses import FileResponse, Response
    from starlette.routing import Mount, Route, WebSocketRoute
    from starlette.staticfiles import StaticFiles

    pages = console.attached

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        control = asyncio.create_task(console.run_control())
        control.add_done_callback(_end_without_control)
        watch = None if pages is None else asyncio.create_task(pages.watch())
        yield
        control.cancel()
        if watch is not None:
            watch.cancel()

    async def index(_: Request) -> FileResponse:
        return FileResponse(STATIC / "index.html", headers=_HEADERS)

    async def scene(request: Request) -> Response:
        try:
            return Response(
                await console.scene_proxy.page(request.path_params["key"]),
                media_type="text/html",
                headers=_SCENE_HEADERS,
            )
        except HandoffError:
            return Response(status_code=404)

    async def scene_socket(websocket: WebSocket) -> None:
        if LARGER in websocket.scope:
            websocket.scope[LARGER](LARGEST_SCENE_MESSAGE)
        await console.scene_proxy.socket(websocket.path_params["key"], websocket)

    async def enter(request: Request) -> Response:
        try:
            reading = _read_start(request, LARGEST_TOKEN + 1)
            token = await asyncio.wait_for(reading, HELLO_SECONDS)
        except TimeoutError:
            return Response(status_code=408)
        assert pages is not None, "only routed with an attached application"
        headers = await pages.enter(token) if same_site(request.headers) else None
        return Response(status_code=401 if headers is None else 204, headers=headers)

    routes = [
        Route("/", index),
        Route("/scene/{key}/", scene),
        WebSocketRoute("/scene/{key}", scene_socket),
        WebSocketRoute("/page", console.page),
        WebSocketRoute("/robot", console.robot),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    if pages is not None:
        routes += [Route("/enter", enter, methods=["POST"]), Mount(PATH, pages)]
    return guarded(Starlette(lifespan=lifespan, routes=routes), console.arbiter.turn_away)


async def _read_start(request: Request, size: int) -> bytes:
    """The first bytes of a request's body."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) >= size:
            break
    return body[:size]


def _end_without_control(control: asyncio.Task[None]) -> None:
    """Kills the server if the task that runs its watchdog has failed; it is then started again."""
    if control.cancelled():
        return
    try:
        traceback.print_exception(control.exception())
    finally:
        # Even if standard error is a file on a full disk.
        os.kill(os.getpid(), signal.SIGKILL)


_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'; "
    "frame-src http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:*",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_SCENE_HEADERS = {
    "Cache-Control": "no-store",
    # The scene asks nobody but this server, which it reaches by another name than the page that
    # shows it: it is of another origin, and cannot read that page's token.
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; worker-src blob:; "
    "connect-src 'self' data: blob:; frame-ancestors http://localhost:* http://127.0.0.1:* "
    "https://localhost:* https://127.0.0.1:*",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
