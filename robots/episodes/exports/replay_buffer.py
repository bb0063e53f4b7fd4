"""Writes episodes as a replay buffer of diffusion_policy.

The result is a Zarr v2 folder: `data/FIELD` with the steps of all episodes one after another, in
chunks of about 2 MB along time, and `meta/episode_ends`, cumulative and exclusive.
`robots.episodes.formats.replay_buffer` reads it back bit for bit; units, rate, instructions and
other metadata have no place in the format.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.spec import FieldSpec
from robots.storage.durable import explain_write_errors, sync_tree, temporary_beside

CHUNK_BYTES = 2 * 10**6
"""Size of a decoded chunk [bytes]."""
_STREAM = "policy"


def write_replay_buffer(
    store: EpisodeStore, out: Path, *, progress: Progress = no_progress
) -> dict[str, Any]:
    """Writes the stream `policy` of a store, or its first one, to the new folder `out`.

    Args:
        store: the episodes.
        out: a folder that does not exist; its name usually ends with `.zarr`.
        progress: called with the number of written episodes.

    Returns:
        `episodes`, `steps`, `fields` (names of the arrays below `data/`) and `left_out` (what the
        format has no place for, one phrase each).

    Raises:
        HandoffError: `out` exists, the store is empty or damaged, or the disk is full.
    """
    if out.exists():
        raise HandoffError(f"{out}: already exists. Choose another path, or delete it.")
    if store.num_episodes == 0:
        raise HandoffError(f"{store.path}: holds no episode, so there is nothing to write.")
    stream = _STREAM if _STREAM in store.schema.streams else next(iter(store.schema.streams))
    fields = store.schema.stream(stream).fields
    ends = store.ends(stream)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = temporary_beside(out)
    with explain_write_errors(out, "the replay buffer was not written"):
        try:
            writers = _create(aside, fields, ends)
            for episode in range(store.num_episodes):
                for name, rows in store.read(episode, stream).items():
                    writers[name].append(rows)
                progress(episode + 1, store.num_episodes, "episodes")
            for writer in writers.values():
                writer.flush()
            sync_tree(aside)
            os.rename(aside, out)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    return {
        "episodes": store.num_episodes,
        "steps": int(ends[-1]),
        "fields": list(fields),
        "left_out": _left_out(store, stream),
    }


class _ColumnWriter:
    """Collects rows of one array and writes them in whole chunks.

    Args:
        array: the Zarr array, of its final length.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self._pending: list[np.ndarray] = []
        self._rows = 0
        self._written = 0

    def append(self, rows: np.ndarray) -> None:
        """Adds the rows of one episode."""
        self._pending.append(rows)
        self._rows += len(rows)
        if self._rows >= self._array.chunks[0]:
            self._write(self._rows - self._rows % self._array.chunks[0])

    def flush(self) -> None:
        """Writes the rows that fill no whole chunk."""
        self._write(self._rows)

    def _write(self, count: int) -> None:
        if count == 0:
            return
        rows = np.concatenate(self._pending)
        self._array[self._written : self._written + count] = rows[:count]
        self._written += count
        # A copy, which does not keep the written rows in memory.
        self._pending = [rows[count:].copy()]
        self._rows -= count


def _create(
    path: Path, fields: Mapping[str, FieldSpec], ends: np.ndarray
) -> dict[str, _ColumnWriter]:
    """Creates all arrays, and writes the ends of the episodes."""
    import zarr
    from numcodecs import Blosc

    group = zarr.create_group(path, zarr_format=2)
    # A chunk of zeros is written, too: readers take a missing one for an incomplete copy.
    config: Any = {"write_empty_chunks": True}
    stored = group.create_array(
        "meta/episode_ends",
        shape=ends.shape,
        chunks=ends.shape,
        dtype=ends.dtype,
        compressors=None,
        config=config,
    )
    stored[...] = ends
    writers = {}
    for name, field in fields.items():
        dtype = np.dtype(field.dtype)
        rows = max(1, CHUNK_BYTES // max(1, prod(field.shape) * dtype.itemsize))
        shape = (int(ends[-1]), *field.shape)
        array = group.create_array(
            f"data/{name}",
            shape=shape,
            chunks=(min(rows, shape[0]), *field.shape),
            dtype=dtype,
            compressors=Blosc(cname="zstd", clevel=5, shuffle=Blosc.BITSHUFFLE),
            config=config,
        )
        writers[name] = _ColumnWriter(array)
    return writers


def _left_out(store: EpisodeStore, stream: str) -> list[str]:
    """Phrases about what the format has no place for."""
    rate = store.schema.stream(stream).rate_hz
    left_out = [f"the rate of {rate:g} Hz, units and names of entries"]
    others = sorted(store.schema.streams.keys() - {stream})
    if others:
        left_out.append(f"the streams {', '.join(others)}")
    keys = {key for episode in range(store.num_episodes) for key in store.metadata(episode)}
    if keys:
        left_out.append(f"the metadata {', '.join(sorted(keys))}")
    return left_out
