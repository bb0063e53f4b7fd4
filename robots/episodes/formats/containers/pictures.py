"""Decodes JPEG and PNG pictures of a bounded size."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np

from robots.episodes.formats.source import explain_damage
from robots.errors import HandoffError

MOST_PIXELS = 2**26
"""Largest number of pixels of a picture; a camera's has a few million."""


def decode_picture(path: Path, name: str, content: bytes) -> np.ndarray:
    """Decodes one picture.

    Args:
        path: the file that holds it, for messages.
        name: name of the array, for messages.
        content: JPEG or PNG.

    Returns:
        `(height, width, channels)` uint8 RGB or RGBA, or `(height, width)` uint8 or uint16.

    Raises:
        HandoffError: it is damaged, too large, or of another format.
    """
    from PIL import Image

    with explain_damage(path, f"a picture of {name}"):
        try:
            picture = Image.open(BytesIO(content), formats=("JPEG", "PNG"))
        except Image.DecompressionBombError as error:
            raise HandoffError(
                f"{path}: a picture of {name} is too large ({error}). Was it made for this purpose?"
            ) from None
        with picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise HandoffError(
                    f"{path}: a picture of {name} has {picture.width} x {picture.height} pixels, the limit is "
                    f"{MOST_PIXELS}. Was it made for this purpose?"
                )
            if picture.mode in ("P", "CMYK", "YCbCr", "1", "LA"):
                return np.asarray(picture.convert("RGB"))
            array = np.asarray(picture)
    if array.dtype == np.int32:
        # Pillow decodes 16-bit PNG as 32-bit integers in some versions.
        array = array.astype(np.uint16)
    return array


def as_rgb(path: Path, name: str, picture: np.ndarray) -> np.ndarray:
    """The picture as `(height, width, 3)` uint8 RGB; gray becomes three equal channels, and
    transparency is left out.

    Raises:
        HandoffError: it has no 8 bits per channel.
    """
    if picture.dtype != np.uint8:
        raise HandoffError(
            f"{path}: a picture of {name} has {picture.dtype} per channel, expected uint8. Is it a depth picture?"
        )
    if picture.ndim == 2:
        return np.repeat(picture[:, :, None], 3, axis=2)
    return np.ascontiguousarray(picture[:, :, :3])
