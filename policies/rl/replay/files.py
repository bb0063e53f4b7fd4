"""The steps of a replay on the disk: a ring of records of one size, and a small file that says
which of them count.

Records are only ever written where none lies that counts, flushed, and then made to count by
replacing the small file whole. So whatever moment a process dies at, the old or the new state is
found, and a save writes no more than what is new. For that the ring has an eighth more room than
the replay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors, sync_path, write_atomically

HEAD = "replay.json"
"""The small file, whose existence says that something was saved."""

Rows = dict[str, np.ndarray]
"""Named columns of equal length."""


class StepFile:
    """One folder's records. See `create` and `open`.

    Args:
        folder: of the files.
        record: dtype of one step.
        capacity: of the replay, in steps.
        head: what the small file says; None where nothing was saved yet.
    """

    def __init__(
        self, folder: Path, record: np.dtype, capacity: int, head: dict[str, Any] | None
    ) -> None:
        self.folder, self._record, self._capacity, self._head = folder, record, capacity, head

    @classmethod
    def create(cls, folder: Path, empty: Rows, capacity: int) -> StepFile:
        """For a first save.

        Args:
            folder: made if it is not there.
            empty: columns without rows, which tell shapes and dtypes.
            capacity: of the replay, in steps.

        Raises:
            HandoffError: something was saved there before.
        """
        if (folder / HEAD).exists():
            raise HandoffError(
                f"{folder}: holds a saved replay that this one was not loaded from; saving would lose it. Load it "
                "first, or choose another folder."
            )
        with explain_write_errors(folder, "the replay was not saved"):
            folder.mkdir(parents=True, exist_ok=True)
        return cls(folder, _record(empty), capacity, None)

    @classmethod
    def open(cls, folder: Path, empty: Rows, capacity: int) -> StepFile:
        """For loading, and for saves after that.

        Raises:
            HandoffError: nothing was saved there, the small file is damaged, or the columns are
                others.
        """
        try:
            head = json.loads((folder / HEAD).read_text())
            stored = {name: (kind, tuple(shape)) for name, kind, shape in head["columns"]}
            complete = all(
                isinstance(head[name], int) for name in ("first", "added", "slots", "generation")
            )
        except FileNotFoundError:
            raise HandoffError(
                f"{folder}: holds no saved replay ({HEAD} is missing). Another folder?"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise HandoffError(
                f"{folder / HEAD}: is damaged ({error!r}). Was it edited?"
            ) from error
        record = _record(empty)
        expected = _columns(record)
        if not complete or stored != {name: (kind, tuple(shape)) for name, kind, shape in expected}:
            raise HandoffError(
                f"{folder}: holds steps with columns {head['columns']}, expected {expected}. Another task's replay?"
            )
        return cls(folder, record, capacity, head)

    def read(self) -> tuple[Rows, int]:
        """The steps in their order, and how many were ever added when they were saved.

        Raises:
            HandoffError: fewer records are there than should be.
        """
        head = self._head
        assert head is not None
        path = self._path(head["generation"])
        wanted = min(head["slots"], head["added"]) * self._record.itemsize
        if not path.exists() or path.stat().st_size < wanted:
            size = path.stat().st_size if path.exists() else 0
            raise HandoffError(
                f"{path}: {size} bytes, expected {wanted}. Was it copied while it was written?"
            )
        slots = np.arange(head["first"], head["added"]) % head["slots"]
        records = np.fromfile(path, self._record)[slots]
        return {
            name: np.ascontiguousarray(records[name]) for name in records.dtype.names or ()
        }, head["added"]

    def write(self, added: int, oldest: int, rows: Callable[[int, int], Rows]) -> None:
        """Makes the files hold the steps with serial numbers from `oldest` until `added`.

        Args:
            added: steps ever added.
            oldest: serial number of the oldest one that the replay still has.
            rows: gives those between two serial numbers.

        Raises:
            HandoffError: the disk is full, or gone.
        """
        head = self._head
        with explain_write_errors(
            self.folder, "the replay was not saved; the state saved before still counts"
        ):
            if (
                head is None
                or head["slots"] != self._slots
                or oldest > head["added"]
                or head["added"] > added
            ):
                self._begin(added, oldest, rows)
                return
            spare = self._slots - self._capacity
            while head["added"] < added:
                until = min(added, head["added"] + spare)
                self._put(head["generation"], head["added"], rows(head["added"], until))
                head = {**head, "added": until, "first": max(head["first"], until - self._capacity)}
                self._commit(head)

    @property
    def _slots(self) -> int:
        return self._capacity + self._capacity // 8 + 256

    def _begin(self, added: int, oldest: int, rows: Callable[[int, int], Rows]) -> None:
        """Writes all steps to a new file, makes it count, removes the old one."""
        generation = 0 if self._head is None else self._head["generation"] + 1
        self._path(generation).unlink(missing_ok=True)
        size = min(self._slots, added) * self._record.itemsize
        with self._path(generation).open("wb") as file:
            file.truncate(size)
        for begin in range(oldest, added, 65_536):
            self._put(generation, begin, rows(begin, min(added, begin + 65_536)))
        sync_path(self._path(generation))
        self._commit(
            {
                "generation": generation,
                "slots": self._slots,
                "first": oldest,
                "added": added,
                "columns": _columns(self._record),
            }
        )
        for old in self.folder.glob("steps-*.bin"):
            if old != self._path(generation):
                old.unlink()

    def _put(self, generation: int, begin: int, rows: Rows) -> None:
        """Writes records at the places that their serial numbers from `begin` on give, and flushes
        them."""
        n = len(rows["reward"])
        records = np.zeros(n, self._record)
        for name, column in rows.items():
            records[name] = column
        descriptor = os.open(self._path(generation), os.O_WRONLY)
        try:
            done = 0
            while done < n:
                place = (begin + done) % self._slots
                several = records[done : done + self._slots - place]
                _write_all(descriptor, several.tobytes(), place * self._record.itemsize)
                done += len(several)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _commit(self, head: dict[str, Any]) -> None:
        write_atomically(self.folder / HEAD, json.dumps(head).encode())
        self._head = head

    def _path(self, generation: int) -> Path:
        return self.folder / f"steps-{generation}.bin"


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written


def _record(empty: Rows) -> np.dtype:
    return np.dtype([(name, column.dtype, column.shape[1:]) for name, column in empty.items()])


def _columns(record: np.dtype) -> list[list[Any]]:
    """Name, dtype and shape of every column, as JSON can hold them."""
    return [[name, record[name].base.str, list(record[name].shape)] for name in record.names or ()]
