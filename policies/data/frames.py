"""Pictures and point clouds of every recorded step: in memory as far as they fit, else in an
uncompressed file.

A store keeps pictures compressed, many steps in one chunk, so windows drawn at random would decode
much for little. A gather of whole steps from memory, or from a file in the kernel's page cache,
runs near the speed of copying memory.

A file is written in one pass beside its final name and renamed when it is whole. Its name tells
what is in it, so a training that was killed finds it again, and one whose data changed does not.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors, sync_path

_FILES = "frames-*.bin"


class Frames:
    """What one camera or point cloud gave at every recorded step, part after part (one per
    store)."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        """Of `parts`, each (steps, ...) on the CPU, equal in all but their length."""
        self.step_shape = tuple(parts[0].shape[1:])
        """Of one step."""
        self._parts = [part.reshape(len(part), -1) for part in parts]
        self._ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    def __len__(self) -> int:
        """Recorded steps."""
        return int(self._ends[-1])

    def steps(self, rows: Tensor, pinned: bool = False) -> Tensor:
        """The steps `rows`, any shape, on the CPU, as `(*rows.shape, *step_shape)`.

        Args:
            rows: on the CPU.
            pinned: puts them where a copy to a GPU is made beside other work.
        """
        flat = rows.reshape(-1)
        found = torch.empty(
            len(flat), self._parts[0].shape[1], dtype=self._parts[0].dtype, pin_memory=pinned
        )
        for part, start, run in self._runs(flat):
            torch.index_select(self._parts[part], 0, flat[run] - start, out=found[run])
        return found.view(*rows.shape, *self.step_shape)

    def _runs(self, flat: Tensor) -> list[tuple[int, int, slice]]:
        """Stretches of `flat` that lie in one part: its number, its first step, where the stretch
        stands."""
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
    """Takes the steps of one camera or point cloud of one store, in order."""

    complete: bool
    """Whether all of them are there already, from an earlier attempt; what is appended is then
    ignored."""

    def append(self, steps: np.ndarray) -> None:
        """Takes `(T, ...)`."""
        ...

    def finish(self) -> Tensor:
        """All steps, `(M, ...)`.

        Raises:
            HandoffError: fewer or more of them came than were reserved.
        """
        ...


class FrameSpace:
    """Where frames go: memory as far as `limit_gb` reaches, for all cameras together, then files in
    `folder`."""

    def __init__(self, limit_gb: float = math.inf, folder: Path | None = None) -> None:
        """Without a `folder` everything goes to memory; 1 GB is 10^9 bytes."""
        self.folder = folder
        self._left = limit_gb * 1e9

    def reserve(
        self, content: str, steps: int, spec: tuple[tuple[int, ...], np.dtype]
    ) -> FrameWriter:
        """Room for what one camera gave in one store; it lies in memory if all of it still fits
        there.

        Args:
            content: tells it apart from everything else, changes of the store included.
            steps: recorded steps, M.
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
        """Removes the files, finished or not; what is gathered from them stays readable until it is
        let go of."""
        if self.folder is not None:
            for pattern in (_FILES, f".{_FILES}.*.partial"):
                for file in self.folder.glob(pattern):
                    file.unlink()


class _InMemory:
    complete = False

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._steps, self._filled = np.empty(shape, dtype), 0

    def append(self, steps: np.ndarray) -> None:
        self._steps[self._filled : self._filled + len(steps)] = steps
        self._filled += len(steps)

    def finish(self) -> Tensor:
        _check_steps("memory", self._filled, len(self._steps))
        return torch.from_numpy(self._steps)


class _InFile:
    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._path, self._shape, self._dtype = path, shape, dtype
        # Of several processes of one training each writes its own; the last to rename wins, and all
        # are equal.
        self._aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._file: BinaryIO | None = None
        self._filled = 0
        self.complete = path.exists() and path.stat().st_size == math.prod(shape) * dtype.itemsize

    def append(self, steps: np.ndarray) -> None:
        if self.complete:
            return
        with explain_write_errors(
            self._path, "the frames that do not fit in memory were not laid out"
        ):
            if self._file is None:
                self._file = self._aside.open("wb")
            self._file.write(np.ascontiguousarray(steps, self._dtype).data)
        self._filled += len(steps)

    def finish(self) -> Tensor:
        if not self.complete:
            _check_steps(str(self._path), self._filled, self._shape[0])
            self._seal()
        kind = torch.from_numpy(np.empty(0, self._dtype)).dtype
        # A shared mapping is never written to here; a private one would count against the memory
        # that can be promised.
        return torch.from_file(
            str(self._path), shared=True, size=math.prod(self._shape), dtype=kind
        ).view(self._shape)

    def _seal(self) -> None:
        with explain_write_errors(
            self._path, "the frames that do not fit in memory were not laid out"
        ):
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
            os.replace(self._aside, self._path)
            sync_path(self._path.parent)
        self._file, self.complete = None, True


def _check_steps(place: str, filled: int, expected: int) -> None:
    if filled != expected:
        raise HandoffError(
            f"frames in {place}: {filled} steps came, expected {expected}. Did the store change?"
        )
