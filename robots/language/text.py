"""Encodes instructions as arrays of UTF-8, padded with zeros.

The instruction is then an observation field like any other, which episodes record and processes
share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robots.errors import HandoffError
from robots.spec import FieldSpec

INSTRUCTION = "instruction"
"""Name of the observation field of the instruction, and of the entry of an episode's metadata."""
UNIT = "utf8"
"""Unit of text fields."""


def text_field(size: int = 64, about: str = "what is to be done") -> FieldSpec:
    """Specification of a text field with at most `size` bytes."""
    return FieldSpec(shape=(size,), dtype="uint8", unit=UNIT, about=about)


def task_sentence(task: str) -> str:
    """The sentence for a task that nobody has put into words: its name with spaces."""
    return task.replace("_", " ")


def encode(sentences: Sequence[str], size: int) -> np.ndarray:
    """Encodes N sentences as (N, size) uint8.

    Raises:
        HandoffError: a sentence is longer than `size` bytes, or contains a zero.
    """
    text = np.zeros((len(sentences), size), np.uint8)
    for row, sentence in enumerate(sentences):
        data = sentence.encode()
        if len(data) > size:
            raise HandoffError(
                f"text: {sentence[:40]!r} has {len(data)} bytes, expected at most {size}. Use fewer words."
            )
        if 0 in data:
            raise HandoffError(f"text: {sentence[:40]!r} has a zero byte, expected none.")
        text[row, : len(data)] = np.frombuffer(data, np.uint8)
    return text


def decode(text: np.ndarray) -> tuple[str, ...]:
    """Decodes N sentences from (N, size) uint8.

    Raises:
        HandoffError: the bytes are not UTF-8.
    """
    try:
        return tuple(row.tobytes().rstrip(b"\0").decode() for row in np.ascontiguousarray(text))
    except UnicodeDecodeError as error:
        raise HandoffError(
            f"text: {error.object[:40]!r} is not UTF-8. Was another field used as text?"
        ) from None
