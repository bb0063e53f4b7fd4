# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false
import mujoco
import numpy as np
import pytest

from robots.errors import HandoffError
from robots.franka import fr3
from robots.franka.kinematics import (
    batched_jacobian,
    batched_joint_frames,
    batched_rotation_vector,
    forward_kinematics,
    inverse_kinematics,
    jacobian,
    joint_frames,
    rotation_vector,
)


def postures(count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(fr3.Q_MIN, fr3.Q_MAX, size=(count, 7))


def test_flange_stands_at_frankas_published_place_in_the_home_posture() -> None:
    np.testing.assert_allclose(
        forward_kinematics(fr3.Q_HOME)[:3, 3], [0.306891, 0.0, 0.590282], atol=1e-6
    )


def test_flange_of_the_upright_arm_is_the_sum_of_the_link_lengths() -> None:
    pose = forward_kinematics(np.zeros(7))
    np.testing.assert_allclose(pose[:3, 3], [0.088, 0.0, 0.333 + 0.316 + 0.384 - 0.107], atol=1e-12)
    np.testing.assert_allclose(pose[:3, :3], np.diag([1, -1, -1]), atol=1e-12)


def test_kinematics_equal_the_compiled_model() -> None:
    model = mujoco.MjModel.from_xml_path(str(fr3.MODEL_XML))
    data = mujoco.MjData(model)
    site = model.site("fr3_flange").id
    for q in postures(20):
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        J = np.empty((6, 7))
        mujoco.mj_jacSite(model, data, J[:3], J[3:], site)
        pose = forward_kinematics(q)
        np.testing.assert_allclose(pose[:3, 3], data.site_xpos[site], atol=1e-9)
        np.testing.assert_allclose(pose[:3, :3], data.site_xmat[site].reshape(3, 3), atol=1e-9)
        np.testing.assert_allclose(jacobian(q), J, atol=1e-9)


def test_jacobian_equals_finite_differences() -> None:
    h = 1e-6
    for q in postures(5):
        J = jacobian(q)
        for i, dq in enumerate(h * np.eye(7)):
            after, before = forward_kinematics(q + dq), forward_kinematics(q - dq)
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


def test_inverse_kinematics_reaches_the_target_within_the_limits() -> None:
    target = forward_kinematics(fr3.Q_HOME)
    target[:3, 3] += [0.1, -0.15, -0.2]
    q = inverse_kinematics(target, fr3.Q_HOME)
    np.testing.assert_allclose(forward_kinematics(q), target, atol=2e-6)
    assert ((q > fr3.Q_MIN) & (q < fr3.Q_MAX)).all()


def test_inverse_kinematics_returns_a_seed_that_already_solves_it() -> None:
    np.testing.assert_array_equal(
        inverse_kinematics(forward_kinematics(fr3.Q_HOME), fr3.Q_HOME), fr3.Q_HOME
    )


def test_inverse_kinematics_refuses_a_target_out_of_reach() -> None:
    target = forward_kinematics(fr3.Q_HOME)
    target[0, 3] = 1.5
    with pytest.raises(HandoffError, match="reach"):
        inverse_kinematics(target, fr3.Q_HOME)


def test_batched_frames_equal_those_of_single_arms() -> None:
    q = postures(6)
    positions, rotations = batched_joint_frames(q)
    for i in range(6):
        frames = joint_frames(q[i])
        np.testing.assert_allclose(positions[i], frames[:, :3, 3], atol=1e-12)
        np.testing.assert_allclose(rotations[i], frames[:, :3, :3], atol=1e-12)


def test_batched_jacobian_at_the_flange_equals_that_of_single_arms() -> None:
    q = postures(6)
    positions, rotations = batched_joint_frames(q)
    batch = batched_jacobian(positions, rotations, positions[:, 7])
    np.testing.assert_allclose(batch, np.stack([jacobian(row) for row in q]), atol=1e-12)


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
