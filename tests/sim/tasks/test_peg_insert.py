# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

import dataclasses

import mujoco
import numpy as np
import pytest

from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.make import find_task
from sim.scene.view import View
from sim.tasks.fixture import fixture_pose
from sim.tasks.peg_insert import PEG_LENGTH, SOCKET_HIGH, SOCKET_LOW, START_HIGH, START_LOW
from sim.tasks.task import ExpertTarget
from sim.vec_env import EngineVecEnv, VecEnvConfig

TASK = find_task("peg_insert")

SOCKET = np.array([0.5, 0.05, 0.3])
X_OF_SOCKET = np.array([np.cos(0.3), np.sin(0.3), 0.0])


@pytest.fixture
def engine() -> MujocoEngine:
    engine = MujocoEngine(TASK, 1)
    engine.reset(np.array([0]), np.array([0]))
    return engine


def put(engine: MujocoEngine, tip: np.ndarray, tilt: float = 0.0) -> None:
    """The socket at SOCKET; the peg's tip at `tip`, the peg square to the socket and tilted about
    its y axis."""
    for joint, value in zip(("socket_x", "socket_y", "socket_yaw"), SOCKET, strict=True):
        engine.qpos[0, engine.layout.qpos[joint]] = value
    axis = np.sin(tilt) * X_OF_SOCKET + np.array([0.0, 0.0, np.cos(tilt)])
    c, s, ct, st = np.cos(0.15), np.sin(0.15), np.cos(tilt / 2), np.sin(tilt / 2)
    a = engine.layout.qpos["peg"]
    engine.qpos[0, a : a + 3] = tip + axis * PEG_LENGTH / 2
    engine.qpos[0, a + 3 : a + 7] = [c * ct, -s * st, c * st, s * ct]
    engine._changed()


def solved_by(engine: MujocoEngine, steps: int) -> np.ndarray:
    """(N,) which environments the expert solves from seeds 0..N-1."""
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    env.reset(range(engine.num_envs))
    solved = np.zeros(engine.num_envs, dtype=bool)
    for _ in range(steps):
        solved |= env.step(engine.expert_action()).info["success"]
    return solved


def test_the_compiled_hole_is_1_mm_wider_than_the_peg(engine: MujocoEngine) -> None:
    model = engine.model
    right, left, back, front = (model.geom(f"wall{i}") for i in range(4))
    width_x = (right.pos[0] - right.size[0]) - (left.pos[0] + left.size[0])
    width_y = (back.pos[1] - back.size[1]) - (front.pos[1] + front.size[1])
    peg = 2.0 * model.geom("peg").size
    np.testing.assert_allclose([width_x - peg[0], width_y - peg[1]], 0.001, atol=1e-12)
    np.testing.assert_allclose(
        [peg[0], peg[1], peg[2], 2.0 * right.size[2]], [0.016, 0.016, 0.090, 0.030], atol=1e-12
    )


def test_starts_lie_in_the_stated_bounds_upright_and_touch_the_pads_alone() -> None:
    engine = MujocoEngine(TASK, 40)
    engine.reset(np.arange(40), np.arange(40))
    socket = fixture_pose(engine.view, "socket")
    assert ((socket >= SOCKET_LOW) & (socket <= SOCKET_HIGH)).all()
    gripper = engine.view.grasp_pose[:, [0, 1, 2, 5]]
    assert ((gripper >= START_LOW - 1e-5) & (gripper <= START_HIGH + 1e-5)).all()
    assert np.abs(engine.view.grasp_pose[:, 3:5]).max() < 1e-5
    reading = engine.read()
    assert not reading.success.any()
    assert not reading.terminated.any()
    data = mujoco.MjData(engine.model)
    for qpos in engine.qpos:
        data.qpos[:] = qpos
        mujoco.mj_forward(engine.model, data)
        assert min(contact.dist for contact in data.contact) > -1e-5
        touching = {
            engine.model.geom(geom).name for contact in data.contact for geom in contact.geom
        }
        assert touching <= {"peg", "finger_left_pad", "finger_right_pad"}


