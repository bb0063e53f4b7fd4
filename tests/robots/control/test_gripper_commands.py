"""Gripper commands: their entries, and when they reverse the gripper. Numbers computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from robots.control.gripper_commands import (
    CommandedGripper,
    command_from_entry,
    entry_from_command,
    reverses_gripper,
)
from robots.errors import HandoffError


def test_hold_repeats_the_last_target() -> None:
    # 0.02 m of 0.08 m is a quarter of the way from -1 to 1.
    assert entry_from_command(
        np.array([-1.0, 0.0, 1.0]), np.array([0.02, 0.02, 0.02]), 0.08
    ).tolist() == [
        -1.0,
        -0.5,
        1.0,
    ]


def test_a_command_survives_the_conversion_to_an_entry_and_back() -> None:
    command = np.array([-1.0, 0.0, 1.0])
    target = np.full(3, 0.03)
    assert (
        command_from_entry(entry_from_command(command, target, 0.08), target, 0.08).tolist()
        == command.tolist()
    )


def test_a_fully_closed_entry_is_a_close_command_even_at_a_closed_target() -> None:
    assert command_from_entry(np.array(-1.0), np.array(0.0), 0.08) == -1.0
    assert command_from_entry(np.array(1.0), np.array(0.08), 0.08) == 1.0


def test_closing_an_open_gripper_reverses_it_once() -> None:
    width, target = np.array([0.08, 0.06, 0.04, 0.0]), np.array([0.08, 0.05, 0.024, 0.0])
    # Open at rest; closing; grasping an object of 4 cm; closed.
    assert reverses_gripper(np.full(4, -1.0), width, target).tolist() == [True, False, False, False]


def test_opening_a_grasping_or_closed_gripper_reverses_it_and_opening_an_open_one_does_not() -> (
    None
):
    width, target = np.array([0.08, 0.06, 0.04, 0.0]), np.array([0.08, 0.05, 0.024, 0.0])
    assert reverses_gripper(np.full(4, 1.0), width, target).tolist() == [False, True, True, True]


def test_hold_never_reverses_it() -> None:
    assert not reverses_gripper(np.zeros(2), np.array([0.08, 0.04]), np.array([0.08, 0.02])).any()


def test_a_learners_action_survives_the_conversion_to_the_environment_and_back() -> None:
    gripper = CommandedGripper(3, 0.08)
    obs = {"width": np.array([[0.08], [0.04]]), "width_target": np.array([[0.08], [0.02]])}
    action = np.array([[0.5, -0.5, -1.0], [0.0, 1.0, 0.0]])
    env = gripper.to_env(action, obs)
    assert env.tolist() == [[0.5, -0.5, -1.0], [0.0, 1.0, -0.5]]
    assert gripper.from_env(env, obs).tolist() == action.tolist()
    assert gripper.toggled(action, obs).tolist() == [True, False]


def test_an_environment_without_a_gripper_target_is_refused() -> None:
    with pytest.raises(HandoffError, match="width_target"):
        CommandedGripper(1, 0.08).to_env(np.zeros((1, 1)), {"width": np.zeros((1, 1))})


def test_the_meaning_of_an_entry_depends_on_how_far_the_gripper_opens() -> None:
    assert float(entry_from_command(np.array(0.0), np.array(0.02), 0.04)) == 0.0
    assert command_from_entry(np.array(0.0), np.array(0.02), 0.04) == 0.0
    assert command_from_entry(np.array(0.0), np.array(0.02), 0.08) == 1.0
