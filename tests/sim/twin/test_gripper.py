"""How the twin's hand behaves, by hand-worked numbers; `test_hand_service` reaches it through the
network."""

import math

import pytest

from robots.franka import find_robot
from sim.scene.scene import GRIPPER_STIFFNESS
from sim.twin.gripper import LEAD_MARGIN, STILL_TICKS, HandUnit
from sim.twin.protocol import HandCommand, HandStatus
from tests.sim.twin.still_world import SpringHand

FR3 = find_robot("fr3")


@pytest.fixture
def hand():
    return SpringHand(0.08)


@pytest.fixture
def unit(hand):
    return HandUnit(hand, FR3.gripper)


def pass_ticks(unit, ticks):
    for _ in range(ticks):
        unit.hand.step()
        unit.tick()


def outcome(unit, ticks=4000):
    """The status that ends the running action; `ticks` are far more than it should need."""
    for _ in range(ticks):
        pass_ticks(unit, 1)
        if unit.replies:
            return unit.replies.pop()[2]
    raise AssertionError("the action has not ended")


def test_a_move_ends_at_its_opening(unit, hand):
    unit.act(HandCommand.MOVE, 7, (0.03, 0.1))
    pass_ticks(unit, 1000)
    assert unit.replies == [(HandCommand.MOVE, 7, HandStatus.SUCCESS)]
    assert hand.width == pytest.approx(0.03, abs=1e-4)
    assert not unit.is_grasped


def test_the_fingers_move_at_the_commanded_speed(unit, hand):
    unit.act(HandCommand.MOVE, 0, (0.03, 0.05))
    pass_ticks(unit, 200)
    before = hand.width
    pass_ticks(unit, 100)
    assert before - hand.width == pytest.approx(0.005, abs=1e-4)


def test_a_slow_move_keeps_its_speed(unit, hand):
    unit.act(HandCommand.MOVE, 0, (0.03, 0.002))
    pass_ticks(unit, 1000)
    assert 0.08 - hand.width == pytest.approx(0.002, abs=1e-4)


def test_a_move_that_meets_a_thing_is_unsuccessful_and_presses_no_more(unit, hand):
    hand.lowest = 0.05
    unit.act(HandCommand.MOVE, 0, (0.03, 0.1))
    assert outcome(unit) == HandStatus.UNSUCCESSFUL
    pass_ticks(unit, 1)
    assert hand.force == 0.0
    assert hand.width == 0.05


def grasp(unit, width, force=40.0, speed=0.1, window=0.005):
    unit.act(HandCommand.GRASP, 0, (width, window, window, speed, force))


def test_a_grasp_of_a_thing_succeeds_and_goes_on_pressing(unit, hand):
    hand.lowest = 0.05
    grasp(unit, 0.052)
    assert not unit.is_grasped
    assert outcome(unit) == HandStatus.SUCCESS
    assert unit.is_grasped
    pass_ticks(unit, 1000)
    assert unit.is_grasped
    assert hand.force == -40.0


@pytest.mark.parametrize("width", [0.045, 0.055])
def test_a_thing_at_the_edge_of_the_window_is_not_grasped(unit, hand, width):
    hand.lowest = 0.05
    grasp(unit, width, window=abs(width - 0.05))
    assert outcome(unit) == HandStatus.UNSUCCESSFUL
    assert not unit.is_grasped
    assert hand.force == -40.0


def test_a_grasp_of_nothing_is_unsuccessful_and_stays_closed(unit, hand):
    grasp(unit, 0.03)
    assert outcome(unit) == HandStatus.UNSUCCESSFUL
    assert hand.width == 0.0
    assert not unit.is_grasped


def test_what_is_wider_than_the_opening_is_grasped_from_within():
    hand = SpringHand(0.02)
    unit, hand.highest = HandUnit(hand, FR3.gripper), 0.06
    grasp(unit, 0.06)
    assert outcome(unit) == HandStatus.SUCCESS
    assert hand.width == 0.06
    pass_ticks(unit, 1)
    assert hand.force == 40.0


def test_the_servos_target_leads_by_no_more_than_the_force_needs(unit, hand):
    hand.lowest = 0.05
    grasp(unit, 0.05)
    for _ in range(1000):
        pass_ticks(unit, 1)
        assert hand.width - hand.target <= 2.0 * 40.0 / GRIPPER_STIFFNESS + LEAD_MARGIN + 1e-12
    unit.act(HandCommand.MOVE, 1, (0.08, 0.1))
    # A target that runs with 0.1 m/s from where the fingers are pulls them open in its first step.
    pass_ticks(unit, 2)
    assert hand.width > 0.05


