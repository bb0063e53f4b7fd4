"""Builds the web application of a review: the page, its files, and the requests of the page.

Every request for data and every change shows the token in its header `Authorization`, which pages
of other sites cannot set. Names that are not this computer's are refused
(`robots.wire.web_server`).
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.review.session import ReviewSession
from real.console.app import STATIC as CONSOLE_FILES
from real.console.messages import LONGEST_MESSAGE, read_text
from robots.errors import HandoffError
from robots.wire.web_server import REQUEST_SECONDS, AsgiApp, guarded, same_site

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

STATIC = Path(__file__).parent / "static"
WRONG_TOKEN_SECONDS = 0.5
"""Delay of the answer to a wrong token, which slows down guessing [s]."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Answer = Callable[["Request"], Awaitable["Response"]]
"""Answers a request."""


def review_app(session: ReviewSession, token: str) -> AsgiApp:
    """The web application of a review.

    Args:
        session: its state.
        token: token that pages must show.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import FileResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    async def index(_: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers=HEADERS)

    async def data(_: Request) -> Response:
        return _json(await run_in_threadpool(session.overview))

    async def changes(_: Request) -> Response:
        return _json(await run_in_threadpool(session.changes))

    async def episode(request: Request) -> Response:
        return _json(await run_in_threadpool(session.episode, request.path_params["episode"]))

    async def picture(request: Request) -> Response:
        places = (request.path_params[name] for name in ("episode", "camera", "step"))
        content = await run_in_threadpool(session.picture, *places)
        return Response(content, media_type="image/jpeg", headers=HEADERS)

    async def change(request: Request) -> Response:
        message = await _message(request)
        number, what = message.get("episode"), message.get("what")
        if isinstance(number, bool) or not isinstance(number, int) or not isinstance(what, str):
            raise HandoffError("change: without an episode (int) or an aspect (text).")
        by = _name(message)
        line = await run_in_threadpool(session.change, by, number, what, message.get("value"))
        return _json({"changed": line is not None})

    async def undo(request: Request) -> Response:
        by = _name(await _message(request))
        line = await run_in_threadpool(session.undo, by)
        undone = None if line is None else {"episode": line.episode, "what": line.what}
        return _json({"undone": undone})

    async def write(request: Request) -> Response:
        by = _name(await _message(request))
        await run_in_threadpool(session.write, by)
        return _json({"store": session.copy.store})

    def asked(answer: Answer) -> Answer:
        return _with_token(answer, token)

    numbers = "{episode:int}/{camera:int}/{step:int}"
    routes = [
        Route("/", index),
        Route("/data", asked(data)),
        Route("/changes", asked(changes)),
        Route("/episode/{episode:int}", asked(episode)),
        Route(f"/picture/{numbers}", asked(picture)),
        Route("/change", asked(change), methods=["POST"]),
        Route("/undo", asked(undo), methods=["POST"]),
        Route("/write", asked(write), methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
        Mount("/console", StaticFiles(directory=CONSOLE_FILES)),
    ]
    return guarded(Starlette(routes=routes))


def _with_token(answer: Answer, token: str) -> Answer:
    """Answers requests with the token, and says in words why others are refused."""
    expected = f"Bearer {token}".encode()

    async def answered(request: Request) -> Response:
        if not same_site(request.headers):
            return _json({"why": "A page of another site."}, 403)
        given = request.headers.get("authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, expected):
            await asyncio.sleep(WRONG_TOKEN_SECONDS)
            return _json({"why": "Wrong token. Enter the token that the command printed."}, 401)
        try:
            return await answer(request)
        except HandoffError as error:
            return _json({"why": str(error)}, 422)

    return answered


def _json(content: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    text = json.dumps(content, allow_nan=False, default=str, separators=(",", ":"))
    return Response(text, status, HEADERS, "application/json")


async def _message(request: Request) -> dict[str, Any]:
    """The JSON map in the body of a request.

    Raises:
        HandoffError: it is too long, too slow, or no JSON map.
    """
    body = b""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > LONGEST_MESSAGE:
                    raise HandoffError(f"message of more than {LONGEST_MESSAGE} bytes.")
    except TimeoutError:
        raise HandoffError("message that did not arrive in time.") from None
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise HandoffError("message that is not JSON.") from None
    if not isinstance(message, dict):
        raise HandoffError("message that is no map.")
    return message


def _name(message: dict[str, Any]) -> str:
    """The name of the person who sent a message.

    Raises:
        HandoffError: there is none.
    """
    name = read_text(message, "name")
    if not name:
        raise HandoffError("Enter your name; it is recorded with what you do.")
    return name
