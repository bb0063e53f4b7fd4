# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

import dataclasses

import mujoco
import numpy as np
import pytest

from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.make import find_task
from sim.scene.view import View
from sim.tasks.cable_route import (
    ANCHOR,
    CLIP_HIGH,
    CLIP_LOW,
    LENGTH,
    SEGMENTS,
    START_HIGH,
    START_LOW,
)
from sim.tasks.fixture import fixture_pose
from sim.tasks.task import ExpertTarget
from sim.vec_env import EngineVecEnv, VecEnvConfig

TASK = find_task("cable_route")


@pytest.fixture
def engine() -> MujocoEngine:
    engine = MujocoEngine(TASK, 1)
    engine.reset(np.array([0]), np.array([0]))
    return engine


def stretch(
    engine: MujocoEngine, clip: tuple[float, float, float], heading: float = 0.0, rise: float = 0.0
) -> None:
    """A straight cable from the anchor, and the clip at x, y [m], yaw [rad]."""
    for i in range(SEGMENTS):
        engine.qpos[0, engine.layout.qpos[f"cable{i}_turn"]] = heading if i == 0 else 0.0
        engine.qpos[0, engine.layout.qpos[f"cable{i}_bend"]] = -rise if i == 0 else 0.0
    for joint, value in zip(("clip_x", "clip_y", "clip_yaw"), clip, strict=True):
        engine.qpos[0, engine.layout.qpos[joint]] = value
    engine._changed()


def solved_by(engine: MujocoEngine, steps: int) -> np.ndarray:
    """(N,) which environments the expert solves from seeds 0..N-1."""
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    env.reset(range(engine.num_envs))
    solved = np.zeros(engine.num_envs, dtype=bool)
    for _ in range(steps):
        solved |= env.step(engine.expert_action()).info["success"]
    return solved


def test_the_compiled_throat_is_1_mm_narrower_than_the_cable_and_the_slot_2_mm_wider(
    engine: MujocoEngine,
) -> None:
    data = mujoco.MjData(engine.model)
    stretch(engine, (0.5, 0.0, 0.0))
    data.qpos[:] = engine.qpos[0]
    mujoco.mj_forward(engine.model, data)

    def gap(left: str, right: str) -> float:
        radii = engine.model.geom(left).size[0] + engine.model.geom(right).size[0]
        return float(data.geom(left).xpos[1] - data.geom(right).xpos[1] - radii)

    cable = 2.0 * engine.model.geom("cable0").size[0]
    assert gap("post_left_lip", "post_right_lip") == pytest.approx(cable - 0.001, abs=1e-12)
    assert gap("post_left", "post_right") == pytest.approx(cable + 0.002, abs=1e-12)


def test_the_points_of_a_bent_cable_are_those_of_the_engine() -> None:
    engine = MujocoEngine(TASK, 5)
    engine.reset(np.arange(5), np.arange(5))
    points = engine.read().observation["cable"].reshape(5, SEGMENTS + 2, 3)
    data = mujoco.MjData(engine.model)
    for qpos, line in zip(engine.qpos, points, strict=True):
        data.qpos[:] = qpos
        mujoco.mj_forward(engine.model, data)
        bodies = np.array([data.body(f"cable{i}").xpos for i in range(SEGMENTS)])
        np.testing.assert_allclose(line[:SEGMENTS], bodies, atol=1e-6)
        np.testing.assert_allclose(line[-1], data.geom("plug").xpos, atol=1e-6)


def test_starts_lie_in_the_stated_bounds_unsolved_and_penetrate_nothing() -> None:
    engine = MujocoEngine(TASK, 40)
    engine.reset(np.arange(40), np.arange(40))
    clip = fixture_pose(engine.view, "clip")
    assert ((clip[:, :2] >= CLIP_LOW[:2]) & (clip[:, :2] <= CLIP_HIGH[:2])).all()
    start = np.stack([engine.view.joint("cable0_turn"), -engine.view.joint("cable0_bend")], axis=1)
    assert ((start >= START_LOW[:2]) & (start <= START_HIGH[:2])).all()
    reading = engine.read()
    assert not reading.success.any()
    assert not reading.terminated.any()
    data = mujoco.MjData(engine.model)
    for qpos in engine.qpos:
        data.qpos[:] = qpos
        mujoco.mj_forward(engine.model, data)
        assert min((contact.dist for contact in data.contact), default=0.0) > -1e-5


