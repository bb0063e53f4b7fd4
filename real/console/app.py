"""The console as a web application: the page, its files, and where the websockets go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from real.console.server import Console
from robots.errors import HandoffError

if TYPE_CHECKING:
    from fastapi import FastAPI

STATIC = Path(__file__).parent / "static"


def application(console: Console) -> FastAPI:
    """The web application around a console."""
    from fastapi import FastAPI, WebSocket
    from fastapi.responses import FileResponse, Response
    from fastapi.staticfiles import StaticFiles

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        clockwork = asyncio.create_task(console.clockwork())
        clockwork.add_done_callback(_never_without)
        yield
        clockwork.cancel()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    async def index() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers=_HEADERS)

    async def page(websocket: WebSocket) -> None:
        await console.page(websocket)

    async def robot(websocket: WebSocket) -> None:
        await console.robot(websocket)

    async def scene(key: str) -> Response:
        try:
            return Response(
                await console.door.page(key),
                media_type="text/html",
                headers={"Cache-Control": "no-store"},
            )
        except HandoffError:
            return Response(status_code=404)

    async def scene_socket(websocket: WebSocket, key: str) -> None:
        await console.door.socket(key, websocket)

    # `from __future__ import annotations` and imports inside functions: FastAPI could not find the
    # type by its name.
    page.__annotations__ = robot.__annotations__ = {"websocket": WebSocket}
    scene_socket.__annotations__ = {"websocket": WebSocket, "key": str}
    app.add_api_route("/", index, include_in_schema=False, response_model=None)
    app.add_api_route("/scene/{key}/", scene, include_in_schema=False, response_model=None)
    app.add_api_websocket_route("/scene/{key}", scene_socket)
    app.add_api_websocket_route("/page", page)
    app.add_api_websocket_route("/robot", robot)
    app.mount("/static", StaticFiles(directory=STATIC))
    return app


def _never_without(clockwork: asyncio.Task[None]) -> None:
    """A server that does not watch the time any more must not look as if it did: it dies, and is
    started again."""
    if not clockwork.cancelled():
        traceback.print_exception(clockwork.exception())
        os.kill(os.getpid(), signal.SIGKILL)


_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
