"""The force guard: contact is limited below the robot's reflex, and a force that lasts ends the
episode."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from real.franka.config import FrankaConfig
from real.motion.force_guard import ForceGuardConfig, check_reflex
from robots.errors import HandoffError, SafetyError
from tests.real.motion.point_arm import PointArm, play, stream_to

LIMIT = 15.0
AHEAD = np.array([0.03, 0.0, 0.0])


def into_the_wall(sign: float, force: ForceGuardConfig | None) -> tuple[PointArm, np.ndarray]:
    """The arm, and the force of the spring [N] at every tick while targets stay 30 mm ahead."""
    arm = PointArm(sign=sign)
    arm.wall = arm.position[0] + 0.05
    stream = stream_to(arm, force)
    pull = []
    for _ in range(40):
        play(arm, stream, (stream.last.measured + AHEAD)[None])
        pull.append(arm.stiffness @ (stream.last.streamed.position - arm.position))
    return arm, np.array(pull)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_at_a_wall_the_springs_press_with_no_more_than_the_limit(sign: float) -> None:
    free, pressed = into_the_wall(sign, None)
    guarded, limited = into_the_wall(sign, ForceGuardConfig(limit=LIMIT))
    assert free.position[0] == free.wall == guarded.position[0] == guarded.wall
    assert pressed[-1, 0] > 50.0, "without the guard the reference is wound up"
    assert limited[-10:, 0] == pytest.approx(LIMIT, abs=0.5)
    assert -guarded.contact[0] == pytest.approx(LIMIT, abs=0.5)


def ticks_to_leave(force: ForceGuardConfig | None) -> int:
    """Ticks until the tip leaves the wall, once the targets are on this side of it."""
    arm = PointArm()
    arm.wall = arm.position[0] + 0.05
    stream = stream_to(arm, force)
    for _ in range(30):
        play(arm, stream, (stream.last.measured + AHEAD)[None])
    stream.set_target(arm.position - AHEAD)
    for tick in range(200):
        if arm.position[0] < arm.wall:
            return tick
        stream.send()
        stream.pass_tick()
    raise AssertionError("the tip stays at the wall")


def test_what_is_asked_for_behind_a_wall_is_not_stored_up() -> None:
    free, guarded = ticks_to_leave(None), ticks_to_leave(ForceGuardConfig(limit=LIMIT))
    assert guarded < free


def test_the_limit_leaves_other_directions_alone() -> None:
    arm, free = PointArm(), PointArm()
    arm.wall = arm.position[0] + 0.02
    stream, other = stream_to(arm, ForceGuardConfig(limit=LIMIT)), stream_to(free)
    for _ in range(20):
        play(arm, stream, (stream.last.measured + AHEAD)[None])
    begin = arm.position[1]
    side = np.array([0.0, 0.03, 0.0])
    for _ in range(20):
        play(arm, stream, (stream.last.measured + AHEAD + side)[None])
        play(free, other, (other.last.measured + side)[None])
    gone, expected = arm.position[1] - begin, free.position[1] - free.start[1, 3]
    assert gone == pytest.approx(expected, rel=0.05)
    assert -arm.contact[0] == pytest.approx(LIMIT, abs=1.0)


def test_without_contact_nothing_changes() -> None:
    rng = np.random.default_rng(0)
    jumps = PointArm().position + rng.uniform(-0.1, 0.1, (60, 3))
    guarded, free = PointArm(bias=(3.0, -2.0, 1.0)), PointArm()
    path = play(guarded, stream_to(guarded, ForceGuardConfig(limit=LIMIT)), jumps)
    np.testing.assert_array_equal(path, play(free, stream_to(free), jumps))


def ticks_until_fault(force: ForceGuardConfig, push: float, most: int = 200) -> int | None:
    """Number of ticks until a push of constant force ends the episode; None if it does not."""
    arm = PointArm()
    stream = stream_to(arm, force)
    arm.push = np.array([0.0, 0.0, push])
    for tick in range(most):
        stream.send()
        with contextlib.suppress(SafetyError):
            stream.pass_tick()
            continue
        return tick
    return None


def test_a_force_ends_the_episode_once_it_has_lasted() -> None:
    """A push of 40 N passes 30 N after 1.4 of the filter's 16 ms, and then lasts 0.1 s: 24 to 26
    ticks of 5 ms."""
    assert ticks_until_fault(ForceGuardConfig(fault_force=30.0), 40.0) in range(23, 27)
    assert ticks_until_fault(ForceGuardConfig(fault_force=30.0, fault_seconds=0.5), 40.0) in range(
        103, 107
    )
    assert ticks_until_fault(ForceGuardConfig(fault_force=30.0), 29.0) is None


def test_a_short_impact_ends_nothing() -> None:
    arm = PointArm()
    stream = stream_to(arm, ForceGuardConfig(fault_force=30.0))
    peak = 0.0
    for tick in range(200):
        arm.push = np.array([200.0 if tick % 50 < 10 else 0.0, 0.0, 0.0])
        stream.send()
        stream.pass_tick()
        peak = max(peak, float(stream.last.monitored["wrench_ext"][0]))
    assert peak > 150.0, "the control: it is far above the threshold, for 50 ms"


def test_a_joint_that_is_pushed_counts_where_the_wrench_is_zero() -> None:
    """Near a singularity the robot reports no wrench, and a push at the elbow is none of the
    tip's."""
    arm = PointArm()
    stream = stream_to(arm, ForceGuardConfig(fault_torque_share=0.2))
    calm = arm.state

    def pushed() -> Any:
        state = calm()
        state.tau_ext[1] = 20.0
        return state

    arm.state = pushed  # type: ignore[method-assign]
    with pytest.raises(SafetyError, match=r"torque at joint2 of (19\.\d|20\.0) Nm has lasted 0\.1"):
        play(arm, stream, np.tile(arm.position, (10, 1)))


