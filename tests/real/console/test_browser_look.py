"""How the page looks in every mode: axe-core finds nothing, and its mode is legible from two
metres."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect

from real.cameras.camera_process import frame as frame_of
from real.console.client import ConsoleClient, ConsoleClientConfig
from real.console.control.arbiter import ArbiterConfig
from real.console.control.commands import Mode
from real.console.process import OpenConsole, open_console
from real.console.server import ConsoleConfig
from robots.wire.policy import pack
from tests.accessibility import looks, violations
from tests.real.console.pages import until
from tests.real.console.tabs import Tab, reaches

ABOUT = {
    "task": "pick_cube",
    "brief": "Bring the red cube to the green ball and hold it there.",
    "stage": "console",
    "rate_hz": 20.0,
    "instructable": True,
    "joint_limits": [[-2.0] * 7, [2.0] * 7],
}
STEP = {"reward": 0.5, "probability": 0.9, "hand": 0.04, "q": [0.0] * 3 + [1.9] + [0.0] * 3}
END = {"episode": 0, "success": True, "label": "none", "steps": 40, "corrected": 19}
PIXEL = 0.527 / 1920
"""Width of a CSS pixel of a screen of 24 inches with 1920 x 1080 pixels [m]."""
CAPITALS = 0.7
"""Height of capitals relative to the size of the font; 0.70 to 0.73 in the fonts of the page."""


SECONDS = 300.0
"""Time for which a page may be silent, and for a label to be undone [s]: axe-core stops a page for
a second and more."""


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[OpenConsole]:
    limits = ArbiterConfig(watchdog=SECONDS, undo=SECONDS)
    config = ConsoleConfig(port=0, picture_seconds=None, arbiter=limits)
    with open_console(config, folder) as opened:
        yield opened


def named(look: dict[str, Any]) -> str:
    return f"{look['color_scheme']}-{look['viewport']['width']}"


@contextmanager
def session(opened: OpenConsole) -> Iterator[ConsoleClient]:
    """A robot's side with an episode behind it and one that runs, and pictures of three cameras."""
    line = ConsoleClient(
        ConsoleClientConfig(uri=opened.uri, watchdog=1.0), opened.robot_token, ABOUT
    )
    begin(line, 0)
    line.start()
    with connect(opened.uri) as camera:
        camera.send(pack({"kind": "hello", "role": "camera", "token": opened.camera_token}))
        for name in ("shoulder", "front", "wrist"):
            camera.send(frame_of(name, np.full((480, 640, 3), 99, np.uint8)))
        line.send({"kind": "end", "told": {**END, "takeovers": 1, "seconds": 2, "dropped": False}})
        begin(line, 1)
        line.send({"kind": "facts", "told": {"demonstrations": "8 of 20"}})
        for number in range(40):
            step = {**STEP, "episode": 1, "step": number, "person": number > 20, "sequence": -1}
            line.send({"kind": "step", "told": {**step, "time": 0.0}})
        yield line
    line.close()


def begin(line: ConsoleClient, episode: int) -> None:
    told = {"episode": episode, "seconds": 60.0, "instruction": "the red one"}
    line.describe({"kind": "begin", "told": told})


def clean(tab: Tab, what: str) -> None:
    assert violations(tab.page) == [], what


def shows(tab: Tab, expression: str, what: str) -> None:
    tab.until(expression)
    clean(tab, what)


def modes(tab: Tab, line: ConsoleClient) -> None:
    """Ready, running, led by the person, held, and with a label that can be undone."""
    tab.page.wait_for_selector("#brief:not(:empty)")
    tab.until("document.querySelectorAll('#cameras canvas').length === 3")
    clean(tab, "ready")
    tab.go()
    clean(tab, "running")
    line.send({"kind": "hint", "told": "The policy is likely to fail."})
    shows(tab, "document.getElementById('hint').textContent !== ''", "hint")
    tab.page.keyboard.down("ArrowUp")
    tab.shows("YOU")
    clean(tab, "you")
    tab.page.keyboard.up("ArrowUp")
    tab.page.keyboard.press("Escape")
    tab.shows("HOLD")
    clean(tab, "hold")
    tab.page.evaluate(
        "document.getElementById('waiting-names').textContent = 'lab';"
        "document.getElementById('waiting').hidden = false"
    )
    clean(tab, "waits for an approval")
    tab.page.keyboard.press("KeyQ")
    shows(tab, "handoff.state.pending === 'failure'", "label")
    tab.page.keyboard.press("KeyZ")
    tab.until("handoff.state.pending === null")


