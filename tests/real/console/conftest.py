"""One server and one browser per module, a robot's side and a page per test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real.console.client import ConsoleClient, ConsoleClientConfig
from real.console.control.arbiter import ArbiterConfig
from real.console.control.commands import Mode
from real.console.process import OpenConsole, open_console
from real.console.server import ConsoleConfig
from tests.real.console.pages import until
from tests.real.console.tabs import Tab, open_browser

UNDO = 10.0
"""Time for which a label can be taken back [s]: enough for a test on a busy machine to do so."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[OpenConsole]:
    # A page on a busy machine may be late; how long each may be, the desk's own tests say with a
    # clock of their own.
    # Pictures come from the tests that show them, and then no more.
    limits = ArbiterConfig(watchdog=1.0, undo=UNDO)
    config = ConsoleConfig(port=0, picture_seconds=None, arbiter=limits)
    with open_console(config, folder) as opened:
        yield opened


@pytest.fixture
def robot(opened: OpenConsole) -> Iterator[ConsoleClient]:
    line = ConsoleClient(
        ConsoleClientConfig(uri=opened.uri, watchdog=1.0),
        opened.robot_token,
        {"task": "reach", "stage": "test", "rate_hz": 20.0},
    )
    line.describe({"kind": "begin", "told": {"episode": 0}})
    line.start()
    until(lambda: line.connection == 1)
    yield line
    line.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def tab(browser: Any, opened: OpenConsole, robot: ConsoleClient) -> Iterator[Tab]:
    tab = Tab(browser, opened.url).ready()
    yield tab
    tab.context.close()  # before anything fails: an open page would keep the control
    assert tab.errors == []
    until(lambda: robot.command().mode is Mode.HOLD)
