"""Describes the calibration of a camera: intrinsics of a pinhole with distortion, and pose of the
optical frame."""

from __future__ import annotations

from dataclasses import replace

from robots.config import Finite, Pixels, Positive, config
from robots.errors import HandoffError

TOLERANCE = 0.01
"""Largest relative difference between the proportions of two sizes of the same pictures."""


@config
class CameraCalibration:
    """Pinhole with distortion; the pixel (0, 0) has its centre at 0.5, 0.5."""

    width: Pixels
    """Width of the pictures [px]."""
    height: Pixels
    """Height of the pictures [px]."""
    focal_length: tuple[Positive, Positive]
    """Focal length along the width and the height [px]."""
    principal_point: tuple[Finite, Finite]
    """Intersection of the optical axis with the picture, along width and height [px]."""
    distortion: tuple[Finite, ...] = ()
    """Distortion of the lens in OpenCV's order: k1, k2, p1, p2, k3; empty for none. The pictures
    are as the camera gives them."""
    frame: str = ""
    """Frame of the pose: a link of the robot, `grasp` (between the fingertips), `base` (of the arm)
    or `world`; empty if the pose is not known."""
    position: tuple[Finite, Finite, Finite] | None = None
    """Position of the optical frame [m]; None if it is not known."""
    quaternion: tuple[Finite, Finite, Finite, Finite] | None = None
    """Orientation of the optical frame (x right, y down, z forward), wxyz; None if it is not
    known."""


def cropped(
    calibration: CameraCalibration, left: int, top: int, width: int, height: int
) -> CameraCalibration:
    """The calibration of a rectangle of the pictures.

    Args:
        calibration: calibration of whole pictures.
        left: first column of the rectangle [px].
        top: first row [px].
        width: its width [px].
        height: its height [px].

    Raises:
        HandoffError: the rectangle exceeds the pictures.
    """
    if left + width > calibration.width or top + height > calibration.height:
        raise HandoffError(
            f"calibration: the crop {[left, top, width, height]} (left, top, width, height) exceeds the pictures of "
            f"{calibration.width} x {calibration.height} px that were calibrated."
        )
    x, y = calibration.principal_point
    return replace(calibration, width=width, height=height, principal_point=(x - left, y - top))


def resized(calibration: CameraCalibration, width: int, height: int) -> CameraCalibration:
    """The calibration of the same pictures in another size.

    Raises:
        HandoffError: other proportions, so that they are not the same pictures.
    """
    along, across = width / calibration.width, height / calibration.height
    if abs(along / across - 1.0) > TOLERANCE:
        raise HandoffError(
            f"calibration: pictures of {width} x {height} px are no resized ones of the calibrated "
            f"{calibration.width} x {calibration.height} px. Calibrate the camera as it is used."
        )
    fx, fy = calibration.focal_length
    x, y = calibration.principal_point
    return replace(
        calibration,
        width=width,
        height=height,
        focal_length=(fx * along, fy * across),
        principal_point=(x * along, y * across),
    )
