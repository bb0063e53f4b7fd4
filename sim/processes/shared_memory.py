"""Provides arrays in shared memory: one process writes them, the other reads them, without
pickling.

A block has a name in the system only until both processes have opened it: the first one then
unlinks it, and the memory is freed with the last process, even if that is killed. If a process is
killed earlier, `multiprocessing`'s resource tracker, which a process tree shares, cleans up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from mmap import PAGESIZE, mmap
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from tempfile import TemporaryFile
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


Buffer = memoryview | mmap
"""Memory of a block."""
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


class ArrayBlock:
    """Memory that holds arrays at the positions of a layout.

    Args:
        buffer: the memory.
        size: its size [bytes].
    """

    def __init__(self, buffer: Buffer, size: int) -> None:
        self.size = size
        self._buffer: Buffer | None = buffer
        self._arrays: dict[BlockLayout, list[tuple[ArrayLayout, np.ndarray]]] = {}
        """Arrays in this memory, one per offset of a layout."""

    def write(self, layout: BlockLayout, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes arrays at the positions of the layout."""
        for entry, array in self._views(layout):
            array[...] = arrays[entry.name]

    def read(self, layout: BlockLayout) -> dict[str, np.ndarray]:
        """Copies of the arrays, which the next write does not change."""
        copies = {entry.offset: array.copy() for entry, array in self._views(layout)}
        return {entry.name: copies[entry.offset] for entry in layout}

    def release(self) -> None:
        """Drops all references to the memory, which cannot be closed while arrays refer to it."""
        self._arrays = {}
        self._buffer = None

    def _views(self, layout: BlockLayout) -> list[tuple[ArrayLayout, np.ndarray]]:
        if layout not in self._arrays:
            assert self._buffer is not None
            unique = {entry.offset: entry for entry in reversed(layout)}
            self._arrays[layout] = [
                (entry, np.ndarray(entry.shape, entry.dtype, self._buffer, entry.offset))
                for entry in unique.values()
            ]
        return self._arrays[layout]


class SharedBlock(ArrayBlock):
    """Shared memory that two processes have opened.

    Args:
        memory: newly created memory, or memory attached by its name.
    """

    def __init__(self, memory: SharedMemory) -> None:
        assert memory.buf is not None
        super().__init__(memory.buf, memory.size)
        self._memory: SharedMemory | None = memory
        self.name = memory.name
        self._linked = False

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

    def unlink(self) -> None:
        """Removes the name; processes that have opened the block keep it."""
        if self._linked and self._memory is not None:
            self._linked = False
            self._memory.unlink()

    def close(self) -> None:
        """Closes the memory; a second call does nothing."""
        self.unlink()
        self.release()
        if self._memory is not None:
            self._memory.close()
            self._memory = None


class DescriptorBlock(ArrayBlock):
    """Shared memory without a name, known by a file descriptor that one process sends to the other;
    it is freed with the last process that has it.

    Args:
        descriptor: descriptor of the memory, which the block closes.
        size: size of the memory [bytes].
    """

    def __init__(self, descriptor: int, size: int) -> None:
        memory = mmap(descriptor, size)
        super().__init__(memory, size)
        self.descriptor = descriptor
        self._memory: mmap | None = memory

    @classmethod
    def make(cls, size: int) -> DescriptorBlock:
        """Creates a block of at least `size` bytes.

        Raises:
            HandoffError: the system has too little memory.
        """
        size = -(-max(1, size) // PAGESIZE) * PAGESIZE
        descriptor = _new_descriptor()
        try:
            os.truncate(descriptor, size)
            if hasattr(os, "posix_fallocate"):
                # Otherwise a write without free memory would kill the process by SIGBUS.
                os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.close(descriptor)
            raise HandoffError(
                f"shared memory: no room for {size} bytes ({error.strerror}). Make fewer environments."
            ) from None
        return cls(descriptor, size)

    def close(self) -> None:
        """Closes the memory; a second call does nothing."""
        self.release()
        if self._memory is not None:
            self._memory.close()
            os.close(self.descriptor)
            self._memory = None


def _new_descriptor() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("handoff")
    with TemporaryFile() as file:
        return os.dup(file.fileno())


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
