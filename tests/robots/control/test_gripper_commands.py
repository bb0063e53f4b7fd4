"""Commands of the hand: the entry they come to, and when they turn it round. Numbers worked by
hand."""

from __future__ import annotations

import numpy as np
import pytest

from robots.control.gripper_commands import CommandedHand, command_of, entry_of, turns_round
from robots.errors import HandoffError


def test_to_hold_is_to_be_told_the_last_target_again() -> None:
    # 0.02 m of 0.08 m is a quarter of the way from -1 to 1.
    assert entry_of(np.array([-1.0, 0.0, 1.0]), np.array([0.02, 0.02, 0.02]), 0.08).tolist() == [
        -1.0,
        -0.5,
        1.0,
    ]


def test_a_command_survives_the_way_to_the_world_and_back() -> None:
    command = np.array([-1.0, 0.0, 1.0])
    target = np.full(3, 0.03)
    assert command_of(entry_of(command, target, 0.08), target, 0.08).tolist() == command.tolist()


def test_who_asks_for_closed_while_it_is_told_closed_still_closes() -> None:
    assert command_of(np.array(-1.0), np.array(0.0), 0.08) == -1.0
    assert command_of(np.array(1.0), np.array(0.08), 0.08) == 1.0


def test_closing_an_open_hand_turns_it_round_once() -> None:
    width, target = np.array([0.08, 0.06, 0.04, 0.0]), np.array([0.08, 0.05, 0.024, 0.0])
    # Standing open; closing; grasping a thing of 4 cm; shut.
    assert turns_round(np.full(4, -1.0), width, target).tolist() == [True, False, False, False]


def test_opening_a_grasp_or_a_shut_hand_turns_it_round_and_opening_an_open_one_does_not() -> None:
    width, target = np.array([0.08, 0.06, 0.04, 0.0]), np.array([0.08, 0.05, 0.024, 0.0])
    assert turns_round(np.full(4, 1.0), width, target).tolist() == [False, True, True, True]


def test_to_hold_never_turns_it_round() -> None:
    assert not turns_round(np.zeros(2), np.array([0.08, 0.04]), np.array([0.08, 0.02])).any()


def test_a_learners_action_survives_the_way_through_the_world() -> None:
    hand = CommandedHand(3, 0.08)
    seen = {"width": np.array([[0.08], [0.04]]), "width_target": np.array([[0.08], [0.02]])}
    action = np.array([[0.5, -0.5, -1.0], [0.0, 1.0, 0.0]])
    world = hand.to_world(action, seen)
    assert world.tolist() == [[0.5, -0.5, -1.0], [0.0, 1.0, -0.5]]
    assert hand.from_world(world, seen).tolist() == action.tolist()
    assert hand.toggled(action, seen).tolist() == [True, False]


def test_a_world_that_does_not_tell_its_target_is_refused() -> None:
    with pytest.raises(HandoffError, match="width_target"):
        CommandedHand(1, 0.08).to_world(np.zeros((1, 1)), {"width": np.zeros((1, 1))})


def test_the_meaning_of_an_entry_depends_on_how_far_the_gripper_opens() -> None:
    assert float(entry_of(np.array(0.0), np.array(0.02), 0.04)) == 0.0
    assert command_of(np.array(0.0), np.array(0.02), 0.04) == 0.0
    assert command_of(np.array(0.0), np.array(0.02), 0.08) == 1.0
