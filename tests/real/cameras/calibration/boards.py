"""Pictures of the calibration board through a camera whose intrinsics and pose are known."""

from __future__ import annotations

import cv2
import numpy as np

from real.cameras.calibration.board import SQUARE_PIXELS, BoardConfig, board_picture
from robots.franka.kinematics import rotation_matrix

BOARD = BoardConfig()
SIZE = (640, 480)
"""Width and height of the pictures [px]."""
MATRIX = np.array([[610.0, 0.0, 325.0], [0.0, 605.0, 238.0], [0.0, 0.0, 1.0]])
"""Intrinsics, whose pixel (0, 0) has its centre at 0, 0."""
_SOURCE = board_picture(BOARD)
_CENTRE = 0.5 * BOARD.square * np.array([BOARD.columns, BOARD.rows, 0.0])


def seen(camera_T_board: np.ndarray, noise: int = 3) -> np.ndarray:
    """(height, width, 3) uint8 picture of the board on grey ground, with noise.

    Args:
        camera_T_board: (4, 4) pose of the board [m].
        noise: largest noise of a pixel.
    """
    metres = BOARD.square / SQUARE_PIXELS
    # Pixels of the board's picture, whose first has its centre at half a pixel from the corner.
    board_from_pixels = np.array(
        [[metres, 0.0, 0.5 * metres], [0.0, metres, 0.5 * metres], [0, 0, 1]]
    )
    plane = camera_T_board[:3][:, [0, 1, 3]]
    over = 4
    scale = np.array([[over, 0.0, 0.5 * (over - 1)], [0.0, over, 0.5 * (over - 1)], [0, 0, 1]])
    warp = scale @ MATRIX @ plane @ board_from_pixels
    large = cv2.warpPerspective(
        _SOURCE, warp, (over * SIZE[0], over * SIZE[1]), flags=cv2.INTER_AREA, borderValue=(128,)
    )
    grey = cv2.resize(large, SIZE, interpolation=cv2.INTER_AREA)
    rng = np.random.default_rng(int(1e6 * abs(camera_T_board[0, 3])))
    noisy = grey.astype(int) + rng.integers(-noise, noise + 1, grey.shape)
    return np.repeat(np.clip(noisy, 0, 255).astype(np.uint8)[..., None], 3, axis=2)


def board_poses(number: int, tilt: float = 0.6, seed: int = 0) -> np.ndarray:
    """(N, 4, 4) poses of the board before the camera [m].

    Args:
        number: number of poses.
        tilt: largest tilt about each axis [rad].
        seed: seed of the poses.
    """
    rng = np.random.default_rng(seed)
    poses = np.tile(np.eye(4), (number, 1, 1))
    for pose in poses:
        pose[:3, :3] = rotation_matrix(rng.uniform(-tilt, tilt, 3))
        middle = rng.uniform([-0.10, -0.08, 0.38], [0.10, 0.08, 0.55])
        pose[:3, 3] = middle - pose[:3, :3] @ _CENTRE
    return poses
