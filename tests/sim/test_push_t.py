import os
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.kinematics import inverse_kinematics
from sim.engines.opencv_substitute import importable_opencv
from sim.tasks.push_t import geometry
from sim.twin.push_t_world import PushTWorld

FR3 = find_robot("fr3")

DATA = Path(os.environ.get("HANDOFF_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
DEMONSTRATIONS = DATA / "pusht" / "pusht_cchi_v7_replay.zarr.zip"
FAR_AGENT = np.array([0.1, 0.4])
BLOCK = np.array([0.30, 0.20, 0.7])


@pytest.fixture(scope="module")
def gym_push_t() -> Any:
    with importable_opencv():
        return gymnasium.make("gym_pusht:gym_pusht/PushT-v0", obs_type="state").unwrapped


@pytest.fixture(scope="module")
def env() -> PushTWorld:
    return PushTWorld()


def test_coverage_is_one_at_the_goal_and_zero_far_away() -> None:
    assert geometry.coverage(geometry.GOAL_POSE) == pytest.approx(1.0)
    assert geometry.coverage(np.array([0.05, 0.05, 0.0])) == 0.0


def test_coverage_equals_gym_pushts_own(gym_push_t: Any) -> None:
    gym_push_t.reset(seed=0)
    rng = np.random.default_rng(1)
    for _ in range(50):
        pose = geometry.GOAL_POSE + rng.normal(scale=[0.02, 0.02, 0.5])
        gym_push_t.block.angle = pose[2]
        gym_push_t.block.position = tuple(1000.0 * pose[:2])
        assert geometry.coverage(pose) == pytest.approx(gym_push_t._get_coverage(), abs=1e-6)


def test_initial_state_equals_gym_pushts_reset(gym_push_t: Any) -> None:
    compared = 0
    for seed in range(100_000, 100_030):
        agent, pose = geometry.initial_state(seed)
        corners = geometry.tee_polygons(pose)
        if (
            corners.min() < 0.007
            or corners.max() > 0.504
            or (geometry.clear_of_tee(agent, pose) != agent).any()
        ):
            continue  # gym-pusht pushes the block out of the wall or the agent during the reset
        _, info = gym_push_t.reset(seed=seed)
        np.testing.assert_allclose(agent, 1e-3 * info["pos_agent"], atol=1e-12)
        np.testing.assert_allclose(pose, info["block_pose"] * [1e-3, 1e-3, 1], atol=1e-12)
        compared += 1
    assert compared >= 15


def test_an_agent_inside_the_block_is_moved_to_its_edge() -> None:
    pose = np.array([0.2, 0.2, 0.0])
    np.testing.assert_allclose(
        geometry.clear_of_tee(np.array([0.15, 0.201]), pose), [0.15, 0.2 - 0.017], atol=1e-4
    )
    np.testing.assert_array_equal(geometry.clear_of_tee(FAR_AGENT, pose), FAR_AGENT)


def test_keypoints_of_a_quarter_turn_are_worked_by_hand() -> None:
    points = geometry.keypoints(np.array([0.1, 0.2, np.pi / 2]))
    np.testing.assert_allclose(points[0], [0.1 - 0.09004097, 0.2 + 0.00926979], atol=1e-12)
    assert geometry.keypoints(np.zeros((4, 5, 3))).shape == (4, 5, 9, 2)


@pytest.mark.skipif(
    not DEMONSTRATIONS.exists(), reason="push-T demonstrations not found; set HANDOFF_DATA"
)
def test_keypoints_reproduce_the_demonstrations(tmp_path: Path) -> None:
    import zarr

    with zipfile.ZipFile(DEMONSTRATIONS) as archive:
        members = [
            n
            for n in archive.namelist()
            if n.startswith(("data/state/", "data/keypoint/", "data/.z", ".z"))
        ]
        archive.extractall(tmp_path, members)
    group = zarr.open_group(tmp_path, mode="r")
    state = np.asarray(group["data/state"], dtype=float)
    recorded = np.asarray(group["data/keypoint"], dtype=float)
    error = np.abs(1000.0 * geometry.keypoints(state[:, 2:] * [1e-3, 1e-3, 1]) - recorded)
    assert np.median(error) < 2e-5


def test_board_and_base_coordinates_are_inverse_and_right_handed() -> None:
    points = np.array([[0.0, 0.0], [0.256, 0.256], [0.1, 0.4]])
    base = geometry.base_from_board(points)
    np.testing.assert_allclose(base[0], [geometry.BOARD_CENTRE_X + 0.256, 0.256, 0.0])
    np.testing.assert_allclose(geometry.board_from_base(base), points)
    assert np.linalg.det(geometry.BASE_R_BOARD) == pytest.approx(1.0)


def test_the_agents_whole_range_is_in_reach_with_the_pusher_upright() -> None:
    for x in np.linspace(*geometry.AGENT_RANGE, 7):
        for y in np.linspace(*geometry.AGENT_RANGE, 7):
            q = inverse_kinematics(
                FR3, geometry.flange_target(np.array([x, y])), geometry.Q_BOARD_CENTRE
            )
            assert min((q - FR3.limits.q_min).min(), (FR3.limits.q_max - q).min()) > 0.095
            assert np.linalg.svd(FR3.chain.jacobian(q), compute_uv=False)[-1] > 0.06


def test_the_centre_posture_holds_the_pusher_over_the_boards_centre() -> None:
    expected = geometry.flange_target(geometry.BOARD_CENTRE)
    np.testing.assert_allclose(
        FR3.chain.forward_kinematics(geometry.Q_BOARD_CENTRE), expected, atol=2e-3
    )


def test_reset_places_pusher_and_block_where_asked(env: PushTWorld) -> None:
    placed = env.reset(FAR_AGENT, BLOCK)
    np.testing.assert_allclose(placed, FAR_AGENT, atol=2e-6)
    np.testing.assert_allclose(env.tee_pose(), BLOCK, atol=1e-6)
    assert env.base_T_ee[2, 3] == pytest.approx(geometry.PUSHER_CLEARANCE, abs=2e-6)
    assert env.time == 0.0


def test_end_effector_frame_agrees_with_the_kinematics(env: PushTWorld) -> None:
    env.reset(FAR_AGENT, BLOCK)
    for _ in range(20):
        env.step(np.array([3.0, -2.0, 1.0, 2.0, 0.5, -0.5, 0.3]))
    np.testing.assert_allclose(
        env.base_T_ee, FR3.chain.forward_kinematics(env.q) @ env.flange_T_ee, atol=1e-12
    )


def test_block_rests_still_without_a_push(env: PushTWorld) -> None:
    env.reset(FAR_AGENT, BLOCK)
    for _ in range(1000):
        env.step(np.zeros(7))
    assert np.linalg.norm(env.tee_pose()[:2] - BLOCK[:2]) < 1e-4
    assert abs(env.tee_pose()[2] - BLOCK[2]) < 1e-3
    np.testing.assert_allclose(env.agent_position(), FAR_AGENT, atol=1e-5)


def push_right(env: PushTWorld) -> np.ndarray:
    """Drives the pusher 0.1 m along board x in 1 s under joint impedance; returns the joint
    trajectory."""
    agent = env.reset(np.array([0.15, 0.215]), np.array([0.256, 0.2, 0.0]))
    q0 = env.q.copy()
    q1 = inverse_kinematics(FR3, geometry.flange_target(agent + np.array([0.1, 0.0])), q0)
    K, D = np.array([600, 600, 600, 600, 250, 150, 50.0]), np.array([50, 50, 50, 50, 20, 15, 10.0])
    record = []
    for i in range(1000):
        env.step(K * (q0 + (q1 - q0) * (i + 1) / 1000 - env.q) - D * env.dq)
        record.append(env.q.copy())
    return np.array(record)


def test_a_pushed_block_moves_and_pushes_back(env: PushTWorld) -> None:
    push_right(env)
    moved = env.tee_pose()[:2] - [0.256, 0.2]
    assert moved[0] > 0.02
    assert abs(env.tau_ext).max() > 0.01


def test_two_runs_are_bit_identical(env: PushTWorld) -> None:
    np.testing.assert_array_equal(push_right(env), push_right(env))


def test_pusher_inertials_are_those_of_the_capsule(env: PushTWorld) -> None:
    r, cylinder = 0.015, 0.090
    volume = np.pi * r**2 * cylinder + 4 / 3 * np.pi * r**3
    assert env.ee_mass == pytest.approx(geometry.PUSHER_DENSITY * volume)
    np.testing.assert_allclose(env.ee_com, [0, 0, 0.06], atol=1e-12)
    assert env.ee_inertia[0, 0] > 5 * env.ee_inertia[2, 2]


def test_a_torque_that_is_not_finite_is_refused_by_time_and_value(env: PushTWorld) -> None:
    env.reset(FAR_AGENT, BLOCK)
    with pytest.raises(HandoffError, match=r"nan.*at 0.000 s"):
        env.step(np.array([0, np.nan, 0, 0, 0, 0, 0]))


def test_a_state_that_is_not_finite_stops_the_world(env: PushTWorld) -> None:
    env.reset(FAR_AGENT, BLOCK)
    env.data.qvel[0] = np.inf
    with pytest.raises(HandoffError, match="state not finite"):
        env.step(np.zeros(7))
    env.reset(FAR_AGENT, BLOCK)
    np.testing.assert_allclose(env.tee_pose(), BLOCK, atol=1e-6)
