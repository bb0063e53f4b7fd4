"""Another application under the console's address: who may open it, and what pages are told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from real.console.attached import AttachedApp
from real.console.process import OpenConsole, open_console
from real.console.server import ConsoleConfig
from tests.real.console.pages import Page, until


def attached() -> AttachedApp:
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    def question(request: Any) -> PlainTextResponse:
        return PlainTextResponse(f"a question at {request.url.path}")

    return AttachedApp(Starlette(routes=[Route("/question", question)]), "question", lambda: ["a"])


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenConsole]:
    folder: Path = tmp_path_factory.mktemp("console")
    with open_console(ConsoleConfig(port=0), folder, attached) as opened:
        yield opened


def client(console: OpenConsole) -> tuple[httpx.Client, str]:
    address, _, token = console.url.partition("/#")
    return httpx.Client(base_url=address), token


def test_pages_are_told_what_waits_and_where(console: OpenConsole) -> None:
    page = Page(console)
    with contextlib.closing(page.socket):
        until(lambda: "waiting" in page.state())
        assert page.state()["waiting"] == {"names": ["a"], "link": "/results/question"}


def test_the_application_opens_to_a_page_that_has_shown_the_token(console: OpenConsole) -> None:
    page, token = client(console)
    with page:
        assert page.get("/results/question").status_code == 401
        shown = page.post("/enter", content=token)
        assert shown.status_code == 204
        assert token not in shown.headers["set-cookie"]
        assert "HttpOnly; SameSite=Strict" in shown.headers["set-cookie"]
        assert page.get("/results/question").text == "a question at /results/question"
        assert "set-cookie" not in page.get("/").headers


@pytest.mark.parametrize("sent", [b"", b"guess", b"\xff" * 8, b"x" * 100_000])
def test_another_token_opens_nothing(console: OpenConsole, sent: bytes) -> None:
    page, _ = client(console)
    with page:
        assert page.post("/enter", content=sent).status_code == 401
        assert page.get("/results/question").status_code == 401


def test_a_page_of_another_site_cannot_enter(console: OpenConsole) -> None:
    page, token = client(console)
    with page:
        headers = {"origin": "http://elsewhere.example"}
        assert page.post("/enter", content=token, headers=headers).status_code == 401


def test_another_cookie_opens_nothing(console: OpenConsole) -> None:
    page, token = client(console)
    with page:
        page.post("/enter", content=token)
        (name,) = page.cookies
    for cookie in (f"{name}=guess", f"{name}=", "a=b", '"; =', f"{name}={token}"):
        page, _ = client(console)
        with page:
            answer = page.get("/results/question", headers={"cookie": cookie})
            assert answer.status_code == 401


def test_a_console_without_another_application_has_none_of_it(tmp_path: Path) -> None:
    with open_console(ConsoleConfig(port=0), tmp_path) as opened:
        page, token = client(opened)
        with page:
            assert page.post("/enter", content=token).status_code == 404
            assert page.get("/results/question").status_code == 404
