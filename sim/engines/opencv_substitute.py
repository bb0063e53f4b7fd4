"""Makes gym-pusht importable if its OpenCV cannot be loaded.

gym-pusht depends on the windowed build of OpenCV, which needs the libraries of OpenGL and X (on
Debian `libgl1 libglib2.0-0`) to be imported, and uses it only to resize an image and to draw a
cross. Both are implemented here in NumPy.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

WEIGHT_BITS = 11
"""Fractional bits of a weight in OpenCV's bilinear interpolation of bytes."""


@contextmanager
def kept_search_path() -> Iterator[None]:
    """Restores `sys.path` if an import fails within the block.

    OpenCV's loader leaves its own folder there if it fails. The `typing` in that folder would take
    the place of the standard library's in every process that is spawned afterwards.
    """
    paths = list(sys.path)
    try:
        yield
    except ImportError:
        sys.path[:] = paths
        raise


@contextmanager
def importable_opencv() -> Iterator[None]:
    """Within the block, `import cv2` imports OpenCV, or the two functions if it cannot be
    loaded."""
    try:
        with kept_search_path():
            import cv2  # noqa: F401
    except ImportError:
        substitute = types.ModuleType("cv2")
        substitute.__dict__.update(resize=resize, drawMarker=draw_cross, MARKER_CROSS=0)
        sys.modules["cv2"] = substitute
        try:
            yield
        finally:
            del sys.modules["cv2"]
    else:
        yield


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes an image like `cv2.resize`: bilinear, in fixed point.

    Downscaled images equal OpenCV's bit for bit; in upscaled ones, one value in two thousand may
    differ by 1.

    Args:
        image: (height, width, channels) uint8.
        size: new width and height [px].
    """
    left, right, left_weight, right_weight = _taps(size[0], image.shape[1])
    upper, lower, upper_weight, lower_weight = _taps(size[1], image.shape[0])
    wide = image.astype(np.int32)
    rows = wide[:, left] * left_weight[:, None] + wide[:, right] * right_weight[:, None]
    # The sums hold 8 + 11 bits; OpenCV drops 4, then 16 after the second weight, then rounds by 2.
    above = (upper_weight[:, None, None] * (rows[upper] >> 4)) >> 16
    below = (lower_weight[:, None, None] * (rows[lower] >> 4)) >> 16
    return ((above + below + 2) >> 2).clip(0, 255).astype(np.uint8)


def draw_cross(
    image: np.ndarray,
    position: np.ndarray,
    color: tuple[int, int, int],
    markerType: int = 0,
    markerSize: int = 20,
    thickness: int = 1,
) -> np.ndarray:
    """Draws an upright cross into an image, in place; the arguments are those of
    `cv2.drawMarker`."""
    x, y = (int(entry) for entry in position)
    half = markerSize // 2
    before = (thickness - 1) // 2
    after = thickness // 2

    def fill(top: int, bottom: int, left: int, right: int) -> None:
        image[max(0, top) : max(0, bottom + 1), max(0, left) : max(0, right + 1)] = color

    fill(y - before, y + after, x - half, x + half)
    fill(y - half, y + half, x - before, x + after)
    return image


def _taps(new: int, old: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Interpolation taps of each of `new` pixels among `old` ones: both neighbours and their
    weights."""
    position = ((np.arange(new) + 0.5) * (old / new) - 0.5).astype(np.float32)
    first = np.floor(position).astype(np.int64)
    fraction = position - first.astype(np.float32)
    outside = (first < 0) | (first >= old - 1)
    fraction[outside] = 0.0
    first = first.clip(0, old - 1)
    one = np.float32(1 << WEIGHT_BITS)
    second_weight = np.rint(fraction * one).astype(np.int32)
    first_weight = np.rint((np.float32(1.0) - fraction) * one).astype(np.int32)
    return first, np.minimum(first + 1, old - 1), first_weight, second_weight
