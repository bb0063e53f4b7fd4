import numpy as np
import pytest

from robots.control.rotations import NAMES, SIZES, RotationForm, convert_rotation
from robots.errors import HandoffError

FORMS = sorted(SIZES)


@pytest.fixture
def quaternions():
    rng = np.random.default_rng(0)
    random = rng.normal(size=(200, 4))
    half_turns = np.eye(4)
    near_zero = np.array([[1.0, 1e-9, 0.0, 0.0], [1.0, 0.0, 2e-5, 0.0]])
    return np.concatenate([random, half_turns, near_zero])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_keeps_the_rotation(quaternions, form):
    there = convert_rotation(quaternions, "quaternion_wxyz", form)
    assert there.shape == (len(quaternions), SIZES[form])
    assert len(NAMES[form]) == SIZES[form]
    back = convert_rotation(there, form, "matrix")
    expected = convert_rotation(quaternions, "quaternion_wxyz", "matrix")
    np.testing.assert_allclose(back, expected, atol=1e-7)


def test_a_quarter_turn_about_z_in_every_form():
    half = np.sqrt(0.5)
    quarter = np.array([[half, 0.0, 0.0, half]])
    expected: dict[RotationForm, list[float]] = {
        "quaternion_wxyz": [half, 0, 0, half],
        "quaternion_xyzw": [0, 0, half, half],
        "rotation_vector": [0, 0, np.pi / 2],
        "euler_xyz": [0, 0, np.pi / 2],
        "matrix": [0, -1, 0, 1, 0, 0, 0, 0, 1],
        "rotation_6d": [0, -1, 0, 1, 0, 0],
    }
    for form, entries in expected.items():
        found = convert_rotation(quarter, "quaternion_wxyz", form)
        np.testing.assert_allclose(found[0], entries, atol=1e-12, err_msg=form)


def test_euler_angles_turn_about_fixed_axes_x_first():
    def about(axis, angle):
        vector = np.zeros((1, 3))
        vector[0, axis] = angle
        return convert_rotation(vector, "rotation_vector", "matrix").reshape(3, 3)

    angles = np.array([[0.3, -0.5, 0.9]])
    expected = about(2, 0.9) @ about(1, -0.5) @ about(0, 0.3)
    found = convert_rotation(angles, "euler_xyz", "matrix").reshape(3, 3)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_quaternions_of_a_motion_are_continuous():
    angle = np.linspace(0.0, 4.0 * np.pi, 100)
    vectors = np.stack([0.0 * angle, 0.0 * angle, (angle + np.pi) % (2 * np.pi) - np.pi], axis=-1)
    quaternions = convert_rotation(vectors, "rotation_vector", "quaternion_wxyz")
    assert np.abs(np.diff(quaternions, axis=0)).max() < 0.1


def test_a_quaternion_of_zeros_and_a_wrong_size_are_refused():
    with pytest.raises(HandoffError, match="no quaternion_xyzw"):
        convert_rotation(np.array([[1.0, 0, 0, 0], [0, 0, 0, 0]]), "quaternion_xyzw", "matrix")
    with pytest.raises(HandoffError, match="row 1 has an axis"):
        convert_rotation(
            np.array([[1.0, 0, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0]]), "rotation_6d", "matrix"
        )
    with pytest.raises(HandoffError, match=r"expected \(N, 4\) of the form quaternion_wxyz"):
        convert_rotation(np.zeros((2, 3)), "quaternion_wxyz", "matrix")
