from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from real.franka.joint_limits import VelocityBounds
from real.motion.governor import GovernorConfig, ReferenceGovernor
from robots.control.actions import AgentDynamics, Motion
from robots.control.agent_reference import AgentReference
from robots.errors import HandoffError, SafetyError
from robots.franka import find_robot

FR3 = find_robot("fr3")
PERIOD = 0.004
CONFIG = GovernorConfig(low=(0.0, 0.0), high=(0.5, 0.5))
coordinate = st.floats(-5.0, 5.0)
point = st.tuples(coordinate, coordinate).map(np.array)
start = st.tuples(st.floats(0.0, 0.5), st.floats(0.0, 0.5)).map(np.array)


def at_rest(*position: float) -> Motion:
    return Motion(np.array(position), np.zeros(len(position)), np.zeros(len(position)))


def along_x(row: float) -> VelocityBounds:
    return VelocityBounds(np.array([[row, 0.0]]), np.zeros(1))


def settle(
    governor: ReferenceGovernor, asked: Motion, ticks: int, begin: np.ndarray
) -> list[Motion]:
    path, here = [], begin
    for _ in range(ticks):
        path.append(governor.step(asked, here))
        here = path[-1].position
    return path


@settings(max_examples=60, deadline=None)
@given(
    begin=start, asked=st.lists(st.tuples(point, point, st.integers(1, 40)), min_size=1, max_size=5)
)
def test_no_target_breaks_box_speed_acceleration_or_jerk(begin, asked):
    governor = ReferenceGovernor(CONFIG, PERIOD, begin, FR3)
    position, velocity, acceleration = begin, np.zeros(2), np.zeros(2)
    for target, speed, ticks in asked:
        for _ in range(ticks):
            out = governor.step(Motion(target, speed, np.zeros(2)), position)
            assert (out.position >= 0.0).all()
            assert (out.position <= 0.5).all()
            assert np.linalg.norm(out.velocity) <= CONFIG.max_speed * (1 + 1e-12)
            assert np.linalg.norm(out.velocity - velocity) <= CONFIG.max_acceleration * PERIOD * (
                1 + 1e-9
            )
            assert np.linalg.norm(out.acceleration - acceleration) <= CONFIG.max_jerk * PERIOD
            mean = (out.velocity + velocity) / 2.0
            np.testing.assert_allclose(out.position - position, mean * PERIOD, atol=1e-12)
            position, velocity, acceleration = out


@settings(max_examples=25, deadline=None)
@given(begin=start, kick=point, target=point)
def test_reference_waits_within_the_lag_of_an_arm_that_does_not_move(begin, kick, target):
    config = GovernorConfig(low=(0.0, 0.0), high=(0.5, 0.5), fault_lag=1.0, blocked_seconds=60.0)
    governor = ReferenceGovernor(config, PERIOD, begin, FR3)
    stuck = begin.copy()
    for _ in range(300):
        out = governor.step(Motion(target, kick, np.zeros(2)), stuck)
        assert np.linalg.norm(out.position - stuck) <= config.max_lag + 0.004


@settings(max_examples=60, deadline=None)
@given(begin=start, target=point, ticks=st.integers(1, 60))
def test_braking_ends_at_rest_within_the_limits_and_never_turns_back(begin, target, ticks):
    governor = ReferenceGovernor(CONFIG, PERIOD, begin, FR3)
    moving = settle(governor, at_rest(*target), ticks, begin)[-1]
    path, here = [moving], moving.position
    for _ in range(40):
        path.append(governor.brake(here))
        here = path[-1].position
    velocity = np.array([motion.velocity for motion in path])
    assert (np.abs(velocity[-1]) < 1e-12).all()
    assert (velocity * np.sign(velocity[0]) >= -1e-12).all(), "on no axis does it turn round"
    assert (
        np.linalg.norm(np.diff(velocity, axis=0), axis=1)
        <= CONFIG.max_acceleration * PERIOD * (1 + 1e-9)
    ).all()
    assert ((here >= 0.0) & (here <= 0.5)).all()


