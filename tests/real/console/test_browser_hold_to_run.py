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
from tests.real.console.tabs import Tab, reaches
from tests.real.console.test_browser_touch import Finger, phone


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


@pytest.fixture
def touched(browser, opened, robot) -> Iterator[tuple[Tab, Finger]]:
    """A phone, and a finger on its button."""
    tab = phone(browser, opened.url).ready()
    finger = Finger(tab)
    finger.down("#go")
    reaches(robot, Mode.POLICY)
    yield tab, finger
    assert tab.errors == []
    tab.context.close()


def test_a_finger_on_the_button_lets_the_policy_act(touched, robot):
    _, finger = touched
    time.sleep(0.5)
    assert robot.command().mode is Mode.POLICY
    finger.up()
    reaches(robot, Mode.HOLD)


def test_a_touch_that_is_lost_holds_the_arm(touched, robot):
    _, finger = touched
    finger.cancelled()
    reaches(robot, Mode.HOLD)


def test_a_second_thumb_leads_the_arm_while_the_first_lets_it_run(touched, robot):
    _, finger = touched
    finger.down("#pad-plane", finger=1)
    reaches(robot, Mode.PERSON)
    finger.up(finger=1)
    reaches(robot, Mode.POLICY)
    finger.up()
    reaches(robot, Mode.HOLD)


def test_a_phone_that_goes_dark_holds_the_arm(touched, robot):
    tab, finger = touched
    tab.page.evaluate(
        "Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' });"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    reaches(robot, Mode.HOLD)
    finger.up()
