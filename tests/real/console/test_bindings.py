"""What keys, buttons, axes and the stick on the screen come to."""

import numpy as np
import pytest

from real.console.bindings import ACTIONS, DEFAULTS, Bindings, Inputs
from robots.errors import HandoffError


def keys(*codes: str) -> Inputs:
    return Inputs(keys=frozenset(codes))


def test_every_action_has_a_key_and_no_input_does_two_things():
    assert set(DEFAULTS) == set(ACTIONS)
    assert all(any(name.startswith("key ") for name in names) for names in DEFAULTS.values())
    names = [name for bound in DEFAULTS.values() for name in bound]
    assert len(names) == len(set(names))


def test_a_key_that_moves_takes_the_arm_and_moves_it():
    hand = Bindings().hand(keys("ArrowUp", "KeyI"))
    assert hand.engaged
    assert hand.twist.tolist() == [1, 0, 1, 0, 0, 0]


def test_opposite_keys_cancel_but_hold_the_arm():
    hand = Bindings().hand(keys("ArrowUp", "ArrowDown"))
    assert hand.engaged
    assert not hand.twist.any()


@pytest.mark.parametrize(("code", "grip"), [("KeyC", -1), ("KeyO", 1), ("Space", 0)])
def test_the_hand_and_the_dead_man_take_the_arm_too(code, grip):
    hand = Bindings().hand(keys(code))
    assert hand.engaged
    assert hand.grip == grip
    assert not hand.twist.any()


def test_a_label_is_no_takeover():
    assert not Bindings().hand(keys("KeyS")).engaged
    assert Bindings().down(keys("KeyS")) == {"success"}


def test_axes_count_only_while_the_dead_man_is_down():
    assert not Bindings().hand(Inputs(axes=(0.0, -1.0))).engaged
    bindings = Bindings()
    bindings.hand(Inputs(axes=(0.0, 0.0), buttons=(0.0,) * 5 + (1.0,)))
    hand = bindings.hand(Inputs(axes=(0.0, -1.0), buttons=(0.0,) * 5 + (1.0,)))
    assert hand.engaged
    assert hand.twist[0] == pytest.approx(1.0)


def test_an_axis_that_was_pushed_before_the_takeover_moves_nothing_until_it_was_let_go():
    bindings, dead_man = Bindings(), (0.0,) * 5 + (1.0,)
    assert not bindings.hand(Inputs(axes=(0.8, 0.0), buttons=dead_man)).twist.any()
    assert not bindings.hand(Inputs(axes=(0.9, 0.0), buttons=dead_man)).twist.any()
    bindings.hand(Inputs(axes=(0.0, 0.0), buttons=dead_man))
    assert bindings.hand(Inputs(axes=(0.9, 0.0), buttons=dead_man)).twist[1] < -0.8


def test_letting_the_dead_man_go_makes_axes_wait_again():
    bindings, dead_man = Bindings(), (0.0,) * 5 + (1.0,)
    bindings.hand(Inputs(axes=(0.0, 0.0), buttons=dead_man))
    bindings.hand(Inputs(axes=(0.0, -1.0)))
    assert not bindings.hand(Inputs(axes=(0.0, -1.0), buttons=dead_man)).twist.any()


def test_the_stick_on_the_screen_takes_the_arm_where_it_is_touched():
    hand = Bindings().hand(Inputs(stick=(0.5, -0.25, 1.0, 0.0)))
    assert hand.engaged
    np.testing.assert_allclose(hand.twist, [0.5, -0.25, 1.0, 0, 0, 0])


def test_a_trigger_is_down_beyond_its_middle():
    assert Bindings().down(Inputs(buttons=(0.0,) * 6 + (0.4,))) == frozenset()
    assert Bindings().down(Inputs(buttons=(0.0,) * 6 + (0.6,))) == {"close hand"}


def test_what_is_bound_anew_is_let_go_elsewhere():
    bindings = Bindings().bound("forward", "key KeyS")
    assert bindings.inputs["forward"] == ("key KeyS", "axis 1-")
    assert "key KeyS" not in bindings.inputs["success"]
    assert bindings.hand(keys("KeyS")).twist[0] == 1.0
    assert not bindings.hand(keys("ArrowUp")).engaged


@pytest.mark.parametrize("name", ["KeyS", "key ../../x", "button 1000", "axis 1", "axis 1*", ""])
def test_what_is_no_input_is_refused(name):
    with pytest.raises(HandoffError, match="is no input"):
        Bindings().bound("forward", name)


def test_unknown_actions_and_inputs_for_two_are_named():
    with pytest.raises(HandoffError, match="fly"):
        Bindings({"fly": ["key KeyF"]})
    with pytest.raises(HandoffError, match="'forward' and 'back'"):
        Bindings({"forward": ["key KeyW"], "back": ["key KeyW"]})