def test_admissible_motion_passes_unchanged():
    reference = AgentReference(np.array([0.2, 0.2]), AgentDynamics())
    governor = ReferenceGovernor(CONFIG, PERIOD, np.array([0.2, 0.2]), FR3)
    generator, here, worst = np.random.default_rng(0), np.array([0.2, 0.2]), 0.0
    target = here.copy()
    for tick in range(1, 2500):
        if tick % 25 == 1:
            target = np.clip(target + generator.uniform(-0.01, 0.01, size=2), 0.1, 0.4)
            reference.push(target)
        asked = reference.sample(tick * PERIOD)
        out = governor.step(asked, here)
        here = out.position
        worst = max(worst, float(np.linalg.norm(out.position - asked.position)))
    assert worst < 2e-5


def test_far_target_is_reached_without_overshoot():
    path = settle(
        ReferenceGovernor(CONFIG, PERIOD, np.array([0.05, 0.1]), FR3),
        at_rest(0.4, 0.1),
        400,
        np.array([0.05, 0.1]),
    )
    positions = np.array([motion.position for motion in path])
    assert positions[:, 0].max() <= 0.4 + 1e-4
    np.testing.assert_allclose(positions[-1], [0.4, 0.1], atol=1e-5)


def test_target_beyond_the_wall_stops_at_the_wall():
    begin = np.array([0.4, 0.25])
    asked = Motion(np.array([3.0, 0.25]), np.array([50.0, 0.0]), np.zeros(2))
    last = settle(ReferenceGovernor(CONFIG, PERIOD, begin, FR3), asked, 500, begin)[-1]
    np.testing.assert_allclose(last.position, [0.5, 0.25], atol=1e-4)
    assert np.linalg.norm(last.velocity) < 1e-3


def test_arm_far_from_its_reference_is_a_fault_naming_the_limit():
    governor = ReferenceGovernor(
        GovernorConfig(max_lag=0.01, fault_lag=0.02), PERIOD, np.array([0.1, 0.1]), FR3
    )
    with pytest.raises(SafetyError, match=r"from its reference, limit 0\.02 m"):
        governor.step(at_rest(0.1, 0.1), np.array([0.2, 0.1]))


@pytest.mark.parametrize(
    "bad", [np.array([np.nan, 0.1]), np.array([0.1, np.inf]), np.array([0.1]), np.zeros((2, 2))]
)
def test_non_finite_or_ill_shaped_input_is_refused_everywhere(bad):
    governor = ReferenceGovernor(CONFIG, PERIOD, np.array([0.1, 0.1]), FR3)
    good = np.array([0.1, 0.1])
    for call in (
        lambda: governor.step(Motion(bad, good, good), good),
        lambda: governor.step(Motion(good, bad, good), good),
        lambda: governor.step(Motion(good, good, good), bad),
        lambda: governor.box.clamp(bad),
    ):
        with pytest.raises(SafetyError, match="expected 2 finite numbers"):
            call()


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(st.tuples(point, st.integers(1, 60)), min_size=1, max_size=4),
    limit=st.floats(0.05, 0.4),
)
def test_bounds_of_the_joints_hold_and_leave_other_directions_alone(asked, limit):
    begin = np.array([0.25, 0.25])
    governor, here = ReferenceGovernor(CONFIG, PERIOD, begin, FR3), begin
    for target, ticks in asked:
        for _ in range(ticks):
            out = governor.step(at_rest(*target), here, along_x(1.0 / limit))
            assert abs(out.velocity[0]) <= limit * (1 + 1e-9)
            here = out.position
    free = ReferenceGovernor(CONFIG, PERIOD, begin, FR3)
    path = [free.step(at_rest(0.25, 0.45), begin, along_x(1e3)).velocity[1] for _ in range(5)]
    assert path[-1] == pytest.approx(5 * PERIOD * CONFIG.max_acceleration / np.sqrt(2))


def test_a_bound_with_an_offset_holds_on_its_side_alone():
    """As of a joint whose torque rises while the arm lags: more speed away from it is refused, less
    is not."""
    begin = np.array([0.25, 0.25])
    bounds = VelocityBounds(np.array([[10.0, 0.0]]), np.array([0.9]))
    for target, fastest in ((0.45, 0.01), (0.05, -0.19)):
        governor, here = ReferenceGovernor(CONFIG, PERIOD, begin, FR3), begin
        speeds = []
        for _ in range(30):
            out = governor.step(at_rest(target, 0.25), here, bounds)
            here = out.position
            speeds.append(out.velocity[0] * np.sign(fastest))
        assert max(speeds) == pytest.approx(abs(fastest))


