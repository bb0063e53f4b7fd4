"""Reads the messages of ROS 1 bags (version 2.0), also of one that was cut short.

Layout: the line `#ROSBAG V2.0`, then records of a header and data, each after its length (uint32).
A header has fields `name=value`, each after its length; `op` is the kind of the record: bag (3),
chunk (5) with further records inside, connection (7), message (2), and two kinds of indices, which
are not needed to read all messages in order. Source: the description of the format in the wiki of
ROS; ROS 1 is no longer developed. The package rosbags reads bags, too, but only through the index,
which the bag of a recorder that was killed lacks; it decompresses chunks before their size is
checked, and reads a message as often as the index names it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from robots.episodes.formats.containers.folder import check_name
from robots.episodes.formats.ros.mcap import LARGEST_CHUNK, LARGEST_RECORD
from robots.episodes.formats.source import LARGEST_EPISODE, explain_damage
from robots.errors import HandoffError

MAGIC = b"#ROSBAG V2.0"
_MESSAGE = 2
_BAG = 3
_CHUNK = 5
_CONNECTION = 7
_OPERATIONS = range(2, 8)

Header = Mapping[str, bytes]


class Ros1Connection(NamedTuple):
    """Topic with the type of its messages."""

    topic: str
    type_name: str
    definition: str


class Ros1Message(NamedTuple):
    """One message."""

    connection: Ros1Connection
    log_ns: int
    """Time at which it was recorded [ns]."""
    data: bytes


@dataclass
class Ros1Reader:
    """Reads one file; `cut` is known after the last message."""

    path: Path
    cut: bool = False
    """Whether the file ends before its index, so that messages may be missing."""
    _connections: dict[int, Ros1Connection] = field(default_factory=dict)
    _index: int = 0
    """Place of the index [bytes]; 0 in a bag that was not closed."""
    _decompressed: int = 0

    def messages(self) -> Iterator[Ros1Message]:
        """All messages in the order of the file, to the last complete chunk of one that was cut
        short.

        Raises:
            HandoffError: the file is no bag of version 2.0, damaged, encrypted, or larger than an
                episode may be.
        """
        with explain_damage(self.path, "the file"), self.path.open("rb") as file:
            if file.readline(len(MAGIC) + 1) != MAGIC + b"\n":
                raise HandoffError(f"{self.path}: is no bag of ROS 1, version 2.0. Was it damaged?")
            for header, data in _records(self.path, file, whole=False):
                if _number(header, "op", "B") == _CHUNK:
                    yield from self._chunk(header, data)
                else:
                    yield from self._record(header, data)
            size = file.seek(0, 2)
        self.cut = not 0 < self._index <= size

    def _chunk(self, header: Header, data: bytes) -> Iterator[Ros1Message]:
        """The messages of a chunk."""
        size = _number(header, "size", "<I")
        self._decompressed += size
        if size > LARGEST_CHUNK or self._decompressed > LARGEST_EPISODE:
            raise HandoffError(
                f"{self.path}: a chunk would take {size / 1e6:.0f} MB of {self._decompressed / 1e6:.0f} MB, the "
                f"limits are {LARGEST_CHUNK / 1e6:.0f} MB and {LARGEST_EPISODE / 1e6:.0f} MB. Was it made for this "
                "purpose?"
            )
        raw = _decompressed(self.path, header["compression"], data, size)
        if len(raw) != size:
            raise HandoffError(
                f"{self.path}: a chunk has another size than stated. Was the file damaged?"
            )
        for inner, content in _records(self.path, BytesIO(raw), whole=True):
            yield from self._record(inner, content)

    def _record(self, header: Header, data: bytes) -> Iterator[Ros1Message]:
        """The message in a record; connections are kept."""
        operation = _number(header, "op", "B")
        if operation == _BAG:
            if header.get("encryptor"):
                raise HandoffError(f"{self.path}: is encrypted. Decrypt it first: rosbag decrypt.")
            self._index = _number(header, "index_pos", "<Q")
        elif operation == _CONNECTION:
            about = _fields(data)
            topic, kind = header["topic"].decode(), about["type"].decode()
            check_name(self.path, f"{topic} {kind}")
            definition = about["message_definition"].decode(errors="replace")
            connection = Ros1Connection(topic, kind, definition)
            self._connections[_number(header, "conn", "<I")] = connection
        elif operation == _MESSAGE:
            number = _number(header, "conn", "<I")
            if number not in self._connections:
                raise HandoffError(
                    f"{self.path}: a message belongs to connection {number}, which is not defined before it. Was "
                    "the file damaged?"
                )
            seconds, nanoseconds = struct.unpack("<II", header["time"])
            log_ns = seconds * 10**9 + nanoseconds
            yield Ros1Message(self._connections[number], log_ns, data)


def _records(path: Path, file: BinaryIO, whole: bool) -> Iterator[tuple[Header, bytes]]:
    """Headers and data of the complete records of a file or chunk.

    Args:
        path: the file, for messages.
        file: the records.
        whole: whether an incomplete record is an error; it ends the records otherwise.
    """
    position = file.tell()
    while file.read(1):
        file.seek(position)
        content = _sized(path, file)
        data = None if content is None else _sized(path, file)
        if content is None or data is None:
            if whole:
                raise HandoffError(f"{path}: a chunk ends within a record. Was the file damaged?")
            return
        header = _fields(content)
        if _number(header, "op", "B") not in _OPERATIONS:
            raise HandoffError(
                f"{path}: a record has the operation {header['op'][0]}, which bags have not. Was the file damaged?"
            )
        yield header, data
        position = file.tell()


def _sized(path: Path, file: BinaryIO) -> bytes | None:
    """The bytes after their length; None if the file ends before them."""
    start = file.read(4)
    if len(start) < 4:
        return None
    (size,) = struct.unpack("<I", start)
    if size > LARGEST_RECORD:
        raise HandoffError(
            f"{path}: a record has {size} bytes, the limit is {LARGEST_RECORD}. Was the file damaged?"
        )
    content = file.read(size)
    return content if len(content) == size else None


def _fields(content: bytes) -> Header:
    """The fields of a header by name."""
    fields: dict[str, bytes] = {}
    position = 0
    while position < len(content):
        (size,) = struct.unpack_from("<I", content, position)
        end = position + 4 + size
        name, equals, value = content[position + 4 : end].partition(b"=")
        if end > len(content) or not equals:
            raise ValueError("a field of a header is longer than it, or has no name")
        fields[name.decode()] = value
        position = end
    return fields


def _number(header: Header, name: str, kind: str) -> int:
    """A field of a header that is a number of the kind of `struct`."""
    return struct.unpack(kind, header[name])[0]


def _decompressed(path: Path, compression: bytes, content: bytes, size: int) -> bytes:
    """The content of a chunk; at most one byte more than stated is decompressed."""
    if compression == b"none":
        return content
    if compression == b"bz2":
        from bz2 import BZ2Decompressor

        return BZ2Decompressor().decompress(content, size + 1)
    if compression == b"lz4":
        from lz4.frame import LZ4FrameDecompressor

        return LZ4FrameDecompressor().decompress(content, size + 1)
    raise HandoffError(
        f"{path}: a chunk is compressed by {compression!r:.40}, expected bz2 or lz4. Was the file damaged?"
    )
