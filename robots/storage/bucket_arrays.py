"""Reads Zarr arrays from a bucket: chunks of a shard by ranges of bytes, with the shards' indices
and the last small chunks in memory.

It is imported by the function that opens an array, because Zarr is large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import ObjectStore, WrapperStore

from robots.errors import HandoffError

_MAX_INDICES = 4096
"""Largest number of indices in memory; one of a hundred chunks has 1.6 kB."""
_SMALL_BYTES = 2**18
"""Size up to which a chunk is kept: those of vectors have the steps of many episodes [bytes]."""
_MAX_CHUNKS = 256
"""Largest number of small chunks in memory, at most 64 MB."""

_Part = tuple[str, ByteRequest]
"""Range of bytes of an object."""


class BucketArrays(WrapperStore[ObjectStore[Any]]):
    """Zarr's store of a bucket, which asks once for the index of a shard and for small chunks.

    An object that is missing is an error; Zarr would read it as zeros.
    """

    _address: str
    _explained: Callable[[], AbstractContextManager[None]]
    _indices: dict[_Part, asyncio.Task[Buffer]]
    _chunks: dict[_Part, asyncio.Task[Buffer]]

    @classmethod
    def of(
        cls, address: str, client: Any, explained: Callable[[], AbstractContextManager[None]]
    ) -> BucketArrays:
        """The arrays of a bucket.

        Args:
            address: address of the bucket, in messages.
            client: its obstore client.
            explained: context that converts the errors of the client.
        """
        arrays = cls(ObjectStore(client, read_only=True))
        arrays._address = address
        arrays._explained = explained
        arrays._indices = {}
        arrays._chunks = {}
        return arrays

    def __str__(self) -> str:
        return self._address

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Content of an object, or a range of it.

        Raises:
            HandoffError: a shard is missing, the storage cannot be reached, or it refuses the
                request.
        """
        if isinstance(byte_range, SuffixByteRequest):
            return await self._once(self._indices, _MAX_INDICES, (key, byte_range), prototype)
        if isinstance(byte_range, RangeByteRequest):
            if byte_range.end - byte_range.start <= _SMALL_BYTES:
                return await self._once(self._chunks, _MAX_CHUNKS, (key, byte_range), prototype)
        elif key.endswith("zarr.json"):
            with self._explained():
                return await super().get(key, prototype, byte_range)
        return await self._fetch((key, byte_range), prototype)

    async def _once(
        self,
        kept: dict[_Part, asyncio.Task[Buffer]],
        most: int,
        part: _Part,
        prototype: BufferPrototype,
    ) -> Buffer:
        """A range that is asked for once, also if several reads want it at the same time. Zarr
        calls this in one event loop."""
        if part not in kept:
            while len(kept) >= most:
                del kept[next(iter(kept))]
            kept[part] = asyncio.create_task(self._fetch(part, prototype))
        task = kept[part]
        try:
            return await asyncio.shield(task)
        except HandoffError:
            # A later read asks again.
            kept.pop(part, None)
            raise

    async def _fetch(
        self, part: tuple[str, ByteRequest | None], prototype: BufferPrototype
    ) -> Buffer:
        with self._explained():
            found = await super().get(part[0], prototype, part[1])
        if found is None:
            raise HandoffError(f"{self._address}/{part[0]}: no such object. Was it deleted?")
        return found
