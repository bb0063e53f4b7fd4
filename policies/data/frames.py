"""Decoded images and point clouds of every recorded step, in memory or in an uncompressed file.

A store compresses many images per chunk, so random access to windows would decode far more than it
needs. Gathering decoded steps from memory, or from a file in the kernel's page cache, runs near the
speed of copying memory.

A file is written under a temporary name and renamed when it is complete. Its final name is a digest
of its content's origin, so a resumed training finds it, and a training on changed data does not.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors, sync_path, temporary_beside

_FILES = "frames-*.bin"


class FrameSource(Protocol):
    """All recorded steps of one camera or point cloud."""

    step_shape: tuple[int, ...]
    """Shape of one step."""

    def __len__(self) -> int:
        """Number of recorded steps."""
        ...

    def steps(self, rows: Tensor, pinned: bool = False) -> Tensor:
        """The steps `rows` as `(*rows.shape, *step_shape)` on the CPU, pinned for a GPU if asked
        for."""
        ...


class Frames:
    """All recorded steps of one camera or point cloud, concatenated from one part per store; a
    `FrameSource`.

    Sent to another process, a part in a file is mapped there again, and a part in memory is moved
    to shared memory by torch.
    """

    def __init__(self, parts: Sequence[Tensor]) -> None:
        """Concatenates `parts`, each (steps, ...) on the CPU, with equal shapes except for their
        length."""
        self.step_shape = tuple(parts[0].shape[1:])
        """Shape of one step."""
        self._parts: list[Any] = [part.reshape(len(part), -1) for part in parts]
        self._ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    def __getstate__(self) -> dict[str, Any]:
        """Parts in files by their names."""
        return self.__dict__ | {"_parts": [_MappedFile.of(part) or part for part in self._parts]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Maps the files of the parts."""
        self.__dict__.update(state)
        self._parts = [
            part.open() if isinstance(part, _MappedFile) else part for part in self._parts
        ]

    def __len__(self) -> int:
        """Number of recorded steps."""
        return int(self._ends[-1])

    def steps(self, rows: Tensor, pinned: bool = False) -> Tensor:
        """Gathers the steps `rows` as `(*rows.shape, *step_shape)` on the CPU.

        Args:
            rows: indices of any shape, on the CPU.
            pinned: whether to use pinned memory, for asynchronous copies to a GPU.
        """
        flat = rows.reshape(-1)
        gathered = torch.empty(
            len(flat), self._parts[0].shape[1], dtype=self._parts[0].dtype, pin_memory=pinned
        )
        for part, start, run in self._runs(flat):
            torch.index_select(self._parts[part], 0, flat[run] - start, out=gathered[run])
        return gathered.view(*rows.shape, *self.step_shape)

    def _runs(self, flat: Tensor) -> list[tuple[int, int, slice]]:
        """Consecutive entries of `flat` that lie in one part: the part's index, its first step, and
        the slice of `flat`."""
        if len(self._parts) == 1:
            return [(0, 0, slice(None))]
        part_R = torch.bucketize(flat, self._ends, right=True)
        borders = [0, *(torch.nonzero(part_R.diff()).flatten() + 1).tolist(), len(flat)]
        starts = [0, *self._ends.tolist()]
        runs = []
        for first, last in pairwise(borders):
            if last > first:
                part = int(part_R[first])
                runs.append((part, starts[part], slice(first, last)))
        return runs


class FrameWriter(Protocol):
    """Receives the steps of one camera or point cloud of one store, in order."""

    complete: bool
    """Whether all steps exist already from an earlier run; appended steps are then ignored."""

    def append(self, steps: np.ndarray) -> None:
        """Appends steps `(T, ...)`."""
        ...

    def finish(self) -> Tensor:
        """Returns all steps `(M, ...)`.

        Raises:
            HandoffError: the number of appended steps is not the reserved one.
        """
        ...


class FrameStorage:
    """Allocates frames in memory up to `limit_gb` for all cameras together, then in files in
    `folder`."""

    def __init__(self, limit_gb: float = math.inf, folder: Path | None = None) -> None:
        """Uses memory only if there is no `folder`; 1 GB is 10^9 bytes."""
        self.folder = folder
        self._left = limit_gb * 1e9

    def reserve(
        self, content: str, steps: int, spec: tuple[tuple[int, ...], np.dtype]
    ) -> FrameWriter:
        """Allocates space for one camera of one store, in memory if all of it fits.

        Args:
            content: unique key of the content, which changes with the store.
            steps: number of recorded steps, M.
            spec: shape and dtype of one step.
        """
        shape, dtype = (steps, *spec[0]), spec[1]
        size = math.prod(shape) * dtype.itemsize
        if self.folder is None or size <= self._left:
            self._left -= size
            return _InMemory(shape, dtype)
        name = hashlib.sha256(f"{content} {shape} {dtype}".encode()).hexdigest()[:16]
        return _InFile(self.folder / _FILES.replace("*", name), shape, dtype)

    def clear(self) -> None:
        """Removes all files, complete or not; open mappings stay readable."""
        if self.folder is not None:
            for pattern in (_FILES, f".{_FILES}.*.partial"):
                for file in self.folder.glob(pattern):
                    file.unlink()


class _MappedFile(NamedTuple):
    """Tensor in a file."""

    path: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> _MappedFile | None:
        """The file of a tensor; None if it is in memory."""
        name = tensor.untyped_storage().filename
        return None if name is None else cls(name, tuple(tensor.shape), tensor.dtype)

    def open(self) -> Tensor:
        """Maps the file."""
        # The mapping is never written to; a private one would count against the overcommit limit.
        mapped = torch.from_file(
            self.path, shared=True, size=math.prod(self.shape), dtype=self.dtype
        )
        return mapped.view(self.shape)


class _InMemory:
    complete = False

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._steps = np.empty(shape, dtype)
        self._filled = 0

    def append(self, steps: np.ndarray) -> None:
        self._steps[self._filled : self._filled + len(steps)] = steps
        self._filled += len(steps)

    def finish(self) -> Tensor:
        _check_steps("memory", self._filled, len(self._steps))
        return torch.from_numpy(self._steps)


class _InFile:
    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._path = path
        self._shape = shape
        self._dtype = dtype
        # Every process of a training writes a separate temporary file with equal content; the last
        # rename wins.
        self._temporary = temporary_beside(path)
        self._file: BinaryIO | None = None
        self._filled = 0
        self.complete = path.exists() and path.stat().st_size == math.prod(shape) * dtype.itemsize

    def append(self, steps: np.ndarray) -> None:
        if self.complete:
            return
        with explain_write_errors(self._path, "frames that do not fit in memory were not written"):
            if self._file is None:
                self._file = self._temporary.open("wb")
            self._file.write(np.ascontiguousarray(steps, self._dtype).data)
        self._filled += len(steps)

    def finish(self) -> Tensor:
        if not self.complete:
            _check_steps(str(self._path), self._filled, self._shape[0])
            self._seal()
        kind = torch.from_numpy(np.empty(0, self._dtype)).dtype
        return _MappedFile(str(self._path), self._shape, kind).open()

    def _seal(self) -> None:
        with explain_write_errors(self._path, "frames that do not fit in memory were not written"):
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
            os.replace(self._temporary, self._path)
            sync_path(self._path.parent)
        self._file = None
        self.complete = True


def _check_steps(place: str, filled: int, expected: int) -> None:
    if filled != expected:
        raise HandoffError(
            f"frames in {place}: {filled} steps were written, expected {expected}. Did the store change?"
        )
