import numpy as np
import pytest

from robots.language.text import decode
from sim.engines.mujoco import MujocoEngine
from sim.make import find_task
from sim.tasks.fixture import upright_posture
from sim.tasks.pick_by_name import INSTRUCTIONS, LIFT, NAMES
from sim.tasks.stack_cube import APART, CUBE_HIGH, CUBE_LOW, HALF
from tests.sim.tasks.episodes import (
    deepest_contact,
    expert_episodes,
    idle_motion,
    put,
    random_episodes,
    rewards_rise,
    started,
)

TASK = find_task("pick_by_name")

FLAT = [1.0, 0.0, 0.0, 0.0]
PLACES = [(0.42, -0.14), (0.42, 0.14), (0.58, -0.14), (0.58, 0.14)]


def asking_for(name: str) -> MujocoEngine:
    """One environment with the cubes far apart, that asks for this one."""
    engine = started(TASK)
    engine._goal[:] = NAMES.index(name)
    for other, place in zip(NAMES, PLACES, strict=True):
        put(engine, other, np.array([*place, HALF, *FLAT]), np.zeros(6))
    return engine


def grasped(engine: MujocoEngine, name: str, height: float) -> None:
    """That cube between closed fingers, its centre so high [m]."""
    engine.qpos[0, :7] = upright_posture(TASK.robot, np.array([0.5, 0.0, height]), 0.0)
    for finger in ("finger_left", "finger_right"):
        put(engine, finger, HALF)
    put(engine, name, np.array([0.5, 0.0, height, *FLAT]), np.zeros(6))


def test_it_is_found_by_its_name():
    assert find_task("pick_by_name").name == "pick_by_name"


def test_starts_lie_in_the_stated_area_apart_and_unsolved():
    engine = started(TASK, 100)
    places = np.stack([engine.view.position(name)[:, :2] for name in NAMES])
    assert ((places >= CUBE_LOW) & (places <= CUBE_HIGH)).all()
    for one in range(len(NAMES)):
        for other in range(one):
            assert (np.linalg.norm(places[one] - places[other], axis=1) >= APART).all()
    assert not engine.read().terminated.any()


def test_every_cube_is_asked_for_about_equally_often():
    counts = np.bincount(started(TASK, 400).view.goal[:, 0].astype(int), minlength=4)
    # Binomial of 400 and a quarter: 100, deviation 8.7.
    assert (np.abs(counts - 100) < 35).all()


def test_starts_touch_nothing_deeply_and_hold_still():
    engine = started(TASK, 50)
    assert deepest_contact(engine) < 1e-3
    assert idle_motion(engine)[9:].max() < 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_the_words_name_the_cube_that_is_paid_for(name: str):
    engine = asking_for(name)
    assert decode(engine.read().observation["instruction"]) == (INSTRUCTIONS[NAMES.index(name)],)
    assert name in INSTRUCTIONS[NAMES.index(name)]
    grasped(engine, name, HALF + LIFT + 0.001)
    assert engine.read().success[0]
    assert engine.read().info["mistaken"][0] == 0.0
    grasped(engine, name, HALF + LIFT - 0.001)
    assert not engine.read().success[0]


def test_another_cube_lifted_is_a_mistake_and_no_success():
    engine = asking_for("red")
    grasped(engine, "blue", HALF + LIFT + 0.001)
    reading = engine.read()
    assert not reading.terminated[0]
    assert reading.info["mistaken"][0] == 1.0
    assert reading.info["reward_grasp"][0] == 0.0


def test_only_the_instruction_determines_the_target_cube():
    red, blue = (asking_for(name).read().observation for name in ("red", "blue"))
    different = [name for name in red if not np.array_equal(red[name], blue[name])]
    assert different == ["instruction"]


def test_the_named_cube_beyond_reach_is_a_failure_and_another_one_is_not():
    engine = asking_for("red")
    put(engine, "blue", np.array([0.75, 0.1, HALF, *FLAT]), np.zeros(6))
    assert not engine.read().terminated[0]
    put(engine, "red", np.array([0.75, -0.1, HALF, *FLAT]), np.zeros(6))
    reading = engine.read()
    assert reading.terminated[0]
    assert not reading.success[0]


def test_the_expert_solves_at_least_39_of_40_and_its_reward_rises():
    success, rewards = expert_episodes(TASK, 40)
    assert success.sum() >= 39
    assert rewards_rise(rewards)[success].all()


def test_the_expert_takes_over_after_random_actions():
    assert expert_episodes(TASK, 20, takeover=30)[0].sum() >= 19


def test_random_actions_solve_at_most_1_of_20_and_stay_calm():
    success, fastest = random_episodes(TASK, 20)
    assert success.sum() <= 1
    assert fastest < 100.0
