"""Summarises the pictures of one episode, thinned to a grid of points."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robots.episodes.curation.examination import ExamineConfig
from robots.episodes.curation.readable import ReadableEpisodes
from robots.spec import FieldSpec

_BLOCK = 2**25
"""Size of the pictures that are read at a time [bytes]."""
CHUNK = 16
"""Number of pictures that are read at least, because they are stored together."""
_LARGEST_CHANGE = 8.0
"""Largest difference of a point in pictures that count as the same [grey levels of 255]."""


@dataclass(frozen=True)
class PictureSummary:
    """Pictures of one field in one episode."""

    black: int
    """Number of black pictures."""
    flat: int
    """Number of pictures of one colour that are not black."""
    bright: int
    """Number of overexposed pictures."""
    digest: bytes
    """Digest of all thinned pictures."""
    repeats: float
    """Share of the pictures that are the same as the one before, outside the longest run."""
    longest: int
    """Pictures of the longest run of the same picture."""
    start: int
    """First picture of that run."""


@dataclass
class _Collected:
    """Figures of the pictures that were read so far."""

    digest: Any
    same: list[np.ndarray] = field(default_factory=list)
    black: int = 0
    flat: int = 0
    bright: int = 0
    last: np.ndarray | None = None


def summarise_pictures(
    store: ReadableEpisodes, episode: int, stream: str, name: str, steps: int, config: ExamineConfig
) -> tuple[PictureSummary, np.ndarray]:
    """Reads the pictures of one field in blocks of at most 32 MiB, and summarises them.

    Returns:
        The summary, and (T - 1,) bool: whether a picture is the same as the one before it.

    Raises:
        HandoffError: damaged files.
    """
    spec = store.schema.stream(stream).fields[name]
    collected = _Collected(hashlib.blake2b(digest_size=16))
    for block in picture_blocks(store, episode, stream, name, steps):
        _add(collected, thinned(block, spec, config.picture_points), spec, config)
    return _finished(collected, steps)


def thinned(pictures: np.ndarray, spec: FieldSpec, points: int) -> np.ndarray:
    """(T, points * colours) pictures at the points of a grid, the colours of a point together.

    Args:
        pictures: `(T, *field shape)`.
        spec: the field; its first two axes are thinned, or the last two where the colours come
            first.
        points: largest number of rows and of columns.
    """
    if _colours_first(spec):
        pictures = np.moveaxis(pictures, 1, -1)
    grid = tuple(
        slice(size // points // 2, None, max(1, -(-size // points))) for size in pictures.shape[1:3]
    )
    return pictures[:, grid[0], grid[1]].reshape(len(pictures), -1)


def colours(spec: FieldSpec) -> int:
    """Number of colours, or other values, of a point of a picture."""
    if len(spec.shape) != 3:
        return 1
    return spec.shape[0] if _colours_first(spec) else spec.shape[2]


def _colours_first(spec: FieldSpec) -> bool:
    return len(spec.shape) == 3 and spec.shape[0] <= 4 < spec.shape[2]


def picture_blocks(
    store: ReadableEpisodes, episode: int, stream: str, name: str, steps: int
) -> Iterator[np.ndarray]:
    """Pictures of one field of an episode of `steps` steps, in blocks of at most 32 MiB."""
    spec = store.schema.stream(stream).fields[name]
    size = int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize
    length = max(_BLOCK // max(size, 1) // CHUNK, 1) * CHUNK
    for start in range(0, steps, length):
        window = slice(start, min(start + length, steps))
        yield store.read(episode, stream, [name], window)[name]


def _add(collected: _Collected, points: np.ndarray, spec: FieldSpec, config: ExamineConfig) -> None:
    """Adds the thinned pictures `(T, points)` of one block."""
    values = points.astype(np.float32)
    grey = spec.dtype == "uint8"
    # Depth and other numbers are compared in 255 levels of their own range.
    level = 1.0 if grey else max(float(np.abs(values).max(initial=0.0)), 1e-12) / 255.0
    mean, contrast = values.mean(axis=1), values.std(axis=1)
    black = mean < config.black_level if grey else np.abs(values).max(axis=1) == 0.0
    flat = (contrast < config.flat_contrast * level) & ~black
    bright = (values >= 250.0).mean(axis=1) >= config.bright_share if grey else np.zeros_like(black)
    collected.black += int(black.sum())
    collected.flat += int((flat & ~bright).sum())
    collected.bright += int(bright.sum())
    before = values if collected.last is None else np.concatenate([collected.last[None], values])
    change = np.abs(np.diff(before, axis=0)) / level
    collected.same.append(
        (change.mean(axis=1) <= config.same_picture) & (change.max(axis=1) <= _LARGEST_CHANGE)
    )
    collected.digest.update(np.ascontiguousarray(points).tobytes())
    collected.last = values[-1]


def _finished(collected: _Collected, steps: int) -> tuple[PictureSummary, np.ndarray]:
    same = np.concatenate(collected.same)
    longest, last = longest_runs(same[:, None])
    others = int(same.sum()) - (int(longest[0]) - 1)
    summary = PictureSummary(
        black=collected.black,
        flat=collected.flat,
        bright=collected.bright,
        digest=collected.digest.digest(),
        repeats=others / max(steps - int(longest[0]), 1),
        longest=int(longest[0]),
        start=int(last[0]) + 1 - int(longest[0]),
    )
    return summary, same


def longest_runs(same: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Longest runs of rows that equal the row before them.

    Args:
        same: (T - 1, D) whether a value equals that of the row before.

    Returns:
        (D,) rows of the longest run, its first row included, and (D,) its last row.
    """
    if len(same) == 0:
        return np.ones(same.shape[1], int), np.zeros(same.shape[1], int)
    index = np.arange(len(same))[:, None]
    runs = index - np.maximum.accumulate(np.where(same, -1, index), axis=0)
    last = runs.argmax(axis=0)
    longest = np.take_along_axis(runs, last[None], axis=0)[0]
    return longest + 1, np.where(longest > 0, last + 1, 0)
