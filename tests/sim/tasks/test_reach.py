import numpy as np
import pytest

from sim.engines.mujoco import MujocoEngine
from sim.make import find_task
from sim.tasks.reach import GOAL_HIGH, GOAL_LOW, TOLERANCE
from sim.vec_env import EngineVecEnv

TASK = find_task("reach")


def test_goals_lie_in_the_stated_box_and_are_not_reached_at_the_start() -> None:
    engine = MujocoEngine(TASK, 100)
    start = EngineVecEnv(engine).reset(range(100))
    assert ((start["goal"] >= GOAL_LOW - 1e-6) & (start["goal"] <= GOAL_HIGH + 1e-6)).all()
    assert not engine.read().success.any()


@pytest.mark.parametrize(
    ("distance", "speed", "solved"), [(0.014, 0.0, True), (0.016, 0.0, False), (0.0, 0.5, False)]
)
def test_success_is_a_gripper_at_rest_within_the_tolerance(
    distance: float, speed: float, solved: bool
) -> None:
    assert TOLERANCE == 0.015
    engine = MujocoEngine(TASK, 1)
    engine.reset(np.array([0]), np.array([0]))
    engine._goal[0] = engine.view.grasp_position[0] + np.array([0.0, distance, 0.0])
    engine.qvel[0, 0] = speed
    engine._changed()
    assert engine.read().success[0] == solved


def test_the_expert_comes_nearer_with_every_step() -> None:
    engine = MujocoEngine(TASK, 10)
    env = EngineVecEnv(engine)
    env.reset(range(10))
    distances = []
    for _ in range(8):
        distances.append(np.linalg.norm(engine.view.grasp_position - engine.view.goal, axis=1))
        env.step(engine.expert_action())
    assert (np.diff(distances, axis=0)[1:] < 0.0).all()
