"""Reads the messages of MCAP files, also of one that was cut short.

Layout: the magic `\\x89MCAP0\\r\\n`, then records of an operation (uint8), a length (uint64) and a
content: header (1), footer (2), schema (3), channel (4), message (5), chunk (6) with further
records inside, and indices, which are not needed to read all messages in order. Source: the MCAP
specification. The package rosbags reads MCAP, too, but decompresses a chunk before its size is
checked, refuses files that were cut short, and files whose header does not name ROS 2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from robots.episodes.formats.source import LARGEST_EPISODE, explain_damage
from robots.errors import HandoffError

MAGIC = b"\x89MCAP0\r\n"
LARGEST_CHUNK = 2**28
"""Largest size of a decompressed chunk [bytes]; writers make chunks of a few MB."""
LARGEST_RECORD = 2**28
"""Largest size of a record [bytes]."""
_FOOTER = 2
_SCHEMA = 3
_CHANNEL = 4
_MESSAGE = 5
_CHUNK = 6
_DATA_END = 15
_KNOWN = 15


class McapSchema(NamedTuple):
    """Type of messages."""

    name: str
    encoding: str
    text: bytes


class McapChannel(NamedTuple):
    """Topic with its type and the encoding of its messages."""

    topic: str
    encoding: str
    schema: McapSchema | None


class McapMessage(NamedTuple):
    """One message."""

    channel: McapChannel
    log_ns: int
    """Time at which it was recorded [ns]."""
    data: bytes


@dataclass
class McapReader:
    """Reads one file; `cut` is known after the last message."""

    path: Path
    channels: dict[int, McapChannel] = field(default_factory=dict)
    """Channels that the records so far define."""
    cut: bool = False
    """Whether the file ends before its end mark."""
    _schemas: dict[int, McapSchema] = field(default_factory=dict)
    _decompressed: int = 0

    def messages(self) -> Iterator[McapMessage]:
        """All messages in the order of the file, to the last complete record of one that was cut
        short.

        Raises:
            HandoffError: the file is no MCAP, damaged, or larger than an episode may be.
        """
        with explain_damage(self.path, "the file"), self.path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise HandoffError(f"{self.path}: is no MCAP file. Was it damaged?")
            for code, content in _records(self.path, file, whole=False):
                if code in (_DATA_END, _FOOTER):
                    return
                if code == _CHUNK:
                    yield from self._chunk(content)
                else:
                    yield from self._message(code, content)
            self.cut = True

    def _chunk(self, content: bytes) -> Iterator[McapMessage]:
        """The messages of a chunk: start, end, size, checksum, compression, records."""
        _, _, size, checksum = struct.unpack_from("<QQQI", content)
        compression, position = _string(content, 28)
        (stored,) = struct.unpack_from("<Q", content, position)
        records = content[position + 8 : position + 8 + stored]
        self._decompressed += size
        if size > LARGEST_CHUNK or self._decompressed > LARGEST_EPISODE:
            raise HandoffError(
                f"{self.path}: a chunk would take {size / 1e6:.0f} MB of {self._decompressed / 1e6:.0f} MB, the "
                f"limits are {LARGEST_CHUNK / 1e6:.0f} MB and {LARGEST_EPISODE / 1e6:.0f} MB. Was it made for this "
                "purpose?"
            )
        raw = _decompressed(self.path, compression, records, size)
        if len(raw) != size or len(records) != stored or checksum not in (0, zlib.crc32(raw)):
            raise HandoffError(
                f"{self.path}: a chunk has another size or checksum than stated. Was the file damaged?"
            )
        for code, inner in _records(self.path, BytesIO(raw), whole=True):
            yield from self._message(code, inner)

    def _message(self, code: int, content: bytes) -> Iterator[McapMessage]:
        """The message in a record; schemas and channels are kept."""
        if code == _SCHEMA:
            (number,) = struct.unpack_from("<H", content)
            name, position = _string(content, 2)
            encoding, position = _string(content, position)
            (size,) = struct.unpack_from("<I", content, position)
            text = content[position + 4 : position + 4 + size]
            self._schemas[number] = McapSchema(name, encoding, text)
        elif code == _CHANNEL:
            number, schema = struct.unpack_from("<HH", content)
            topic, position = _string(content, 4)
            encoding, _ = _string(content, position)
            self.channels[number] = McapChannel(topic, encoding, self._schemas.get(schema))
        elif code == _MESSAGE:
            number, _, log_ns, _ = struct.unpack_from("<HIQQ", content)
            if number not in self.channels:
                raise HandoffError(
                    f"{self.path}: a message belongs to channel {number}, which is not defined before it. Was the "
                    "file damaged?"
                )
            yield McapMessage(self.channels[number], log_ns, content[22:])


def _records(path: Path, file: BinaryIO, whole: bool) -> Iterator[tuple[int, bytes]]:
    """Operation and content of the complete records of a file or chunk.

    Args:
        path: the file, for messages.
        file: the records.
        whole: whether an incomplete record is an error; it ends the records otherwise.
    """
    while head := file.read(9):
        incomplete = len(head) < 9
        code = 0
        content = b""
        if not incomplete:
            code, size = struct.unpack("<BQ", head)
            if code == 0 or (_KNOWN < code < 128) or size > LARGEST_RECORD:
                raise HandoffError(
                    f"{path}: a record has the operation {code} and {size} bytes, which MCAP has not. Was the file "
                    "damaged?"
                )
            content = file.read(size)
            incomplete = len(content) < size
        if incomplete:
            if whole:
                raise HandoffError(f"{path}: a chunk ends within a record. Was the file damaged?")
            return
        yield code, content


def _string(content: bytes, position: int) -> tuple[str, int]:
    """A string at a position, and the position after it."""
    (size,) = struct.unpack_from("<I", content, position)
    end = position + 4 + size
    if end > len(content):
        raise ValueError("a text is longer than its record")
    text = content[position + 4 : end].decode()
    if not text.isprintable():
        raise ValueError(f"it holds the name {text[:60]!r}")
    return text, end


def _decompressed(path: Path, compression: str, content: bytes, size: int) -> bytes:
    """The content of a chunk; at most one byte more than stated is decompressed."""
    if compression == "":
        return content
    if compression == "zstd":
        from backports import zstd

        try:
            return zstd.ZstdDecompressor().decompress(content, size + 1)
        except zstd.ZstdError as error:
            raise ValueError(f"a chunk: {error}") from None
    if compression == "lz4":
        from lz4.frame import LZ4FrameDecompressor

        return LZ4FrameDecompressor().decompress(content, size + 1)
    raise HandoffError(
        f"{path}: a chunk is compressed by {compression!r:.40}, expected zstd or lz4. Was the file damaged?"
    )
