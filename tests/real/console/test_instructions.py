"""What a person tells a policy at the page: who may, when it holds, and by voice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from real.console.client import ConsoleClient
from real.console.control.commands import ControlCommand, Mode
from real.console.messages import (
    LONGEST_INSTRUCTION,
    command_message,
    read_command,
    read_message,
    read_text,
)
from real.console.process import OpenConsole
from robots.errors import HandoffError
from robots.wire.policy import pack, unpack
from tests.real.console.pages import until
from tests.real.console.tabs import Tab
from tests.real.console.test_arbiter import Setup

ABOUT = {"task": "reach_by_name", "brief": "Reach the marker.", "rate_hz": 20.0}
SPEAKING = """
window.SpeechRecognition = undefined;
window.webkitSpeechRecognition = class {
  start() { window.heard = this; setTimeout(() => this.onstart(), 0); }
  stop() { this.onend(); }
  abort() { this.onerror({ error: "aborted" }); this.onend(); }
  say(...parts) { this.onresult({ results: parts.map((transcript) => [{ transcript }]) }); }
};
"""
"""A browser that hears what a test says to it."""


def told(*, offered: bool = True) -> Setup:
    setup = Setup()
    connected(setup, "first", offered=offered)
    return setup


def connected(setup: Setup, client: str, *, offered: bool = True) -> None:
    setup.arbiter.robot_connected(True, "reach_by_name", client=client, instructable=offered)


def test_the_one_in_control_tells_the_policy_and_the_last_word_counts() -> None:
    setup = told()
    bob = setup.arbiter.join("bob", "there")
    setup.arbiter.instruct(bob, "reach the red one")
    assert setup.arbiter.command().instruction == (0, "", "")
    assert setup.log[-1] == ("bob", "not in control", {"asked for": "instruct"})
    setup.arbiter.instruct(setup.ada, "reach the red one")
    setup.arbiter.instruct(setup.ada, "reach the blue one")
    assert setup.arbiter.command().instruction == (2, "reach the blue one", "ada")
    assert setup.log[-1] == ("ada", "instructed", {"instruction": "reach the blue one"})


@pytest.mark.parametrize(("offered", "text"), [(False, "reach the red one"), (True, "")])
def test_what_nobody_takes_is_not_told(offered: bool, text: str) -> None:
    setup = told(offered=offered)
    setup.arbiter.instruct(setup.ada, text)
    assert setup.arbiter.command().instruction == (0, "", "")
    assert setup.arbiter.page_state()["instruction"] == {"offered": offered, "next": ""}


def test_an_instruction_waits_until_an_episode_begins_with_it() -> None:
    setup = told()
    setup.arbiter.instruct(setup.ada, "reach the red one")
    assert setup.arbiter.page_state()["instruction"]["next"] == "reach the red one"
    # The episode had been prepared before the person spoke.
    setup.arbiter.begin_episode(0, heard=0)
    assert setup.arbiter.page_state()["instruction"]["next"] == "reach the red one"
    setup.arbiter.begin_episode(1, heard=1)
    assert setup.arbiter.page_state()["instruction"]["next"] == ""


def test_a_lost_connection_loses_no_instruction_and_another_session_has_none() -> None:
    setup = told()
    setup.arbiter.instruct(setup.ada, "reach the red one")
    setup.arbiter.robot_connected(False, "reach_by_name")
    assert not setup.arbiter.page_state()["instruction"]["offered"]
    connected(setup, "first")
    assert setup.arbiter.command().instruction == (1, "reach the red one", "ada")
    connected(setup, "second")
    assert setup.arbiter.command().instruction == (0, "", "")
    assert setup.arbiter.page_state()["instruction"] == {"offered": True, "next": ""}


def test_an_instruction_travels_unchanged() -> None:
    setup = told()
    setup.arbiter.instruct(setup.ada, "reach the gelber Würfel")
    command = setup.arbiter.command()
    again = read_command(unpack(pack(command_message(command))))
    assert again.instruction == command.instruction
    for wrong in (None, [1], "red", ["x", "red", "ada"]):
        with pytest.raises(HandoffError):
            read_command({**command_message(command), "instruction": wrong})


def test_an_instruction_of_a_page_is_short_and_printable() -> None:
    for text in ("a" * (LONGEST_INSTRUCTION + 1), "a\nb", 7):
        word = read_message(json.dumps({"kind": "instruct", "text": text}))
        with pytest.raises(HandoffError):
            read_text(word, "text", LONGEST_INSTRUCTION)


class Line:
    """A session's side of the console whose policy takes instructions."""

    def __init__(self, opened: OpenConsole, *, instructable: bool = True) -> None:
        about = {**ABOUT, "instructable": instructable}
        self.client = ConsoleClient(opened.client_config(), opened.robot_token, about)
        self.begin(0, "reach the red one")
        self.client.start()

    def begin(self, episode: int, text: str, heard: int = 0) -> None:
        told = {"episode": episode, "instruction": text, "heard": heard}
        self.client.describe({"kind": "begin", "told": told})

    def told(self) -> ControlCommand:
        until(lambda: self.client.command().instruction.number > 0)
        return self.client.command()


