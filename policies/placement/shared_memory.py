"""Arrays that two processes share: written by one, read by the other, never pickled.

A block has a name in the system only until both sides have it open: the first side unlinks it then,
and the memory goes with the last process, whatever ends it. What is killed before that is left to
`multiprocessing`'s resource tracker, which all processes of one tree share.
"""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.shared_memory import SharedMemory
from typing import NamedTuple

import numpy as np

_ALIGN = 64
"""Bytes; where an array may begin."""


class Place(NamedTuple):
    """Where in a block an array lies."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes."""


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
        places.append(Place(name, array.dtype.str, array.shape, taken[id(array)]))
    return tuple(places)


def size_of(form: Form) -> int:
    """Bytes that it takes."""
    return max((place.offset + _bytes(place) for place in form), default=0)


class Block:
    """Memory that two processes have open.

    Args:
        memory: a new one, or one attached by its name.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory: SharedMemory | None = memory
        self.size, self.name = memory.size, memory.name
        self._linked = False

    @classmethod
    def make(cls, size: int) -> Block:
        """A new one of at least so many bytes; `unlink` it as soon as the other side has it."""
        block = cls(SharedMemory(create=True, size=max(1, size)))
        block._linked = True
        return block

    @classmethod
    def open(cls, name: str) -> Block:
        """One that another process has made."""
        return cls(SharedMemory(name=name))

    def write(self, form: Form, arrays: Mapping[str, np.ndarray]) -> None:
        """Puts arrays where the form says."""
        done: set[int] = set()
        for place in form:
            if place.offset not in done:
                done.add(place.offset)
                np.copyto(self._view(place), arrays[place.name])

    def read(self, form: Form) -> dict[str, np.ndarray]:
        """Copies; the next write does not change them."""
        copies: dict[int, np.ndarray] = {}
        for place in form:
            if place.offset not in copies:
                copies[place.offset] = self._view(place).copy()
        return {place.name: copies[place.offset] for place in form}

    def unlink(self) -> None:
        """Takes the name away; who has it open keeps it."""
        if self._linked and self._memory is not None:
            self._linked = False
            self._memory.unlink()

    def close(self) -> None:
        """Lets go of the memory; a second call does nothing."""
        self.unlink()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _view(self, place: Place) -> np.ndarray:
        assert self._memory is not None
        return np.ndarray(place.shape, np.dtype(place.dtype), self._memory.buf, place.offset)


def _bytes(place: Place) -> int:
    return int(np.prod(place.shape, dtype=np.int64)) * np.dtype(place.dtype).itemsize