def test_a_small_force_at_rest_is_taken_out_and_a_large_one_refused() -> None:
    arm = PointArm(bias=(3.0, 0.0, -3.0))
    stream = stream_to(arm, ForceGuardConfig(fault_force=30.0))
    play(arm, stream, arm.position[None])
    assert np.abs(stream.last.monitored["wrench_ext"]).max() < 1e-12
    with pytest.raises(SafetyError, match=r"feels a force of 6\.0 N at rest, limit 5\.0 N"):
        stream_to(PointArm(bias=(6.0, 0.0, 0.0)), ForceGuardConfig(fault_force=30.0))
    stream_to(PointArm(bias=(6.0, 0.0, 0.0)))


def test_an_estimate_that_is_no_number_ends_the_episode() -> None:
    arm = PointArm()
    stream = stream_to(arm, ForceGuardConfig(limit=LIMIT))
    arm.push = np.array([np.nan, 0.0, 0.0])
    stream.send()
    with pytest.raises(SafetyError, match="not finite"):
        stream.pass_tick()
    with pytest.raises(SafetyError, match="at rest"):
        stream_to(PointArm(bias=(np.nan, 0.0, 0.0)), ForceGuardConfig(limit=LIMIT))


def test_options_that_would_do_nothing_are_refused() -> None:
    with pytest.raises(HandoffError, match="contact has no effect without a threshold"):
        ForceGuardConfig(contact=4.0)
    with pytest.raises(HandoffError, match=r"limit 4\.0 N is not above contact 5\.0 N"):
        ForceGuardConfig(limit=4.0)


def test_it_must_act_before_the_robots_own_reflex() -> None:
    arm = FrankaConfig(collision_force=(50.0, 50.0, 50.0, 15.0, 15.0, 15.0))
    check_reflex(ForceGuardConfig(fault_force=40.0, fault_moment=10.0), arm)
    with pytest.raises(HandoffError, match=r"fault_force is 50\.0 N, not below the 50 N"):
        check_reflex(ForceGuardConfig(fault_force=50.0), arm)
    with pytest.raises(HandoffError, match=r"fault_moment is 20\.0 Nm, not below the 15 Nm"):
        check_reflex(ForceGuardConfig(fault_moment=20.0), arm)
