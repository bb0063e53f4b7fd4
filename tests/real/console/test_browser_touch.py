"""The page below two thumbs: what is in reach on a phone, and what a lost touch does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect

from real.cameras.camera_process import frame as frame_of
from real.console.client import ConsoleClient, ConsoleClientConfig
from real.console.control.commands import Mode
from robots.wire.policy import pack
from tests.accessibility import LANDSCAPE, PHONE
from tests.real.console.pages import logged, until
from tests.real.console.tabs import Tab, reaches

SMALLEST = 44
"""Smallest side of a target for a finger [px], as WCAG 2.2 (2.5.5) and Apple's guidelines have it."""
CONTROLS = (
    "#go",
    "#halt",
    "#pad-plane",
    "#pad-up",
    "#pad-turn",
    "#grips button >> nth=0",
    "#grips button >> nth=1",
    "[data-press=success]",
    "[data-press=failure]",
    "[data-press=redo]",
    "[data-press=discard]",
)
"""What a person needs who leads the arm and labels the episode."""
SMALL = """() => [...document.querySelectorAll('button, input, select, summary, a[href], .pad')]
  .filter((one) => one.checkVisibility() && !one.closest('dialog:not([open])'))
  .filter((one) => { const { width, height } = one.getBoundingClientRect(); return width < 44 || height < 44; })
  .map((one) => one.outerHTML)"""
COVERED = """(one) => {
  const { x, y, width, height } = one.getBoundingClientRect();
  const at = document.elementFromPoint(x + width / 2, y + height / 2);
  return !one.contains(at) || y < 0 || x < 0 || y + height > innerHeight || x + width > innerWidth;
}"""
BRIEF = "Put the peg into the hole, and let go of it when it stands."
SIZES = [PHONE, LANDSCAPE]
ABOUT = {"task": "peg_insert", "stage": "demonstration", "rate_hz": 20.0, "brief": BRIEF}


class Finger:
    """A finger on the screen of a page."""

    def __init__(self, tab: Tab) -> None:
        self._send = tab.context.new_cdp_session(tab.page).send
        self._page = tab.page
        self._points: dict[int, tuple[float, float]] = {}

    def down(self, selector: str, finger: int = 0) -> None:
        box = self._page.locator(selector).bounding_box()
        self._points[finger] = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        self._touch("touchStart")

    def move(self, x: float, y: float, finger: int = 0) -> None:
        from_x, from_y = self._points[finger]
        self._points[finger] = (from_x + x, from_y + y)
        self._touch("touchMove")

    def up(self, finger: int = 0) -> None:
        lifted = {finger: self._points.pop(finger)}
        # Without points all fingers are lifted, with points these.
        self._touch("touchEnd", lifted if self._points else {})

    def cancelled(self) -> None:
        """The system takes all touches away."""
        self._points = {}
        self._touch("touchCancel", {})

    def _touch(self, kind: str, fingers: dict[int, tuple[float, float]] | None = None) -> None:
        at = self._points if fingers is None else fingers
        points = [{"x": x, "y": y, "id": number} for number, (x, y) in at.items()]
        self._send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})


def phone(browser: Any, url: str, size: tuple[int, int] = PHONE) -> Tab:
    width, height = size
    look = {"viewport": {"width": width, "height": height}, "has_touch": True, "is_mobile": True}
    return Tab(browser, url, **look)


@pytest.fixture
def held(browser, opened, robot) -> Iterator[Tab]:
    """A phone whose person has control."""
    tab = phone(browser, opened.url).ready()
    yield tab
    assert tab.errors == []
    tab.context.close()
    until(lambda: robot.command().mode is Mode.HOLD)


@pytest.fixture
def finger(held) -> Finger:
    return Finger(held)


