"""Checks the behaviour of the twin's gripper with numbers computed by hand; `test_gripper_service`
reaches it through the network."""

import math

import pytest

from robots.franka import find_robot
from sim.scene.scene import GRIPPER_STIFFNESS
from sim.twin.gripper import LEAD_MARGIN, STILL_TICKS, GripperUnit
from sim.twin.protocol import GripperCommand, GripperStatus
from tests.sim.twin.still_world import SpringGripper

FR3 = find_robot("fr3")


@pytest.fixture
def fingers():
    return SpringGripper(0.08)


@pytest.fixture
def unit(fingers):
    return GripperUnit(fingers, FR3.gripper)


def pass_ticks(unit, ticks):
    for _ in range(ticks):
        unit.gripper.step()
        unit.tick()


def outcome(unit, ticks=4000):
    """The status that ends the running action; `ticks` are far more than it should need."""
    for _ in range(ticks):
        pass_ticks(unit, 1)
        if unit.replies:
            return unit.replies.pop()[2]
    raise AssertionError("the action has not ended")


def test_a_move_ends_at_its_opening(unit, fingers):
    unit.act(GripperCommand.MOVE, 7, (0.03, 0.1))
    pass_ticks(unit, 1000)
    assert unit.replies == [(GripperCommand.MOVE, 7, GripperStatus.SUCCESS)]
    assert fingers.width == pytest.approx(0.03, abs=1e-4)
    assert not unit.is_grasped


def test_the_fingers_move_at_the_commanded_speed(unit, fingers):
    unit.act(GripperCommand.MOVE, 0, (0.03, 0.05))
    pass_ticks(unit, 200)
    before = fingers.width
    pass_ticks(unit, 100)
    assert before - fingers.width == pytest.approx(0.005, abs=1e-4)


def test_a_slow_move_keeps_its_speed(unit, fingers):
    unit.act(GripperCommand.MOVE, 0, (0.03, 0.002))
    pass_ticks(unit, 1000)
    assert 0.08 - fingers.width == pytest.approx(0.002, abs=1e-4)


def test_a_move_that_touches_an_object_is_unsuccessful_and_presses_no_more(unit, fingers):
    fingers.lowest = 0.05
    unit.act(GripperCommand.MOVE, 0, (0.03, 0.1))
    assert outcome(unit) == GripperStatus.UNSUCCESSFUL
    pass_ticks(unit, 1)
    assert fingers.force == 0.0
    assert fingers.width == 0.05


def grasp(unit, width, force=40.0, speed=0.1, window=0.005):
    unit.act(GripperCommand.GRASP, 0, (width, window, window, speed, force))


def test_a_grasp_of_an_object_succeeds_and_keeps_pressing(unit, fingers):
    fingers.lowest = 0.05
    grasp(unit, 0.052)
    assert not unit.is_grasped
    assert outcome(unit) == GripperStatus.SUCCESS
    assert unit.is_grasped
    pass_ticks(unit, 1000)
    assert unit.is_grasped
    assert fingers.force == -40.0


@pytest.mark.parametrize("width", [0.045, 0.055])
def test_an_object_at_the_edge_of_the_window_is_not_grasped(unit, fingers, width):
    fingers.lowest = 0.05
    grasp(unit, width, window=abs(width - 0.05))
    assert outcome(unit) == GripperStatus.UNSUCCESSFUL
    assert not unit.is_grasped
    pass_ticks(unit, 1)
    assert fingers.force == 0.0
    assert fingers.width == 0.05


def test_a_grasp_of_nothing_is_unsuccessful_and_stays_closed(unit, fingers):
    grasp(unit, 0.03)
    assert outcome(unit) == GripperStatus.UNSUCCESSFUL
    assert fingers.width == 0.0
    assert not unit.is_grasped


def test_fingers_that_are_closed_further_than_the_window_grasp_from_within():
    fingers = SpringGripper(0.02)
    unit, fingers.highest = GripperUnit(fingers, FR3.gripper), 0.06
    grasp(unit, 0.06)
    assert outcome(unit) == GripperStatus.SUCCESS
    assert fingers.width == 0.06
    pass_ticks(unit, 1)
    assert fingers.force == 40.0


