# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

import numpy as np
import pytest

from sim.engines.mujoco import MujocoEngine
from sim.make import find_task
from sim.tasks.fixture import fixture_pose
from sim.tasks.open_drawer import AJAR, CABINET_HIGH, CABINET_LOW, DRY_FRICTION
from tests.sim.tasks.episodes import (
    deepest_contact,
    expert_episodes,
    idle_motion,
    put,
    random_episodes,
    rewards_rise,
    started,
)

TASK = find_task("open_drawer")


@pytest.fixture
def engine() -> MujocoEngine:
    return started(TASK)


def test_it_is_found_by_its_name():
    assert find_task("open_drawer").name == "open_drawer"


def test_starts_lie_within_the_stated_bounds_and_are_unsolved():
    engine = started(TASK, 100)
    pose, opening = fixture_pose(engine.view, "cabinet"), engine.view.joint("drawer")
    assert ((pose >= CABINET_LOW) & (pose <= CABINET_HIGH)).all()
    assert ((opening >= 0.0) & (opening <= AJAR)).all()
    assert not engine.read().terminated.any()


def test_starts_touch_nothing_deeply_and_hold_still():
    engine = started(TASK, 50)
    assert deepest_contact(engine) < 1e-3
    assert idle_motion(engine)[9:].max() < 1e-3


@pytest.mark.parametrize(
    ("opening", "speed", "expected"),
    [(0.151, 0.0, True), (0.149, 0.0, False), (0.18, 0.09, True), (0.18, 0.11, False)],
)
def test_success_is_a_drawer_open_beyond_15_cm_and_slower_than_10_cm_per_second(
    engine, opening, speed, expected
):
    put(engine, "drawer", opening, speed)
    assert engine.read().success[0] == expected


def test_the_handle_moves_out_with_the_drawer_along_the_cabinets_own_axis(engine):
    put(engine, "cabinet_x", 0.68)
    put(engine, "cabinet_y", 0.0)
    put(engine, "cabinet_yaw", 0.0)
    put(engine, "drawer", 0.10)
    # Half the cabinet's depth, the bar's distance and the opening: 0.12 + 0.045 + 0.10 m before the
    # middle.
    assert engine.read().observation["handle_position"][0] == pytest.approx(
        [0.415, 0.0, 0.120], abs=1e-6
    )
    put(engine, "cabinet_yaw", np.pi / 2)
    assert engine.read().observation["handle_position"][0] == pytest.approx(
        [0.68, -0.265, 0.120], abs=1e-6
    )


@pytest.mark.parametrize(("share", "moves"), [(0.8, False), (2.0, True)])
def test_the_drawer_stays_below_its_dry_friction_and_slides_above(engine, share, moves):
    import mujoco

    data = mujoco.MjData(engine.model)
    data.qpos[:], data.ctrl[:] = engine.qpos[0], engine._ctrl[0]
    start = data.qpos[engine.layout.qpos["drawer"]]
    data.qfrc_applied[engine.layout.qvel["drawer"]] = share * DRY_FRICTION
    mujoco.mj_step(engine.model, data, 100)
    travelled = data.qpos[engine.layout.qpos["drawer"]] - start
    assert (travelled > 0.05) == moves
    assert moves or abs(travelled) < 0.002


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
