"""Reads and writes the file of calibrated cameras, `handoff camera calibrate`, and applies it to
the pictures of a session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from real.cameras.calibration.hand_eye import HandEye
from real.cameras.calibration.intrinsics import Intrinsics
from real.cameras.camera import Picture
from real.cameras.config import CameraConfig
from robots.config import to_plain, validate
from robots.episodes.metadata.camera_calibration import CameraCalibration, cropped, resized
from robots.errors import HandoffError
from robots.franka.kinematics import rotation_vector

FORMAT = "handoff camera calibration 1"


def calibration_of(
    intrinsics: Intrinsics, pose: HandEye | None = None, frame: str = ""
) -> CameraCalibration:
    """The calibration of a camera.

    Args:
        intrinsics: its intrinsics.
        pose: its pose; None if it is not known.
        frame: frame of the pose.
    """
    matrix = intrinsics.matrix
    calibration = CameraCalibration(
        width=intrinsics.size[0],
        height=intrinsics.size[1],
        focal_length=(float(matrix[0, 0]), float(matrix[1, 1])),
        # OpenCV counts from the centre of the first pixel.
        principal_point=(float(matrix[0, 2]) + 0.5, float(matrix[1, 2]) + 0.5),
        distortion=tuple(float(value) for value in intrinsics.distortion),
    )
    if pose is None:
        return calibration
    x, y, z = pose.frame_T_camera[:3, 3].tolist()
    turn = rotation_vector(pose.frame_T_camera[:3, :3])
    angle = float(np.linalg.norm(turn))
    axis = turn / angle if angle > 0.0 else np.zeros(3)
    qx, qy, qz = (np.sin(0.5 * angle) * axis).tolist()
    plain = to_plain(calibration) | {
        "frame": frame,
        "position": (x, y, z),
        "quaternion": (float(np.cos(0.5 * angle)), qx, qy, qz),
    }
    return validate(CameraCalibration, plain, "calibration")


def add_to_file(
    path: Path, name: str, calibration: CameraCalibration, about: Mapping[str, Any]
) -> None:
    """Adds a camera to the file of calibrated cameras, in place of one of that name.

    Args:
        path: the file, which may not exist.
        name: name of the camera.
        calibration: its calibration.
        about: JSON-ready figures of it, such as the reprojection error.

    Raises:
        HandoffError: a file of something else.
    """
    cameras = _read(path) if path.exists() else {}
    cameras[name] = {"calibration": to_plain(calibration), **about}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": FORMAT, "cameras": cameras}, indent=2)
    new = path.with_name(path.name + ".new")
    new.write_text(text + "\n", encoding="utf-8")
    new.replace(path)


def read_calibrations(path: Path) -> dict[str, CameraCalibration]:
    """The calibrations in a file, by name of the camera.

    Raises:
        HandoffError: no such file, or a file of something else.
    """
    return {
        name: validate(CameraCalibration, entry["calibration"], f"{path.name}: {name}")
        for name, entry in _read(path).items()
    }


def picture_calibration(
    calibration: CameraCalibration, camera: CameraConfig, picture: Picture
) -> CameraCalibration:
    """The calibration of a session's pictures, which are cut and resized.

    Args:
        calibration: calibration of the camera's whole pictures, of any size.
        camera: options with the crop.
        picture: a picture of the session.

    Raises:
        HandoffError: the calibration is of pictures of other proportions.
    """
    if camera.crop is not None:
        assert picture.own_size is not None, "pictures of a camera have it"
        calibration = cropped(resized(calibration, *picture.own_size), *camera.crop)
    height, width = picture.image.shape[:2]
    return resized(calibration, width, height)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HandoffError(
            f"calibration: {path} does not exist. Make it: handoff camera calibrate NAME=SOURCE --out {path}"
        ) from None
    except (OSError, ValueError) as error:
        raise HandoffError(f"calibration: {path} cannot be read ({error}).") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise HandoffError(
            f"calibration: {path} is no file of handoff camera calibrate, whose 'format' is '{FORMAT}'."
        )
    return content["cameras"]
