"""Takeovers, axes and the gripper's entry of an operator's actions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from real.teleop.takeover import HandInput, Takeover, TakeoverConfig, base_twist
from robots.control.actions import JointDelta, PdTarget
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import Reason
from tests.real.teleop.hands import SPEC, FakeClock

FORWARD = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
PROPOSED = np.array([[0.3, -0.3, 0.1, 0.2, 1.0]])
TOLD = {"width_target": np.array([[0.02]])}


def takeover(clock: FakeClock, **options: float) -> Takeover:
    return Takeover(SPEC, TakeoverConfig(**options), "ada", "keyboard", clock, 0.08)


def test_who_does_not_hold_the_arm_changes_nothing() -> None:
    event = takeover(FakeClock()).intervene(PROPOSED, TOLD, HandInput(False, FORWARD, 1))
    assert np.array_equal(event.executed, PROPOSED)
    assert (event.intervening[0], event.segment[0], event.reason[0]) == (False, -1, Reason.NONE)


def test_speed_after_a_takeover_rises_over_300_ms() -> None:
    clock = FakeClock()
    person, speeds = takeover(clock), []
    for _ in range(5):
        speeds.append(
            float(person.intervene(PROPOSED, TOLD, HandInput(True, FORWARD, 0)).executed[0, 0])
        )
        clock.time += 0.1
    assert speeds == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0, 1.0])


def test_every_takeover_of_an_episode_has_a_number_and_its_own_ramp() -> None:
    clock = FakeClock()
    person = takeover(clock)
    first = person.intervene(PROPOSED, TOLD, HandInput(True, FORWARD, 0))
    clock.time += 1.0
    person.intervene(PROPOSED, TOLD, HandInput(False, FORWARD, 0))
    second = person.intervene(PROPOSED, TOLD, HandInput(True, FORWARD, 0))
    assert (int(first.segment[0]), int(second.segment[0])) == (0, 1)
    assert second.executed[0, 0] == 0.0
    assert second.reason[0] == Reason.PERSON
    person.reset()
    assert person.intervene(PROPOSED, TOLD, HandInput(True, FORWARD, 0)).segment[0] == 0


def test_the_gripper_keeps_its_target_until_the_person_gives_a_command() -> None:
    person = takeover(FakeClock())
    entries = [
        float(person.intervene(PROPOSED, TOLD, HandInput(True, FORWARD, grip)).executed[0, 4])
        for grip in (0, -1, 0, 1)
    ]
    # Held at 2 cm of 8; closed on the word; still closing without it; opened.
    assert entries == [-0.5, -1.0, -1.0, 1.0]


def test_a_new_takeover_forgets_the_last_gripper_command() -> None:
    person = takeover(FakeClock())
    person.intervene(PROPOSED, TOLD, HandInput(True, FORWARD, -1))
    person.intervene(PROPOSED, TOLD, HandInput(False, FORWARD, 0))
    assert person.intervene(PROPOSED, TOLD, HandInput(True, FORWARD, 0)).executed[0, 4] == -0.5


def test_in_an_environment_that_does_not_tell_the_last_executed_opening_is_held() -> None:
    person = takeover(FakeClock())
    person.intervene(PROPOSED, {}, HandInput(False, FORWARD, 0))
    assert person.intervene(np.zeros((1, 5)), {}, HandInput(True, FORWARD, 0)).executed[0, 4] == 1.0


def test_forward_follows_the_persons_view() -> None:
    assert base_twist(FORWARD, 0.0)[:2] == pytest.approx([1.0, 0.0])
    assert base_twist(FORWARD, math.pi / 2)[:2] == pytest.approx([0.0, 1.0])
    # HIL-SERL's code: a person who faces the base; forward is -x, left is -y, turns about the
    # vertical stay.
    turned = base_twist(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), math.pi)
    assert turned == pytest.approx([-1.0, -2.0, 3.0, -4.0, -5.0, 6.0])


def test_axes_that_the_environment_does_not_have_are_left_out() -> None:
    clock = FakeClock()
    person = takeover(clock, ramp=0.0)
    twist = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert person.intervene(PROPOSED, TOLD, HandInput(True, twist, 0)).executed[
        0, :4
    ] == pytest.approx([0.1, 0.2, 0.3, 0.6])


def test_joint_actions_are_refused() -> None:
    with pytest.raises(HandoffError, match="neither steps of the gripper's pose nor targets"):
        Takeover(
            JointDelta().spec(find_robot("fr3")), TakeoverConfig(), "ada", "keyboard", FakeClock()
        )


def test_two_environments_are_refused() -> None:
    with pytest.raises(HandoffError, match=r"expected \(1, 5\)"):
        takeover(FakeClock()).intervene(np.zeros((2, 5)), {}, HandInput(True, FORWARD, 0))


def test_a_gripper_of_unknown_opening_is_refused() -> None:
    with pytest.raises(HandoffError, match="largest opening was not given"):
        Takeover(SPEC, TakeoverConfig(), "ada", "keyboard", FakeClock())


def test_to_hold_repeats_the_last_opening_of_a_gripper_of_any_stroke() -> None:
    clock = FakeClock()
    for width_max, entry in ((0.08, -0.5), (0.04, 0.0)):
        takeover = Takeover(SPEC, TakeoverConfig(), "ada", "keyboard", clock, width_max)
        said = takeover.intervene(np.zeros((1, 5)), TOLD, HandInput(True, np.zeros(6), 0))
        assert said.executed[0, -1] == pytest.approx(entry)


BOARD = PdTarget().spec(find_robot("fr3"))
AT = {"agent": np.array([[0.2, 0.3]])}
STAY = np.array([[0.2, 0.3]])


def led(hand: HandInput, observation: dict[str, np.ndarray] = AT, **options: float) -> np.ndarray:
    """(2,) the target of a takeover that began a second ago."""
    clock = FakeClock()
    person = Takeover(BOARD, TakeoverConfig(**options), "ada", "console", clock)
    person.intervene(STAY, observation, HandInput(True, np.zeros(6), 0))
    clock.time += 1.0
    return person.intervene(STAY, observation, hand).executed[0]


def test_a_target_on_a_board_leads_the_pusher_by_the_speed_of_the_hand() -> None:
    """0.25 m/s at 100 / 20 per second is a lead of 50 mm; forward is the board's -y."""
    np.testing.assert_allclose(led(HandInput(True, FORWARD, 0)), [0.2, 0.25], atol=1e-12)
    left = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    target = led(HandInput(True, left, 0), translation=0.6)
    np.testing.assert_allclose(target, [0.17, 0.3], atol=1e-12)


def test_other_axes_and_the_gripper_do_not_move_a_pusher() -> None:
    hand = HandInput(True, np.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0]), -1)
    np.testing.assert_allclose(led(hand), [0.2, 0.3], atol=1e-12)


def test_a_target_stays_on_the_board() -> None:
    edge = {"agent": np.array([[0.031, 0.479]])}
    hand = HandInput(True, np.array([-1.0, 1.0, 0.0, 0.0, 0.0, 0.0]), 0)
    np.testing.assert_allclose(led(hand, edge), [0.03, 0.48], atol=1e-12)


def test_the_view_turns_the_directions_on_a_board_too() -> None:
    np.testing.assert_allclose(led(HandInput(True, FORWARD, 0), view_yaw=math.pi), [0.2, 0.35])


def test_a_pusher_that_is_not_observed_is_named() -> None:
    with pytest.raises(HandoffError, match="does not observe 'agent'"):
        led(HandInput(True, FORWARD, 0), {})