def test_an_object_a_little_narrower_than_its_grasp_is_not_let_go(unit, fingers):
    """Fingers that touch an object of 15.3 mm, of which a program says 16 mm, close."""
    fingers.lowest = 0.0153
    unit.act(GripperCommand.MOVE, 0, (0.0153, 0.1))
    assert outcome(unit) == GripperStatus.SUCCESS
    grasp(unit, 0.016)
    for _ in range(2000):
        pass_ticks(unit, 1)
        assert fingers.width == pytest.approx(0.0153, abs=1e-4)
    assert unit.replies.pop()[2] == GripperStatus.SUCCESS
    assert fingers.force == -40.0


def test_a_grasp_while_an_object_is_grasped_fails_and_the_object_stays(unit, fingers):
    fingers.lowest = 0.05
    grasp(unit, 0.05, force=20.0)
    assert outcome(unit) == GripperStatus.SUCCESS
    grasp(unit, 0.05, force=40.0)
    assert unit.replies.pop()[2] == GripperStatus.UNSUCCESSFUL
    pass_ticks(unit, 500)
    assert unit.is_grasped
    assert fingers.force == -20.0


@pytest.mark.parametrize(("inner", "outer", "held"), [(0.004, 0.001, True), (0.001, 0.004, False)])
def test_the_two_sides_of_the_window_are_not_confused(unit, fingers, inner, outer, held):
    """An object of 48 mm is 2 mm narrower than the grasp says."""
    fingers.lowest = 0.048
    unit.act(GripperCommand.GRASP, 0, (0.05, inner, outer, 0.1, 40.0))
    assert (outcome(unit) == GripperStatus.SUCCESS) is held


def test_the_servos_target_leads_by_no_more_than_the_force_needs(unit, fingers):
    fingers.lowest = 0.05
    grasp(unit, 0.05)
    for _ in range(1000):
        pass_ticks(unit, 1)
        assert (
            fingers.width - fingers.target <= 2.0 * 40.0 / GRIPPER_STIFFNESS + LEAD_MARGIN + 1e-12
        )
    unit.act(GripperCommand.MOVE, 1, (0.08, 0.1))
    # A target that runs with 0.1 m/s from where the fingers are pulls them open in its first step.
    pass_ticks(unit, 2)
    assert fingers.width > 0.05


def test_at_rest_against_an_object_the_force_builds_at_the_gripper_full_speed(unit, fingers):
    fingers.lowest = 0.079
    grasp(unit, 0.08, force=FR3.gripper.force_max, speed=0.002)
    # 1 mm at 2 mm/s, the fingers found at rest, then 72 mm of lead at 0.1 m/s. At 2 mm/s that were
    # 36 s.
    assert outcome(unit, 500 + 2 * STILL_TICKS + 720 + 100) == GripperStatus.SUCCESS


def test_a_firmer_grasp_after_a_stop_closes_again(unit, fingers):
    fingers.lowest = 0.05
    grasp(unit, 0.05, force=20.0)
    assert outcome(unit) == GripperStatus.SUCCESS
    unit.stop()
    grasp(unit, 0.05, force=40.0)
    assert outcome(unit) == GripperStatus.SUCCESS
    assert fingers.force == -40.0


def test_an_object_that_is_lost_is_not_grasped_again_by_itself(unit, fingers):
    fingers.lowest = 0.05
    grasp(unit, 0.05)
    assert outcome(unit) == GripperStatus.SUCCESS
    fingers.lowest = 0.0
    pass_ticks(unit, 200)
    assert not unit.is_grasped
    fingers.lowest = 0.05
    pass_ticks(unit, 200)
    assert not unit.is_grasped


def test_stop_aborts_the_action_where_the_fingers_are(unit, fingers):
    unit.act(GripperCommand.MOVE, 3, (0.0, 0.1))
    pass_ticks(unit, 300)
    stopped = fingers.width
    unit.stop()
    assert unit.replies == [(GripperCommand.MOVE, 3, GripperStatus.ABORTED)]
    pass_ticks(unit, 500)
    assert fingers.width == pytest.approx(stopped, abs=1e-9)


