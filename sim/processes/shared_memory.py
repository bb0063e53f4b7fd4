"""Provides arrays in shared memory: one process writes them, the other reads them, without
pickling.

A block has a name in the system only until both processes have opened it: the first one then
unlinks it, and the memory is freed with the last process, even if that is killed. If a process is
killed earlier, `multiprocessing`'s resource tracker, which a process tree shares, cleans up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robots.errors import HandoffError

_FILES = Path("/dev/shm")
"""Folder of shared memory on Linux."""
_ALIGN = 64
"""Alignment of arrays in a block [bytes]."""


class ArrayLayout(NamedTuple):
    """Position of an array in a block."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Offset from the beginning of the block [bytes]."""
    size: int
    """Size of the array [bytes]."""


BlockLayout = tuple[ArrayLayout, ...]
"""Positions of several arrays in a block."""


def layout_of(arrays: Mapping[str, np.ndarray]) -> BlockLayout:
    """Computes consecutive positions of the arrays; an array with two names is stored once."""
    entries: list[ArrayLayout] = []
    offsets: dict[int, int] = {}
    end = 0
    for name, array in arrays.items():
        if id(array) not in offsets:
            offsets[id(array)] = end
            # An empty array also has a unique offset.
            end += max(1, -(-array.nbytes // _ALIGN)) * _ALIGN
        offset = offsets[id(array)]
        entries.append(ArrayLayout(name, array.dtype.str, array.shape, offset, array.nbytes))
    return tuple(entries)


def size_of(layout: BlockLayout) -> int:
    """Size of a block with this layout [bytes]."""
    return max((entry.offset + entry.size for entry in layout), default=0)


class SharedBlock:
    """Shared memory that two processes have opened.

    Args:
        memory: newly created memory, or memory attached by its name.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory: SharedMemory | None = memory
        self.size = memory.size
        self.name = memory.name
        self._linked = False
        self._arrays: dict[BlockLayout, list[tuple[ArrayLayout, np.ndarray]]] = {}
        """Arrays in this memory, one per offset of a layout."""

    @classmethod
    def make(cls, size: int) -> SharedBlock:
        """Creates a block of at least `size` bytes; `unlink` it as soon as the other process has
        opened it.

        Raises:
            HandoffError: the system has too little shared memory.
        """
        block = cls(SharedMemory(create=True, size=max(1, size)))
        block._linked = True
        try:
            _reserve(block.name, block.size)
        except OSError as error:
            block.close()
            raise HandoffError(
                f"shared memory: no room for {size} bytes in {_FILES} ({error.strerror}). Is it a container with too "
                "little of it (docker run --shm-size=1g)?"
            ) from None
        return block

    @classmethod
    def open(cls, name: str) -> SharedBlock:
        """Opens a block that another process has created."""
        return cls(SharedMemory(name=name))

    def write(self, layout: BlockLayout, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes arrays at the positions of the layout."""
        for entry, array in self._views(layout):
            array[...] = arrays[entry.name]

    def read(self, layout: BlockLayout) -> dict[str, np.ndarray]:
        """Copies of the arrays, which the next write does not change."""
        copies = {entry.offset: array.copy() for entry, array in self._views(layout)}
        return {entry.name: copies[entry.offset] for entry in layout}

    def unlink(self) -> None:
        """Removes the name; processes that have opened the block keep it."""
        if self._linked and self._memory is not None:
            self._linked = False
            self._memory.unlink()

    def close(self) -> None:
        """Closes the memory; a second call does nothing."""
        self.unlink()
        # Memory cannot be closed while arrays refer to it.
        self._arrays = {}
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _views(self, layout: BlockLayout) -> list[tuple[ArrayLayout, np.ndarray]]:
        if layout not in self._arrays:
            assert self._memory is not None
            buffer = self._memory.buf
            unique = {entry.offset: entry for entry in reversed(layout)}
            self._arrays[layout] = [
                (entry, np.ndarray(entry.shape, entry.dtype, buffer, entry.offset))
                for entry in unique.values()
            ]
        return self._arrays[layout]


def _reserve(name: str, size: int) -> None:
    """Allocates the memory immediately; otherwise a write without free memory would kill the
    process by SIGBUS."""
    file = _FILES / name
    if not file.exists():
        # Other systems than Linux have no such file.
        return
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
