"""A page in a real browser, Chromium, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from real.console.client import ConsoleClient
from real.console.control.commands import ControlCommand, Mode
from tests.conftest import chromium, require
from tests.real.console.pages import until

NAMED = "localStorage.setItem('handoff-name', '{}')"


@contextmanager
def open_browser() -> Iterator[Any]:
    """A browser without windows."""
    require("chromium")
    playwright_api = pytest.importorskip("playwright.sync_api")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page that is open as somebody; `look` are options of the browser's context."""

    def __init__(
        self, browser: Any, url: str, name: str = "ada", before: str = "", **look: Any
    ) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}} | look)
        # The frame of a scene has no such storage while it is empty.
        ours = f"if (window === top) {{ {NAMED.format(name)}; {before} }}"
        self.context.add_init_script(ours)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def ready(self) -> Tab:
        self.until("handoff.state?.robot === true")
        return self

    def until(self, expression: str) -> None:
        """Waits for something in the page; Playwright's own way is one that the page's security
        policy forbids."""
        until(lambda: self.page.evaluate(expression))

    def mode(self) -> str:
        return self.page.inner_text("#mode")

    def shows(self, mode: str) -> None:
        self.until(f"document.getElementById('mode').textContent === '{mode}'")

    def remembers(self) -> None:
        """From now on `showed` knows each mode, however short."""
        self.page.evaluate(
            """() => {
              window.modes = [];
              const mode = document.getElementById('mode');
              new MutationObserver(() => modes.push(mode.textContent)).observe(mode, { childList: true });
            }"""
        )

    def showed(self, mode: str) -> None:
        self.until(f"modes.includes('{mode}')")

    def go(self) -> Tab:
        """Starts by Enter, and again where a word of the session that came late, on a busy machine,
        has held the arm meanwhile."""
        for _ in range(4):
            self.page.keyboard.press("Enter")
            with suppress(AssertionError):
                until(lambda: self.mode() == "POLICY", 3.0)
                return self
        raise AssertionError(f"Enter does not start: {self.mode()}, {self.page.inner_text('#why')}")


def reaches(robot: ConsoleClient, mode: Mode) -> ControlCommand:
    """Waits until the robot's side is told a mode; returns the command that does."""
    until(lambda: robot.command().mode is mode)
    return robot.command()


def driven(tab: Tab, robot: ConsoleClient) -> None:
    """The arm is in the person's hand."""
    tab.go()
    tab.page.keyboard.down("ArrowUp")
    reaches(robot, Mode.PERSON)
