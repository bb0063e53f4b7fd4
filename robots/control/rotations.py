"""Converts rotations between the forms in which data sets store them.

| form              | entries | meaning                                                           |
|-------------------|---------|-------------------------------------------------------------------|
| `quaternion_wxyz` | 4       | unit quaternion, scalar first; Handoff's own order                |
| `quaternion_xyzw` | 4       | unit quaternion, scalar last                                      |
| `rotation_vector` | 3       | axis times angle [rad]                                            |
| `euler_xyz`       | 3       | roll, pitch, yaw about the fixed axes x, y, z in this order [rad] |
| `matrix`          | 9       | rotation matrix, row by row                                       |
| `rotation_6d`     | 6       | first two rows of the matrix, as PyTorch3D and diffusion_policy   |
|                   |         | store it (Zhou et al., CVPR 2019)                                 |
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal

import numpy as np

from robots.errors import HandoffError

if TYPE_CHECKING:
    from scipy.spatial.transform import Rotation

RotationForm = Literal[
    "quaternion_wxyz", "quaternion_xyzw", "rotation_vector", "euler_xyz", "matrix", "rotation_6d"
]
SIZES: dict[RotationForm, int] = {
    "quaternion_wxyz": 4,
    "quaternion_xyzw": 4,
    "rotation_vector": 3,
    "euler_xyz": 3,
    "matrix": 9,
    "rotation_6d": 6,
}
"""Number of entries of every form."""
NAMES: dict[RotationForm, tuple[str, ...]] = {
    "quaternion_wxyz": ("w", "x", "y", "z"),
    "quaternion_xyzw": ("x", "y", "z", "w"),
    "rotation_vector": ("rx", "ry", "rz"),
    "euler_xyz": ("roll", "pitch", "yaw"),
    "matrix": tuple(f"r{row}{column}" for row in range(3) for column in range(3)),
    "rotation_6d": tuple(f"r{row}{column}" for row in range(2) for column in range(3)),
}
"""Names of the entries of every form."""
UNITS: dict[RotationForm, str] = {
    form: "rad" if form in ("rotation_vector", "euler_xyz") else "1" for form in SIZES
}
"""Unit of the entries of every form."""
_SMALLEST = 1e-6
"""Norm below which a quaternion or a row has no direction."""


def convert_rotation(rotation: np.ndarray, given: RotationForm, wanted: RotationForm) -> np.ndarray:
    """Converts rotations `(N, entries)` from one form to another, `(N, entries)` float64.

    The scalar part of the first quaternion is at least 0, and every other quaternion has the sign
    in which it is nearest to the one before it, so that a continuous motion has continuous entries.
    Rotation vectors have angles up to pi.

    Args:
        rotation: rotations in the form `given`; quaternions need not be normalised, and matrices
            are replaced by the nearest rotation.
        given: form of `rotation`.
        wanted: form of the result.

    Raises:
        HandoffError: another number of entries, or entries that are no rotation.
    """
    rotation = np.asarray(rotation, np.float64)
    if rotation.ndim != 2 or rotation.shape[1] != SIZES[given]:
        raise HandoffError(
            f"rotation: shape {rotation.shape}, expected (N, {SIZES[given]}) of the form {given}."
        )
    if not len(rotation):
        return np.zeros((0, SIZES[wanted]))
    return _entries(_parsed(rotation, given), wanted)


def _parsed(rotation: np.ndarray, form: RotationForm) -> Rotation:
    from scipy.spatial.transform import Rotation

    try:
        match form:
            case "quaternion_wxyz" | "quaternion_xyzw":
                return Rotation.from_quat(rotation, scalar_first=form == "quaternion_wxyz")
            case "rotation_vector":
                return Rotation.from_rotvec(rotation)
            case "euler_xyz":
                return Rotation.from_euler("xyz", rotation)
            case "matrix":
                return Rotation.from_matrix(rotation.reshape(-1, 3, 3))
            case "rotation_6d":
                return Rotation.from_matrix(_completed(rotation))
    except ValueError as error:
        raise HandoffError(f"rotation: entries that are no {form} ({error}).") from None


def _entries(rotation: Rotation, form: RotationForm) -> np.ndarray:
    match form:
        case "quaternion_wxyz":
            return _continuous(rotation.as_quat(scalar_first=True))
        case "quaternion_xyzw":
            return _continuous(rotation.as_quat(scalar_first=True))[:, [1, 2, 3, 0]]
        case "rotation_vector":
            return rotation.as_rotvec()
        case "euler_xyz":
            with warnings.catch_warnings():
                # At a pitch of 90 degrees the yaw is set to 0, one of the equal solutions.
                warnings.simplefilter("ignore", UserWarning)
                return rotation.as_euler("xyz")
        case "matrix":
            return rotation.as_matrix().reshape(-1, 9)
        case "rotation_6d":
            return rotation.as_matrix()[:, :2].reshape(-1, 6)


def _completed(rows: np.ndarray) -> np.ndarray:
    """(N, 3, 3) rotation matrices from their first two rows, made orthonormal."""
    first = _unit(rows[:, :3])
    second = rows[:, 3:] - (first * rows[:, 3:]).sum(1, keepdims=True) * first
    second = _unit(second)
    return np.stack([first, second, np.cross(first, second)], axis=1)


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if norms.min() < _SMALLEST:
        row = int(norms.argmin())
        raise HandoffError(
            f"rotation: row {row} has an axis {vectors[row]} without a direction. Is it of this form?"
        )
    return vectors / norms


def _continuous(quaternions: np.ndarray) -> np.ndarray:
    """The same rotations, scalar first, with signs that follow one another."""
    products = (quaternions[1:] * quaternions[:-1]).sum(1, keepdims=True)
    first = np.where(quaternions[:1, :1] < 0.0, -1.0, 1.0)
    signs = np.concatenate([first, np.where(products < 0.0, -1.0, 1.0)])
    return quaternions * np.cumprod(signs, axis=0)