@pytest.mark.parametrize("size", SIZES, ids=["upright", "sideways"])
def test_pictures_and_controls_are_in_reach_of_thumbs_without_scrolling(browser, opened, size):
    line = ConsoleClient(ConsoleClientConfig(uri=opened.uri), opened.robot_token, ABOUT)
    line.describe({"kind": "begin", "told": {"episode": 0, "seconds": 60.0}})
    line.start()
    with connect(opened.uri) as camera:
        camera.send(pack({"kind": "hello", "role": "camera", "token": opened.camera_token}))
        for name in ("shoulder", "front", "wrist"):
            camera.send(frame_of(name, np.full((480, 640, 3), 99, np.uint8)))
        tab = phone(browser, opened.url, size).ready()
        tab.until("document.querySelectorAll('#cameras canvas').length === 3")
        tab.page.wait_for_selector("#brief:not(:empty)")
        assert tab.page.evaluate(SMALL) == []
        for control in CONTROLS:
            assert not tab.page.locator(control).evaluate(COVERED), control
        # The person's own picture is large, and no control lies on it.
        figure = tab.page.locator("#cameras figure >> nth=0")
        box = figure.bounding_box()
        assert box["width"] * box["height"] > 0.15 * size[0] * size[1]
        assert not figure.evaluate(COVERED)
        assert tab.page.evaluate("document.documentElement.scrollWidth") == size[0]
        # Whatever else is looked at, the arm can be stopped.
        tab.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        tab.until("scrollY > 100")
        assert not tab.page.locator("#halt").evaluate(COVERED)
        tab.page.evaluate("document.getElementById('open-devices').click()")
        assert tab.page.evaluate(SMALL) == []
        assert tab.errors == []
        tab.context.close()
    line.close()


def test_a_finger_on_the_stick_moves_the_arm_and_lifting_it_gives_it_back(held, robot, finger):
    held.go()
    finger.down("#pad-plane")
    assert not reaches(robot, Mode.PERSON).hand.twist.any()
    finger.move(0, -40)
    until(lambda: robot.command().hand.twist[0] > 0.3)
    finger.up()
    reaches(robot, Mode.POLICY)
    held.shows("POLICY")
    assert held.page.inner_text("#why") == "Touch the stick to take over the arm."


def test_two_thumbs_move_the_arm_and_close_the_gripper_together(held, robot, finger):
    held.go()
    finger.down("#pad-up")
    finger.move(0, -40)
    finger.down("#grips button >> nth=0", finger=1)
    until(lambda: robot.command().hand.grip == -1 and robot.command().hand.twist[2] > 0.3)
    finger.up(finger=1)
    until(lambda: robot.command().hand.grip == 0)
    assert robot.command().mode is Mode.PERSON
    finger.up()
    reaches(robot, Mode.POLICY)


@pytest.mark.parametrize("control", ["#pad-plane", "#grips button >> nth=1"])
def test_a_touch_that_the_system_takes_away_holds_the_arm(held, robot, finger, control):
    held.go()
    finger.down(control)
    reaches(robot, Mode.PERSON)
    finger.cancelled()
    reaches(robot, Mode.HOLD)
    held.until("document.getElementById('why').textContent === 'ada pressed Hold.'")


def test_hold_acts_when_it_is_touched_and_not_when_it_is_released(held, robot, finger):
    held.go()
    finger.down("#halt")
    reaches(robot, Mode.HOLD)
    # The finger slides off, which would be no click.
    finger.move(-120, -200)
    finger.up()
    assert robot.command().mode is Mode.HOLD


def test_a_page_that_goes_dark_below_a_finger_holds_the_arm(held, robot, finger, folder):
    held.go()
    finger.down("#pad-plane")
    reaches(robot, Mode.PERSON)
    held.page.evaluate(
        "Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => 'hidden' });"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    reaches(robot, Mode.HOLD)
    assert "hidden" in logged(folder, "hold")[-1]["why"]
    # The finger still lies there when the screen is on again.
    held.page.evaluate("delete document.visibilityState")
    held.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    held.go()
    time.sleep(0.2)
    assert robot.command().mode is Mode.POLICY
    finger.up()


def test_a_phone_that_stops_the_page_without_a_word_holds_the_arm(held, robot, finger, folder):
    held.go()
    finger.down("#pad-plane")
    reaches(robot, Mode.PERSON)
    session = held.context.new_cdp_session(held.page)
    session.send("Debugger.enable")
    session.send("Debugger.pause")
    reaches(robot, Mode.HOLD)
    assert "silent" in logged(folder, "hold")[-1]["why"]
    session.send("Debugger.disable")
    finger.up()


def test_a_long_press_opens_no_menu(held):
    prevented = """(selector) => !document.querySelector(selector).dispatchEvent(
      new Event('contextmenu', { bubbles: true, cancelable: true }))"""
    for selector in ("#go", "#halt", "#pad-up", "#grips button"):
        assert held.page.evaluate(prevented, selector), selector
    assert not held.page.evaluate(prevented, "#views")
