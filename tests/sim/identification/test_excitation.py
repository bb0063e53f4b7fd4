"""Exciting motions: within the limits of any robot, at rest at both ends, and informative."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.franka import find_robot
from sim.identification.config import ExcitationConfig
from sim.identification.excitation import exciting_targets, record_excitation, simulate
from sim.scene.dynamics import DynamicsValue

CONFIG = ExcitationConfig(motions=2, seconds=3.0)


@pytest.mark.parametrize("name", ["fr3", "fr3v2", "panda"])
def test_targets_keep_the_limits_of_the_robot_and_the_height(name: str) -> None:
    robot = find_robot(name)
    q = exciting_targets(CONFIG, robot, 0)
    assert q.shape == (301, robot.num_joints)
    assert np.abs(q - robot.q_home).max() <= CONFIG.amplitude + 1e-12
    assert ((q > robot.limits.q_min) & (q < robot.limits.q_max)).all()
    speed = np.diff(q, axis=0) * CONFIG.rate_hz
    low, high = robot.limits.velocity_limits(q[1:])
    assert (speed <= 0.5 * high + 1e-9).all()
    assert (speed >= 0.5 * low - 1e-9).all()
    acceleration = np.abs(np.diff(q, n=2, axis=0)) * CONFIG.rate_hz**2
    assert (acceleration <= 0.5 * robot.limits.ddq_max + 1e-9).all()
    positions, _ = robot.chain.batched_joint_frames(q)
    assert positions[:, 2:, 2].min() >= CONFIG.clearance
    assert np.ptp(q, axis=0).min() > 0.1


def test_a_motion_begins_and_ends_at_rest_in_the_ready_posture() -> None:
    robot = find_robot("fr3")
    q = exciting_targets(CONFIG, robot, 0)
    np.testing.assert_allclose(q[[0, -1]], np.tile(robot.q_home, (2, 1)), atol=1e-12)
    steps = np.abs(np.diff(q, axis=0))
    assert (steps[[0, -1]] < 5e-3 * steps.max(axis=0)).all()


def test_a_motion_depends_on_its_number_and_the_seed_alone() -> None:
    robot = find_robot("fr3")
    first = exciting_targets(CONFIG, robot, 0)
    np.testing.assert_array_equal(first, exciting_targets(CONFIG, robot, 0))
    assert np.abs(first - exciting_targets(CONFIG, robot, 1)).max() > 0.05
    assert np.abs(first - exciting_targets(replace(CONFIG, seed=1), robot, 0)).max() > 0.05


def test_impossible_motions_are_refused() -> None:
    robot = find_robot("fr3")
    with pytest.raises(HandoffError, match=r"comes within 2\.0 m of the table"):
        exciting_targets(replace(CONFIG, clearance=2.0), robot, 0)
    with pytest.raises(HandoffError, match=r"1\.0 s at 5\.0 Hz are 6 samples"):
        exciting_targets(replace(CONFIG, seconds=1.0, rate_hz=5.0), robot, 0)


def test_a_delay_shifts_the_measured_motion_by_its_samples() -> None:
    robot = find_robot("fr3")
    exact = replace(CONFIG, noise=0.0)
    target = exciting_targets(exact, robot, 0)
    prompt = simulate(exact, robot, target, 0)
    delayed = replace(exact, deviations=(DynamicsValue(what="delay", value=0.02),))
    late = simulate(delayed, robot, target, 0)
    np.testing.assert_allclose(late[2:], prompt[:-2], atol=1e-9)


def test_a_loaded_arm_starts_settled() -> None:
    robot = find_robot("fr3")
    loaded = replace(CONFIG, noise=0.0, deviations=(DynamicsValue(what="payload", value=1.0),))
    q = simulate(loaded, robot, np.tile(robot.q_home, (50, 1)), 0)
    assert np.abs(q[0] - robot.q_home).max() > 3e-3
    assert np.abs(q - q[0]).max() < 1e-4


def test_the_store_holds_commanded_and_measured_positions(tmp_path: Path) -> None:
    metrics = record_excitation(CONFIG, tmp_path / "store.zarr")
    store = EpisodeStore.open(tmp_path / "store.zarr")
    assert store.num_episodes == metrics["episodes"] == 2
    assert store.schema.robot == "fr3"
    arrays = store.read(1, "robot")
    np.testing.assert_array_equal(arrays["q_d"], exciting_targets(CONFIG, find_robot("fr3"), 1))
    assert 1e-4 < np.abs(arrays["q"] - arrays["q_d"]).max() < 0.2
    # Recorded again, the store is replaced.
    assert record_excitation(CONFIG, tmp_path / "store.zarr") == metrics