def text_of(tab: Tab, name: str) -> str:
    return tab.page.evaluate(f"document.getElementById('{name}').textContent")


def test_an_instruction_is_typed_at_the_page_and_the_arm_holds_meanwhile(
    browser: Any, opened: OpenConsole
) -> None:
    line = Line(opened)
    tab = Tab(browser, opened.url).ready().go()
    assert text_of(tab, "instruction") == "“reach the red one”"
    tab.page.click("#tell")
    tab.shows("HOLD")
    assert tab.page.evaluate("document.getElementById('telling-text').value") == "reach the red one"
    # Letters that are bound to motions are letters here.
    tab.page.keyboard.type("reach the blue one")
    assert tab.mode() == "HOLD"
    tab.page.keyboard.press("Enter")
    tab.until("!document.getElementById('telling').open")
    assert line.told().instruction == (1, "reach the blue one", "ada")
    assert line.client.command().mode is Mode.HOLD, "Enter told the policy and started nothing"
    tab.until(
        "document.getElementById('instruction-next').textContent "
        "=== 'Next episode: “reach the blue one”'"
    )
    line.begin(1, "reach the blue one", heard=1)
    tab.until("document.getElementById('instruction').textContent === '“reach the blue one”'")
    tab.until("document.getElementById('instruction-next').textContent === ''")
    # Escape tells nothing.
    tab.page.click("#tell")
    tab.page.keyboard.type("reach nothing")
    tab.page.keyboard.press("Escape")
    tab.until("!document.getElementById('telling').open")
    assert line.client.command().instruction.number == 1
    assert tab.errors == []
    tab.context.close()
    line.client.close()


def test_what_was_heard_is_shown_and_told_only_when_the_person_says_so(
    browser: Any, opened: OpenConsole
) -> None:
    line = Line(opened)
    tab = Tab(browser, opened.url, before=SPEAKING).ready()
    tab.page.click("#tell")
    tab.page.click("#telling-speak")
    tab.until("document.getElementById('telling-heard').textContent.includes('its maker')")
    tab.page.evaluate("heard.say('reach the', ' green one')")
    assert tab.page.evaluate("document.getElementById('telling-text').value") == (
        "reach the  green one"
    )
    tab.page.click("#telling-speak")
    tab.until("document.getElementById('telling-speak').textContent === 'Speak'")
    assert line.client.command().instruction.number == 0
    tab.page.fill("#telling-text", "reach the green one")
    tab.page.keyboard.press("Enter")
    assert line.told().instruction.text == "reach the green one"
    # A browser that hears nothing says so.
    tab.page.click("#tell")
    tab.page.click("#telling-speak")
    tab.until("document.getElementById('telling-heard').textContent.startsWith('Listening')")
    tab.page.evaluate("heard.onerror({ error: 'not-allowed' }); heard.onend()")
    tab.until("document.getElementById('telling-heard').textContent.includes('(not-allowed)')")
    tab.page.click("#telling-cancel")
    assert tab.errors == []
    tab.context.close()
    line.client.close()


def test_a_policy_without_instructions_is_told_nothing_and_nobody_else_tells_it(
    browser: Any, opened: OpenConsole
) -> None:
    line = Line(opened, instructable=False)
    tab = Tab(browser, opened.url).ready()
    assert tab.page.is_hidden("#tell")
    line.client.close()
    line = Line(opened)
    ada = Tab(browser, opened.url).ready()
    ada.until("!document.getElementById('tell').hidden")
    assert ada.page.is_disabled("#tell"), "another page is in control"
    ada.context.close()
    tab.context.close()
    line.client.close()