def test_at_rest_against_a_thing_the_force_builds_at_the_hands_full_speed(unit, hand):
    hand.lowest = 0.079
    grasp(unit, 0.08, force=FR3.gripper.force_max, speed=0.002)
    # 1 mm at 2 mm/s, the fingers found at rest, then 72 mm of lead at 0.1 m/s. At 2 mm/s that were
    # 36 s.
    assert outcome(unit, 500 + 2 * STILL_TICKS + 720 + 100) == HandStatus.SUCCESS


def test_a_firmer_grasp_does_not_let_go_first(unit, hand):
    hand.lowest = 0.05
    grasp(unit, 0.05, force=20.0)
    assert outcome(unit) == HandStatus.SUCCESS
    grasp(unit, 0.05, force=40.0)
    for _ in range(500):
        pass_ticks(unit, 1)
        assert hand.force <= -20.0
    assert hand.force == -40.0


def test_a_thing_that_is_lost_is_not_grasped_again_by_itself(unit, hand):
    hand.lowest = 0.05
    grasp(unit, 0.05)
    assert outcome(unit) == HandStatus.SUCCESS
    hand.lowest = 0.0
    pass_ticks(unit, 200)
    assert not unit.is_grasped
    hand.lowest = 0.05
    pass_ticks(unit, 200)
    assert not unit.is_grasped


def test_stop_aborts_the_action_where_the_fingers_are(unit, hand):
    unit.act(HandCommand.MOVE, 3, (0.0, 0.1))
    pass_ticks(unit, 300)
    stopped = hand.width
    unit.stop()
    assert unit.replies == [(HandCommand.MOVE, 3, HandStatus.ABORTED)]
    pass_ticks(unit, 500)
    assert hand.width == pytest.approx(stopped, abs=1e-9)


def test_stop_lets_go_of_a_thing(unit, hand):
    hand.lowest = 0.05
    grasp(unit, 0.05)
    outcome(unit)
    unit.stop()
    pass_ticks(unit, 10)
    assert not unit.is_grasped
    assert hand.force == 0.0
    assert not unit.replies


def test_homing_closes_and_opens_wide(unit, hand):
    unit.act(HandCommand.HOMING, 0, ())
    narrowest = 0.08
    while not unit.replies:
        pass_ticks(unit, 1)
        narrowest = min(narrowest, hand.width)
    assert unit.replies[0][2] == HandStatus.SUCCESS
    assert narrowest < 1e-3
    assert hand.width == pytest.approx(FR3.gripper.width_max, abs=1e-3)


def test_a_second_action_fails_at_once_and_the_first_goes_on(unit, hand):
    unit.act(HandCommand.MOVE, 0, (0.03, 0.1))
    unit.act(HandCommand.HOMING, 1, ())
    assert unit.replies.pop() == (HandCommand.HOMING, 1, HandStatus.FAIL)
    assert outcome(unit) == HandStatus.SUCCESS
    assert hand.width == pytest.approx(0.03, abs=1e-3)
    assert unit.actions == 2


@pytest.mark.parametrize(
    ("command", "values"),
    [
        (HandCommand.MOVE, (FR3.gripper.width_max + 1e-6, 0.1)),
        (HandCommand.MOVE, (-1e-6, 0.1)),
        (HandCommand.MOVE, (math.nan, 0.1)),
        (HandCommand.MOVE, (0.03, 0.0)),
        (HandCommand.MOVE, (0.03, FR3.gripper.speed_max + 1e-6)),
        (HandCommand.GRASP, (0.03, 0.005, 0.005, 0.1, 0.0)),
        (HandCommand.GRASP, (0.03, 0.005, 0.005, 0.1, FR3.gripper.force_max + 1e-6)),
        (HandCommand.GRASP, (0.03, math.inf, 0.005, 0.1, 40.0)),
    ],
)
def test_values_that_the_hand_cannot_do_fail(unit, hand, command, values):
    unit.act(command, 5, values)
    assert unit.replies == [(command, 5, HandStatus.FAIL)]
    assert not unit.running
    pass_ticks(unit, 100)
    assert hand.width == 0.08


def test_until_its_first_action_the_hand_leaves_the_servo_to_the_world(hand):
    hand.press(0.04, 15.0)
    unit = HandUnit(hand, FR3.gripper)
    pass_ticks(unit, 10)
    assert (hand.target, hand.limit) == (0.04, 15.0)
