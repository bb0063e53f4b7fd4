"""Arrays that two processes share: one writes them, the other reads them, and they are never
pickled.

A block has a name in the system only until both sides have it open: the first side unlinks it then,
and the memory goes with the last process, whatever ends it. What is killed before that is left to
`multiprocessing`'s resource tracker, which all processes of one tree share.
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
"""Where Linux keeps blocks."""
_ALIGN = 64
"""Bytes; where an array may begin."""


class Place(NamedTuple):
    """Where in a block an array lies."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the beginning of the block."""
    size: int
    """Bytes of the array."""


Form = tuple[Place, ...]
"""Where several arrays lie."""


def form_of(arrays: Mapping[str, np.ndarray]) -> Form:
    """Places for all of them, one behind another; an array that stands under two names gets one
    place."""
    places: list[Place] = []
    taken: dict[int, int] = {}
    end = 0
    for name, array in arrays.items():
        if id(array) not in taken:
            taken[id(array)] = end
            # An empty array, too, has a place of its own.
            end += max(1, -(-array.nbytes // _ALIGN)) * _ALIGN
        offset = taken[id(array)]
        places.append(Place(name, array.dtype.str, array.shape, offset, array.nbytes))
    return tuple(places)


def size_of(form: Form) -> int:
    """Bytes of a block in which the form has room."""
    return max((place.offset + place.size for place in form), default=0)


class SharedBlock:
    """Memory that two processes have open.

    Args:
        memory: a new one, or one attached by its name.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory: SharedMemory | None = memory
        self.size = memory.size
        self.name = memory.name
        self._linked = False
        self._arrays: dict[Form, list[tuple[Place, np.ndarray]]] = {}
        """Arrays in this memory, one for each offset of a form."""

    @classmethod
    def make(cls, size: int) -> SharedBlock:
        """A new one of at least so many bytes; `unlink` it as soon as the other side has it.

        Raises:
            HandoffError: the system has no room for it.
        """
        block = cls(SharedMemory(create=True, size=max(1, size)))
        block._linked = True
        try:
            _reserve(block.name, block.size)
        except OSError as error:
            block.close()
            raise HandoffError(
                f"shared memory: no room for {size} bytes in {_FILES} ({error.strerror}). Is it a container with "
                "little of it (docker run --shm-size=1g)?"
            ) from None
        return block

    @classmethod
    def open(cls, name: str) -> SharedBlock:
        """One that another process has made."""
        return cls(SharedMemory(name=name))

    def write(self, form: Form, arrays: Mapping[str, np.ndarray]) -> None:
        """Puts arrays where the form says."""
        for place, array in self._places(form):
            array[...] = arrays[place.name]

    def read(self, form: Form) -> dict[str, np.ndarray]:
        """Copies; the next write does not change them."""
        copies = {place.offset: array.copy() for place, array in self._places(form)}
        return {place.name: copies[place.offset] for place in form}

    def unlink(self) -> None:
        """Takes the name away; who has it open keeps it."""
        if self._linked and self._memory is not None:
            self._linked = False
            self._memory.unlink()

    def close(self) -> None:
        """Lets go of the memory; a second call does nothing."""
        self.unlink()
        # Memory cannot be closed as long as there are arrays in it.
        self._arrays = {}
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _places(self, form: Form) -> list[tuple[Place, np.ndarray]]:
        if form not in self._arrays:
            assert self._memory is not None
            buffer = self._memory.buf
            first = {place.offset: place for place in reversed(form)}
            self._arrays[form] = [
                (place, np.ndarray(place.shape, place.dtype, buffer, place.offset))
                for place in first.values()
            ]
        return self._arrays[form]


def _reserve(name: str, size: int) -> None:
    """Takes the memory at once; else the first write that finds none left would end the process by
    SIGBUS."""
    file = _FILES / name
    if not file.exists():
        # Not Linux.
        return
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
