"""Stores sentences in arrays, as UTF-8 padded with zeros.

Worlds observe what they ask for as such a field, episodes record it beside everything else, and
processes share it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robots.errors import HandoffError
from robots.spec import FieldSpec

INSTRUCTION = "instruction"
"""Name of the field, and of the entry of an episode's metadata, that says what is to be done."""
UNIT = "utf8"
"""Unit of such fields."""


def text_field(size: int = 64, about: str = "what is to be done") -> FieldSpec:
    """A sentence of at most `size` bytes."""
    return FieldSpec(shape=(size,), dtype="uint8", unit=UNIT, about=about)


def encode(sentences: Sequence[str], size: int) -> np.ndarray:
    """(N, size) uint8.

    Raises:
        HandoffError: a sentence is longer, or holds a zero.
    """
    found = np.zeros((len(sentences), size), np.uint8)
    for row, sentence in enumerate(sentences):
        data = sentence.encode()
        if len(data) > size or 0 in data:
            raise HandoffError(
                f"text: {sentence[:40]!r} has {len(data)} bytes, expected at most {size}, none of them 0."
            )
        found[row, : len(data)] = np.frombuffer(data, np.uint8)
    return found


def decode(text: np.ndarray) -> tuple[str, ...]:
    """The N sentences of (N, size) uint8.

    Raises:
        HandoffError: what stands there is no UTF-8.
    """
    try:
        return tuple(row.tobytes().rstrip(b"\0").decode() for row in np.ascontiguousarray(text))
    except UnicodeDecodeError as error:
        raise HandoffError(
            f"text: {error.object[:40]!r} is no UTF-8. Was another field taken for words?"
        ) from None
