"""Encodes pictures as PNG, without loss."""

from __future__ import annotations

from io import BytesIO

import numpy as np


def encode_png(picture: np.ndarray) -> bytes:
    """Encodes `(height, width, 3)` uint8 RGB as PNG."""
    from PIL import Image

    buffer = BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()
