"""What keys, buttons, axes and the stick on the screen come to."""

import json

import numpy as np
import pytest

from real.console.control.bindings import (
    ACTIONS,
    DEFAULTS,
    NEEDED,
    Bindings,
    Inputs,
    RefusedBindingError,
    stored_bindings,
)
from robots.errors import HandoffError


def keys(*codes: str) -> Inputs:
    return Inputs(keys=frozenset(codes))


def test_every_action_has_a_key_and_no_input_does_two_things():
    assert set(DEFAULTS) == set(ACTIONS)
    assert all(any(name.startswith("key ") for name in names) for names in DEFAULTS.values())
    names = [name for bound in DEFAULTS.values() for name in bound]
    assert len(names) == len(set(names))


def test_a_key_that_moves_takes_the_arm_and_moves_it():
    person_input = Bindings().hand(keys("ArrowUp", "KeyI"))
    assert person_input.engaged
    assert person_input.twist.tolist() == [1, 0, 1, 0, 0, 0]


def test_opposite_keys_cancel_but_hold_the_arm():
    person_input = Bindings().hand(keys("ArrowUp", "ArrowDown"))
    assert person_input.engaged
    assert not person_input.twist.any()


@pytest.mark.parametrize(("code", "grip"), [("KeyC", -1), ("KeyO", 1), ("Space", 0)])
def test_gripper_keys_and_the_dead_man_switch_take_the_arm_too(code, grip):
    person_input = Bindings().hand(keys(code))
    assert person_input.engaged
    assert person_input.grip == grip
    assert not person_input.twist.any()


def test_a_label_is_no_takeover():
    assert not Bindings().hand(keys("KeyS")).engaged
    assert Bindings().down(keys("KeyS")) == {"success"}


def test_axes_count_only_while_the_dead_man_is_down():
    assert not Bindings().hand(Inputs(axes=(0.0, -1.0))).engaged
    bindings = Bindings()
    bindings.hand(Inputs(axes=(0.0, 0.0), buttons=(0.0,) * 5 + (1.0,)))
    person_input = bindings.hand(Inputs(axes=(0.0, -1.0), buttons=(0.0,) * 5 + (1.0,)))
    assert person_input.engaged
    assert person_input.twist[0] == pytest.approx(1.0)


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
    person_input = Bindings().hand(Inputs(stick=(0.5, -0.25, 1.0, 0.0)))
    assert person_input.engaged
    np.testing.assert_allclose(person_input.twist, [0.5, -0.25, 1.0, 0, 0, 0])


def test_a_trigger_is_down_beyond_its_middle():
    assert Bindings().down(Inputs(buttons=(0.0,) * 6 + (0.4,))) == frozenset()
    assert Bindings().down(Inputs(buttons=(0.0,) * 6 + (0.6,))) == {"close hand"}


def test_an_action_lets_its_other_key_go_and_keeps_its_axis():
    bindings = Bindings().bound("forward", "key KeyW")
    assert bindings.inputs["forward"] == ("key KeyW", "axis 1-")
    assert bindings.hand(keys("KeyW")).twist[0] == 1.0
    assert not bindings.hand(keys("ArrowUp")).engaged


def test_an_input_of_another_action_is_refused_with_its_name():
    with pytest.raises(RefusedBindingError, match=r"^S is bound to Success\. Swap\?$") as refused:
        Bindings().bound("forward", "key KeyS")
    assert refused.value.swap


def test_two_actions_swap_their_inputs_of_one_kind():
    bindings = Bindings().bound("forward", "key KeyS", swap=True)
    assert bindings.inputs["forward"] == ("key KeyS", "axis 1-")
    assert bindings.inputs["success"] == ("key ArrowUp", "button 3")


def test_a_swap_leaves_no_action_without_a_key_that_needs_one():
    lonely = {**DEFAULTS, "forward": ("axis 1-",)}
    with pytest.raises(RefusedBindingError, match="S is the only key of Success") as refused:
        Bindings(lonely).bound("forward", "key KeyS", swap=True)
    assert not refused.value.swap


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("key Escape", "Escape is bound to Hold"),
        ("button 4", "Button 4 is bound to Hold"),
        ("key Tab", "Tab moves between"),
    ],
)
def test_what_stops_and_what_moves_the_focus_is_given_to_nobody(name, said):
    with pytest.raises(RefusedBindingError, match=said) as refused:
        Bindings().bound("left", name, swap=True)
    assert not refused.value.swap


