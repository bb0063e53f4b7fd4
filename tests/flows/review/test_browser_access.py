"""The review for everybody: axe-core finds nothing, and all of it can be done without a mouse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.accessibility import corners, focus_faults, looks, pressed, violations
from tests.flows.review.test_browser import Tab, review
from tests.real.console.tabs import open_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


def test_axe_finds_nothing_in_both_themes_and_on_a_phone(browser: Any, store: Path) -> None:
    with review("picks.zarr") as (url, _):
        for look in looks():
            tab = Tab(browser, url, **look)
            assert violations(tab.page) == [], look
            tab.page.evaluate(
                "for (const one of document.querySelectorAll('details')) one.open = true"
            )
            tab.press("f")
            tab.says("Episode 0: failure.")
            assert violations(tab.page) == [], look
            tab.press("Enter")
            tab.page.wait_for_selector("#write-dialog[open]")
            assert violations(tab.page) == [], look
            tab.press("Escape")
            tab.press("z")
            tab.says("Undone")
            tab.close()
            context = browser.new_context(**look)
            page = context.new_page()
            page.goto(url.partition("#")[0])
            page.wait_for_selector("#login[open]")
            assert violations(page) == [], look
            context.close()


def test_tab_comes_to_every_control_and_everybody_sees_where_it_is(
    browser: Any, store: Path
) -> None:
    with review("picks.zarr") as (url, _):
        for look in corners():
            tab = Tab(browser, url, **look)
            assert focus_faults(tab.page) == [], look
            tab.page.evaluate(
                "for (const one of document.querySelectorAll('details')) one.open = true"
            )
            tab.press("f")
            tab.says("Episode 0: failure.")
            assert focus_faults(tab.page) == [], look
            tab.page.evaluate("document.activeElement.blur()")
            tab.press("Enter")
            tab.page.wait_for_selector("#write-dialog[open]")
            assert focus_faults(tab.page) == [], look
            tab.press("Escape")
            tab.press("z")
            tab.says("Undone")
            tab.close()


def test_enter_and_space_press_the_control_that_has_the_focus(browser: Any, store: Path) -> None:
    with review("picks.zarr") as (url, _):
        tab = Tab(browser, url)
        tab.press("f")
        tab.says("Episode 0: failure.")
        assert pressed(tab.page) == []
        assert tab.page.evaluate("Object.keys(handoff.state.changes.decisions).length") == 1
        tab.close()