def test_stop_releases_an_object(unit, fingers):
    fingers.lowest = 0.05
    grasp(unit, 0.05)
    outcome(unit)
    unit.stop()
    pass_ticks(unit, 10)
    assert not unit.is_grasped
    assert fingers.force == 0.0
    assert not unit.replies


def test_homing_closes_and_opens_wide(unit, fingers):
    unit.act(GripperCommand.HOMING, 0, ())
    narrowest = 0.08
    while not unit.replies:
        pass_ticks(unit, 1)
        narrowest = min(narrowest, fingers.width)
    assert unit.replies[0][2] == GripperStatus.SUCCESS
    assert narrowest < 1e-3
    assert fingers.width == pytest.approx(FR3.gripper.width_max, abs=1e-3)


def test_a_second_action_fails_at_once_and_the_first_continues(unit, fingers):
    unit.act(GripperCommand.MOVE, 0, (0.03, 0.1))
    unit.act(GripperCommand.HOMING, 1, ())
    assert unit.replies.pop() == (GripperCommand.HOMING, 1, GripperStatus.FAIL)
    assert outcome(unit) == GripperStatus.SUCCESS
    assert fingers.width == pytest.approx(0.03, abs=1e-3)
    assert unit.actions == 2


@pytest.mark.parametrize(
    ("command", "values"),
    [
        (GripperCommand.MOVE, (-1e-6, 0.1)),
        (GripperCommand.MOVE, (math.nan, 0.1)),
        (GripperCommand.MOVE, (0.03, 0.0)),
        (GripperCommand.GRASP, (0.03, 0.005, 0.005, 0.1, 0.0)),
        (GripperCommand.GRASP, (-0.001, 0.005, 0.005, 0.1, 40.0)),
        (GripperCommand.GRASP, (0.03, 0.005, 0.005, -0.1, 40.0)),
        (GripperCommand.GRASP, (0.03, math.inf, 0.005, 0.1, 40.0)),
    ],
)
def test_values_that_the_gripper_cannot_do_fail(unit, fingers, command, values):
    unit.act(command, 5, values)
    assert unit.replies == [(command, 5, GripperStatus.FAIL)]
    assert not unit.running
    pass_ticks(unit, 100)
    assert fingers.width == 0.08


def test_a_move_beyond_the_largest_opening_opens_to_the_stop_and_does_not_succeed(unit, fingers):
    unit.act(GripperCommand.MOVE, 0, (0.02, 0.1))
    assert outcome(unit) == GripperStatus.SUCCESS
    unit.act(GripperCommand.MOVE, 1, (0.09, 0.1))
    assert outcome(unit) == GripperStatus.UNSUCCESSFUL
    assert fingers.width == pytest.approx(FR3.gripper.width_max, abs=1e-4)


def test_speed_and_force_above_the_grippers_are_cut_to_them(unit, fingers):
    """As SERL's program for the real gripper sends them."""
    fingers.lowest = 0.03
    unit.act(GripperCommand.GRASP, 0, (0.01, 1.0, 1.0, 0.3, 130.0))
    pass_ticks(unit, 200)
    before = fingers.width
    pass_ticks(unit, 100)
    assert before - fingers.width == pytest.approx(0.01, abs=1e-4)
    assert outcome(unit) == GripperStatus.SUCCESS
    assert fingers.force == -FR3.gripper.force_max


def test_homing_lets_go_of_a_grasped_object(unit, fingers):
    fingers.lowest = 0.05
    grasp(unit, 0.05)
    assert outcome(unit) == GripperStatus.SUCCESS
    unit.act(GripperCommand.HOMING, 1, ())
    assert not unit.is_grasped
    assert outcome(unit) == GripperStatus.SUCCESS
    assert fingers.width == pytest.approx(FR3.gripper.width_max, abs=1e-3)


def test_stop_without_an_action_says_nothing_of_one(unit):
    unit.stop()
    assert unit.replies == []


def test_until_its_first_action_the_gripper_leaves_the_servo_to_the_world(fingers):
    fingers.press(0.04, 15.0)
    unit = GripperUnit(fingers, FR3.gripper)
    pass_ticks(unit, 10)
    assert (fingers.target, fingers.limit) == (0.04, 15.0)
