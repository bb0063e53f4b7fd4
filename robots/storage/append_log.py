"""Stores numbered records in an append-only log whose committed records survive any crash.

A record consists of a magic number, the length of the content, a CRC-32 of number and content, the
number (20 bytes in total), and the content. A crash can damage only the last record, which was not
committed: length and checksum reveal it when the log is opened, and it is cut off.
Files (`<number of the first record>.log`) are deleted as a whole, the oldest first; the newest
always stays, so that the numbering continues.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from robots.errors import HandoffError
from robots.storage.durable import WriterLock, explain_write_errors, sync_path

_HEADER = struct.Struct("<4sIIQ")
"""Magic number, size of the content [bytes], CRC-32, number of the record."""
_MAGIC = b"hLog"
MAX_RECORD_BYTES = 2**31
"""Size below which a record's content must stay [bytes]."""


class _Segment:
    """One file, with the offsets of its records and, last, the offset of the next record
    [bytes]."""

    def __init__(self, path: Path, first: int) -> None:
        self.path = path
        self.first = first
        self.starts = [0]

    @property
    def end(self) -> int:
        """Number of the record after its last one."""
        return self.first + len(self.starts) - 1


class AppendLog:
    """A log in a folder. One thread appends; any thread may read, wait and drop.

    Args:
        folder: folder of the files, created if missing.
        segment_bytes: size from which a file is followed by a new one [bytes].

    Raises:
        HandoffError: another process has it open, or a record before the last is damaged.
    """

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        with explain_write_errors(folder, "the log cannot be opened"):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._lock = WriterLock(folder / "lock")
        self._file: int | None = None
        self._changed = threading.Condition()
        try:
            self._segments = self._scan()
            with explain_write_errors(folder, "the log cannot be opened"):
                self._open_last()
        except BaseException:
            self.close()
            raise

    @property
    def first(self) -> int:
        """Number of the oldest record, or of the next one if there is none."""
        with self._changed:
            return self._segments[0].first

    @property
    def next(self) -> int:
        """Number of the next record."""
        with self._changed:
            return self._segments[-1].end

    def append(self, content: bytes) -> int:
        """Writes a record to the disk and returns its number; if this raises, the record is not in
        the log.

        Raises:
            HandoffError: the write fails, the log is closed, or the record is too large.
        """
        if self._file is None:
            raise HandoffError(
                f"{self.folder}: the log is closed, by `close` or after a disk error."
            )
        if len(content) >= MAX_RECORD_BYTES:
            raise HandoffError(
                f"{self.folder}: the record has {len(content)} bytes, limit {MAX_RECORD_BYTES - 1}."
            )
        if self._segments[-1].starts[-1] >= self._segment_bytes:
            self._begin_segment()
        segment = self._segments[-1]
        number, begin = segment.end, segment.starts[-1]
        record = _header(number, content) + content
        try:
            with explain_write_errors(self.folder, f"record {number} was not stored"):
                _write(self._file, record, begin)
                os.fsync(self._file)
        except HandoffError:
            self._take_back(begin)
            raise
        with self._changed:
            segment.starts.append(begin + len(record))
            self._changed.notify_all()
        return number

    def read(self, number: int) -> bytes:
        """The content of a record.

        Raises:
            HandoffError: it was dropped, does not exist yet, or is damaged.
        """
        with self._changed:
            if not self._segments[0].first <= number < self._segments[-1].end:
                raise HandoffError(
                    f"{self.folder}: record {number} does not exist, only {self._segments[0].first} to "
                    f"{self._segments[-1].end - 1}."
                )
            segment = self._segments[
                bisect_right(self._segments, number, key=lambda segment: segment.first) - 1
            ]
            begin, end = segment.starts[number - segment.first : number - segment.first + 2]
            # Read under the lock, so that the file is not dropped at the same time.
            with segment.path.open("rb") as file:
                file.seek(begin)
                record = file.read(end - begin)
        if _length(record, number) != len(record):
            raise HandoffError(f"{segment.path}: record {number} is damaged. Is the disk failing?")
        return record[_HEADER.size :]

    def records(self, begin: int) -> Iterator[tuple[int, bytes]]:
        """Numbers and contents of the existing records from number `begin` on."""
        for number in range(begin, self.next):
            yield number, self.read(number)

    def wait(self, number: int, seconds: float) -> bool:
        """Waits up to `seconds` for record `number`; returns whether it exists."""
        with self._changed:
            return self._changed.wait_for(lambda: self._segments[-1].end > number, seconds)

    def drop(self, number: int) -> None:
        """Deletes the files whose records all have numbers below `number`, except the newest
        file."""
        with self._changed:
            while len(self._segments) > 1 and self._segments[0].end <= number:
                # Oldest first: after a crash in between, the remaining records have no gap.
                self._segments.pop(0).path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the log and releases its lock; a second call does nothing."""
        file = self._file
        self._file = None
        if file is not None:
            os.close(file)
        self._lock.release()

    def _scan(self) -> list[_Segment]:
        """Reads the files, checks their records and cuts off a damaged last one."""
        paths = sorted(self.folder.glob("*.log"))
        segments = [_Segment(path, int(path.stem)) for path in paths]
        for i, segment in enumerate(segments):
            content = segment.path.read_bytes()
            end = _find_records(content, segment)
            newest = i == len(segments) - 1
            if end < len(content):
                later_record = _next_record(content, end, segment.end)
                if not newest or later_record is not None:
                    raise HandoffError(
                        f"{segment.path}: record {segment.end} is damaged, and others follow it, which no crash can "
                        "cause. Is the disk failing, or was the file changed?"
                    )
                _truncate(segment.path, end)
            elif not newest and segment.end != segments[i + 1].first:
                raise HandoffError(
                    f"{self.folder}: records {segment.end} to {segments[i + 1].first - 1} are missing. "
                    "Was a file removed?"
                )
        return segments or [_Segment(self._path(0), 0)]

    def _open_last(self) -> None:
        self._file = os.open(self._segments[-1].path, os.O_RDWR | os.O_CREAT, 0o644)
        sync_path(self.folder)

    def _begin_segment(self) -> None:
        """Begins a new file, whose entry in the folder is on the disk before its first record."""
        first = self._segments[-1].end
        with explain_write_errors(
            self.folder, f"the file for records from {first} on was not created"
        ):
            segment = _Segment(self._path(first), first)
            file = os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            sync_path(self.folder)
        previous = self._file
        self._file = file
        with self._changed:
            self._segments.append(segment)
        if previous is not None:
            os.close(previous)

    def _take_back(self, begin: int) -> None:
        """Removes the remains of a failed append; if that fails as well, closes the log for
        appending."""
        assert self._file is not None
        try:
            os.ftruncate(self._file, begin)
            os.fsync(self._file)
        except OSError:
            file = self._file
            self._file = None
            os.close(file)

    def _path(self, first: int) -> Path:
        return self.folder / f"{first:020d}.log"


def _header(number: int, content: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, len(content), _checksum(number, content), number)


def _checksum(number: int, content: bytes | memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(number.to_bytes(8, "little")))


def _length(content: bytes | memoryview, number: int) -> int | None:
    """Size of the valid record `number` at the beginning of `content` [bytes]; None without one."""
    if len(content) < _HEADER.size:
        return None
    magic, length, checksum, stored_number = _HEADER.unpack_from(content)
    end = _HEADER.size + length
    if magic != _MAGIC or stored_number != number or len(content) < end:
        return None
    return end if _checksum(number, content[_HEADER.size : end]) == checksum else None


def _find_records(content: bytes, segment: _Segment) -> int:
    """Fills `segment.starts`; returns the offset after the last valid record [bytes]."""
    view = memoryview(content)
    while (length := _length(view[segment.starts[-1] :], segment.end)) is not None:
        segment.starts.append(segment.starts[-1] + length)
    return segment.starts[-1]


def _next_record(content: bytes, begin: int, number: int) -> int | None:
    """Offset after `begin` of a valid record with a number above `number` [bytes]; None without
    one."""
    view = memoryview(content)
    offset = content.find(_MAGIC, begin + 1)
    while offset >= 0:
        if len(content) - offset >= _HEADER.size:
            stored_number = _HEADER.unpack_from(content, offset)[3]
            if stored_number > number and _length(view[offset:], stored_number) is not None:
                return offset
        offset = content.find(_MAGIC, offset + 1)
    return None


def _write(file: int, record: bytes, begin: int) -> None:
    view = memoryview(record)
    while view:
        written = os.pwrite(file, view, begin)
        view, begin = view[written:], begin + written


def _truncate(path: Path, size: int) -> None:
    with explain_write_errors(path, "a damaged record cannot be cut off"), path.open("r+b") as file:
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())
