"""Reads the records of tfrecord files and checks them, without TensorFlow.

A record is its length (uint64), the masked CRC-32C of the length (uint32), the payload, and the
masked CRC-32C of the payload (uint32), all little-endian; the mask of a checksum c is
`((c >> 15 | c << 17) + 0xa282ead8) mod 2^32`. The payload is a `tf.train.Example`. The package
`tfrecord` reads records, too, but checks no checksum; here only its protobuf classes are used.
"""

from __future__ import annotations

import gzip
import importlib.util
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from robots.episodes.formats.source import explain_damage
from robots.errors import HandoffError

LARGEST_RECORD = 2**30
"""Largest size of a record [bytes]; protobuf allows 2 GB."""
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_GZIP = b"\x1f\x8b"


def record_offsets(path: Path) -> list[int]:
    """Offset of every record in the (decompressed) file [bytes]; payloads are skipped.

    Raises:
        HandoffError: the file is damaged or cut short.
    """
    offsets: list[int] = []
    with _opened(path) as (file, size):
        position = 0
        while (length := _read_length(path, file, len(offsets), size)) is not None:
            offsets.append(position)
            end = position + _HEADER.size + length + _CHECKSUM.size
            # One byte before the end is read, because seeking beyond the end is no error.
            file.seek(end - 1)
            if len(file.read(1)) != 1:
                raise _cut(path, len(offsets) - 1)
            position = end
    return offsets


def read_records(path: Path, offsets: list[int], first: int, stop: int) -> Iterator[bytes]:
    """Payloads of the records `[first, stop)`, one after another.

    Args:
        path: the file.
        offsets: see `record_offsets`.
        first: number of the first record.
        stop: number after the last record.

    Raises:
        HandoffError: a checksum is wrong, or the file is cut short.
    """
    from crc32c import crc32c

    if first >= stop:
        return
    with _opened(path) as (file, size):
        file.seek(offsets[first])
        for record in range(first, stop):
            length = _read_length(path, file, record, size)
            if length is None:
                raise _cut(path, record)
            payload = file.read(length)
            stated = file.read(_CHECKSUM.size)
            if len(payload) != length or len(stated) != _CHECKSUM.size:
                raise _cut(path, record)
            if _masked(crc32c(payload)) != _CHECKSUM.unpack(stated)[0]:
                raise HandoffError(
                    f"{path}: record {record} has another checksum than stated. Was the file damaged?"
                )
            yield payload


def parse_example(path: Path, record: int, payload: bytes) -> Mapping[str, Any]:
    """The features of a `tf.train.Example` by name, as protobuf messages.

    Raises:
        HandoffError: the payload is none.
    """
    from google.protobuf.message import Error

    try:
        return _example_class().FromString(payload).features.feature
    except Error:
        raise _no_example(path, record) from None


def read_byte_lists(path: Path, offsets: list[int], feature: str) -> Iterator[list[bytes]]:
    """The byte strings of one feature in every record, without reading the others, so that a
    sentence is found in gigabytes of pictures; checksums are not compared.

    Args:
        path: the file.
        offsets: see `record_offsets`.
        feature: name of the feature; a record without it gives an empty list.

    Raises:
        HandoffError: a record is no `tf.train.Example`, or the file is cut short.
    """
    with _opened(path) as (file, size):
        for record, offset in enumerate(offsets):
            file.seek(offset)
            length = _read_length(path, file, record, size)
            if length is None:
                raise _cut(path, record)
            try:
                yield _byte_list(file, file.tell() + length, feature.encode())
            except ValueError:
                raise _no_example(path, record) from None


def _byte_list(file: BinaryIO, end: int, feature: bytes) -> list[bytes]:
    """The byte strings of a feature in the `tf.train.Example` that ends at `end`; its features are
    entries (1: name, 2: one list of values, of which number 1 has bytes)."""
    for _, features_end in _fields(file, end, 1):
        for _, entry_end in _fields(file, features_end, 1):
            name = b""
            for number, value_end in _fields(file, entry_end):
                if number == 1:
                    name = file.read(value_end - file.tell())
                elif number == 2 and name == feature:
                    return [
                        file.read(string_end - file.tell())
                        for _, list_end in _fields(file, value_end, 1)
                        for _, string_end in _fields(file, list_end, 1)
                    ]
    return []


def _fields(file: BinaryIO, end: int, wanted: int | None = None) -> Iterator[tuple[int, int]]:
    """Number and end of the fields of a protobuf message that ends at `end`; the file is at the
    beginning of each. Other numbers than `wanted` are passed over.

    Raises:
        ValueError: a field that is no message, string or bytes, or that is cut short.
    """
    while (position := file.tell()) < end:
        tag, size = _varint(file), _varint(file)
        field_end = file.tell() + size
        if tag & 7 != 2 or field_end > end:
            raise ValueError(f"field of the type {tag & 7} at {position}")
        if wanted in (None, tag >> 3):
            yield tag >> 3, field_end
        file.seek(field_end)


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("a number is cut short")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("a number has more than ten bytes")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int | None]]:
    """The file, decompressed if it is a gzip, and its size (None if compressed) [bytes]."""
    with explain_damage(path, "the file"), path.open("rb") as raw:
        compressed = raw.read(2) == _GZIP
        raw.seek(0)
        if compressed:
            with gzip.GzipFile(fileobj=raw) as file:
                yield cast(BinaryIO, file), None
        else:
            yield raw, path.stat().st_size


def _read_length(path: Path, file: BinaryIO, record: int, size: int | None) -> int | None:
    """Size of the next payload [bytes], or None at the end of the file."""
    from crc32c import crc32c

    header = file.read(_HEADER.size)
    if not header:
        return None
    if len(header) != _HEADER.size:
        raise _cut(path, record)
    length, checksum = _HEADER.unpack(header)
    if _masked(crc32c(header[:8])) != checksum:
        raise HandoffError(
            f"{path}: the length of record {record} has another checksum than stated. Is it a tfrecord, and undamaged?"
        )
    if length > LARGEST_RECORD:
        raise HandoffError(
            f"{path}: record {record} has {length / 1e9:.1f} GB, the limit is {LARGEST_RECORD / 1e9:.1f} GB. "
            "Was it made for this purpose?"
        )
    if size is not None and length > size:
        raise _cut(path, record)
    return length


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _no_example(path: Path, record: int) -> HandoffError:
    return HandoffError(
        f"{path}: record {record} is no tf.train.Example, expected one per episode. Is it data of another kind?"
    )


def _cut(path: Path, record: int) -> HandoffError:
    return HandoffError(f"{path}: ends within record {record}. Was the download cut short?")


@cache
def _example_class() -> Any:
    """The protobuf class, from its own file: the package's `__init__` imports torch."""
    package = importlib.util.find_spec("tfrecord")
    folders = package.submodule_search_locations if package is not None else None
    if not folders:
        raise HandoffError(
            "RLDS needs the package tfrecord, which is not installed. Run: pip install tfrecord"
        )
    file = Path(next(iter(folders))) / "example_pb2.py"
    spec = importlib.util.spec_from_file_location("example_pb2", file)
    if spec is None or spec.loader is None:
        raise HandoffError(f"{file}: cannot be imported. Is another package called tfrecord?")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Example