def dialogs(tab: Tab, line: ConsoleClient) -> None:
    """Devices and keys with a SpaceMouse's words, a binding that waits and one that is asked for; an
    instruction for the policy; a fault and the question for its cause."""
    tab.page.wait_for_selector("#tell:not([hidden])")
    tab.page.evaluate("document.getElementById('tell').click()")
    clean(tab, "telling")
    tab.page.fill("#telling-text", "the blue one")
    tab.page.keyboard.press("Enter")
    shows(tab, "document.getElementById('instruction-next').textContent !== ''", "told")
    tab.page.evaluate("document.getElementById('open-devices').click()")
    clean(tab, "devices")
    tab.page.locator("#bindings button").first.click()
    clean(tab, "listening")
    tab.page.keyboard.press("KeyS")
    tab.page.wait_for_selector("#bind-ask:not([hidden])")
    clean(tab, "swap")
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("Escape")
    line.send({"kind": "fault", "number": 1, "why": "arm: stopped, joint_reflex.", "asks": True})
    tab.shows("FAULT")
    clean(tab, "fault")
    tab.page.evaluate("document.getElementById('recover').click()")
    clean(tab, "cause")
    tab.page.fill("#cause-text", "hit the shelf")
    tab.page.keyboard.press("Enter")
    reaches(line, Mode.HOLD)
    begin(line, 2)


@pytest.mark.parametrize("look", looks(), ids=named)
@pytest.mark.parametrize("through", [modes, dialogs])
def test_axe_finds_nothing_in_any_mode(
    browser: Any,
    opened: OpenConsole,
    look: dict[str, Any],
    through: Callable[[Tab, ConsoleClient], None],
) -> None:
    with session(opened) as line:
        tab = Tab(browser, opened.url, **look).ready()
        through(tab, line)
        assert tab.errors == []
        tab.context.close()
        until(lambda: line.command().person == "")


@pytest.mark.parametrize("look", looks(), ids=named)
def test_axe_finds_nothing_on_the_page_of_a_second_person(
    browser: Any, opened: OpenConsole, look: dict[str, Any]
) -> None:
    with session(opened) as line:
        ada = Tab(browser, opened.url, **look).ready()
        bob = Tab(browser, opened.url, "bob", **look).ready()
        bob.page.wait_for_selector("#brief:not(:empty)")
        clean(bob, "looks on")
        bob.page.evaluate("document.getElementById('claim').click()")
        ada.until("document.getElementById('give').textContent === 'Hand over to bob'")
        clean(ada, "asked")
        clean(bob, "asks")
        bob.context.close()
        ada.context.close()
        until(lambda: line.command().person == "")


@pytest.mark.parametrize("look", looks(), ids=named)
def test_axe_finds_nothing_before_and_after_a_session(
    browser: Any, tmp_path: Path, look: dict[str, Any]
) -> None:
    context = browser.new_context(**look)
    with open_console(ConsoleConfig(port=0), tmp_path) as opened:
        context.add_init_script("localStorage.removeItem('handoff-name')")
        page = context.new_page()
        page.goto(opened.url.partition("#")[0])
        page.wait_for_selector("#login[open]")
        assert violations(page) == []
        tab = Tab(browser, opened.url, **look)
        tab.until("handoff.state?.mode === 'hold' && handoff.socket.readyState === 1")
        clean(tab, "no robot")
    tab.shows("ENDED")
    clean(tab, "ended")
    tab.context.close()
    context.close()


def test_axe_would_find_something(browser: Any, opened: OpenConsole, robot: ConsoleClient) -> None:
    tab = Tab(browser, opened.url).ready()
    tab.page.evaluate(
        """() => {
          document.getElementById('why').style.color = '#777';
          document.getElementById('why').textContent = 'Nobody reads this.';
          document.getElementById('open-devices').replaceChildren();
          document.querySelector('nav').style.cssText = 'gap: 0; align-content: start';
          for (const one of document.querySelectorAll('nav button')) {
            one.style.cssText = 'min-height: 0; height: 10px; padding: 0';
          }
        }"""
    )
    found = {each.partition(":")[0] for each in violations(tab.page)}
    assert {"color-contrast", "button-name", "target-size"} <= found
    tab.context.close()
    until(lambda: robot.command().person == "")


def minutes(size: float, metres: float) -> float:
    """Angle that the capitals of a font of `size` [px] subtend [minutes of arc]."""
    return 60.0 * math.degrees(math.atan(CAPITALS * size * PIXEL / metres))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1920])
def test_the_mode_is_legible_from_two_metres_and_its_reason_from_one(
    browser: Any, opened: OpenConsole, robot: ConsoleClient, theme: str, width: int
) -> None:
    look = {"color_scheme": theme, "viewport": {"width": width, "height": 800}}
    tab = Tab(browser, opened.url, **look).ready()
    size = "parseFloat(getComputedStyle(document.getElementById('{}')).fontSize)"
    assert minutes(tab.page.evaluate(size.format("mode")), 2.0) >= 20.0
    assert minutes(tab.page.evaluate(size.format("why")), 1.0) >= 16.0
    # The longest word is not cut off, and the picture still has most of the height.
    tab.page.evaluate("document.getElementById('mode').textContent = 'DISCONNECTED'")
    assert tab.page.evaluate("(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)(mode)")
    banner = tab.page.locator("#banner").bounding_box()
    assert banner["height"] <= 0.2 * 800
    tab.context.close()
    until(lambda: robot.command().person == "")
