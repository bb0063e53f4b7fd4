"""Home and limp, between two episodes: who may begin them, and what ends them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from real.console.control.arbiter import ArbiterConfig
from real.console.control.bindings import DEFAULTS, RefusedBindingError, stored_bindings
from real.console.control.commands import ControlCommand, Mode, ResetAnswer
from real.console.control.reset_offer import NOT_OFFERED, ResetQuestion
from real.console.messages import (
    command_message,
    read_choice,
    read_command,
    read_progress,
    read_question,
    read_refusals,
)
from robots.errors import HandoffError
from tests.real.console.test_arbiter import Setup

OFFERED = {"home": "", "limp": ""}
KEYS = {Mode.HOME: "KeyH", Mode.LIMP: "KeyF"}
both = pytest.mark.parametrize("mode", [Mode.HOME, Mode.LIMP])


def between(config: ArbiterConfig | None = None) -> Setup:
    """A session at an arm that waits between two episodes."""
    setup = Setup(config)
    setup.arbiter.robot_connected(True, "reach", OFFERED)
    setup.arbiter.begin_episode(0)
    setup.arbiter.end_episode("Episode 1: success.")
    setup.arbiter.await_start("Put the cube back.", wait=True)
    return setup


def tap(setup: Setup, key: str) -> None:
    setup.keys(key)
    setup.keys()


def test_the_page_says_how_it_ended_what_to_do_and_how_to_start() -> None:
    setup = between()
    why = "Episode 1: success. Put the cube back. Press Enter to start."
    assert (setup.arbiter.mode, setup.arbiter.why) == (Mode.HOLD, why)
    setup.wait(5.0)
    assert setup.arbiter.mode is Mode.HOLD, "the next episode waits for the person"
    setup.go()
    assert setup.arbiter.mode is Mode.POLICY


@both
def test_a_key_begins_it_and_no_deflection_moves_the_arm_meanwhile(mode: Mode) -> None:
    setup = between()
    tap(setup, KEYS[mode])
    assert setup.arbiter.command().mode is mode
    assert setup.happened(f"began {mode.value}")
    setup.keys("ArrowUp")
    command = setup.arbiter.command()
    assert (command.mode, command.hand.engaged) == (mode, False)


@both
@pytest.mark.parametrize("ending", ["Escape", "Enter", "KeyH", "KeyF"])
def test_hold_enter_and_its_keys_end_it_in_a_hold(mode: Mode, ending: str) -> None:
    setup = between()
    tap(setup, KEYS[mode])
    tap(setup, ending)
    assert setup.arbiter.mode is Mode.HOLD
    setup.wait(5.0)
    assert setup.arbiter.mode is Mode.HOLD
    setup.go()
    assert setup.arbiter.mode is Mode.POLICY


@both
def test_a_silent_a_hidden_and_a_closed_page_hold_the_arm(mode: Mode) -> None:
    setup = between()
    tap(setup, KEYS[mode])
    setup.time += 0.149
    setup.arbiter.tick()
    assert setup.arbiter.mode is mode
    setup.time += 0.002
    setup.arbiter.tick()
    assert setup.arbiter.mode is Mode.HOLD
    tap(setup, KEYS[mode])
    setup.keys(visible=False)
    assert setup.arbiter.mode is Mode.HOLD
    setup.keys(KEYS[mode], visible=False)
    assert setup.arbiter.mode is Mode.HOLD, "nothing begins on a hidden page"
    setup.keys()
    tap(setup, KEYS[mode])
    setup.arbiter.leave(setup.ada, "closed")
    assert setup.arbiter.mode is Mode.HOLD


@both
def test_it_is_refused_while_an_episode_runs_and_on_its_way_to_the_start(mode: Mode) -> None:
    setup = between()
    setup.arbiter.begin_episode(1)
    tap(setup, KEYS[mode])
    assert setup.arbiter.mode is Mode.HOLD
    assert setup.arbiter.why == "An episode is running: label it first, or discard it."
    setup.arbiter.end_episode("Episode 2: discarded.")
    setup.arbiter.leave_reset()
    tap(setup, KEYS[mode])
    assert setup.arbiter.mode is Mode.HOLD
    assert setup.arbiter.why.startswith("The arm is between its start")
    assert setup.happened("refused")


@both
def test_a_policy_or_a_person_at_the_arm_is_never_replaced_by_it(mode: Mode) -> None:
    setup = between()
    setup.go()
    tap(setup, KEYS[mode])
    assert setup.arbiter.mode is Mode.POLICY
    setup.keys("ArrowUp", KEYS[mode])
    assert setup.arbiter.mode is Mode.PERSON


@both
def test_a_session_without_an_arm_refuses_it_in_its_own_words(mode: Mode) -> None:
    setup = Setup()
    tap(setup, KEYS[mode])
    assert (setup.arbiter.mode, setup.arbiter.why) == (Mode.HOLD, NOT_OFFERED)
    words = {"home": "The simulation lays the scene.", "limp": "Nobody can touch it."}
    setup.arbiter.robot_connected(True, "reach", words)
    tap(setup, KEYS[mode])
    assert (setup.arbiter.mode, setup.arbiter.why) == (Mode.HOLD, words[mode.value])


def test_only_the_page_in_control_begins_it() -> None:
    setup = between()
    bob = setup.arbiter.join("bob", "there")
    setup.arbiter.press(bob, "home")
    assert setup.arbiter.mode is Mode.HOLD
    setup.arbiter.press(setup.ada, "home")
    assert setup.arbiter.mode is Mode.HOME
    setup.arbiter.press(bob, "hold still")
    assert setup.arbiter.mode is Mode.HOLD, "everybody can stop it"


def test_home_is_held_where_the_policy_is_held_and_limp_is_not() -> None:
    setup = between(ArbiterConfig(hold_to_run=True))
    setup.arbiter.press(setup.ada, "home")
    assert (setup.arbiter.mode, setup.arbiter.why) == (Mode.HOLD, "Hold H to drive home.")
    setup.keys("KeyH")
    setup.wait(1.0, "KeyH")
    assert setup.arbiter.mode is Mode.HOME
    setup.keys()
    assert setup.arbiter.mode is Mode.HOLD
    assert setup.arbiter.why == "ada released H. Hold H to drive home."
    tap(setup, "KeyF")
    setup.wait(1.0)
    assert setup.arbiter.mode is Mode.LIMP


def test_the_pause_after_an_episode_waits_for_whoever_drives_home() -> None:
    setup = Setup()
    setup.arbiter.robot_connected(True, "reach", OFFERED)
    setup.arbiter.begin_episode(0)
    setup.go()
    setup.arbiter.end_episode("Episode 1: success.")
    setup.arbiter.await_start("", wait=False)
    assert setup.arbiter.page_state()["resume_left"] is not None
    tap(setup, "KeyH")
    setup.wait(5.0)
    assert setup.arbiter.mode is Mode.HOME
    setup.arbiter.await_start("The arm is at its start.", wait=True)
    assert setup.arbiter.mode is Mode.HOLD
    setup.wait(5.0)
    assert setup.arbiter.mode is Mode.HOLD


def test_an_episode_that_begins_ends_it() -> None:
    setup = between()
    tap(setup, "KeyF")
    setup.arbiter.leave_reset()
    assert setup.arbiter.mode is Mode.HOLD


def test_a_fault_and_the_end_of_the_session_end_it() -> None:
    setup = between()
    tap(setup, "KeyH")
    setup.arbiter.fault(1, "arm: stopped", asks_cause=False)
    assert setup.arbiter.mode is Mode.FAULT
    setup.arbiter.recover(setup.ada, "")
    tap(setup, "KeyF")
    assert setup.arbiter.mode is Mode.HOLD, "the arm is being recovered"
    setup.arbiter.await_start("Put the cube back.", wait=True)
    tap(setup, "KeyF")
    assert setup.arbiter.mode is Mode.LIMP
    setup.arbiter.finish("Done.")
    assert setup.arbiter.mode is Mode.STOP


def test_its_keys_are_bound_like_others() -> None:
    setup = between()
    with pytest.raises(RefusedBindingError, match=r"H is bound to Home\. Swap"):
        setup.arbiter.bind(setup.ada, "success", "key KeyH")
    setup.arbiter.bind(setup.ada, "limp", "key KeyV")
    tap(setup, "KeyF")
    assert setup.arbiter.mode is Mode.HOLD
    tap(setup, "KeyV")
    assert setup.arbiter.mode is Mode.LIMP
    with pytest.raises(RefusedBindingError, match="Hold the arm still"):
        setup.arbiter.bind(setup.ada, "home", "key KeyB")


def test_a_stored_map_from_before_keeps_its_inputs(tmp_path: Path) -> None:
    path = tmp_path / "bindings.json"
    older = {name: bound for name, bound in DEFAULTS.items() if name not in ("home", "limp")}
    path.write_text(json.dumps({**older, "up": ["key KeyH"]}))
    bindings = stored_bindings(path)
    assert bindings.inputs["up"] == ("key KeyH",)
    assert (bindings.inputs["home"], bindings.inputs["limp"]) == ((), ("key KeyF",))


@both
def test_the_command_reaches_the_robot(mode: Mode) -> None:
    setup = between()
    tap(setup, KEYS[mode])
    command: ControlCommand = read_command(command_message(setup.arbiter.command()))
    assert command.mode is mode


QUESTION = ResetQuestion(3, "Which was better?", ("The first", "The second"))


def asking() -> Setup:
    """A session that asks something between two episodes."""
    setup = between()
    setup.arbiter.await_start("", wait=True, question=QUESTION)
    return setup


def test_an_answer_reaches_the_robot_and_may_be_changed_until_the_start() -> None:
    setup = asking()
    shown = setup.arbiter.page_state()["reset"]["question"]
    assert shown == {
        "text": QUESTION.text,
        "choices": ["The first", "The second"],
        "answer": None,
    }
    for choice in (0, 1):
        setup.arbiter.answer(setup.ada, choice)
        command = read_command(command_message(setup.arbiter.command()))
        assert command.answer == ResetAnswer(3, choice)
        assert setup.arbiter.page_state()["reset"]["question"]["answer"] == choice
    assert setup.happened("answered")
    setup.arbiter.leave_reset()
    setup.arbiter.answer(setup.ada, 0)
    assert setup.arbiter.command().answer == ResetAnswer(3, 1), "the next episode has begun"
    assert "question" not in setup.arbiter.page_state()["reset"]


@pytest.mark.parametrize("choice", [-1, 2, 99])
def test_an_answer_that_was_not_offered_does_not_count(choice: int) -> None:
    setup = asking()
    setup.arbiter.answer(setup.ada, choice)
    assert setup.arbiter.command().answer == ResetAnswer()


def test_only_the_page_in_control_answers() -> None:
    setup = asking()
    bob = setup.arbiter.join("bob", "there")
    setup.arbiter.answer(bob, 0)
    assert setup.arbiter.command().answer == ResetAnswer()
    assert setup.happened("not in control")


def test_an_answer_to_an_earlier_question_is_none_to_the_next() -> None:
    setup = asking()
    setup.arbiter.answer(setup.ada, 0)
    setup.arbiter.begin_episode(1)
    setup.arbiter.end_episode("Episode 2: success.")
    setup.arbiter.await_start("", wait=True, question=QUESTION._replace(number=4))
    assert setup.arbiter.page_state()["reset"]["question"]["answer"] is None
    setup.arbiter.robot_connected(False, "reach")
    assert setup.arbiter.command().answer == ResetAnswer()


def test_a_question_travels_unchanged() -> None:
    assert read_question({}) is None
    assert read_question({"question": QUESTION._asdict()}) == QUESTION


@pytest.mark.parametrize(
    "wrong",
    [
        "why?",
        {"number": "1", "text": "?", "choices": ["a"]},
        {"number": 1, "text": 2, "choices": ["a"]},
        {"number": 1, "text": "?", "choices": []},
        {"number": 1, "text": "?", "choices": ["a"] * 13},
        {"number": 1, "text": "?", "choices": ["\n"]},
    ],
)
def test_a_question_that_cannot_be_shown_is_refused(wrong: object) -> None:
    with pytest.raises(HandoffError):
        read_question({"question": wrong})


@pytest.mark.parametrize("wrong", [None, True, "1", 1.0])
def test_an_answer_is_a_whole_number(wrong: object) -> None:
    assert read_choice({"choice": 1}) == 1
    with pytest.raises(HandoffError):
        read_choice({"choice": wrong})


@pytest.mark.parametrize("wrong", [{"dance": ""}, {"home": 1}, {"limp": "\n"}, [], "home"])
def test_a_greeting_that_offers_what_there_is_not_is_refused(wrong: object) -> None:
    assert read_refusals({}) is None
    assert read_refusals({"reset": OFFERED}) == OFFERED
    with pytest.raises(HandoffError):
        read_refusals({"reset": wrong})


@pytest.mark.parametrize("wrong", [None, True, "1", float("nan"), float("inf"), -0.1, 1.1])
def test_progress_is_a_share(wrong: object) -> None:
    assert read_progress({"share": 1}) == 1.0
    with pytest.raises(HandoffError):
        read_progress({"share": wrong})
