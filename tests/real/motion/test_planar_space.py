import numpy as np
import pytest

from real.motion.planar_space import Plane, PlaneConfig
from robots.control.actions import Motion
from robots.errors import HandoffError


def test_board_centre_lies_in_front_of_the_base_with_the_pusher_pointing_down():
    pose = Plane(PlaneConfig()).pose(np.array([0.256, 0.256]))
    np.testing.assert_allclose(pose[:3, 3], [0.52, 0.0, 0.004], atol=1e-12)
    np.testing.assert_allclose(pose[:3, :3], np.diag([1.0, -1.0, -1.0]), atol=1e-12)


def test_board_x_is_base_minus_y_and_board_y_is_base_minus_x():
    motion = Motion(np.array([0.1, 0.2]), np.array([0.3, 0.0]), np.array([0.0, 2.0]))
    target = Plane(PlaneConfig()).target(motion)
    np.testing.assert_allclose(target.base_T_ee[:3, 3], [0.576, 0.156, 0.004], atol=1e-12)
    np.testing.assert_allclose(target.twist, [0.0, -0.3, 0.0, 0.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(target.acceleration, [-2.0, 0.0, 0.0, 0.0, 0.0, 0.0], atol=1e-12)


def test_position_reads_back_what_pose_was_made_for():
    plane = Plane(PlaneConfig(height=0.05))
    np.testing.assert_allclose(
        plane.position(plane.pose(np.array([0.12, 0.4]))), [0.12, 0.4], atol=1e-12
    )


def test_a_lifted_pusher_stands_over_the_same_point():
    plane = Plane(PlaneConfig(height=0.004))
    low, high = plane.pose(np.array([0.12, 0.4])), plane.pose(np.array([0.12, 0.4]), 0.1)
    np.testing.assert_allclose(high[:3, 3] - low[:3, 3], [0.0, 0.0, 0.1], atol=1e-12)
    np.testing.assert_array_equal(high[:3, :3], low[:3, :3])


def test_axes_that_are_no_frame_are_refused():
    with pytest.raises(HandoffError, match=r"board axes .* not orthonormal"):
        Plane(PlaneConfig(x_axis=(0.0, -1.0, 0.1)))
    with pytest.raises(HandoffError, match=r"tool axes .* not orthonormal"):
        Plane(PlaneConfig(tool_x_axis=(0.0, 0.0, 1.0)))
