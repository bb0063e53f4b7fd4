"""Computes the pose of a camera from views of a board and the poses of the gripper in them, by the
method of Park and Martin (1994), as OpenCV implements it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from real.cameras.calibration.board import opencv
from robots.errors import HandoffError
from robots.franka.kinematics import batched_rotation_vector

FEWEST_POSES = 8
"""Smallest number of views with a pose of the gripper; three determine the pose of a camera."""
LEAST_TURN = 5.0
"""Smallest spread of the gripper's rotation about its second axis [degrees, root mean square].
Rotations about one axis leave a direction of the camera's position open."""
LARGEST_SCATTER = 0.02
"""Largest scatter of the board's position [m, root mean square]."""


@dataclass(frozen=True)
class HandEye:
    """Pose of a camera."""

    frame_T_camera: np.ndarray
    """(4, 4) pose of the optical frame [m] in the frame of the gripper, or in the arm's base."""
    position_scatter: float
    """Scatter of the board's position over the views, which stands still in the base or in the
    gripper [m, root mean square]."""
    rotation_scatter: float
    """The same of its orientation [rad]."""


def wrist_pose(base_T_grasp: np.ndarray, camera_T_board: np.ndarray) -> HandEye:
    """Pose of a camera on the gripper in the gripper's frame; the board stands still.

    Args:
        base_T_grasp: (N, 4, 4) pose of the gripper in every view [m].
        camera_T_board: (N, 4, 4) pose of the board in every view [m].

    Raises:
        HandoffError: too few views, too little rotation, or poses that do not fit the views.
    """
    return _solved(base_T_grasp, camera_T_board)


def fixed_pose(base_T_grasp: np.ndarray, camera_T_board: np.ndarray) -> HandEye:
    """Pose of a camera beside the arm in the arm's base; the gripper holds the board.

    Args and errors are those of `wrist_pose`.
    """
    return _solved(np.linalg.inv(base_T_grasp), camera_T_board)


def _solved(still_T_moving: np.ndarray, camera_T_board: np.ndarray) -> HandEye:
    """Pose of the camera in the moving frame, where the board stands still in the other."""
    _check_motion(still_T_moving)
    cv2 = opencv()
    rotation, position = cv2.calibrateHandEye(
        list(still_T_moving[:, :3, :3]),
        list(still_T_moving[:, :3, 3]),
        list(camera_T_board[:, :3, :3]),
        list(camera_T_board[:, :3, 3]),
        method=cv2.CALIB_HAND_EYE_PARK,
    )
    moving_T_camera = np.eye(4)
    moving_T_camera[:3, :3] = rotation
    moving_T_camera[:3, 3] = np.ravel(position)
    boards = still_T_moving @ moving_T_camera @ camera_T_board
    off = boards[:, :3, 3] - boards[:, :3, 3].mean(axis=0)
    turns = batched_rotation_vector(boards[:, :3, :3] @ boards[0, :3, :3].T)
    turns -= turns.mean(axis=0)
    found = HandEye(
        moving_T_camera,
        float(np.sqrt((off**2).sum(axis=1).mean())),
        float(np.sqrt((turns**2).sum(axis=1).mean())),
    )
    if not found.position_scatter <= LARGEST_SCATTER:
        raise HandoffError(
            f"camera calibrate: with the camera's pose the board moves by {1e3 * found.position_scatter:.0f} mm, "
            f"expected {1e3 * LARGEST_SCATTER:g} mm or less. Did the board move, or is --mount the other one?"
        )
    return found


def _check_motion(poses: np.ndarray) -> None:
    if len(poses) < FEWEST_POSES:
        raise HandoffError(
            f"camera calibrate: {len(poses)} views at which the arm stood still, expected at least {FEWEST_POSES}. Let "
            "the arm rest for half a second in each pose."
        )
    turns = batched_rotation_vector(poses[0, :3, :3].T @ poses[:, :3, :3])
    spread = np.linalg.svd(turns - turns.mean(axis=0), compute_uv=False) / np.sqrt(len(turns))
    second = float(np.degrees(spread[1]))
    if second < LEAST_TURN:
        raise HandoffError(
            f"camera calibrate: the gripper turned by {second:.1f} degrees (root mean square) about a second axis, "
            f"expected {LEAST_TURN:g} or more. Tilt it by 20 degrees and more about two axes between the views."
        )
