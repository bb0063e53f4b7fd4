"""Calibration by rendered views of the board: known intrinsics and poses are recovered."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from real.cameras.calibration.board import BoardConfig, BoardFinder, save_board
from real.cameras.calibration.calibration_file import (
    add_to_file,
    calibration_of,
    picture_calibration,
    read_calibrations,
)
from real.cameras.calibration.hand_eye import fixed_pose, wrist_pose
from real.cameras.calibration.intrinsics import Intrinsics, calibrate_intrinsics
from real.cameras.calibration.views import MOST_VIEWS, ViewChoice
from real.cameras.camera import Picture
from real.cameras.config import CameraConfig
from robots.episodes.metadata.camera_calibration import CameraCalibration
from robots.errors import HandoffError
from robots.franka.kinematics import rotation_matrix, rotation_vector
from tests.real.cameras.calibration.boards import BOARD, MATRIX, SIZE, board_poses, seen


def chosen(poses: np.ndarray) -> tuple[ViewChoice, np.ndarray]:
    """The views of the board in these poses (N, 4, 4) that differ, and the poses of these."""
    finder, choice = BoardFinder(BOARD), ViewChoice(SIZE)
    kept = []
    for pose in poses:
        view = finder.view(seen(pose))
        if view is not None and choice.offer(view):
            kept.append(pose)
    return choice, np.array(kept)


@pytest.fixture(scope="module")
def calibrated() -> tuple[Intrinsics, np.ndarray]:
    """Intrinsics by rendered views, and the true poses of the board in these."""
    choice, poses = chosen(board_poses(25))
    return calibrate_intrinsics(BOARD, choice), poses


def off(found: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """Distance [m] and angle [degrees] between two poses (4, 4)."""
    turn = rotation_vector(found[:3, :3] @ true[:3, :3].T)
    return float(np.linalg.norm(found[:3, 3] - true[:3, 3])), float(
        np.degrees(np.linalg.norm(turn))
    )


def test_the_focal_length_is_recovered_within_one_percent(calibrated) -> None:
    intrinsics, _ = calibrated
    matrix = intrinsics.matrix
    assert matrix[0, 0] == pytest.approx(MATRIX[0, 0], rel=0.01)
    assert matrix[1, 1] == pytest.approx(MATRIX[1, 1], rel=0.01)
    np.testing.assert_allclose(matrix[:2, 2], MATRIX[:2, 2], atol=4.0)
    assert intrinsics.error < 0.3
    assert intrinsics.deviation < 0.005


def test_the_boards_pose_is_recovered_within_3_mm_and_half_a_degree(calibrated) -> None:
    intrinsics, poses = calibrated
    for found, true in zip(intrinsics.camera_T_board, poses, strict=True):
        metres, degrees = off(found, true)
        assert metres < 0.003
        assert degrees < 0.5


def random_pose(seed: int, spread: float = 0.5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    pose = np.eye(4)
    pose[:3, :3] = rotation_matrix(rng.uniform(-spread, spread, 3))
    pose[:3, 3] = rng.uniform(-0.2, 0.2, 3)
    return pose


def test_a_camera_on_the_gripper_is_located_within_3_mm_and_half_a_degree(calibrated) -> None:
    intrinsics, poses = calibrated
    grasp_T_camera, base_T_board = random_pose(1), random_pose(2)
    base_T_grasp = base_T_board @ np.linalg.inv(poses) @ np.linalg.inv(grasp_T_camera)
    found = wrist_pose(base_T_grasp, intrinsics.camera_T_board)
    metres, degrees = off(found.frame_T_camera, grasp_T_camera)
    assert metres < 0.003
    assert degrees < 0.5
    assert found.position_scatter < 0.002


def test_a_camera_beside_the_arm_is_located_within_3_mm_and_half_a_degree(calibrated) -> None:
    intrinsics, poses = calibrated
    base_T_camera, grasp_T_board = random_pose(3), random_pose(4)
    base_T_grasp = base_T_camera @ poses @ np.linalg.inv(grasp_T_board)
    found = fixed_pose(base_T_grasp, intrinsics.camera_T_board)
    metres, degrees = off(found.frame_T_camera, base_T_camera)
    assert metres < 0.003
    assert degrees < 0.5


def test_the_other_mount_does_not_fit(calibrated) -> None:
    intrinsics, poses = calibrated
    base_T_grasp = random_pose(3) @ poses @ np.linalg.inv(random_pose(4))
    with pytest.raises(HandoffError, match=r"--mount the other one"):
        wrist_pose(base_T_grasp, intrinsics.camera_T_board)


def test_few_poses_and_turns_about_one_axis_are_refused(calibrated) -> None:
    intrinsics, poses = calibrated
    with pytest.raises(HandoffError, match="5 views at which the arm stood still"):
        wrist_pose(poses[:5], intrinsics.camera_T_board[:5])
    turned = np.tile(np.eye(4), (len(poses), 1, 1))
    for pose, angle in zip(turned, np.linspace(-0.6, 0.6, len(poses)), strict=True):
        pose[:3, :3] = rotation_matrix(np.array([0.0, 0.0, angle]))
    with pytest.raises(HandoffError, match=r"turned by 0.0 degrees .* about a second axis"):
        wrist_pose(turned, intrinsics.camera_T_board)


def test_too_few_views_are_refused() -> None:
    choice, _ = chosen(board_poses(6))
    with pytest.raises(
        HandoffError,
        match=rf"{len(choice.views)} views of the board that differ, expected at least 10",
    ):
        calibrate_intrinsics(BOARD, choice)


def test_views_from_one_direction_are_refused() -> None:
    poses = board_poses(24, tilt=0.01)
    choice, _ = chosen(poses)
    assert len(choice.views) >= 10
    with pytest.raises(HandoffError, match=r"from directions within \d+ degrees"):
        calibrate_intrinsics(BOARD, choice)


def test_views_in_the_middle_are_refused() -> None:
    poses = board_poses(40)
    # Farther away the board fills less of the picture.
    poses[:, :3, 3] *= 3.5
    poses[:, :2, 3] -= poses[:, :2, 3].mean(axis=0)
    choice, _ = chosen(poses)
    while len(choice.views) < 10:
        choice.views.append(choice.views[0])
    with pytest.raises(HandoffError, match=r"was seen over \d+ % of the width"):
        calibrate_intrinsics(BOARD, choice)


def test_a_view_that_repeats_another_is_not_taken() -> None:
    pose = board_poses(1)[0]
    view = BoardFinder(BOARD).view(seen(pose))
    assert view is not None
    choice = ViewChoice(SIZE)
    assert choice.offer(view)
    assert not choice.offer(view._replace(corners=view.corners + 2.0))
    assert choice.offer(view._replace(corners=view.corners + 60.0))
    choice.views = [view] * MOST_VIEWS
    assert choice.full


def test_a_picture_without_a_board_has_no_view() -> None:
    assert BoardFinder(BOARD).view(np.full((480, 640, 3), 120, np.uint8)) is None


def test_the_print_has_its_stated_size(tmp_path: Path) -> None:
    about = save_board(BoardConfig(square=0.03), tmp_path / "board.png")
    assert "7 x 5 squares of 30 mm, on a page of 227 x 176 mm" in about
    with Image.open(tmp_path / "board.png") as page:
        dots = page.info["dpi"][0]
        assert page.width / dots * 25.4 == pytest.approx(227.1, abs=0.5)
    save_board(BoardConfig(square=0.03), tmp_path / "board.pdf")
    box = re.search(
        rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", (tmp_path / "board.pdf").read_bytes()
    )
    assert box is not None
    # Points of 1/72 inch.
    assert float(box[1]) / 72 * 25.4 == pytest.approx(227.1, abs=0.5)
    with pytest.raises(HandoffError, match=r"neither .pdf nor .png"):
        save_board(BoardConfig(), tmp_path / "board.jpg")


def test_the_file_has_several_cameras_and_is_read_back(calibrated, tmp_path: Path) -> None:
    intrinsics, _ = calibrated
    path = tmp_path / "lab" / "cameras.json"
    plain = calibration_of(intrinsics)
    poses = board_poses(9)
    base_T_grasp = random_pose(3) @ poses @ np.linalg.inv(random_pose(4))
    posed = calibration_of(intrinsics, fixed_pose(base_T_grasp, poses), "base")
    add_to_file(path, "wrist", plain, {"views": 20})
    add_to_file(path, "front", posed, {"views": 9})
    assert read_calibrations(path) == {"wrist": plain, "front": posed}
    assert plain.position is None
    assert posed.frame == "base"
    assert posed.position is not None
    assert posed.quaternion is not None
    np.testing.assert_allclose(posed.position, random_pose(3)[:3, 3], atol=1e-6)
    w, *axis = posed.quaternion
    turn = rotation_vector(random_pose(3)[:3, :3])
    np.testing.assert_allclose(
        2.0 * np.arccos(w) * np.array(axis) / np.linalg.norm(axis), turn, atol=1e-6
    )
    path.write_text("{}")
    with pytest.raises(HandoffError, match="is no file of handoff camera calibrate"):
        read_calibrations(path)
    with pytest.raises(HandoffError, match=r"does not exist. Make it"):
        read_calibrations(tmp_path / "none.json")


CALIBRATION = CameraCalibration(
    width=640, height=480, focal_length=(600.0, 610.0), principal_point=(330.0, 250.0)
)


def picture(height: int, width: int) -> Picture:
    return Picture(np.zeros((height, width, 3), np.uint8), 0.0, (1280, 960))


def test_the_calibration_follows_resizing_and_crop() -> None:
    whole = picture_calibration(CALIBRATION, CameraConfig(source="0"), picture(240, 320))
    assert (whole.width, whole.height) == (320, 240)
    assert whole.focal_length == (300.0, 305.0)
    assert whole.principal_point == (165.0, 125.0)
    # The crop is in the camera's own pixels, of which there are twice as many.
    crop = CameraConfig(source="0", crop=(160, 0, 960, 960))
    cut = picture_calibration(CALIBRATION, crop, picture(96, 96))
    assert cut.focal_length == pytest.approx((120.0, 122.0))
    assert cut.principal_point == pytest.approx((50.0, 50.0))


def test_a_calibration_of_other_proportions_is_refused() -> None:
    with pytest.raises(HandoffError, match="are no resized ones"):
        picture_calibration(CALIBRATION, CameraConfig(source="0"), picture(240, 240))
