"""A console whose policy acts only while a person holds a key, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from real.console.control.arbiter import ArbiterConfig
from real.console.control.commands import Mode
from real.console.process import OpenConsole, open_console
from real.console.server import ConsoleConfig
from tests.real.console.tabs import reaches


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[OpenConsole]:
    limits = ArbiterConfig(watchdog=1.0, hold_to_run=True)
    config = ConsoleConfig(port=0, picture_seconds=None, arbiter=limits)
    with open_console(config, folder) as opened:
        yield opened


def test_the_key_that_starts_is_held(tab, robot):
    assert tab.page.inner_text("#go-word") == "Hold to run"
    tab.page.keyboard.down("Enter")
    reaches(robot, Mode.POLICY)
    tab.shows("POLICY")
    tab.page.keyboard.up("Enter")
    reaches(robot, Mode.HOLD)
    tab.until("document.body.textContent.includes('released Enter')")


def test_the_button_on_the_screen_is_held(tab, robot):
    tab.page.hover("#go")
    tab.page.mouse.down()
    reaches(robot, Mode.POLICY)
    tab.page.mouse.up()
    reaches(robot, Mode.HOLD)
    # The click that ends with the release starts nothing.
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert robot.command().mode is Mode.HOLD
        time.sleep(0.01)


def test_a_page_that_loses_the_focus_holds_the_arm(tab, robot):
    tab.page.keyboard.down("Enter")
    reaches(robot, Mode.POLICY)
    tab.page.evaluate("dispatchEvent(new Event('blur'))")
    reaches(robot, Mode.HOLD)
