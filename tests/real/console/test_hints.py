"""Hints of the robot's process on a page: shown while the policy has the arm, and never otherwise."""

import pytest

from real.console.control.commands import Mode
from tests.real.console.pages import Page, until
from tests.real.console.tabs import Tab, driven, reaches

HINT = "The policy expects less success than a moment ago: consider taking over."
TONES = """
  window.tones = [];
  const plain = AudioContext.prototype.createOscillator;
  AudioContext.prototype.createOscillator = function () {
    const made = plain.call(this);
    const start = made.start.bind(made);
    made.start = (...when) => { tones.push(made.frequency.value); start(...when); };
    return made;
  };
"""
"""Keeps the pitch of every tone that the page plays."""
PITCH = 550
"""Pitch of the tone of a hint [Hz]."""


def hint(robot, text: str) -> None:
    robot.send({"kind": "hint", "told": text})


@pytest.fixture
def listened(browser, opened, robot):
    tab = Tab(browser, opened.url, before=TONES).ready()
    yield tab
    assert tab.errors == []
    tab.context.close()
    until(lambda: robot.command().mode is Mode.HOLD)


def shows(tab: Tab, text: str) -> None:
    tab.until(f"document.getElementById('hint').textContent === {text!r}")


def hint_tones(tab: Tab) -> int:
    return tab.page.evaluate(f"tones.filter((pitch) => pitch === {PITCH}).length")


def test_a_page_is_sent_a_hint_only_while_the_policy_has_the_arm(opened, robot):
    page = Page(opened)
    hint(robot, HINT)

    def state(*keys: str):
        page.keys(*keys)
        return page.newest()

    until(lambda: state()["robot"])
    assert (state()["mode"], state()["hint"]) == ("hold", "")
    page.go()
    until(lambda: state()["mode"] == "policy")
    assert state()["hint"] == HINT
    until(lambda: state("ArrowUp")["mode"] == "person")
    assert state("ArrowUp")["hint"] == ""
    until(lambda: state()["hint"] == HINT)
    hint(robot, "")
    until(lambda: state()["hint"] == "")
    assert state()["mode"] == "policy", "a hint holds nothing"
    page.socket.close()
    until(lambda: robot.command().mode is Mode.HOLD)


def test_a_hint_that_cannot_be_read_ends_the_connection_of_the_robot(opened, robot, tab):
    before = robot.connection
    hint(robot, "two\nlines")
    until(lambda: robot.connection == before + 1)


def test_a_hint_is_announced_politely_with_one_quiet_tone(listened, robot):
    tab = listened.go()
    assert tab.page.get_attribute("#hint", "aria-live") == "polite"
    hint(robot, HINT)
    shows(tab, HINT)
    assert tab.page.is_visible("#hint")
    until(lambda: hint_tones(tab) == 1)
    hint(robot, f"Another one; {HINT}")
    shows(tab, f"Another one; {HINT}")
    hint(robot, "")
    shows(tab, "")
    assert not tab.page.is_visible("#hint")
    assert hint_tones(tab) == 1, "a hint whose cause changes is not a new one"
    assert robot.command().mode is Mode.POLICY


def test_a_hint_disappears_in_hold_and_while_the_person_acts(tab, robot):
    tab.go()
    hint(robot, HINT)
    shows(tab, HINT)
    tab.page.keyboard.press("Escape")
    reaches(robot, Mode.HOLD)
    shows(tab, "")
    driven(tab, robot)
    shows(tab, "")
    tab.page.keyboard.up("ArrowUp")
    reaches(robot, Mode.POLICY)
    shows(tab, HINT)


def test_hints_can_be_turned_off_at_the_page_and_stay_off(listened, robot):
    tab = listened.go()
    tab.page.click("#hints")
    assert tab.page.get_attribute("#hints", "aria-pressed") == "false"
    hint(robot, HINT)
    tab.until(f"handoff.state.hint === {HINT!r}")
    tab.page.wait_for_timeout(200)
    assert tab.page.inner_text("#hint") == ""
    assert hint_tones(tab) == 0
    tab.page.reload()
    tab.ready()
    assert tab.page.inner_text("#hints") == "Hints are off"
    tab.page.click("#hints")
    assert tab.page.inner_text("#hints") == "Hints"


@pytest.mark.parametrize("button", ["hint-tone", "sound"])
def test_the_tone_can_be_turned_off_alone_and_with_all_others(listened, robot, button):
    tab = listened.go()
    tab.page.click(f"#{button}")
    hint(robot, HINT)
    shows(tab, HINT)
    tab.page.wait_for_timeout(200)
    assert hint_tones(tab) == 0
    tab.page.click(f"#{button}")
    hint(robot, "")
    shows(tab, "")
    hint(robot, HINT)
    until(lambda: hint_tones(tab) == 1)