def test_escape_holds_still_beside_any_other_key():
    bindings = Bindings().bound("hold still", "key KeyX").bound("hold still", "key KeyY")
    assert bindings.down(keys("Escape")) == bindings.down(keys("KeyY")) == {"hold still"}
    assert bindings.down(keys("KeyX")) == frozenset()


@pytest.mark.parametrize("action", NEEDED)
@pytest.mark.parametrize("left", [(), ("button 20",)])
def test_a_map_without_a_key_for_what_is_needed_is_refused(action, left):
    with pytest.raises(HandoffError, match=f"'{action}'"):
        Bindings({**DEFAULTS, action: left})


@pytest.mark.parametrize("action", [action for action in ACTIONS if action != "hold still"])
def test_a_map_with_escape_for_anything_but_hold_still_is_refused(action):
    with pytest.raises(HandoffError, match=f"'key Escape' does '{action}', expected 'hold still'"):
        Bindings({**DEFAULTS, action: ("key Escape",), "hold still": ("key KeyX",)})


def test_a_map_with_tab_is_refused():
    with pytest.raises(HandoffError, match="'key Tab' does 'forward', expected nothing"):
        Bindings({**DEFAULTS, "forward": ("key Tab",)})


def test_the_defaults_come_back():
    assert Bindings().bound("forward", "key KeyW").restored().inputs == DEFAULTS


def test_a_stored_map_that_is_refused_is_named_in_one_line(tmp_path):
    path = tmp_path / "bindings.json"
    path.write_text(json.dumps({**DEFAULTS, "left": ["key Escape"], "hold still": ["button 4"]}))
    with pytest.raises(HandoffError) as refused:
        stored_bindings(path)
    assert str(refused.value) == (
        f"{path}: bindings: 'key Escape' does 'left', expected 'hold still': it stops on every map. Delete the file "
        "for the default bindings."
    )


@pytest.mark.parametrize("text", ["{", "[1]", "7", '{"forward": 5}', '{"forward": [5]}'])
def test_a_stored_map_that_cannot_be_read_is_named(tmp_path, text):
    path = tmp_path / "bindings.json"
    path.write_text(text)
    with pytest.raises(HandoffError, match=r"bindings\.json: cannot be read .* Delete the file"):
        stored_bindings(path)


def test_without_a_stored_map_the_defaults_count(tmp_path):
    assert stored_bindings(tmp_path / "bindings.json").inputs == DEFAULTS


@pytest.mark.parametrize("name", ["KeyS", "key ../../x", "button 1000", "axis 1", "axis 1*", ""])
def test_what_is_no_input_is_refused(name):
    with pytest.raises(HandoffError, match="is no input"):
        Bindings().bound("forward", name)


def test_unknown_actions_and_inputs_for_two_are_named():
    with pytest.raises(HandoffError, match="fly"):
        Bindings({"fly": ["key KeyF"]})
    with pytest.raises(HandoffError, match="'forward' and 'back'"):
        Bindings({"forward": ["key KeyW"], "back": ["key KeyW"]})


def test_slow_motion_is_a_fifth_and_takes_nothing_over():
    assert not Bindings().hand(keys("ShiftLeft")).engaged
    person_input = Bindings().hand(keys("ShiftLeft", "ArrowUp", "ArrowLeft"))
    np.testing.assert_allclose(person_input.twist[:2], [0.2, 0.2])


def test_a_stored_map_from_before_slow_motion_keeps_its_inputs(tmp_path):
    path = tmp_path / "bindings.json"
    older = {action: list(bound) for action, bound in DEFAULTS.items() if action != "slow"}
    path.write_text(json.dumps({**older, "up": ["key ShiftLeft"]}))
    bindings = stored_bindings(path)
    assert bindings.inputs["up"] == ("key ShiftLeft",)
    assert bindings.inputs["slow"] == ("button 10",)
