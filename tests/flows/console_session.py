"""A session with a console in a process of its own, and a page at it, for tests."""

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

from real.console.process import OpenConsole
from tests.real.console.pages import Page, until

STARTS = 60.0
"""Seconds for a session to come up: processes, a renderer, a scene."""


class Session:
    """A session in a process of its own, which tells where its console is."""

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        """`run` takes the arguments, and a pipe that it sends the console's address into."""
        context = multiprocessing.get_context("spawn")
        there, here = context.Pipe()
        self.process = context.Process(target=run, args=(*arguments, here))
        self.process.start()
        assert there.poll(STARTS)
        self.opened = OpenConsole(there.recv(), "", "", None)

    def page(self) -> Page:
        page = Page(self.opened)
        until(lambda: page.state()["robot"], STARTS)
        return page

    def ended(self) -> None:
        self.process.join(20.0)
        assert not self.process.is_alive()


def stepped(page: Page, steps: int, *codes: str) -> dict[str, Any]:
    """Goes on telling what is down until as many steps were made; returns what was told last."""
    state = page.state()
    first, limit = state["state"].get("step", 0), time.monotonic() + STARTS
    while state["state"].get("step", 0) < first + steps:
        assert time.monotonic() < limit, f"no more steps: {state}"
        page.keys(*codes)
        state = page.state()
    return state


def labelled(page: Page, code: str, episodes: int) -> None:
    """Says a label at once, and waits until so many episodes have ended."""
    for codes in ((code,), (), (code,), ()):
        page.keys(*codes)
    ended_episodes(page, episodes)


def ended_episodes(page: Page, episodes: int) -> None:
    """Looks on until so many episodes have ended."""
    ended, limit = 0, time.monotonic() + STARTS
    while ended < episodes:
        assert time.monotonic() < limit, f"{ended} of {episodes} episodes ended"
        page.keys()
        ended = len(page.state().get("episodes", [])) or ended
