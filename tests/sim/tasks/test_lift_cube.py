import numpy as np
import pytest

from sim.engines.mujoco import MujocoEngine
from sim.make import find_task
from sim.tasks.lift_cube import CUBE_HIGH, CUBE_LOW, HALF, LIFT
from sim.vec_env import EngineVecEnv, VecEnvConfig

TASK = find_task("lift_cube")


def test_starts_lie_in_the_stated_area_and_are_not_solved() -> None:
    env = EngineVecEnv(MujocoEngine(TASK, 50), VecEnvConfig(on_end="freeze"))
    start = env.reset(range(50))
    xy = start["cube_position"][:, :2]
    assert ((xy >= CUBE_LOW) & (xy <= CUBE_HIGH)).all()
    assert np.ptp(xy, axis=0) == pytest.approx(CUBE_HIGH - CUBE_LOW, rel=0.2)
    hold = np.zeros((50, 5))
    hold[:, -1] = 1.0
    assert not env.step(hold).info["success"].any()


def test_a_cube_in_the_air_counts_only_between_fingers_that_touch_it() -> None:
    engine = MujocoEngine(TASK, 1)
    engine.reset(np.array([0]), np.array([0]))
    place = engine.layout.qpos["cube"]
    engine.qpos[0, place : place + 3] = engine.view.grasp_position[0]
    for width, solved in ((2 * HALF, True), (0.08, False)):
        for name in ("finger_left", "finger_right"):
            engine.qpos[0, engine.layout.qpos[name]] = width / 2
        engine._changed()
        assert engine.read().success[0] == solved


def test_a_held_cube_is_lifted_from_the_stated_height_on() -> None:
    engine = MujocoEngine(TASK, 1)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    env.reset([0])
    held, heights, solved = [], [], []
    for _ in range(TASK.max_steps):
        step = env.step(engine.expert_action())
        held.append(step.info["reward_grasp"][0] > 0.0)
        heights.append(step.final_observation["cube_position"][0, 2] - HALF)
        solved.append(step.info["success"][0])
        if solved[-1]:
            break
    expected = np.array(held) & (np.array(heights) > LIFT)
    np.testing.assert_array_equal(solved, expected)
    assert 0.0 < max(heights[:-1]) < LIFT < heights[-1]


def test_the_expert_lifts_the_cube_from_every_start() -> None:
    engine = MujocoEngine(TASK, 20)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    env.reset(range(20))
    solved = np.zeros(20, dtype=bool)
    for _ in range(TASK.max_steps):
        solved |= env.step(engine.expert_action()).info["success"]
    assert solved.all()


def test_the_expert_takes_over_after_random_actions() -> None:
    engine = MujocoEngine(TASK, 20)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze", max_steps=140))
    env.reset(range(20))
    rng = np.random.default_rng(0)
    for _ in range(30):
        env.step(rng.uniform(-1, 1, (20, 5)))
    solved = np.zeros(20, dtype=bool)
    for _ in range(110):
        solved |= env.step(engine.expert_action()).info["success"]
    assert solved.sum() >= 19
