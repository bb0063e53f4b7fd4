"""Writes and reads one segment of an episode store: a Zarr group per stream, an array per field."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.episodes.schema import EpisodeSchema
from robots.errors import HandoffError
from robots.spec import FieldSpec

if TYPE_CHECKING:
    import zarr

_IMAGE_BYTES = 4096
"""Size from which samples are stored in chunks of few samples, so that reading a window decodes
few other samples [bytes]."""
_CHUNK_BYTES = 16 * 96 * 96 * 3
"""Size of a chunk of images [bytes]."""
_SHARD_BYTES = 2**26
"""Largest size of a shard of images before compression [bytes]."""


def write_segment(
    path: Path, schema: EpisodeSchema, episodes: Sequence[Mapping[str, Mapping[str, np.ndarray]]]
) -> None:
    """Writes the checked `episodes` to a new Zarr group at `path`, without flushing it to the disk.

    Raises:
        OSError: the disk is full or not writable.
    """
    import zarr

    segment = zarr.create_group(path, zarr_format=3)
    for stream, spec in schema.streams.items():
        group = segment.create_group(stream, attributes={"rate_hz": spec.rate_hz})
        for name, field in spec.fields.items():
            _write_array(group, name, field, [episode[stream][name] for episode in episodes])


def stored_bytes(path: Path, schema: EpisodeSchema) -> dict[str, int]:
    """Size of the files of every array, `{"stream/field": bytes}`; 0 for a missing array."""
    names = [
        f"{stream}/{field}" for stream, spec in schema.streams.items() for field in spec.fields
    ]
    return {name: _folder_bytes(path / name) for name in names}


def open_field(path: Path, stream: str, field: str) -> zarr.Array[Any]:
    """Opens the array of one field for reading.

    Raises:
        HandoffError: the array is missing, or its metadata is damaged.
    """
    import zarr

    try:
        return zarr.open_array(path / stream / field, mode="r", zarr_format=3)
    except (OSError, ValueError, KeyError) as error:
        raise HandoffError(
            f"{path / stream / field}: array cannot be opened ({error}). Was the store damaged?"
        ) from None


def read_rows(array: zarr.Array[Any], start: int, stop: int) -> np.ndarray:
    """Rows `[start, stop)` of an array.

    Raises:
        HandoffError: the stored bytes cannot be decoded, their checksum is wrong, or the array has
            fewer rows.
    """
    if stop > array.shape[0]:
        raise HandoffError(
            f"{array.store_path}: has {array.shape[0]} samples, index.json says at least {stop}. Was one of them "
            "replaced?"
        )
    try:
        return np.asarray(array[start:stop])
    except (OSError, ValueError, RuntimeError) as error:
        raise HandoffError(
            f"{array.store_path}: samples {start} to {stop} cannot be decoded ({error}). "
            "Was a file damaged or cut short?"
        ) from None


def _write_array(
    group: zarr.Group, name: str, field: FieldSpec, episodes: Sequence[np.ndarray]
) -> None:
    """Writes the rows of all episodes as one array, one shard in memory at a time."""
    from zarr.codecs import ZstdCodec

    samples = sum(len(rows) for rows in episodes)
    chunk, shard = _rows(field, samples)
    array = group.create_array(
        name,
        shape=(samples, *field.shape),
        dtype=episodes[0].dtype,
        chunks=(chunk, *field.shape),
        shards=(shard, *field.shape),
        compressors=ZstdCodec(level=3, checksum=True),
        chunk_key_encoding={"name": "default", "separator": "."},
        attributes={"unit": field.unit, "frame": field.frame, "about": field.about},
        # Omitting chunks that equal the fill value would change -0.0 to 0.0, and look like a lost
        # file.
        config={"write_empty_chunks": True},
    )
    for start in range(0, samples, shard):
        array[start : start + shard] = _joined(episodes, start, min(start + shard, samples))


def _joined(episodes: Sequence[np.ndarray], start: int, stop: int) -> np.ndarray:
    """Rows `[start, stop)` of the episodes one after another."""
    parts, first = [], 0
    for rows in episodes:
        inside = slice(max(start - first, 0), max(stop - first, 0))
        if len(rows[inside]):
            parts.append(rows[inside])
        first += len(rows)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _rows(field: FieldSpec, samples: int) -> tuple[int, int]:
    """Number of samples per chunk and per shard. Up to 96 x 96 pixels 16 and 1600 images are the
    fastest for windows of 16; larger images have fewer per chunk, so that a window decodes as many
    bytes, and per shard, which is written from memory. Other fields have more."""
    sample_bytes = prod(field.shape) * np.dtype(field.dtype).itemsize
    if sample_bytes < _IMAGE_BYTES:
        chunk = min(2048, samples)
        chunks = min(32, -(-samples // chunk))
        return chunk, chunk * chunks
    chunk = min(max(1, min(16, _CHUNK_BYTES // sample_bytes)), samples)
    chunks = min(100, max(1, _SHARD_BYTES // (chunk * sample_bytes)), -(-samples // chunk))
    return chunk, chunk * chunks


def _folder_bytes(folder: Path) -> int:
    if not folder.is_dir():
        return 0
    with os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries)
