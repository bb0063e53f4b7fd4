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
from real.console.server import ConsoleServer, same_site
from robots.errors import HandoffError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.websockets import WebSocket

STATIC = Path(__file__).parent / "static"


def application(console: ConsoleServer) -> Starlette:
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
                headers={"Cache-Control": "no-store"},
            )
        except HandoffError:
            return Response(status_code=404)

    async def scene_socket(websocket: WebSocket) -> None:
        await console.scene_proxy.socket(websocket.path_params["key"], websocket)

    async def enter(request: Request) -> Response:
        token = await _read_start(request, LARGEST_TOKEN + 1)
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
    return Starlette(lifespan=lifespan, routes=routes)


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
    if not control.cancelled():
        traceback.print_exception(control.exception())
        os.kill(os.getpid(), signal.SIGKILL)


_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
