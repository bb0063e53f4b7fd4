"""Messages are checked before they mean anything."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.console.control.bindings import Inputs
from real.console.control.commands import ControlCommand, Mode, Recovery, ResetAnswer
from real.console.messages import (
    LONGEST_REASON,
    command_message,
    read_command,
    read_hint,
    read_inputs,
    read_message,
    read_text,
)
from real.teleop.spacemouse import SpaceMouseReport
from real.teleop.takeover import HandInput
from robots.errors import HandoffError
from robots.interfaces import Label
from robots.wire.policy import pack, unpack

WHOLE = {
    "kind": "inputs",
    "keys": ["KeyI"],
    "sequence": 3,
    "visible": True,
    "axes": [0.5, -2],
    "buttons": [0, 1],
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)


def test_inputs_are_read_and_kept_within_their_range():
    inputs, sequence, visible = read_inputs(
        {**WHOLE, "stick": [1, 0, -3, 0], "held": ["close hand"]}
    )
    expected = Inputs(
        frozenset({"KeyI"}),
        (0.5, -1.0),
        (0.0, 1.0),
        frozenset({"close hand"}),
        (1.0, 0.0, -1.0, 0.0),
    )
    assert (inputs, sequence, visible) == (expected, 3, True)


def test_a_spacemouse_is_read():
    state = {"counts": [0, -350, 1e9, 0, 0, 4], "buttons": [0, 1], "age": 0.02}
    inputs, _, _ = read_inputs({**WHOLE, "spacemouse": state})
    counts = (0.0, -350.0, 32768.0, 0.0, 0.0, 4.0)
    assert inputs.spacemouse == SpaceMouseReport(counts, (False, True), 0.02)


@pytest.mark.parametrize(
    "wrong",
    [
        {"spacemouse": [0] * 6},
        {"spacemouse": {"counts": [0] * 5, "buttons": [], "age": 0}},
        {"spacemouse": {"counts": [0] * 7, "buttons": [], "age": 0}},
        {"spacemouse": {"counts": [0] * 6, "buttons": [], "age": None}},
        {"spacemouse": {"counts": [0] * 6, "buttons": [None], "age": 0}},
        {"spacemouse": {"counts": ["0"] * 6, "buttons": [], "age": 0}},
        {"keys": "KeyI"},
        {"keys": ["K"] * 33},
        {"keys": [1]},
        {"axes": [float("nan")]},
        {"axes": [True]},
        {"buttons": [0.0] * 33},
        {"stick": [0, 0]},
        {"held": ["fly"]},
        {"held": [[]]},
        {"sequence": "3"},
        {"sequence": True},
        {"visible": 1},
    ],
)
def test_inputs_that_are_not_what_they_should_be_are_refused(wrong):
    with pytest.raises(HandoffError):
        read_inputs({**WHOLE, **wrong})


@given(
    st.text(max_size=60)
    | JSON.map(json.dumps)
    | st.dictionaries(st.sampled_from(sorted(WHOLE)), JSON).map(json.dumps)
)
def test_no_text_breaks_the_reader(text):
    try:
        word = read_message(text)
        read_inputs(word)
    except HandoffError:
        return
    assert word["kind"] == "inputs"


def test_a_command_travels_unchanged():
    hand = HandInput(True, np.array([0.1, -0.2, 0.3, 0, 0, 1.0]), -1)
    recovery = Recovery(4, "bob", "a cable")
    command = ControlCommand(
        Mode.PERSON, hand, "ada", 17, Label.REDO, 2, 3, recovery, ResetAnswer(5, 1)
    )
    again = read_command(unpack(pack(command_message(command))))
    assert again[:1] + again[2:] == command[:1] + command[2:]
    assert (again.hand.engaged, again.hand.grip) == (True, -1)
    np.testing.assert_array_equal(again.hand.twist, hand.twist)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "fly"},
        {"twist": [0] * 5},
        {"twist": [2.0] * 6},
        {"label": 99},
        {"said": None},
        {"recovery": 1},
        {"answer": [1]},
        {"answer": None},
    ],
)
def test_what_is_no_command_is_refused(wrong):
    command = ControlCommand(Mode.POLICY, HandInput(False, np.zeros(6), 0), "ada", 0, Label.NONE, 0)
    with pytest.raises(HandoffError):
        read_command({**command_message(command), **wrong})


def test_names_are_short_and_printable():
    assert read_text({"name": " ada "}, "name") == "ada"
    for wrong in ("a" * 41, "a\nb", 7, None):
        with pytest.raises(HandoffError):
            read_text({"name": wrong}, "name")


def test_a_hint_is_a_short_printable_text():
    assert read_hint("The policy is unsure: consider taking over.") != ""
    assert read_hint("") == ""
    for told in (3, None, "two\nlines", "x" * (LONGEST_REASON + 1)):
        with pytest.raises(HandoffError, match="a hint that is no printable text"):
            read_hint(told)
