import dataclasses

import numpy as np
import pytest

from robots.control.actions import AgentDynamics, CartesianDelta, PdTarget
from robots.control.agent_reference import AgentReference
from robots.franka import find_robot
from robots.franka.kinematics import inverse_kinematics
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.make import find_task
from sim.tasks.push_t import expert, geometry
from sim.tasks.push_t.task import TEE, block_pose
from sim.vec_env import EngineVecEnv, VecEnvConfig

FR3 = find_robot("fr3")

TASK = find_task("push_t")

PARKED = np.array([0.256, 0.256, np.pi / 4])


def placed(agent: np.ndarray, block: np.ndarray, task=TASK) -> MujocoEngine:
    """Environments at rest with the pusher over `agent` (N, 2) and the block at `block` (N, 3)."""
    engine = MujocoEngine(task, len(agent))
    rows = np.arange(len(agent))
    engine.reset(rows, rows)
    state = engine.save()
    a = engine.layout.qpos[TEE]
    for i in rows:
        qpos = state["physics"][i, 1:]
        qpos[:7] = inverse_kinematics(
            FR3, geometry.flange_target(agent[i]), geometry.Q_BOARD_CENTRE
        )
        qpos[a : a + 7] = geometry.base_pose_of_tee(block[i])
        state["target"][i, :3] = geometry.base_from_board(agent[i], geometry.PUSHER_CLEARANCE)
        state["target"][i, 3:] = 0.0
    state["ctrl"][:, :6] = state["target"][:, :6]
    engine.restore(rows, state)
    return engine


def agent_of(engine: MujocoEngine) -> np.ndarray:
    return geometry.board_from_base(engine.view.grasp_position)


def test_coverage_of_many_blocks_is_that_of_each() -> None:
    rng = np.random.default_rng(0)
    poses = geometry.GOAL_POSE + rng.normal(scale=[0.03, 0.03, 0.8], size=(200, 3))
    poses[:3] = geometry.GOAL_POSE + np.array(
        [[0.0, 0.0, 0.0], [0.0, 0.0, np.pi / 2], [0.0, 0.0, np.pi]]
    )
    each = [geometry.coverage(pose) for pose in poses]
    np.testing.assert_allclose(geometry.batched_coverage(poses), each, atol=2e-9)


def test_a_block_3_mm_too_far_along_its_stem_bares_3_mm_of_the_bar() -> None:
    along = np.array([-np.sin(np.pi / 4), np.cos(np.pi / 4), 0.0])
    pose = geometry.GOAL_POSE + 0.003 * along
    area = 0.120 * 0.030 + 0.030 * 0.090
    assert geometry.batched_coverage(pose[None])[0] == pytest.approx(1.0 - 0.120 * 0.003 / area)


def test_the_motion_of_many_agents_passes_the_knots_of_the_reference() -> None:
    space = PdTarget()
    start, targets = np.array([0.2, 0.3]), ((0.3, 0.3), (0.1, 0.4), (0.25, 0.25))
    reference = AgentReference(start, AgentDynamics())
    position, velocity = start[None], np.zeros((1, 2))
    for i, target in enumerate(targets):
        reference.push(np.array(target))
        motion = space.motion(position, velocity, np.array([target]), 0.1)
        assert motion.position.shape == (1, 10, 2)
        for k in range(10):
            expected = reference.sample(0.1 * i + 0.01 * (k + 1))
            np.testing.assert_allclose(motion.position[0, k], expected.position, atol=1e-12)
            np.testing.assert_allclose(motion.velocity[0, k], reference.velocity, atol=1e-12)
        position, velocity = motion.position[:, -1], motion.velocity[:, -1]


def test_targets_off_the_board_are_clipped() -> None:
    space, far = PdTarget(), np.array([[9.0, -9.0]])
    motion = space.motion(np.array([[0.2, 0.2]]), np.zeros((1, 2)), far, 0.1)
    limit = space.motion(
        np.array([[0.2, 0.2]]), np.zeros((1, 2)), np.array([[space.high[0], space.low[1]]]), 0.1
    )
    np.testing.assert_array_equal(motion.position, limit.position)


def test_the_action_space_is_the_board_of_the_scene() -> None:
    space, board = PdTarget(), np.array([[0.1, 0.2], [0.4, 0.05]])
    base = geometry.base_from_board(board, geometry.PUSHER_CLEARANCE)
    np.testing.assert_allclose(space.to_board(base), board, atol=1e-12)
    np.testing.assert_allclose(np.array(space.origin) + space.to_base(board), base, atol=1e-12)
    assert (space.low[0], space.high[0]) == geometry.AGENT_RANGE


def test_a_seed_starts_where_gym_pusht_does() -> None:
    engine = MujocoEngine(TASK, 6)
    seeds = np.array([3, 17, 100_000, 100_001, 100_002, 5])
    engine.reset(np.arange(6), seeds)
    for i, seed in enumerate(seeds):
        agent, pose = geometry.initial_state(int(seed))
        np.testing.assert_allclose(
            agent_of(engine)[i], geometry.clear_of_tee(agent, pose), atol=2e-6
        )
        np.testing.assert_allclose(block_pose(engine.view)[i], pose, atol=1e-9)


