import numpy as np
import pytest

from robots.language.text import decode
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.make import find_task
from sim.scene.cameras import CamerasConfig
from sim.tasks.pick_by_name import COLOURS, NAMES
from sim.tasks.reach import GOAL_HIGH, GOAL_LOW
from sim.tasks.reach_by_name import APART, INSTRUCTIONS
from tests.sim.tasks.episodes import expert_episodes, random_episodes, rewards_rise, started

TASK = find_task("reach_by_name")

PLACES = np.array([[0.4, -0.2, 0.3], [0.4, 0.2, 0.3], [0.6, -0.2, 0.3], [0.6, 0.2, 0.3]])


def standing_at(name: str, target: str, offset: float = 0.0, speed: float = 0.0) -> MujocoEngine:
    """One environment whose fingertips are at `offset` [m] from the marker `name`, with `target` as
    the target marker."""
    engine = started(TASK)
    places = PLACES.copy()
    places[NAMES.index(name)] = engine.view.grasp_position[0] + np.array([0.0, offset, 0.0])
    engine._goal[0] = [*places.ravel(), NAMES.index(target)]
    engine.qvel[0, 0] = speed
    engine._changed()
    return engine


def test_it_is_found_by_its_name() -> None:
    assert find_task("reach_by_name").name == "reach_by_name"


def test_markers_lie_in_the_stated_box_apart_and_unreached() -> None:
    engine = started(TASK, 100)
    places = engine.view.goal[:, :12].reshape(100, 4, 3)
    assert ((places >= GOAL_LOW) & (places <= GOAL_HIGH)).all()
    for one in range(4):
        for other in range(one):
            assert (np.linalg.norm(places[:, one] - places[:, other], axis=1) >= APART).all()
    assert not engine.read().terminated.any()


def test_every_marker_is_asked_for_about_equally_often_and_by_its_name() -> None:
    engine = started(TASK, 400)
    target = engine.view.goal[:, 12].astype(int)
    # Binomial of 400 and a quarter: 100, deviation 8.7.
    assert (np.abs(np.bincount(target, minlength=4) - 100) < 35).all()
    assert decode(engine.read().observation["instruction"]) == tuple(
        INSTRUCTIONS[number] for number in target
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_marker_is_observed_relative_to_the_fingertips(name: str) -> None:
    offset = standing_at(name, name, offset=0.1).read().observation[f"{name}_marker"]
    np.testing.assert_allclose(offset, [[0.0, 0.1, 0.0]], atol=1e-6)


@pytest.mark.parametrize(
    ("offset", "speed", "solved"), [(0.014, 0.0, True), (0.016, 0.0, False), (0.0, 0.5, False)]
)
def test_success_is_a_gripper_at_rest_at_the_target_marker(
    offset: float, speed: float, solved: bool
) -> None:
    state = standing_at("green", "green", offset, speed).read()
    assert (bool(state.success[0]), bool(state.terminated[0])) == (solved, solved)
    assert state.info["mistaken"].tolist() == [0.0]


def test_to_stand_at_another_marker_is_the_end() -> None:
    state = standing_at("green", "blue").read()
    assert (bool(state.success[0]), bool(state.terminated[0])) == (False, True)
    assert state.info["mistaken"].tolist() == [1.0]


def test_only_the_words_and_the_reward_change_with_what_is_asked_for() -> None:
    first, second = (standing_at("green", name, offset=0.05).read() for name in ("green", "yellow"))
    changed = [
        name
        for name, array in first.observation.items()
        if not np.array_equal(array, second.observation[name])
    ]
    assert changed == ["instruction"]
    assert first.reward[0] > second.reward[0]


def test_the_expert_solves_it_and_random_actions_do_not() -> None:
    solved, rewards = expert_episodes(TASK, 40)
    assert solved.all()
    assert rewards_rise(rewards).all()
    by_chance, fastest = random_episodes(TASK, 40)
    assert by_chance.sum() <= 2
    assert fastest < 10.0


@pytest.mark.needs("opengl")
def test_all_four_markers_are_drawn_where_they_are() -> None:
    pictures = MujocoEngine(
        TASK, 1, MujocoConfig(cameras=CamerasConfig(names=("front",), width=128, height=128))
    )
    pictures.reset(np.array([0]), np.array([0]))
    pictures._goal[0, :12] = PLACES.ravel()
    pictures._changed()
    before = pictures.read().observation["image_front"][0].astype(int)
    for number in range(len(COLOURS)):
        pictures._goal[0, 3 * number : 3 * number + 3] += [0.0, 0.0, 5.0]
        pictures._changed()
        after = pictures.read().observation["image_front"][0].astype(int)
        assert np.abs(after - before).max() > 30, f"marker {number} was not there to be taken away"
        before = after
