"""The whole page without a mouse: Tab comes to every control, in the order of the page and back, and
everybody sees where it is."""

from __future__ import annotations

from typing import Any

import pytest

from real.console.client import ConsoleClient
from real.console.control.commands import Mode
from real.console.process import OpenConsole
from tests.accessibility import corners, focus_faults, pressed
from tests.real.console.pages import until
from tests.real.console.tabs import Tab, reaches
from tests.real.console.test_browser_look import begin, named, opened, session

__all__ = ["opened"]


@pytest.mark.parametrize("look", corners(), ids=named)
def test_tab_comes_to_every_control_in_every_mode(
    browser: Any, opened: OpenConsole, look: dict[str, Any]
) -> None:
    with session(opened) as line:
        tab = Tab(browser, opened.url, **look).ready()
        bob = Tab(browser, opened.url, "bob", **look).ready()
        assert focus_faults(bob.page) == [], "looks on"
        bob.context.close()
        tab.page.wait_for_selector("#brief:not(:empty)")
        assert focus_faults(tab.page) == [], "ready"
        tab.page.evaluate("document.activeElement.blur()")
        tab.go()
        assert focus_faults(tab.page) == [], "running"
        tab.page.keyboard.press("Escape")
        tab.shows("HOLD")
        tab.page.keyboard.press("KeyQ")
        tab.until("handoff.state.pending === 'failure'")
        tab.page.wait_for_selector("#undo:not([hidden])")
        assert focus_faults(tab.page) == [], "label"
        tab.page.keyboard.press("KeyZ")
        tab.until("handoff.state.pending === null")
        tab.page.evaluate("document.getElementById('tell').click()")
        assert focus_faults(tab.page) == [], "telling"
        tab.page.keyboard.press("Escape")
        tab.page.evaluate("document.getElementById('open-devices').click()")
        assert focus_faults(tab.page) == [], "devices"
        tab.page.keyboard.press("Escape")
        fault = {"kind": "fault", "number": 1, "why": "arm: stopped, reflex.", "asks": True}
        line.send(fault)
        tab.shows("FAULT")
        assert focus_faults(tab.page) == [], "fault"
        tab.page.evaluate("document.getElementById('recover').click()")
        assert focus_faults(tab.page) == [], "cause"
        tab.page.keyboard.press("Escape")
        assert tab.errors == []
        tab.context.close()
        until(lambda: line.command().person == "")


def test_enter_and_space_press_the_control_that_has_the_focus(
    tab: Tab, robot: ConsoleClient
) -> None:
    begin(robot, 1)
    tab.until("!document.querySelector('[data-press=success]').disabled")
    assert pressed(tab.page) == []
    sent = tab.page.evaluate("handoff.sequence")
    tab.until(f"handoff.state.sequence > {sent}")
    assert reaches(robot, Mode.HOLD).label_number == 0


def test_the_walk_notices_a_trap_and_a_focus_that_nobody_sees(tab: Tab) -> None:
    tab.page.evaluate(
        """() => {
          document.getElementById('theme').style.outline = 'none';
          document.getElementById('three').tabIndex = 3;
          const trap = (event) => { if (event.key === 'Tab') event.preventDefault(); };
          document.getElementById('sound').addEventListener('keydown', trap);
        }"""
    )
    faults = " ".join(focus_faults(tab.page))
    assert 'id="theme"' in faults
    assert "no outline" in faults
    assert "left out" in faults


@pytest.mark.parametrize("look", corners(), ids=named)
def test_tab_comes_to_every_field_of_the_login(
    browser: Any, opened: OpenConsole, look: dict[str, Any]
) -> None:
    context = browser.new_context(**look)
    page = context.new_page()
    page.goto(opened.url.partition("#")[0])
    page.wait_for_selector("#login[open]")
    assert focus_faults(page) == []
    context.close()