def test_the_gripper_holds_the_peg_still_by_friction() -> None:
    env = EngineVecEnv(MujocoEngine(TASK, 10), VecEnvConfig(on_end="freeze"))
    before = env.reset(range(10))
    after = env.step(np.zeros((10, 20, 4))).observation
    held = [obs["peg_position"] - obs["grasp_pose"][:, :3] for obs in (before, after)]
    assert np.abs(held[1] - held[0]).max() < 5e-4


@pytest.mark.parametrize(
    ("sideways", "height", "tilt_deg", "solved"),
    [
        (0.0, 0.0059, 0.0, True),  # 24.1 mm deep of 30; 24 are required
        (0.0, 0.0061, 0.0, False),
        (0.0004, 0.0, 0.0, True),
        (0.0400, 0.0, 0.0, False),  # on the table beside the socket
        (0.0, 0.0059, 2.9, True),
        (0.0, 0.0059, 3.1, False),
    ],
)
def test_success_is_an_upright_peg_in_the_hole_deeper_than_24_mm(
    engine: MujocoEngine, sideways: float, height: float, tilt_deg: float, solved: bool
) -> None:
    put(engine, np.array([*SOCKET[:2], height]) + sideways * X_OF_SOCKET, np.deg2rad(tilt_deg))
    assert engine.read().success[0] == solved


@pytest.mark.parametrize(("slip", "lost"), [(0.0, False), (0.025, False), (0.035, True)])
def test_a_peg_3_cm_from_its_place_in_the_gripper_is_dropped(
    engine: MujocoEngine, slip: float, lost: bool
) -> None:
    put(engine, engine.view.grasp_position[0] - np.array([0.0, 0.0, PEG_LENGTH / 2 + 0.015 + slip]))
    assert engine.read().terminated[0] == lost


def test_the_reward_of_depth_is_its_share_of_the_hole(engine: MujocoEngine) -> None:
    put(engine, np.array([*SOCKET[:2], 0.015]))
    assert engine.read().info["reward_insert"][0] == pytest.approx(0.25 * 0.5)
    put(engine, np.array([*SOCKET[:2], 0.050]))
    assert engine.read().info["reward_insert"][0] == 0.0


def test_the_expert_inserts_the_peg() -> None:
    assert solved_by(MujocoEngine(TASK, 20), 90).sum() >= 19


def test_the_expert_inserts_the_peg_in_randomised_environments() -> None:
    assert solved_by(MujocoEngine(TASK, 10, MujocoConfig(randomized=True)), 100).all()


def test_an_expert_that_believes_the_hole_1_mm_aside_fails() -> None:
    def misled(view: View) -> ExpertTarget:
        qpos = view.qpos.copy()
        qpos[:, view.layout.qpos["socket_x"]] += 0.001
        return TASK.expert(View(view.layout, qpos, view.qvel, view.target, view.goal))

    assert not solved_by(MujocoEngine(dataclasses.replace(TASK, expert=misled), 10), 90).any()


def test_random_actions_do_not_insert_the_peg() -> None:
    env = EngineVecEnv(MujocoEngine(TASK, 10), VecEnvConfig(on_end="freeze"))
    env.reset(range(10))
    step = env.step(np.random.default_rng(0).uniform(-1, 1, (10, TASK.max_steps, 4)))
    assert not step.info["success"].any()
    assert step.truncated.all()


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
    ways = np.array([env.step(engine.expert_action()).reward for _ in range(90)])
    for way in ways.T:
        lived = way[: np.flatnonzero(way)[-1] + 1]
        assert (np.diff(lived) < -1e-3).mean() < 0.1
        middle = lived[len(lived) // 2]
        assert lived[0] < middle < lived[-1] - 0.3


def test_the_lean_is_the_sine_of_the_tilt_along_the_base_axes(engine: MujocoEngine) -> None:
    for tilt in (0.0, 0.2, -0.4):
        put(engine, np.array([0.0, 0.0, 0.1]), tilt)
        lean = TASK.observations["lean"].read(engine.view)[0]
        np.testing.assert_allclose(lean, np.sin(tilt) * X_OF_SOCKET[:2], atol=1e-9)
