"""Home and limp between two episodes, in a real browser: buttons, keys, words, progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from real.cameras.camera_process import frame
from real.console.client import ConsoleClient, ConsoleClientConfig
from real.console.control.arbiter import ArbiterConfig
from real.console.control.commands import Mode
from real.console.process import OpenConsole, open_console
from real.console.server import ConsoleConfig
from tests.accessibility import violations
from tests.real.console.pages import logged, until
from tests.real.console.tabs import Tab, reaches

WORDS = "Put the cube back on its mark."
PLANE = {"task": "push_t", "rate_hz": 10.0, "actions": ["x", "y"]}


@contextmanager
def connected(opened: OpenConsole, about: dict[str, Any]) -> Iterator[ConsoleClient]:
    config = ConsoleClientConfig(uri=opened.uri, watchdog=1.0)
    line = ConsoleClient(config, opened.robot_token, about)
    line.start()
    until(lambda: line.connection == 1)
    try:
        yield line
    finally:
        line.close()


@pytest.fixture
def robot(opened: OpenConsole) -> Iterator[ConsoleClient]:
    """A session at an arm, between two episodes."""
    about = {"task": "pick_cube", "stage": "test", "rate_hz": 20.0}
    with connected(opened, {**about, "reset": {"home": "", "limp": ""}}) as line:
        wait(line, WORDS)
        yield line


def wait(line: ConsoleClient, words: str) -> None:
    line.describe({"kind": "reset", "open": True, "why": words, "wait": True})


def word(tab: Tab, button: str) -> str:
    return tab.page.inner_text(f"#{button}-word")


def test_the_page_says_what_to_do_and_offers_both_with_their_keys(tab: Tab) -> None:
    tab.until(f"document.getElementById('why').textContent.includes('{WORDS}')")
    assert tab.page.inner_text("#home kbd") == "H"
    assert tab.page.inner_text("#limp kbd") == "F"
    assert "home, limp H F" in tab.page.inner_text("#legend")
    assert tab.page.is_enabled("#home")
    assert tab.page.is_enabled("#limp")


def test_the_button_drives_home_and_shows_how_far(tab: Tab, robot: ConsoleClient) -> None:
    tab.until("!document.getElementById('home').disabled")
    tab.page.click("#home")
    reaches(robot, Mode.HOME)
    tab.shows("HOME")
    robot.send({"kind": "progress", "share": 0.4})
    tab.until("document.getElementById('home-done').value === 0.4")
    assert tab.page.is_visible("#home-done")
    assert (word(tab, "home"), word(tab, "go")) == ("Stop", "Stop")
    wait(robot, "The arm is at its start.")
    reaches(robot, Mode.HOLD)
    tab.until("document.getElementById('why').textContent.includes('at its start')")
    assert not tab.page.is_visible("#home-done")
    tab.page.keyboard.press("Enter")
    reaches(robot, Mode.POLICY)


@pytest.mark.parametrize("key", ["Escape", "Enter", "KeyF"])
def test_limp_ends_by_hold_enter_and_its_own_key(tab: Tab, robot: ConsoleClient, key: str) -> None:
    tab.until("!document.getElementById('limp').disabled")
    tab.page.keyboard.press("KeyF")
    reaches(robot, Mode.LIMP)
    tab.shows("LIMP")
    assert (word(tab, "limp"), word(tab, "go")) == ("Stiffen", "Stiffen")
    tab.page.keyboard.press(key)
    reaches(robot, Mode.HOLD)
    tab.shows("HOLD")


def test_a_page_that_is_hidden_holds_the_arm_on_its_way(tab: Tab, robot: ConsoleClient) -> None:
    tab.until("!document.getElementById('home').disabled")
    tab.page.keyboard.press("KeyH")
    reaches(robot, Mode.HOME)
    tab.page.evaluate("Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' })")
    reaches(robot, Mode.HOLD)


def test_the_buttons_are_off_while_an_episode_runs(tab: Tab, robot: ConsoleClient) -> None:
    robot.describe({"kind": "begin", "told": {"episode": 1}})
    tab.until("document.getElementById('home').disabled")
    tab.page.keyboard.press("KeyF")
    tab.until("document.getElementById('why').textContent.includes('label it first')")
    assert robot.command().mode is Mode.HOLD


def asked(line: ConsoleClient) -> None:
    question = {"number": 1, "text": "Which was better?", "choices": ["The first", "Neither"]}
    line.describe({"kind": "reset", "open": True, "why": "", "wait": True, "question": question})


def test_a_question_is_answered_by_a_button_and_changed_until_the_start(
    tab: Tab, robot: ConsoleClient
) -> None:
    assert not tab.page.is_visible("#question")
    asked(robot)
    tab.until("!document.getElementById('question').hidden")
    assert tab.page.inner_text("#question-text") == "Which was better?"
    for choice, name in enumerate(("The first", "Neither")):
        tab.page.click(f"#choices >> text={name}")
        until(lambda choice=choice: robot.command().answer == (1, choice))
        tab.until(f"document.querySelectorAll('#choices button')[{choice}].ariaPressed === 'true'")
    pressed = "document.querySelectorAll('#choices button[aria-pressed=\"true\"]').length === 1"
    tab.until(pressed)
    assert violations(tab.page) == []
    robot.describe({"kind": "reset", "open": False})
    tab.until("document.getElementById('question').hidden")


def test_a_still_picture_is_shown_does_not_age_and_goes(tab: Tab, robot: ConsoleClient) -> None:
    picture = frame("start: front", np.full((8, 8, 3), 200, np.uint8))
    robot.send({"kind": "still", "frame": picture})
    figure = "document.querySelector('figure[data-name=\"start: front\"]')"
    tab.until(f"{figure} !== null")
    # An Enter that comes before this word would start, and the word would hold it again.
    wait(robot, "The still picture stays.")
    tab.until("document.getElementById('why').textContent.includes('still picture')")
    tab.page.keyboard.press("Enter")
    reaches(robot, Mode.POLICY)
    # Pictures of cameras are marked after a second.
    tab.page.wait_for_timeout(1500)
    assert not tab.page.evaluate(f"{figure}.classList.contains('old')")
    robot.send({"kind": "still", "frame": picture[: 1 + picture[0]]})
    tab.until(f"{figure} === null")


def test_keys_and_legend_of_a_plane_have_nothing_of_other_axes(
    browser: Any, tmp_path: Path
) -> None:
    """Push-T in simulation."""
    refusals = {"home": "The simulation lays the scene.", "limp": "Nobody can touch it."}
    config = ConsoleConfig(port=0, picture_seconds=None, arbiter=ArbiterConfig(watchdog=1.0))
    with (
        open_console(config, tmp_path) as opened,
        connected(opened, {**PLANE, "reset": refusals}) as line,
    ):
        tab = Tab(browser, opened.url).ready()
        assert tab.page.inner_text("#legend") == "move ↑ ↓ ← → · slow Shift"
        assert not tab.page.is_visible("#reset")
        assert not tab.page.is_visible("#pad-up")
        tab.page.keyboard.press("KeyF")
        tab.until("document.getElementById('why').textContent === 'Nobody can touch it.'")
        tab.page.keyboard.press("Enter")
        reaches(line, Mode.POLICY)
        tab.page.keyboard.down("KeyI")
        tab.page.keyboard.down("ArrowUp")
        reaches(line, Mode.PERSON)
        np.testing.assert_array_equal(line.command().hand.twist, [1, 0, 0, 0, 0, 0])
        tab.page.keyboard.up("ArrowUp")
        reaches(line, Mode.POLICY)
        assert tab.errors == []
        tab.context.close()


def test_home_is_held_where_the_policy_is_held(browser: Any, tmp_path: Path) -> None:
    limits = ArbiterConfig(watchdog=1.0, hold_to_run=True)
    config = ConsoleConfig(port=0, picture_seconds=None, arbiter=limits)
    about = {"task": "pick_cube", "rate_hz": 20.0, "reset": {"home": "", "limp": ""}}
    with open_console(config, tmp_path) as opened, connected(opened, about) as line:
        wait(line, WORDS)
        tab = Tab(browser, opened.url).ready()
        tab.until("!document.getElementById('home').disabled")
        assert word(tab, "home") == "Hold to drive home"
        tab.page.hover("#home")
        tab.page.mouse.down()
        reaches(line, Mode.HOME)
        tab.page.mouse.up()
        reaches(line, Mode.HOLD)
        tab.until("document.getElementById('why').textContent.includes('Hold H to drive home')")
        assert tab.errors == []
        tab.context.close()
    assert len(logged(tmp_path, "began home")) == 1
