# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

import numpy as np
import pytest

from sim.engines.mujoco import MujocoEngine
from sim.make import find_task
from sim.tasks.fixture import fixture_pose
from sim.tasks.flip_switch import SWING, SWITCH_HIGH, SWITCH_LOW
from tests.sim.tasks.episodes import (
    deepest_contact,
    expert_episodes,
    idle_motion,
    put,
    random_episodes,
    rewards_rise,
    started,
)

TASK = find_task("flip_switch")


@pytest.fixture
def engine() -> MujocoEngine:
    return started(TASK)


def idle(engine: MujocoEngine, periods: int) -> None:
    action = np.zeros((engine.num_envs, engine.action_spec.size))
    for _ in range(periods):
        engine.step(action, np.ones(engine.num_envs, dtype=bool))


def test_it_is_found_by_its_name():
    assert find_task("flip_switch").name == "flip_switch"


def test_starts_lie_within_the_stated_bounds_on_both_sides_and_unsolved():
    engine = started(TASK, 100)
    pose, side = fixture_pose(engine.view, "switch"), np.sign(engine.view.joint("lever"))
    assert ((pose >= SWITCH_LOW) & (pose <= SWITCH_HIGH)).all()
    assert (side == -engine.view.goal[:, 0]).all()
    assert 30 <= (side > 0).sum() <= 70
    assert not engine.read().terminated.any()


def test_starts_touch_nothing_deeply_and_hold_still():
    engine = started(TASK, 50)
    assert deepest_contact(engine) < 1e-3
    # The lever settles into its stop by a few thousandths of a radian.
    assert idle_motion(engine)[9:].max() < 0.01


@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize(
    ("angle", "speed", "expected"),
    [
        (0.36, 0.0, True),
        (0.34, 0.0, False),
        (-0.50, 0.0, False),
        (0.50, 0.4, True),
        (0.50, 0.6, False),
    ],
)
def test_success_is_a_lever_at_rest_beyond_20_degrees_on_the_wanted_side(
    engine, side, angle, speed, expected
):
    engine._goal[:] = side
    put(engine, "lever", side * angle, speed)
    assert engine.read().success[0] == expected


@pytest.mark.parametrize("angle", [-0.3, -0.05, 0.05, 0.3])
def test_a_lever_let_go_falls_to_the_stop_on_its_side_and_stays(engine, angle):
    put(engine, "lever", angle)
    idle(engine, 20)
    assert engine.view.joint("lever")[0] == pytest.approx(np.sign(angle) * SWING, abs=0.02)
    assert abs(engine.view.joint_velocity("lever")[0]) < 0.01


def test_the_spring_holds_the_knob_at_its_stop_with_about_two_newtons(engine):
    import mujoco

    data = mujoco.MjData(engine.model)
    data.qpos[:] = engine.qpos[0]
    data.qpos[engine.layout.qpos["lever"]] = SWING
    mujoco.mj_forward(engine.model, data)
    # Both ends 20 mm from the axis: length 2 * 20 * cos(0.25) = 38.76 mm, lever arm 20 * sin(0.25)
    # = 4.95 mm, so 2100 N/m * 18.76 mm * 4.95 mm = 0.195 Nm, over 90 mm: 2.17 N.
    assert data.qfrc_passive[engine.layout.qvel["lever"]] / 0.090 == pytest.approx(2.17, abs=0.05)


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
