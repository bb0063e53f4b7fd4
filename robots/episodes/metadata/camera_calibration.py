"""Describes the calibration of a camera: intrinsics of a pinhole, and pose of the optical frame."""

from __future__ import annotations

from robots.config import Finite, Pixels, Positive, config


@config
class CameraCalibration:
    """Pinhole without distortion; the pixel (0, 0) has its centre at 0.5, 0.5."""

    width: Pixels
    """Width of the pictures [px]."""
    height: Pixels
    """Height of the pictures [px]."""
    focal_length: tuple[Positive, Positive]
    """Focal length along the width and the height [px]."""
    principal_point: tuple[Finite, Finite]
    """Intersection of the optical axis with the picture, along width and height [px]."""
    frame: str
    """Frame of the pose: a link of the robot, or `world`."""
    position: tuple[Finite, Finite, Finite]
    """Position of the optical frame [m]."""
    quaternion: tuple[Finite, Finite, Finite, Finite]
    """Orientation of the optical frame (x right, y down, z forward), wxyz."""
