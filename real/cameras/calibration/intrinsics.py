"""Computes the intrinsics of a camera from views of a board (Zhang 2000, as OpenCV implements
it)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from real.cameras.calibration.board import BoardConfig, charuco_board, opencv
from real.cameras.calibration.views import ViewChoice
from robots.errors import HandoffError
from robots.franka.kinematics import rotation_matrix

FEWEST_VIEWS = 10
"""Smallest number of views."""
LEAST_COVERAGE = 0.5
"""Smallest share of width and height over which corners must have been seen."""
LEAST_TILT = 20.0
"""Smallest angle between the two views that differ most [degrees]; views from one direction leave
the focal length open."""
LARGEST_ERROR = 1.0
"""Largest root mean square of the reprojection errors [px]."""
LARGEST_DEVIATION = 0.01
"""Largest standard deviation of the focal length, as a share of it."""


@dataclass(frozen=True)
class Intrinsics:
    """Intrinsics of a camera, and the pose of the board in every view."""

    matrix: np.ndarray
    """(3, 3) camera matrix [px], whose pixel (0, 0) has its centre at 0, 0."""
    distortion: np.ndarray
    """(5,) distortion in OpenCV's order: k1, k2, p1, p2, k3."""
    size: tuple[int, int]
    """Width and height of the pictures [px]."""
    error: float
    """Root mean square of the reprojection errors [px]."""
    deviation: float
    """Larger standard deviation of the two focal lengths, as a share of them."""
    camera_T_board: np.ndarray
    """(N, 4, 4) pose of the board in every view [m]."""


def calibrate_intrinsics(board: BoardConfig, choice: ViewChoice) -> Intrinsics:
    """Intrinsics by views of the board.

    Raises:
        HandoffError: too few views, views that are too similar to determine the intrinsics, or
            corners that do not fit a camera.
    """
    _check_number(choice)
    cv2, charuco = opencv(), charuco_board(board)
    pairs = [charuco.matchImagePoints(view.corners, view.numbers) for view in choice.views]
    answer = cv2.calibrateCameraExtended(
        [points for points, _ in pairs],
        [pixels for _, pixels in pairs],
        choice.size,
        np.eye(3),
        np.zeros(5),
        # A third radial term needs more of a picture's corners than most views have.
        flags=cv2.CALIB_FIX_K3,
    )
    error, matrix, distortion, rotations, positions, deviations = answer[:6]
    poses = np.tile(np.eye(4), (len(rotations), 1, 1))
    for pose, rotation, position in zip(poses, rotations, positions, strict=True):
        pose[:3, :3] = rotation_matrix(np.ravel(rotation))
        pose[:3, 3] = np.ravel(position)
    focal = np.diag(matrix)[:2]
    found = Intrinsics(
        matrix=matrix,
        distortion=np.ravel(distortion)[:5],
        size=choice.size,
        error=float(error),
        deviation=float((np.ravel(deviations)[:2] / focal).max()),
        camera_T_board=poses,
    )
    _check(found)
    return found


def _check_number(choice: ViewChoice) -> None:
    """Refuses too few views, and views of a part of the picture."""
    number = len(choice.views)
    if number < FEWEST_VIEWS:
        raise HandoffError(
            f"camera calibrate: {number} views of the board that differ, expected at least {FEWEST_VIEWS}. Show the "
            "whole board, sharp and well lit, from more directions and distances; are --columns, --rows and "
            "--square-mm those of the print?"
        )
    coverage = choice.coverage()
    if min(coverage) < LEAST_COVERAGE:
        raise HandoffError(
            f"camera calibrate: the board was seen over {100 * coverage[0]:.0f} % of the width and "
            f"{100 * coverage[1]:.0f} % of the height, expected at least {100 * LEAST_COVERAGE:.0f} % of both. Show it "
            "in the corners of the picture, too."
        )


def _check(found: Intrinsics) -> None:
    """Refuses intrinsics that the views leave open, and corners that fit none."""
    normals = found.camera_T_board[:, :3, 2]
    tilt = np.degrees(np.arccos(np.clip(normals @ normals.T, -1.0, 1.0)).max())
    if tilt < LEAST_TILT:
        raise HandoffError(
            f"camera calibrate: the board was seen from directions within {tilt:.0f} degrees, expected "
            f"{LEAST_TILT:g} or more: such views leave the focal length open. Tilt the board by 20 to 45 degrees to "
            "all four sides."
        )
    if found.error > LARGEST_ERROR:
        raise HandoffError(
            f"camera calibrate: the corners fit to {found.error:.2f} px, expected {LARGEST_ERROR:g} px or less. Is the "
            "board flat, the picture sharp, and the camera neither zoomed nor refocused meanwhile?"
        )
    if found.deviation > LARGEST_DEVIATION:
        raise HandoffError(
            f"camera calibrate: the focal length is known to {100 * found.deviation:.1f} % only, expected "
            f"{100 * LARGEST_DEVIATION:g} %. Add views that are tilted more, and nearer."
        )
