import numpy as np
import pytest

from sim.engines.mujoco import MujocoEngine
from sim.make import find_task
from sim.tasks.fixture import upright_posture
from sim.tasks.stack_cube import APART, CUBE_HIGH, CUBE_LOW, HALF, YAW
from tests.sim.tasks.episodes import (
    deepest_contact,
    expert_episodes,
    idle_motion,
    put,
    random_episodes,
    rewards_rise,
    started,
)

TASK = find_task("stack_cube")

FLAT = [1.0, 0.0, 0.0, 0.0]


def stack(engine: MujocoEngine, across: float = 0.0, above: float = 0.0) -> None:
    """Red on green, off by so much [m]; the open gripper is high over the table."""
    put(engine, "green", np.array([0.5, 0.1, HALF, *FLAT]), np.zeros(6))
    put(engine, "red", np.array([0.5 + across, 0.1, 3 * HALF + above, *FLAT]), np.zeros(6))


@pytest.fixture
def engine() -> MujocoEngine:
    return started(TASK)


def yaw_of(quaternion: np.ndarray) -> np.ndarray:
    """(...,) angle about the base's z [rad] of quaternions (..., 4), wxyz."""
    w, x, y, z = np.moveaxis(quaternion, -1, 0)
    return np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


def solved(engine: MujocoEngine) -> bool:
    return bool(engine.read().success[0])


def test_it_is_found_by_its_name():
    assert find_task("stack_cube").name == "stack_cube"


def test_starts_lie_in_the_stated_area_apart_and_unsolved():
    engine = started(TASK, 100)
    view = engine.view
    for name in ("red", "green"):
        xy = view.position(name)[:, :2]
        assert ((xy >= CUBE_LOW) & (xy <= CUBE_HIGH)).all()
        assert (np.abs(yaw_of(view.quaternion(name))) <= YAW).all()
    assert (
        np.linalg.norm((view.position("red") - view.position("green"))[:, :2], axis=1) >= APART
    ).all()
    assert not engine.read().terminated.any()


def test_starts_touch_nothing_deeply_and_hold_still():
    engine = started(TASK, 50)
    assert deepest_contact(engine) < 1e-3
    assert idle_motion(engine)[9:].max() < 1e-3


@pytest.mark.parametrize(
    ("across", "above", "expected"),
    [
        (0.0, 0.0, True),
        (0.014, 0.0, True),
        (0.016, 0.0, False),
        (0.0, 0.004, True),
        (0.0, 0.006, False),
    ],
)
def test_success_needs_red_over_green_within_15_mm_across_and_5_mm_in_height(
    engine, across, above, expected
):
    stack(engine, across, above)
    assert solved(engine) == expected


@pytest.mark.parametrize("name", ["red", "green"])
@pytest.mark.parametrize(("entry", "speed"), [(0, 0.06), (5, 0.6)])
def test_a_cube_that_still_moves_or_turns_is_no_success(engine, name, entry, speed):
    stack(engine)
    assert solved(engine)
    engine.qvel[0, engine.layout.qvel[name] + entry] = speed
    engine._changed()
    assert not solved(engine)


@pytest.mark.parametrize(
    ("width", "expected"), [(0.040, False), (0.045, False), (0.047, True), (0.080, True)]
)
def test_success_needs_fingers_that_have_left_red(engine, width, expected):
    stack(engine)
    engine.qpos[0, :7] = upright_posture(TASK.robot, np.array([0.5, 0.1, 3 * HALF]), 0.0)
    for finger in ("finger_left", "finger_right"):
        put(engine, finger, width / 2)
    assert solved(engine) == expected


def test_a_stack_on_a_lifted_green_cube_is_no_success(engine):
    stack(engine)
    for name, height in (("green", HALF + 0.006), ("red", 3 * HALF + 0.006)):
        engine.qpos[0, engine.layout.qpos[name] + 2] = height
    engine._changed()
    assert not solved(engine)


def test_a_cube_beyond_the_grippers_reach_is_a_failure(engine):
    stack(engine)
    put(engine, "red", np.array([0.70, 0.1, HALF, *FLAT]), np.zeros(6))
    reading = engine.read()
    assert reading.terminated[0]
    assert not reading.success[0]


def test_the_expert_solves_at_least_19_of_20_and_its_reward_rises():
    success, rewards = expert_episodes(TASK, 20)
    assert success.sum() >= 19
    assert rewards_rise(rewards)[success].all()


def test_the_expert_takes_over_after_random_actions():
    assert expert_episodes(TASK, 20, takeover=30)[0].sum() >= 19


def test_random_actions_solve_at_most_1_of_20_and_stay_calm():
    success, fastest = random_episodes(TASK, 20)
    assert success.sum() <= 1
    assert fastest < 100.0