def test_the_pusher_keeps_up_with_the_agent_upright_and_at_its_height() -> None:
    agent = np.array([[0.10, 0.10], [0.40, 0.10], [0.10, 0.40], [0.40, 0.40]])
    engine = placed(agent, np.tile([0.256, 0.256, 0.0], (4, 1)))
    rng = np.random.default_rng(0)
    errors, target = [], agent
    for _ in range(20):
        target = np.clip(target + rng.normal(scale=0.010, size=(4, 2)), agent - 0.04, agent + 0.04)
        engine.step(target, np.ones(4, dtype=bool))
        commanded = engine.view.target[:, :3]
        errors.append(np.linalg.norm(engine.view.grasp_position - commanded, axis=1))
        assert np.abs(engine.view.grasp_pose[:, 2] - geometry.PUSHER_CLEARANCE).max() < 0.002
        assert np.abs(engine.view.grasp_pose[:, 3:]).max() < 0.02
    assert np.sqrt(np.mean(np.square(errors))) < 0.001


def test_the_agents_velocity_is_saved() -> None:
    engine = placed(np.array([[0.1, 0.1]]), PARKED[None])
    everyone, action = np.ones(1, dtype=bool), np.array([[0.2, 0.1]])
    engine.step(action, everyone)
    state = engine.save()
    assert np.linalg.norm(state["target"][0, 6:8]) > 0.1
    engine.step(action, everyone)
    expected = engine.qpos.copy()
    engine.restore(np.arange(1), state)
    engine.step(action, everyone)
    np.testing.assert_array_equal(engine.qpos, expected)


@pytest.mark.parametrize("offset", [0.0, 0.030])
def test_a_step_of_2_ms_pushes_the_block_to_where_1_ms_does(offset: float) -> None:
    poses = []
    for timestep in (0.001, 0.002):

        def scene(timestep: float = timestep):
            spec = TASK.scene()
            spec.option.timestep = timestep
            return spec

        engine = placed(
            np.array([[0.25 + offset, 0.18]]),
            np.array([[0.25, 0.20, 0.0]]),
            dataclasses.replace(TASK, scene=scene, timestep=timestep),
        )
        for k in range(15):
            engine.step(
                np.array([[0.25 + offset, 0.18 + 0.04 * min(1.0, 0.1 * (k + 1))]]),
                np.ones(1, dtype=bool),
            )
        poses.append(block_pose(engine.view)[0])
    assert poses[0][1] > 0.22 - 0.02 * (offset > 0)
    np.testing.assert_allclose(poses[0][:2], poses[1][:2], atol=0.001)
    assert poses[0][2] == pytest.approx(poses[1][2], abs=0.02)


def test_a_block_at_the_goal_scores_one_and_ends_the_episode() -> None:
    beside = np.array([0.0, 0.020, 0.0])
    engine = placed(
        np.tile([0.1, 0.1], (2, 1)), np.stack([geometry.GOAL_POSE, geometry.GOAL_POSE + beside])
    )
    reading = engine.read()
    assert reading.info["coverage"][0] == pytest.approx(1.0, abs=1e-6)
    assert reading.reward[0] == 1.0
    assert reading.reward[1] == pytest.approx(
        geometry.coverage(geometry.GOAL_POSE + beside) / 0.95, abs=1e-6
    )
    assert reading.success.tolist() == reading.terminated.tolist() == [True, False]


def test_a_block_off_the_board_ends_the_episode_unsolved() -> None:
    engine = placed(np.array([[0.1, 0.1]]), np.array([[0.60, 0.256, 0.0]]))
    reading = engine.read()
    assert reading.terminated[0]
    assert not reading.success[0]


def test_a_push_on_the_middle_of_the_bar_moves_the_block_straight() -> None:
    pushes = expert._pushes()
    middle = np.abs(pushes.contact[:, 0]) < 0.0021
    straight = np.flatnonzero(
        middle & (pushes.normal[:, 1] == -1.0) & (pushes.direction[:, 1] == 1.0)
    )
    motion = pushes.motion[straight].mean(axis=0)
    np.testing.assert_allclose(motion[:, 1], expert.LENGTHS, rtol=0.01)
    np.testing.assert_allclose(motion[:, [0, 2]], 0.0, atol=1e-9)


def test_the_way_to_the_far_side_goes_round_the_block() -> None:
    start, end = np.array([[0.0, -0.05]]), np.array([[0.0, 0.16]])
    beside = np.array([[0.09, -0.05]])
    assert not expert._free(start, end)[0]
    assert expert._free(start, beside)[0]


def test_the_expert_solves_what_it_is_given() -> None:
    engine = MujocoEngine(TASK, 6)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    env.reset(range(6))
    step = env.step(engine.expert_action())
    while not (step.terminated | step.truncated).all():
        step = env.step(engine.expert_action())
    assert step.info["success"].all()


def test_the_task_runs_in_other_action_spaces() -> None:
    engine = MujocoEngine(TASK, 2, MujocoConfig(actions=CartesianDelta(axes=("x", "y"))))
    engine.reset(np.arange(2), np.arange(2))
    before = engine.view.grasp_position.copy()
    engine.step(np.array([[1.0, 0.0], [0.0, 1.0]]), np.ones(2, dtype=bool))
    moved = engine.view.grasp_position - before
    assert moved[0, 0] > 0.005
    assert moved[1, 1] > 0.005


def test_push_t_is_found_by_its_name() -> None:
    assert find_task("push_t").name == "push_t"
