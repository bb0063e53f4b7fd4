"""Serves the folder of the runs to browsers: its files, and the page that answers approvals.

Files are read-only. A page among them may come from a stage of anybody's, so none of their scripts
run and none of their forms are sent: they share an address with the page of approvals.
"""

from __future__ import annotations

import base64
import hmac
import html
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flows.deployment.approval import Means, waiting_runs
from robots.html_page import FOOT, head

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from real.console.attached import AsgiApp, AttachedApp

AUTH = "PREFECT_SERVER_API_AUTH_STRING"
"""Environment variable with `user:password`, for which Prefect's server and the results then
ask."""
APPROVALS = "approvals"
"""Path of the page of approvals."""
FILE_HEADERS = {
    "Content-Security-Policy": "script-src 'none'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every file and list."""


def results_app(folder: Path, *, at_console: bool = False) -> AsgiApp:
    """Returns an ASGI application that serves the files of a folder of runs, with lists of its
    folders, and the page of approvals. With a password in `AUTH`, it is asked for everywhere.

    Args:
        folder: the folder of the runs.
        at_console: whether the operator console serves it, to pages that have shown its token; no
            password is asked for then.
    """
    from starlette.applications import Starlette
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.responses import Response
    from starlette.routing import Route

    from flows.orchestration.serving.approvals_page import ApprovalsPage

    root = folder.resolve()
    password = "" if at_console else os.environ.get(AUTH, "")
    expected = f"Basic {base64.b64encode(password.encode()).decode()}"

    def served(request: Request) -> Response:
        return _file_or_list(root, request)

    async def authorised(request: Request, call_next: Callable[..., object]) -> object:
        given = request.headers.get("authorization", "")
        if password and not hmac.compare_digest(given.encode(), expected.encode()):
            return Response(status_code=401, headers={"www-authenticate": "Basic"})
        return await call_next(request)  # type: ignore[misc]

    means: Means = "console" if at_console else "page of approvals"
    page = ApprovalsPage(root, means, has_secret=at_console or bool(password))
    routes = [
        Route(f"/{APPROVALS}", page.respond, methods=["GET", "POST"]),
        Route("/{path:path}", served),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(BaseHTTPMiddleware, dispatch=authorised)  # type: ignore[arg-type]
    return app  # type: ignore[return-value]


def results_at_console(folder: Path) -> AttachedApp:
    """Returns that application for the operator console, which tells its people what waits."""
    from real.console.attached import AttachedApp

    app = results_app(folder, at_console=True)
    return AttachedApp(app, APPROVALS, lambda: tuple(waiting_runs(folder.resolve())))


def _file_or_list(root: Path, request: Request) -> Response:
    """The file that a request names, or a list of the folder."""
    from starlette.responses import FileResponse, HTMLResponse, Response

    path = root / request.path_params["path"]
    # Links of a run lead to artifacts below the same folder, and nowhere else.
    if not path.resolve().is_relative_to(root) or not path.exists():
        return Response("not found", status_code=404)
    if path.is_file():
        return FileResponse(path, headers=FILE_HEADERS)
    if not request.url.path.endswith("/"):
        return Response(status_code=307, headers={"location": f"{request.url.path}/"})
    names = sorted(
        f"{entry.name}/" if entry.is_dir() else entry.name
        for entry in path.iterdir()
        if not entry.name.startswith(".")
    )
    links = {name: name for name in names}
    if path == root:
        links = {APPROVALS: "Approvals that wait", **links}
    rows = "".join(
        f"<li><a href='{html.escape(link, quote=True)}'>{html.escape(text)}</a>"
        for link, text in links.items()
    )
    name = "Results" if path == root else path.name
    page = f"{head(name)}<h1>{html.escape(name)}</h1><ul>{rows}</ul>{FOOT}"
    return HTMLResponse(page, headers=FILE_HEADERS)
