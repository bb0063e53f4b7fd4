from dataclasses import replace

import numpy as np
import pytest

from robots.control.actions import CartesianDelta, JointDelta, JointTarget, gripper_target
from robots.franka import find_robot

FR3 = find_robot("fr3")

HERE = np.array([0.5, 0.0, 0.2, 0.0, 0.0, 0.0])


def test_a_full_step_moves_the_named_axes_by_their_scales() -> None:
    moved = CartesianDelta(axes=("y", "yaw")).target(HERE, HERE, np.array([1.0, -1.0]))
    np.testing.assert_allclose(moved - HERE, [0, 0.02, 0, 0, 0, -0.10])


def test_entries_beyond_one_are_clipped() -> None:
    moved = CartesianDelta(axes=("x",)).target(HERE, HERE, np.array([7.0]))
    np.testing.assert_allclose(moved[0] - HERE[0], 0.02)


def test_the_leash_keeps_the_target_near_the_measured_pose() -> None:
    space, target = CartesianDelta(axes=("x", "y", "z")), HERE
    for _ in range(10):
        target = space.target(target, HERE, np.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(target - HERE, [0.03, 0, 0, 0, 0, 0], atol=1e-12)


def test_a_zero_action_keeps_the_target_although_the_arm_sags() -> None:
    sagged = HERE - np.array([0, 0, 0.004, 0, 0, 0])
    np.testing.assert_array_equal(CartesianDelta().target(HERE, sagged, np.zeros(4)), HERE)


def test_targets_stay_in_the_workspace() -> None:
    edge = np.array([0.66, 0.0, 0.005, 0.0, 0.0, 0.0])
    moved = CartesianDelta(axes=("x", "z")).target(edge, edge, np.array([1.0, -1.0]))
    np.testing.assert_array_equal(moved, edge)


def test_an_arm_outside_the_workspace_is_led_back_no_faster_than_the_leash() -> None:
    outside = np.array([0.76, 0.0, 0.2, 0.0, 0.0, 0.0])
    moved = CartesianDelta(axes=("x",)).target(outside, outside, np.array([0.0]))
    np.testing.assert_allclose(moved - outside, [-0.03, 0, 0, 0, 0, 0], atol=1e-12)


def test_many_arms_move_as_each_alone() -> None:
    rng = np.random.default_rng(0)
    target, measured = HERE + 0.01 * rng.normal(size=(2, 5, 6))
    action = rng.uniform(-1.5, 1.5, (5, 4))
    together = CartesianDelta().target(target, measured, action)
    alone = [CartesianDelta().target(target[i], measured[i], action[i]) for i in range(5)]
    np.testing.assert_array_equal(together, np.stack(alone))


def test_joint_deltas_stop_short_of_the_joint_limits() -> None:
    near = FR3.q_home.copy()
    near[0] = FR3.limits.q_max[0] - 0.06
    moved = JointDelta().target(near, near, np.eye(7)[0], FR3.limits)
    assert moved[0] == pytest.approx(FR3.limits.q_max[0] - 0.05)
    np.testing.assert_array_equal(moved[1:], FR3.q_home[1:])


def test_joint_targets_are_approached_no_faster_than_the_speed_limit() -> None:
    wanted = FR3.q_home + np.array([1.0, 0.001, 0, 0, 0, 0, 0])
    moved = JointTarget(speed=0.5).target(
        FR3.q_home, FR3.q_home, wanted, period=0.1, limits=FR3.limits
    )
    np.testing.assert_allclose(
        moved - FR3.q_home, [0.5 * FR3.limits.dq_max[0] * 0.1, 0.001, 0, 0, 0, 0, 0], atol=1e-12
    )


def test_the_gripper_moves_a_tenth_of_a_metre_per_second() -> None:
    now = np.array([0.08, 0.0, 0.04])
    width = gripper_target(now, now, np.array([-1.0, 1.0, 0.0]), 0.05, FR3.gripper)
    np.testing.assert_allclose(width, [0.075, 0.005, 0.04])


def test_a_gripper_that_holds_something_begins_to_open_at_once() -> None:
    held, target = np.array([0.04]), np.array([0.04])
    for _ in range(20):
        target = gripper_target(target, held, np.array([-1.0]), 0.05, FR3.gripper)
    np.testing.assert_allclose(target, 0.024)
    opening = gripper_target(target, held, np.array([1.0]), 0.05, FR3.gripper)
    np.testing.assert_allclose(opening, 0.029)


@pytest.mark.parametrize("space", [CartesianDelta(), JointDelta(), JointTarget()])
def test_every_space_states_one_name_and_two_bounds_per_entry(
    space: CartesianDelta | JointDelta | JointTarget,
) -> None:
    spec = space.spec(FR3)
    assert len(spec.names) == len(spec.low) == len(spec.high) == spec.size
    assert all(low < high for low, high in zip(spec.low, spec.high, strict=True))


def test_joint_spaces_have_the_limits_of_the_robot_that_they_are_for() -> None:
    panda = find_robot("panda")
    np.testing.assert_allclose(JointTarget().spec(panda).high, panda.limits.q_max - 0.05)
    stop = panda.limits.q_max - 0.05
    beyond = JointTarget().target(stop, stop, stop + 1.0, 0.05, panda.limits)
    np.testing.assert_array_equal(beyond, stop)
    moved = JointTarget(speed=0.5).target(panda.q_home, panda.q_home, stop, 0.1, panda.limits)
    np.testing.assert_allclose((moved - panda.q_home)[0], 0.5 * 2.175 * 0.1)


def test_gripper_of_another_stroke_opens_as_far_and_as_fast_as_it_can() -> None:
    wide = replace(FR3.gripper, width_max=0.2, speed_max=1.0)
    shut = np.array([0.0])
    np.testing.assert_allclose(gripper_target(shut, shut + 0.2, np.array([1.0]), 1.0, wide), 0.2)
    near = gripper_target(shut, shut, np.array([1.0]), 0.01, wide)
    np.testing.assert_allclose(near, 0.01)