@pytest.mark.parametrize(
    ("clip", "heading", "rise", "solved"),
    [
        ((0.50, 0.0, 0.0), 0.0, 0.0, True),  # 20 mm above the table; below 28 mm is required
        ((0.50, 0.0, 0.0), 0.0, np.arctan(0.0079 / 0.16), True),
        ((0.50, 0.0, 0.0), 0.0, np.arctan(0.0081 / 0.16), False),
        ((0.50, 0.0, 0.0), np.arctan(0.0039 / 0.16), 0.0, True),
        ((0.50, 0.0, 0.0), np.arctan(0.0041 / 0.16), 0.0, False),
        ((0.66 - LENGTH + 0.001, 0.0, 0.0), 0.0, 0.0, True),
        ((0.66 - LENGTH - 0.001, 0.0, 0.0), 0.0, 0.0, False),  # the plug does not reach the clip
    ],
)
def test_success_is_a_cable_between_the_posts_below_28_mm(
    engine: MujocoEngine,
    clip: tuple[float, float, float],
    heading: float,
    rise: float,
    solved: bool,
) -> None:
    stretch(engine, clip, heading, rise)
    assert engine.read().success[0] == solved


def test_a_plug_that_lies_away_from_the_gripper_is_dropped(engine: MujocoEngine) -> None:
    assert not engine.read().terminated[0]
    stretch(engine, (0.5, 0.05, 0.0), heading=1.0)
    assert engine.read().terminated[0]


def test_the_throat_holds_a_cable_that_lies_on_it(engine: MujocoEngine) -> None:
    """A loose cable, released between the balls, rests on them: it has to be pressed in."""
    stretch(engine, (0.52, 0.0, 0.0), rise=np.arctan((0.0485 - ANCHOR[2]) / 0.14))
    # Out of the way: the gripper holds nothing.
    engine.qpos[0, 0] = 1.5
    engine._changed()
    step = np.zeros((1, 4))
    for _ in range(20):
        engine.step(step, np.array([True]))
    assert not engine.read().success[0]


def test_the_expert_routes_the_cable() -> None:
    assert solved_by(MujocoEngine(TASK, 20), 80).sum() >= 19


def test_the_expert_routes_the_cable_in_randomised_environments() -> None:
    assert solved_by(MujocoEngine(TASK, 10, MujocoConfig(randomized=True)), 90).all()


def test_an_expert_that_believes_the_clip_12_mm_aside_fails() -> None:
    def misled(view: View) -> ExpertTarget:
        qpos = view.qpos.copy()
        qpos[:, view.layout.qpos["clip_y"]] += 0.012
        return TASK.expert(View(view.layout, qpos, view.qvel, view.target, view.goal))

    assert not solved_by(MujocoEngine(dataclasses.replace(TASK, expert=misled), 10), 70).any()


def test_random_actions_do_not_route_the_cable() -> None:
    env = EngineVecEnv(MujocoEngine(TASK, 10), VecEnvConfig(on_end="freeze"))
    env.reset(range(10))
    step = env.step(np.random.default_rng(0).uniform(-1, 1, (10, TASK.max_steps, 4)))
    assert not step.info["success"].any()


def test_the_expert_takes_over_after_random_actions() -> None:
    engine = MujocoEngine(TASK, 10)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    env.reset(range(10))
    env.step(np.random.default_rng(0).uniform(-1, 1, (10, 15, 4)))
    solved = np.zeros(10, dtype=bool)
    for _ in range(TASK.max_steps - 15):
        solved |= env.step(engine.expert_action()).info["success"]
    assert solved.all()


def test_the_dense_reward_rises_along_the_experts_path() -> None:
    engine = MujocoEngine(TASK, 5)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    env.reset(range(5))
    ways = np.array([env.step(engine.expert_action()).reward for _ in range(80)])
    for way in ways.T:
        lived = way[: np.flatnonzero(way)[-1] + 1]
        assert (np.diff(lived) < -1e-3).mean() < 0.1
        assert lived[0] < lived[len(lived) // 2] < lived[-1] - 0.2
