"""Runs a session with a console in a child process, and a page connected to it."""

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from websockets.exceptions import ConnectionClosed

from real.console.control.arbiter import ArbiterConfig
from real.console.process import OpenConsole
from real.console.server import ConsoleConfig
from tests.real.console.pages import Page, until

STARTS = 60.0
"""Time limit for a session to start: processes, a renderer, a scene [s]."""
PATIENT = ConsoleConfig(port=0, picture_seconds=20.0, arbiter=ArbiterConfig(watchdog=2.0))
"""A console whose page and pictures may be late, as they are on a busy machine."""


class Session:
    """A session in a child process, which sends the address of its console."""

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        """Starts `run` with the arguments and a pipe, to which it sends the console's address."""
        context = multiprocessing.get_context("spawn")
        there, here = context.Pipe()
        self.process = context.Process(target=_explained, args=(run, *arguments, here))
        self.process.start()
        assert there.poll(STARTS)
        self.opened = OpenConsole(there.recv(), "", "", "", None)

    def page(self) -> Page:
        page = Page(self.opened)
        _SESSION_OF[page] = self
        _EARLIER[page] = 0

        def is_ready() -> bool:
            state = page.state()
            _EARLIER[page] = len(state.get("episodes", [])) or _EARLIER[page]
            return ready(state)

        until(is_ready, STARTS)
        return page

    def ended(self) -> None:
        self.process.join(20.0)
        assert not self.process.is_alive()


def sent_to(here: Any) -> Callable[[str], None]:
    """What a session says: the console's address goes to a pipe, the rest to the standard error,
    which pytest shows where a test fails."""

    def say(text: str) -> None:
        if text.startswith("console  "):
            here.send(text.removeprefix("console  "))
        else:
            sys.stderr.write(f"{text}\n")

    return say


def ready(state: dict[str, Any]) -> bool:
    """Whether there is a robot, with pictures."""
    return state["robot"] and not state["trouble"]


_SESSION_OF: WeakKeyDictionary[Page, Session] = WeakKeyDictionary()
"""Sessions by their page."""
_EARLIER: WeakKeyDictionary[Page, int] = WeakKeyDictionary()
"""Episodes of earlier sessions of the same folder, by the page."""


def _explained(run: Callable[..., None], *arguments: Any) -> None:
    """Runs a session that prints the stacks of its threads on SIGUSR1."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    run(*arguments)


def _stacks(page: Page) -> str:
    """Has the page's session print its stacks, for a test that waited for it in vain."""
    pid = _SESSION_OF[page].process.pid
    assert pid is not None
    os.kill(pid, signal.SIGUSR1)
    time.sleep(1.0)
    return f"stacks of process {pid} in the captured output"


def stepped(page: Page, steps: int, *codes: str) -> dict[str, Any]:
    """Holds the keys down for a number of steps; returns the last state."""
    state = page.state()
    first, limit = state["state"].get("step", 0), time.monotonic() + STARTS
    while state["state"].get("step", 0) < first + steps:
        assert time.monotonic() < limit, f"no more steps: {state}, {_stacks(page)}"
        page.keys(*codes)
        state = page.state()
    return state


def labelled(page: Page, code: str, episodes: int) -> None:
    """Gives a label, and waits until the number of episodes has ended."""
    for codes in ((code,), (), (code,), ()):
        page.keys(*codes)
    ended_episodes(page, episodes)


def ended_episodes(page: Page, episodes: int) -> None:
    """Waits until the number of episodes of the session has ended."""
    ended, limit = 0, time.monotonic() + STARTS
    while ended < episodes:
        assert time.monotonic() < limit, f"{ended} of {episodes} episodes ended, {_stacks(page)}"
        page.keys()
        known = page.state().get("episodes")
        ended = ended if known is None else len(known) - _EARLIER[page]


def ended_by(page: Page) -> None:
    """Holds the key that ends the session until it has ended."""
    limit = time.monotonic() + STARTS
    while time.monotonic() < limit:
        try:
            page.keys("End")
            if page.state()["mode"] == "stop":
                return
        except ConnectionClosed:
            return
    raise AssertionError(f"the session did not end, {_stacks(page)}")