def test_reference_brakes_when_the_bounds_tighten_suddenly():
    governor, here = (
        ReferenceGovernor(CONFIG, PERIOD, np.array([0.1, 0.25]), FR3),
        np.array([0.1, 0.25]),
    )
    for _ in range(20):
        here = governor.step(at_rest(0.4, 0.25), here).position
    fast = governor.step(at_rest(0.4, 0.25), here)
    slower = governor.step(at_rest(0.4, 0.25), fast.position, along_x(10.0))
    lost = PERIOD * CONFIG.max_acceleration / np.sqrt(2)
    assert slower.velocity[0] == pytest.approx(fast.velocity[0] - lost)


def test_clamp_returns_the_nearest_point_of_the_box():
    governor = ReferenceGovernor(CONFIG, PERIOD, np.array([0.1, 0.1]), FR3)
    np.testing.assert_array_equal(governor.box.clamp(np.array([0.7, -0.2])), [0.5, 0.0])


def test_start_outside_the_box_is_refused():
    with pytest.raises(SafetyError, match="outside the keep-in box"):
        ReferenceGovernor(CONFIG, PERIOD, np.array([0.1, 0.9]), FR3)


def test_acceleration_that_allows_too_much_jerk_is_refused():
    with pytest.raises(HandoffError, match="12000 m/s\\^3, limit 4500"):
        ReferenceGovernor(CONFIG, 0.001, np.array([0.1, 0.1]), FR3)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_speed": 2.0}, r"max_speed is 2.0 m/s, panda allows 1.7 m/s"),
        ({"max_acceleration": 14.0}, r"max_acceleration is 14.0 m/s\^2, panda allows 13.0 m/s\^2"),
        ({"max_acceleration": 13.0, "max_jerk": 1e6}, r"6500 m/s\^3, limit 6400"),
    ],
)
def test_limits_beyond_those_of_the_robot_are_refused(
    limits: dict[str, float], message: str
) -> None:
    panda = find_robot("panda")
    panda = replace(panda, cartesian=replace(panda.cartesian, jerk=np.array([6400.0, 1.0, 1.0])))
    with pytest.raises(HandoffError, match=message):
        ReferenceGovernor(replace(CONFIG, **limits), PERIOD, np.array([0.1, 0.1]), panda)


def test_a_reference_whose_velocity_is_not_fed_may_accelerate_faster_than_the_robot() -> None:
    config = replace(CONFIG, max_acceleration=30.0, max_jerk=16_000.0)
    with pytest.raises(HandoffError, match=r"max_acceleration is 30.0 m/s\^2, fr3 allows 9.0"):
        ReferenceGovernor(config, PERIOD, np.array([0.1, 0.1]), FR3)
    ReferenceGovernor(config, PERIOD, np.array([0.1, 0.1]), FR3, feeds_velocity=False)
    fast = replace(config, max_speed=2.9)
    with pytest.raises(HandoffError, match=r"max_speed is 2\.9 m/s, panda allows 1\.7"):
        ReferenceGovernor(
            fast, PERIOD, np.array([0.1, 0.1]), find_robot("panda"), feeds_velocity=False
        )


def test_limits_at_those_of_the_robot_pass() -> None:
    config = replace(CONFIG, max_speed=3.0, max_acceleration=9.0)
    ReferenceGovernor(config, PERIOD, np.array([0.1, 0.1]), FR3)


@pytest.mark.parametrize("size", [1e300, 1e7, np.nan, np.inf])
def test_sizes_that_overflow_are_refused_and_the_reference_stays(size):
    here, still = np.array([0.2, 0.2]), np.zeros(2)
    governor = ReferenceGovernor(GovernorConfig(), PERIOD, here, FR3)
    huge = np.array([size, 0.0])
    with pytest.raises(SafetyError, match="velocity is"):
        governor.step(Motion(here, huge, still), here)
    with pytest.raises(SafetyError, match="bounds on the velocity are not finite"):
        governor.step(Motion(here, still, still), here, along_x(size))
    assert np.array_equal(governor.step(Motion(here, still, still), here).position, here)
