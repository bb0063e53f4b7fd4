import numpy as np
import pytest

from sim.engines.mujoco import MujocoEngine
from sim.make import find_task
from sim.tasks.pick_cube import CUBE_HIGH, CUBE_LOW, GOAL_HIGH, GOAL_LOW, HALF, TOLERANCE
from sim.vec_env import EngineVecEnv, VecEnvConfig

TASK = find_task("pick_cube")


@pytest.fixture
def engine() -> MujocoEngine:
    engine = MujocoEngine(TASK, 1)
    engine.reset(np.array([0]), np.array([0]))
    return engine


def put_cube(engine: MujocoEngine, position: np.ndarray, speed: float = 0.0) -> None:
    a, b = engine.layout.qpos["cube"], engine.layout.qvel["cube"]
    engine.qpos[0, a : a + 3] = position
    engine.qvel[0, b] = speed
    engine._changed()


def set_width(engine: MujocoEngine, width: float) -> None:
    for name in ("finger_left", "finger_right"):
        engine.qpos[0, engine.layout.qpos[name]] = width / 2
    engine._changed()


def test_starts_lie_in_the_stated_areas_and_hold_still() -> None:
    env = EngineVecEnv(MujocoEngine(TASK, 50), VecEnvConfig(on_end="freeze"))
    start = env.reset(range(50))
    xy = start["cube_position"][:, :2]
    assert ((xy >= CUBE_LOW) & (xy <= CUBE_HIGH)).all()
    assert ((start["goal"] >= GOAL_LOW - 1e-6) & (start["goal"] <= GOAL_HIGH + 1e-6)).all()
    hold = np.zeros((50, 5))
    hold[:, -1] = 1.0
    step = env.step(np.repeat(hold[:, None], 4, axis=1))
    assert np.abs(step.observation["cube_position"] - start["cube_position"]).max() < 1e-3
    assert not step.info["success"].any()


@pytest.mark.parametrize(
    ("distance", "speed", "solved"), [(0.019, 0.0, True), (0.021, 0.0, False), (0.0, 0.2, False)]
)
def test_success_is_a_still_cube_within_the_tolerance(
    engine: MujocoEngine, distance: float, speed: float, solved: bool
) -> None:
    assert TOLERANCE == 0.02
    put_cube(engine, engine.view.goal[0] + np.array([0.0, distance, 0.0]), speed)
    assert engine.read().success[0] == solved


def test_a_cube_counts_as_held_only_between_fingers_that_touch_it(engine: MujocoEngine) -> None:
    def grasp_reward() -> float:
        return float(engine.read().info["reward_grasp"][0])

    put_cube(engine, engine.view.grasp_position[0])
    set_width(engine, 2 * HALF)
    assert grasp_reward() == 0.25
    set_width(engine, 0.08)
    assert grasp_reward() == 0.0
    set_width(engine, 2 * HALF)
    put_cube(engine, engine.view.grasp_position[0] + np.array([0.0, 0.0, -0.06]))
    assert grasp_reward() == 0.0


def test_the_dense_reward_rises_along_the_experts_path() -> None:
    engine = MujocoEngine(TASK, 10)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    env.reset(range(10))
    rewards = [env.step(engine.expert_action()).reward.mean() for _ in range(50)]
    tenth = len(rewards) // 10
    assert np.mean(rewards[-tenth:]) > np.mean(rewards[:tenth]) + 0.3


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


def test_relative_observations_do_not_depend_on_the_place_on_the_table(
    engine: MujocoEngine,
) -> None:
    fields, apart = TASK.observations, np.array([0.01, -0.02, -0.03])
    gripper, goal = engine.view.grasp_position[0], engine.view.goal[0]
    put_cube(engine, gripper + apart)
    np.testing.assert_allclose(fields["cube_offset"].read(engine.view)[0], apart, atol=1e-9)
    np.testing.assert_allclose(
        fields["goal_offset"].read(engine.view)[0], goal - gripper - apart, atol=1e-9
    )
    np.testing.assert_allclose(fields["hand_turn"].read(engine.view), engine.view.grasp_pose[:, 3:])
    velocity = fields["hand_velocity"].read(engine.view)
    np.testing.assert_allclose(velocity, engine.view.grasp_velocity[:, :3])
