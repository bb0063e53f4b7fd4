"""Writes and reads one segment of an episode store: a Zarr group per stream, an array per field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from robots.episodes.schema import EpisodeSchema
from robots.episodes.segments.video import VideoField, VideoWriter
from robots.episodes.segments.video_codec import VideoConfig
from robots.episodes.segments.video_copy import CodedFrames, write_copy
from robots.errors import HandoffError
from robots.spec import FieldSpec
from robots.storage.location import Folder, Location

if TYPE_CHECKING:
    import zarr

_IMAGE_BYTES = 4096
"""Size from which samples are stored in chunks of few samples, so that reading a window decodes
few other samples [bytes]."""
_CHUNK_BYTES = 16 * 96 * 96 * 3
"""Size of a chunk of images [bytes]."""
_LEVEL = 3
"""Level of zstd."""
_SHARD_BYTES = 2**26
"""Largest size of a shard of images before compression [bytes]."""


def write_segment(
    path: Path,
    schema: EpisodeSchema,
    episodes: Sequence[Mapping[str, Mapping[str, np.ndarray | CodedFrames]]],
) -> None:
    """Writes the checked `episodes` to a new Zarr group at `path`, without flushing it to the disk.

    Raises:
        HandoffError: coded frames of a damaged video.
        OSError: the disk is full or not writable.
    """
    import zarr

    segment = zarr.create_group(path, zarr_format=3)
    for stream, spec in schema.streams.items():
        group = segment.create_group(stream, attributes={"rate_hz": spec.rate_hz})
        for name, field in spec.fields.items():
            samples = [episode[stream][name] for episode in episodes]
            coded = [value for value in samples if isinstance(value, CodedFrames)]
            arrays = [value for value in samples if not isinstance(value, CodedFrames)]
            codec = schema.videos.get(f"{stream}/{name}")
            if coded:
                write_copy(path / stream / name, coded)
            elif codec is None:
                write_array(group, name, field, arrays)
            else:
                _write_video(path / stream / name, field, spec.rate_hz, codec, arrays)


def stored_bytes(path: Path, schema: EpisodeSchema) -> dict[str, int]:
    """Size of the files of every array, `{"stream/field": bytes}`; 0 for a missing array."""
    names = [
        f"{stream}/{field}" for stream, spec in schema.streams.items() for field in spec.fields
    ]
    return Folder(path).folder_bytes(names)


def open_field(
    store: Location, name: str, video: tuple[int, ...] | None = None
) -> zarr.Array[Any] | VideoField:
    """Opens the samples of one field of a segment for reading.

    Args:
        store: place of the store.
        name: path of the field in it.
        video: shape of a sample, if the field is kept as video; None for an array.

    Raises:
        HandoffError: the files are missing or damaged.
    """
    if video is not None:
        return VideoField(store.below(name), video)
    try:
        return store.open_array(name)
    except (OSError, ValueError, KeyError) as error:
        raise HandoffError(
            f"{store}/{name}: array cannot be opened ({error}). Was the store damaged?"
        ) from None


def read_rows(array: zarr.Array[Any] | VideoField, start: int, stop: int) -> np.ndarray:
    """Samples `[start, stop)` of a field.

    Raises:
        HandoffError: the stored bytes cannot be decoded, their checksum is wrong, or the array has
            fewer rows.
    """
    if isinstance(array, VideoField):
        return array.read(start, stop)
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


def read_rows_into(
    array: zarr.Array[Any] | VideoField,
    start: int,
    stop: int,
    into: tuple[np.ndarray, np.ndarray],
) -> None:
    """Reads samples `[start, stop)` of a field into an array, at the rows of the same order.

    Args:
        array: the field.
        start: first sample.
        stop: exclusive end.
        into: `(N, *field shape)` of any type that holds the samples, and `(stop - start,)` rows.

    Raises:
        HandoffError: see `read_rows`.
    """
    target, rows = into
    if isinstance(array, VideoField) and target.dtype == array.dtype and target.flags.c_contiguous:
        array.read_into(start, stop, target, rows)
    else:
        target[rows] = read_rows(array, start, stop)


def create_array(
    group: zarr.Group, name: str, field: FieldSpec, samples: int, layout: tuple[int, int]
) -> zarr.Array[Any]:
    """Creates the array of `samples` samples of a field, without writing one.

    Args:
        group: group of the stream.
        name: name of the field.
        field: shape, dtype and meaning of a sample.
        samples: number of samples.
        layout: number of samples per chunk and per shard.
    """
    from zarr.codecs import ZstdCodec

    chunk, shard = layout
    return group.create_array(
        name,
        shape=(samples, *field.shape),
        dtype=np.dtype(field.dtype),
        chunks=(chunk, *field.shape),
        shards=(shard, *field.shape),
        compressors=ZstdCodec(level=_LEVEL, checksum=True),
        chunk_key_encoding={"name": "default", "separator": "."},
        attributes={"unit": field.unit, "frame": field.frame, "about": field.about},
        # Omitting chunks that equal the fill value would change -0.0 to 0.0, and look like a lost
        # file.
        config={"write_empty_chunks": True},
    )


def encode_chunk(samples: np.ndarray) -> bytes:
    """A chunk, compressed as `create_array` declares it."""
    from numcodecs.zstd import Zstd

    return bytes(cast(bytes, Zstd(level=_LEVEL, checksum=True).encode(samples)))


def decode_chunk(encoded: bytes) -> bytes:
    """Bytes of a compressed chunk.

    Raises:
        RuntimeError: they are damaged or cut short.
    """
    from numcodecs.zstd import Zstd

    return bytes(cast(bytes, Zstd().decode(encoded)))


def shard_name(number: int, dimensions: int) -> str:
    """Name of the file of shard `number` of samples with `dimensions` dimensions."""
    return ".".join(["c", str(number), *["0"] * dimensions])


def chunk_layout(field: FieldSpec, samples: int) -> tuple[int, int]:
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


def written_in_chunks(field: FieldSpec) -> bool:
    """Whether samples are so large that a running episode writes them chunk by chunk."""
    return prod(field.shape) * np.dtype(field.dtype).itemsize >= _IMAGE_BYTES


def write_array(
    group: zarr.Group, name: str, field: FieldSpec, episodes: Sequence[np.ndarray]
) -> None:
    """Writes the rows of all episodes as one array, one shard in memory at a time.

    Raises:
        OSError: the disk is full or not writable.
    """
    samples = sum(len(rows) for rows in episodes)
    layout = chunk_layout(field, samples)
    array = create_array(group, name, field, samples, layout)
    for start in range(0, samples, layout[1]):
        array[start : start + layout[1]] = _joined(episodes, start, min(start + layout[1], samples))


def _write_video(
    folder: Path,
    field: FieldSpec,
    rate_hz: float,
    codec: VideoConfig,
    episodes: Sequence[np.ndarray],
) -> None:
    """Writes the frames of all episodes as one video."""
    with VideoWriter(folder, field.shape, rate_hz, codec) as video:
        for frames in episodes:
            for number, frame in enumerate(frames):
                video.append(frame, key=number == 0)


def _joined(episodes: Sequence[np.ndarray], start: int, stop: int) -> np.ndarray:
    """Rows `[start, stop)` of the episodes one after another."""
    parts, first = [], 0
    for rows in episodes:
        inside = slice(max(start - first, 0), max(stop - first, 0))
        if len(rows[inside]):
            parts.append(rows[inside])
        first += len(rows)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
