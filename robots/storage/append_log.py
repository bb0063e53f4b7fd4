"""Numbered records in files that only grow: what has been appended is on the disk, whatever happens
next.

A record is a mark, the content's length, a CRC-32 of number and content, the number (20 bytes in
all), and the content. A crash can tear only the last one, which was not committed: length and
checksum tell when the log is opened, and it is cut off.
Files (`<number of the first record>.log`) are dropped whole, the oldest first; the newest stays, so
numbers go on.
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
"""Magic, bytes of the content, CRC-32, number."""
_MAGIC = b"hLog"
LARGEST_RECORD = 2**31
"""Bytes."""


class _Segment:
    """One file: where its records begin, and behind them where the next one will."""

    def __init__(self, path: Path, first: int) -> None:
        self.path, self.first = path, first
        self.starts = [0]

    @property
    def end(self) -> int:
        """Number of the record behind its last one."""
        return self.first + len(self.starts) - 1


class AppendLog:
    """A log in a folder. One thread appends; any may read, wait and drop.

    Args:
        folder: made if missing.
        segment_bytes: size from which on a file is followed by a new one.

    Raises:
        HandoffError: another process writes it, or a record that is not the last is damaged.
    """

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        with explain_write_errors(folder, "the log cannot be opened"):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._segment_bytes = folder, segment_bytes
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
        """Number of the oldest record, or of the next one where there is none."""
        with self._changed:
            return self._segments[0].first

    @property
    def next(self) -> int:
        """Number of the record that will be appended next."""
        with self._changed:
            return self._segments[-1].end

    def append(self, content: bytes) -> int:
        """Puts a record on the disk; returns its number. When this raises, the record is not in the
        log.

        Raises:
            HandoffError: the disk does not take it, the log is closed, or the record is too large.
        """
        if self._file is None:
            raise HandoffError(
                f"{self.folder}: the log is closed, by `close` or by an error of its disk."
            )
        if len(content) >= LARGEST_RECORD:
            raise HandoffError(
                f"{self.folder}: a record of {len(content)} bytes, limit {LARGEST_RECORD - 1}."
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
        """The record's content.

        Raises:
            HandoffError: it was dropped, is not there yet, or is damaged.
        """
        with self._changed:
            if not self._segments[0].first <= number < self._segments[-1].end:
                raise HandoffError(
                    f"{self.folder}: record {number} is not here, only {self._segments[0].first} to "
                    f"{self._segments[-1].end - 1}."
                )
            segment = self._segments[
                bisect_right(self._segments, number, key=lambda one: one.first) - 1
            ]
            begin, end = segment.starts[number - segment.first : number - segment.first + 2]
            # Under the lock, so that the file is not dropped meanwhile.
            with segment.path.open("rb") as file:
                file.seek(begin)
                record = file.read(end - begin)
        if _length(record, number) != len(record):
            raise HandoffError(f"{segment.path}: record {number} is damaged. Is the disk failing?")
        return record[_HEADER.size :]

    def records(self, begin: int) -> Iterator[tuple[int, bytes]]:
        """Numbers and contents from record `begin` on, up to those that are there now."""
        for number in range(begin, self.next):
            yield number, self.read(number)

    def wait(self, number: int, seconds: float) -> bool:
        """Whether record `number` is there, after at most that time [s]."""
        with self._changed:
            return self._changed.wait_for(lambda: self._segments[-1].end > number, seconds)

    def drop(self, number: int) -> None:
        """Removes the files whose records are all numbered below `number`, except the newest
        file."""
        with self._changed:
            while len(self._segments) > 1 and self._segments[0].end <= number:
                # Oldest first: after a crash in between, what is left still has no gap.
                self._segments.pop(0).path.unlink(missing_ok=True)

    def close(self) -> None:
        """Gives the folder up; a second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
        self._lock.release()

    def _scan(self) -> list[_Segment]:
        paths = sorted(self.folder.glob("*.log"))
        segments = [_Segment(path, int(path.stem)) for path in paths]
        for place, segment in enumerate(segments):
            content = segment.path.read_bytes()
            sound = _find_records(content, segment)
            newest = place == len(segments) - 1
            if sound < len(content):
                follower = _next_record(content, sound, segment.end)
                if not newest or follower is not None:
                    raise HandoffError(
                        f"{segment.path}: record {segment.end} is damaged, and others follow it. A crash does not do "
                        "that: is the disk failing, or was the file changed?"
                    )
                _truncate(segment.path, sound)
            elif not newest and segment.end != segments[place + 1].first:
                raise HandoffError(
                    f"{self.folder}: records {segment.end} to {segments[place + 1].first - 1} are missing. "
                    "Was a file removed?"
                )
        return segments or [_Segment(self._path(0), 0)]

    def _open_last(self) -> None:
        self._file = os.open(self._segments[-1].path, os.O_RDWR | os.O_CREAT, 0o644)
        sync_path(self.folder)

    def _begin_segment(self) -> None:
        """Goes on in a new file. Its entry in the folder is on the disk before a record is."""
        first = self._segments[-1].end
        with explain_write_errors(self.folder, f"no file for records from {first} on"):
            segment = _Segment(self._path(first), first)
            file = os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            sync_path(self.folder)
        old, self._file = self._file, file
        with self._changed:
            self._segments.append(segment)
        if old is not None:
            os.close(old)

    def _take_back(self, begin: int) -> None:
        """Removes what a failed append may have left; where that fails too, nothing more is
        appended."""
        assert self._file is not None
        try:
            os.ftruncate(self._file, begin)
            os.fsync(self._file)
        except OSError:
            file, self._file = self._file, None
            os.close(file)

    def _path(self, first: int) -> Path:
        return self.folder / f"{first:020d}.log"


def _header(number: int, content: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, len(content), _checksum(number, content), number)


def _checksum(number: int, content: bytes | memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(number.to_bytes(8, "little")))


def _length(content: bytes | memoryview, number: int) -> int | None:
    """Bytes of the sound record `number` at the beginning of `content`; None where there is
    none."""
    if len(content) < _HEADER.size:
        return None
    magic, length, checksum, told = _HEADER.unpack_from(content)
    end = _HEADER.size + length
    if magic != _MAGIC or told != number or len(content) < end:
        return None
    return end if _checksum(number, content[_HEADER.size : end]) == checksum else None


def _find_records(content: bytes, segment: _Segment) -> int:
    """Fills `segment.starts`; returns the bytes up to which records are sound."""
    view = memoryview(content)
    while (length := _length(view[segment.starts[-1] :], segment.end)) is not None:
        segment.starts.append(segment.starts[-1] + length)
    return segment.starts[-1]


def _next_record(content: bytes, begin: int, number: int) -> int | None:
    """Where a sound record that follows number `number` begins behind `begin`; None where there is
    none."""
    view = memoryview(content)
    place = content.find(_MAGIC, begin + 1)
    while place >= 0:
        if len(content) - place >= _HEADER.size:
            told = _HEADER.unpack_from(content, place)[3]
            if told > number and _length(view[place:], told) is not None:
                return place
        place = content.find(_MAGIC, place + 1)
    return None


def _write(file: int, record: bytes, begin: int) -> None:
    view = memoryview(record)
    while view:
        written = os.pwrite(file, view, begin)
        view, begin = view[written:], begin + written


def _truncate(path: Path, size: int) -> None:
    with explain_write_errors(path, "a torn record cannot be cut off"), path.open("r+b") as file:
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())
