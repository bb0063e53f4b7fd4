"""Stores the steps of a replay on disk: a ring of fixed-size records and a header file that lists
the valid ones.

New records are written to slots without valid records and flushed; then the header is replaced
atomically. A crash therefore leaves either the old or the new state, and a save writes only new
steps. To make this possible the ring has an eighth more slots than the replay.
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
"""Header file; it exists once a replay was saved."""

Rows = dict[str, np.ndarray]
"""Named columns of equal length."""


class StepFile:
    """Records of a replay in one folder; see `create` and `open`.

    Args:
        folder: folder of the files.
        record: dtype of one step.
        capacity: of the replay, in steps.
        head: content of the header file; None before the first save.
    """

    def __init__(
        self, folder: Path, record: np.dtype, capacity: int, head: dict[str, Any] | None
    ) -> None:
        self.folder = folder
        self._record = record
        self._capacity = capacity
        self._head = head

    @classmethod
    def create(cls, folder: Path, empty: Rows, capacity: int) -> StepFile:
        """Prepares a folder for the first save of a replay.

        Args:
            folder: created if missing.
            empty: columns without rows, which define names, shapes and dtypes.
            capacity: of the replay, in steps.

        Raises:
            HandoffError: the folder already holds a saved replay.
        """
        if (folder / HEAD).exists():
            raise HandoffError(
                f"{folder}: holds a saved replay that was not loaded; saving would overwrite it. Load it "
                "first, or choose another folder."
            )
        with explain_write_errors(folder, "the replay was not saved"):
            folder.mkdir(parents=True, exist_ok=True)
        return cls(folder, _record(empty), capacity, None)

    @classmethod
    def open(cls, folder: Path, empty: Rows, capacity: int) -> StepFile:
        """Opens a saved replay for loading and further saves.

        Raises:
            HandoffError: there is no saved replay, its header is damaged, or its columns differ.
        """
        try:
            head = json.loads((folder / HEAD).read_text())
            stored = {name: (kind, tuple(shape)) for name, kind, shape in head["columns"]}
            complete = all(
                isinstance(head[name], int) for name in ("first", "added", "slots", "generation")
            )
        except FileNotFoundError:
            raise HandoffError(
                f"{folder}: holds no saved replay ({HEAD} is missing). Is it the wrong folder?"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise HandoffError(
                f"{folder / HEAD}: is damaged ({error!r}). Was it edited?"
            ) from error
        record = _record(empty)
        expected = _columns(record)
        if not complete or stored != {name: (kind, tuple(shape)) for name, kind, shape in expected}:
            raise HandoffError(
                f"{folder}: holds steps with columns {head['columns']}, expected {expected}. Is it the "
                "replay of another task?"
            )
        return cls(folder, record, capacity, head)

    def read(self) -> tuple[Rows, int]:
        """Stored steps, oldest first, and the number of steps ever added at that save.

        Raises:
            HandoffError: the record file is too short.
        """
        head = self._head
        assert head is not None
        path = self._path(head["generation"])
        expected_size = min(head["slots"], head["added"]) * self._record.itemsize
        if not path.exists() or path.stat().st_size < expected_size:
            size = path.stat().st_size if path.exists() else 0
            raise HandoffError(
                f"{path}: {size} bytes, expected {expected_size}. Was it copied while it was written?"
            )
        slots = np.arange(head["first"], head["added"]) % head["slots"]
        records = np.fromfile(path, self._record)[slots]
        return {
            name: np.ascontiguousarray(records[name]) for name in records.dtype.names or ()
        }, head["added"]

    def write(self, added: int, oldest: int, rows: Callable[[int, int], Rows]) -> None:
        """Saves the steps with serial numbers from `oldest` to `added` - 1.

        Args:
            added: number of steps ever added.
            oldest: serial number of the oldest step that the replay still holds.
            rows: returns the steps between two serial numbers.

        Raises:
            HandoffError: the files cannot be written, for instance because the disk is full.
        """
        head = self._head
        with explain_write_errors(
            self.folder, "the replay was not saved; the previous save is still valid"
        ):
            if (
                head is None
                or head["slots"] != self._slots
                or oldest > head["added"]
                or head["added"] > added
            ):
                self._rewrite(added, oldest, rows)
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

    def _rewrite(self, added: int, oldest: int, rows: Callable[[int, int], Rows]) -> None:
        """Writes all steps to a new record file, commits it and removes the old one."""
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
        """Writes records with serial numbers from `begin` on to their slots, and flushes them."""
        n = len(rows["reward"])
        records = np.zeros(n, self._record)
        for name, column in rows.items():
            records[name] = column
        descriptor = os.open(self._path(generation), os.O_WRONLY)
        try:
            written = 0
            while written < n:
                slot = (begin + written) % self._slots
                block = records[written : written + self._slots - slot]
                _write_all(descriptor, block.tobytes(), slot * self._record.itemsize)
                written += len(block)
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
    """Name, dtype and shape of every column as JSON values."""
    return [[name, record[name].base.str, list(record[name].shape)] for name in record.names or ()]
