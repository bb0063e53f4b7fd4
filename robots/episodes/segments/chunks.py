"""Writes one field of a running episode as a sharded Zarr array, chunk by chunk.

Zarr writes a shard as a whole, so that recording with it would keep 64 MB of every camera in memory
and lose them to a kill. This writer appends every chunk to its shard as soon as it is full, in the
layout of the Zarr v3 sharding codec: compressed chunks one after another, and at the end of the
shard their offsets and sizes with a CRC-32C. What Zarr reads afterwards does not differ.

Beside the array, in a folder of its own, lie the sizes of the chunks that were written, and the
samples of the chunk that is not full, so that a killed recording can be finished (`reopen`).
"""

from __future__ import annotations

import os
import struct
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from robots.episodes.segments.segment import (
    chunk_layout,
    create_array,
    decode_chunk,
    encode_chunk,
    shard_name,
)
from robots.errors import HandoffError
from robots.spec import FieldSpec
from robots.storage.durable import sync_path

_ENDLESS = 2**40
"""Number of samples for the layout of an array whose length is not known yet."""
_ABSENT = 2**64 - 1
"""Offset and size of a chunk that a shard does not hold."""
_SIZES = "sizes"
"""File of the sizes of the written chunks, a little-endian uint64 each."""


class ChunkWriter:
    """Appends samples to one array.

    Args:
        folder: folder of the array, below its stream's group.
        journal: folder of the files that only an unfinished array needs.
        field: shape and dtype of a sample.
    """

    def __init__(self, folder: Path, journal: Path, field: FieldSpec) -> None:
        self.field = field
        self._folder = folder
        self._journal = journal
        self._chunk_rows, shard_rows = chunk_layout(field, _ENDLESS)
        self._shard_chunks = shard_rows // self._chunk_rows
        self._chunk = np.zeros((self._chunk_rows, *field.shape), np.dtype(field.dtype))
        self._filled = 0
        self._sizes: list[int] = []
        folder.mkdir(parents=True, exist_ok=True)
        journal.mkdir(parents=True, exist_ok=True)
        self._shard: IO[bytes] | None = None
        self._tail: IO[bytes] | None = None
        self._sizes_file: IO[bytes] = (journal / _SIZES).open("ab", buffering=0)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._sizes) * self._chunk_rows + self._filled

    @classmethod
    def reopen(cls, folder: Path, journal: Path, field: FieldSpec) -> ChunkWriter:
        """The writer of a killed recording, with the samples that reached the files.

        Raises:
            OSError: the files cannot be read.
        """
        stated = b""
        if (journal / _SIZES).exists():
            stated = (journal / _SIZES).read_bytes()
        writer = cls(folder, journal, field)
        for (size,) in struct.iter_unpack("<Q", stated[: len(stated) // 8 * 8]):
            writer._sizes.append(size)
            if writer._decoded(len(writer._sizes) - 1) is None:
                writer._sizes.pop()
                break
        writer._write_sizes()
        for shard in range(len(writer._sizes) // writer._shard_chunks):
            # The kill may have come before the index of the newest.
            writer._end_shard(shard)
        writer._reopen_tail()
        return writer

    def append(self, sample: np.ndarray) -> None:
        """Appends one sample of the field's shape and dtype.

        Raises:
            OSError: the disk is full or not writable.
        """
        self._chunk[self._filled] = sample
        self._filled += 1
        if self._filled == self._chunk_rows:
            self._write_chunk()
        elif self._chunk_rows > 1:
            if self._tail is None:
                self._tail = self._tail_path().open("wb", buffering=0)
            self._tail.write(self._chunk[self._filled - 1].tobytes())

    def sample(self, number: int) -> np.ndarray:
        """A copy of sample `number` of those that were appended."""
        chunk, row = divmod(number, self._chunk_rows)
        if chunk == len(self._sizes):
            return self._chunk[row].copy()
        decoded = self._decoded(chunk)
        if decoded is None:
            raise HandoffError(
                f"{self._folder}: sample {number} cannot be decoded. Was a file damaged?"
            )
        return decoded[row].copy()

    def finish(self, group: Any, name: str, length: int) -> None:
        """Completes the array of the first `length` samples.

        Args:
            group: Zarr group of the stream.
            name: name of the field.
            length: number of samples, at most those that were appended.

        Raises:
            OSError: the disk is full or not writable.
        """
        self._shorten(length)
        if self._filled:
            self._chunk[self._filled :] = 0
            self._write_chunk()
        if len(self._sizes) % self._shard_chunks:
            self._end_shard(len(self._sizes) // self._shard_chunks)
        create_array(
            group,
            name,
            self.field,
            length,
            (self._chunk_rows, self._chunk_rows * self._shard_chunks),
        )
        self.close()

    def close(self) -> None:
        """Closes the files; the array stays as it is."""
        for file in (self._shard, self._tail, self._sizes_file):
            if file is not None:
                file.close()
        self._shard = self._tail = None

    def _shorten(self, length: int) -> None:
        """Drops the samples from `length` on."""
        if length == len(self):
            return
        chunks, rows = divmod(length, self._chunk_rows)
        if chunks < len(self._sizes):
            # The chunk that ends in the middle is written again, from its samples.
            last = self._decoded(chunks) if rows else None
            del self._sizes[chunks:]
            self._close_shard()
            self._write_sizes()
            if last is not None:
                self._chunk[:] = last
        self._filled = rows

    def _write_chunk(self) -> None:
        """Compresses the chunk, and appends it to its shard."""
        number, place = divmod(len(self._sizes), self._shard_chunks)
        if self._shard is None:
            self._shard = self._open_shard(number)
        encoded = encode_chunk(self._chunk)
        self._shard.write(encoded)
        self._sizes_file.write(struct.pack("<Q", len(encoded)))
        if self._tail is not None:
            self._tail.close()
            self._tail = None
            self._tail_path().unlink()
        self._sizes.append(len(encoded))
        self._filled = 0
        if place + 1 == self._shard_chunks:
            self._end_shard(number)

    def _open_shard(self, number: int) -> IO[bytes]:
        """Opens a shard behind its chunks; what follows them, such as an index, is cut off."""
        path = self._shard_path(number)
        file = path.open("r+b" if path.exists() else "wb", buffering=0)
        file.truncate(sum(self._sizes_of(number)))
        file.seek(0, os.SEEK_END)
        return file

    def _end_shard(self, number: int) -> None:
        """Writes the index of a shard behind its chunks, and flushes it to the disk."""
        import google_crc32c

        self._close_shard()
        sizes = self._sizes_of(number)
        index = np.full((self._shard_chunks, 2), _ABSENT, "<u8")
        index[: len(sizes), 0] = np.cumsum([0, *sizes[:-1]])
        index[: len(sizes), 1] = sizes
        data = index.tobytes()
        with self._open_shard(number) as file:
            file.write(data + struct.pack("<I", google_crc32c.value(data)))
        sync_path(self._shard_path(number))

    def _sizes_of(self, shard: int) -> list[int]:
        """Sizes of the written chunks of a shard."""
        return self._sizes[shard * self._shard_chunks : (shard + 1) * self._shard_chunks]

    def _close_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
            self._shard = None

    def _write_sizes(self) -> None:
        """Writes the sizes of the kept chunks anew, and deletes shards after them."""
        self._sizes_file.close()
        (self._journal / _SIZES).write_bytes(struct.pack(f"<{len(self._sizes)}Q", *self._sizes))
        self._sizes_file = (self._journal / _SIZES).open("ab", buffering=0)
        number = -(-len(self._sizes) // self._shard_chunks)
        while self._shard_path(number).exists():
            self._shard_path(number).unlink()
            number += 1

    def _reopen_tail(self) -> None:
        """Reads the samples of the chunk that was not full."""
        path = self._tail_path()
        if self._chunk_rows == 1 or not path.exists():
            return
        size = prod(self.field.shape) * self._chunk.itemsize
        data = path.read_bytes()
        self._filled = min(len(data) // size, self._chunk_rows - 1)
        rows = np.frombuffer(data[: self._filled * size], self._chunk.dtype)
        self._chunk[: self._filled] = rows.reshape(self._filled, *self.field.shape)

    def _decoded(self, chunk: int) -> np.ndarray | None:
        """The samples of a written chunk; None if it is incomplete or damaged."""
        number, place = divmod(chunk, self._shard_chunks)
        try:
            with self._shard_path(number).open("rb") as file:
                file.seek(sum(self._sizes_of(number)[:place]))
                encoded = file.read(self._sizes[chunk])
            decoded = decode_chunk(encoded)
        except (OSError, RuntimeError, ValueError):
            return None
        if len(decoded) != self._chunk.nbytes:
            return None
        return np.frombuffer(decoded, self._chunk.dtype).reshape(self._chunk.shape)

    def _shard_path(self, number: int) -> Path:
        return self._folder / shard_name(number, len(self.field.shape))

    def _tail_path(self) -> Path:
        return self._journal / f"tail-{len(self._sizes)}"
