"""Inverse kinematics and Jacobians of every robot, rotation vectors."""

from __future__ import annotations

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.catalog import ROBOTS
from robots.franka.kinematics import (
    batched_jacobian,
    batched_rotation_vector,
    inverse_kinematics,
    rotation_vector,
)
from robots.franka.robot import Robot

every_robot = pytest.mark.parametrize("robot", [find_robot(name) for name in ROBOTS], ids=ROBOTS)


def postures(robot: Robot, count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.uniform(robot.limits.q_min, robot.limits.q_max, size=(count, robot.num_joints))


@every_robot
def test_jacobian_equals_finite_differences(robot: Robot) -> None:
    h = 1e-6
    for q in postures(robot, 5):
        J = robot.chain.jacobian(q)
        for i, dq in enumerate(h * np.eye(robot.num_joints)):
            after = robot.chain.forward_kinematics(q + dq)
            before = robot.chain.forward_kinematics(q - dq)
            np.testing.assert_allclose(
                J[:3, i], (after[:3, 3] - before[:3, 3]) / (2 * h), atol=1e-8
            )
            np.testing.assert_allclose(
                J[3:, i], rotation_vector(after[:3, :3] @ before[:3, :3].T) / (2 * h), atol=1e-8
            )


@pytest.mark.parametrize(
    ("rotation", "vector"),
    [
        (np.eye(3), [0, 0, 0]),
        ([[0, -1, 0], [1, 0, 0], [0, 0, 1]], [0, 0, np.pi / 2]),
        (np.diag([1.0, -1.0, -1.0]), [np.pi, 0, 0]),
        (np.diag([-1.0, -1.0, 1.0]), [0, 0, np.pi]),
    ],
)
def test_rotation_vector_of_quarter_and_half_turns(
    rotation: np.ndarray, vector: list[float]
) -> None:
    np.testing.assert_allclose(
        rotation_vector(np.asarray(rotation, dtype=float)), vector, atol=1e-12
    )


@every_robot
def test_inverse_kinematics_reaches_the_target_within_the_limits(robot: Robot) -> None:
    target = robot.chain.forward_kinematics(robot.q_home)
    target[:3, 3] += [0.1, -0.15, -0.2]
    q = inverse_kinematics(robot, target, robot.q_home)
    np.testing.assert_allclose(robot.chain.forward_kinematics(q), target, atol=2e-6)
    assert ((q > robot.limits.q_min) & (q < robot.limits.q_max)).all()


def test_inverse_kinematics_keeps_the_limits_of_its_own_robot() -> None:
    """Both arms have the same links, but the elbow of a Panda stretches 0.047 rad further."""
    fr3, panda = find_robot("fr3"), find_robot("panda")
    stretched = np.array([0.0, 0.5, 0.0, -0.09, 0.0, 1.0, 0.7])
    target = panda.chain.forward_kinematics(stretched)
    solved = inverse_kinematics(panda, target, stretched, margin=0.01)
    np.testing.assert_array_equal(solved, stretched)
    with pytest.raises(HandoffError, match="fr3: no joint positions"):
        inverse_kinematics(fr3, target, stretched, margin=0.01)


@every_robot
def test_inverse_kinematics_returns_a_seed_that_already_solves_it(robot: Robot) -> None:
    target = robot.chain.forward_kinematics(robot.q_home)
    np.testing.assert_array_equal(inverse_kinematics(robot, target, robot.q_home), robot.q_home)


@every_robot
def test_inverse_kinematics_refuses_a_target_out_of_reach(robot: Robot) -> None:
    target = robot.chain.forward_kinematics(robot.q_home)
    target[0, 3] = 1.5
    with pytest.raises(HandoffError, match=f"{robot.name}: .* reach"):
        inverse_kinematics(robot, target, robot.q_home)


@every_robot
def test_batched_jacobian_at_the_flange_equals_that_of_single_arms(robot: Robot) -> None:
    q = postures(robot, 6)
    positions, rotations = robot.chain.batched_joint_frames(q)
    batch = batched_jacobian(positions, rotations, positions[:, -1])
    single = np.stack([robot.chain.jacobian(row) for row in q])
    np.testing.assert_allclose(batch, single, atol=1e-12)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 0.3, 3.0, np.pi])
def test_batched_rotation_vectors_give_back_axis_and_angle(angle: float) -> None:
    axis = np.array([2.0, -1.0, 2.0]) / 3.0
    K = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    rotation = np.eye(3) + np.sin(angle) * K + (1 - np.cos(angle)) * K @ K
    found = batched_rotation_vector(np.stack([rotation, np.eye(3)]))
    np.testing.assert_allclose(np.abs(found[0]), np.abs(angle * axis), atol=1e-7)
    np.testing.assert_allclose(found[1], 0.0, atol=1e-12)
    np.testing.assert_allclose(found[0], rotation_vector(rotation), atol=1e-7)


@pytest.mark.parametrize(
    "axis", [[1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.6, -0.8], [-0.48, 0.6, 0.64]]
)
def test_batched_half_turns_are_those_of_one(axis: list[float]) -> None:
    rotation = 2.0 * np.outer(axis, axis) - np.eye(3)
    found = batched_rotation_vector(np.stack([np.eye(3), rotation]))
    np.testing.assert_allclose(found[1], rotation_vector(rotation), atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(found[1]), np.pi, atol=1e-12)
