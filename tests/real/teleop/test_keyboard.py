"""The keyboard operator on fake keys: holding, the dead-man time-out, labels, and what the screen
says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from real.console.control.bindings import DEFAULTS
from real.console.control.bindings import LABELS as CONSOLE_LABELS
from real.teleop.keyboard import LABELS, KeyboardConfig, KeyboardOperator, bindings
from real.teleop.takeover import TakeoverConfig
from robots.interfaces import Intervention, Label
from tests.real.teleop.hands import SPEC, FakeClock, FakeKeys

CONFIG = KeyboardConfig(takeover=TakeoverConfig(ramp=0.0))
PROPOSED = np.full((1, 5), 0.25)


class OperatorSetup:
    """A person at the keys."""

    def __init__(self) -> None:
        self.clock, self.keys = FakeClock(), FakeKeys()
        self.operator = KeyboardOperator(SPEC, "ada", CONFIG, self.keys, self.clock, 0.08)
        self.operator.reset([0])

    def after(self, seconds: float, *keys: str) -> Intervention:
        self.clock.time += seconds
        self.keys.press(*keys)
        return self.operator.intervene(PROPOSED, {"width_target": np.array([[0.04]])})


def test_without_a_key_the_policy_acts() -> None:
    event = OperatorSetup().after(0.0)
    assert not event.intervening[0]
    assert np.array_equal(event.executed, PROPOSED)


def test_a_tap_is_a_small_step_and_then_holds_still_until_the_time_out() -> None:
    setup = OperatorSetup()
    assert setup.after(0.0, "up").executed[0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    still = setup.after(0.2)
    assert still.intervening[0]
    assert still.executed[0].tolist() == [0.0, 0.0, 0.0, 0.0, 0.0]
    assert not setup.after(0.6).intervening[0]


def test_a_held_key_bridges_the_delay_before_repetition() -> None:
    setup = OperatorSetup()
    setup.after(0.0, "left")
    assert setup.after(0.65).intervening[0]
    moving = [setup.after(0.033, "left").executed[0, 1] for _ in range(40)]
    assert moving == [1.0] * 40


def test_after_a_long_hold_letting_go_gives_the_arm_back_at_once() -> None:
    setup = OperatorSetup()
    setup.after(0.0, "left")
    for _ in range(60):
        setup.after(0.033, "left")
    assert setup.after(0.1).intervening[0]
    assert not setup.after(0.1).intervening[0]


def test_space_holds_still_and_grip_keys_take_over_too() -> None:
    setup = OperatorSetup()
    assert setup.after(0.0, "space").executed[0].tolist() == [0.0] * 5
    assert setup.after(1.0, "c").executed[0, 4] == -1.0
    assert setup.after(1.0, "o").executed[0, 4] == 1.0


def test_a_reset_lets_the_arm_go() -> None:
    setup = OperatorSetup()
    setup.after(0.0, "up")
    setup.operator.reset([1])
    assert not setup.after(0.0).intervening[0]


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("s", Label.SUCCESS),
        ("q", Label.FAILURE),
        ("r", Label.REDO),
        ("d", Label.DISCARD),
    ],
)
def test_a_label_is_told_once_and_stays_on_the_screen(key: str, label: Label) -> None:
    setup = OperatorSetup()
    setup.keys.press(key)
    assert setup.operator.requests().label == label
    assert setup.operator.requests().label == Label.NONE
    assert setup.operator.status() == f"policy, last label {label.name.lower()}"


def test_escape_holds_and_enter_resumes_as_at_the_console() -> None:
    setup = OperatorSetup()
    setup.keys.press("escape")
    assert setup.operator.requests().paused
    assert setup.operator.status() == "HOLD, Enter resumes"
    setup.keys.press("escape")
    assert setup.operator.requests().paused
    setup.keys.press("enter")
    requests = setup.operator.requests()
    assert (requests.paused, requests.stop, requests.label) == (False, False, Label.NONE)


def test_the_session_ends_by_a_key_that_is_pressed_twice() -> None:
    setup = OperatorSetup()
    setup.keys.press("end")
    requests = setup.operator.requests()
    assert (requests.paused, requests.stop) == (True, False)
    assert setup.operator.status() == "HOLD, End again ends the session, Enter resumes"
    setup.clock.time += 3.0
    setup.keys.press("end")
    assert not setup.operator.requests().stop
    setup.keys.press("end")
    assert setup.operator.requests().stop


def test_every_key_of_a_label_is_that_of_the_console() -> None:
    for key, label in LABELS.items():
        assert CONSOLE_LABELS[label.name.lower()] is label
        assert f"key Key{key.upper()}" in DEFAULTS[label.name.lower()]


def test_closing_gives_the_keyboard_back() -> None:
    setup = OperatorSetup()
    setup.operator.close()
    assert setup.keys.closed


def test_the_screen_names_directions_in_base_axes_for_either_view() -> None:
    assert "↑ +x, ↓ -x, ← +y, → -y" in dict(bindings())["arrows"]
    assert "↑ -x, ↓ +x, ← -y, → +y" in dict(bindings(math.pi))["arrows"]
