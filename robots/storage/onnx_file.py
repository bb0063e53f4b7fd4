"""Reads the metadata of an ONNX file and computes its digest, without the onnx package.

An ONNX file is one protocol-buffer message (`ModelProto` of onnx.proto), a sequence of fields, each
with a number, a wire type and a value. Only the fields `metadata_props` are looked into.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from robots.errors import HandoffError

DIGEST_KEY = "handoff.digest"
"""Metadata key of the digest of graph, weights and all other metadata of the ONNX file."""

_METADATA = 14
"""Number of the field `metadata_props` of `ModelProto`."""
_KEY, _VALUE = 1, 2
"""Numbers of the fields of `StringStringEntryProto`."""


def onnx_metadata(data: bytes) -> dict[str, str]:
    """Metadata of the ONNX file with the content `data`.

    Raises:
        HandoffError: it is not an ONNX file, or truncated.
    """
    view = memoryview(data)
    return dict(_entry(value) for number, _, value in _fields(view) if number == _METADATA)


def onnx_digest(data: bytes) -> str:
    """Digest (hex sha256) of the ONNX file with the content `data`, without its entry `DIGEST_KEY`.

    It is computed over the bytes of all other fields of the message in the order of the file, so
    that it covers the graph, the weights, the operator sets and the other metadata.

    Raises:
        HandoffError: it is not an ONNX file, or truncated.
    """
    view = memoryview(data)
    digest = hashlib.sha256()
    for number, whole, value in _fields(view):
        if number != _METADATA or _entry(value)[0] != DIGEST_KEY:
            digest.update(whole)
    return digest.hexdigest()


def with_digest(data: bytes) -> bytes:
    """The ONNX file with its digest as the last entry of the metadata, in place of any former one.

    Raises:
        HandoffError: it is not an ONNX file, or truncated.
    """
    view = memoryview(data)
    kept = [
        whole
        for number, whole, value in _fields(view)
        if number != _METADATA or _entry(value)[0] != DIGEST_KEY
    ]
    entry = _field(_KEY, DIGEST_KEY.encode()) + _field(_VALUE, onnx_digest(data).encode())
    return b"".join(kept) + _field(_METADATA, entry)


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Number, all bytes, and value of every field of a message."""
    position = 0
    while position < len(view):
        begin = position
        tag, position = _varint(view, position)
        length = 0
        match tag & 7:
            case 0:
                _, end = _varint(view, position)
                length = end - position
            case 1:
                length = 8
            case 2:
                length, position = _varint(view, position)
            case 5:
                length = 4
            case kind:
                raise HandoffError(
                    f"ONNX file: wire type {kind} at byte {begin}. Is it an ONNX file?"
                )
        end = position + length
        if end > len(view):
            raise HandoffError(
                f"ONNX file: {len(view)} bytes, expected at least {end}. Is the file truncated?"
            )
        yield tag >> 3, view[begin:end], view[position:end]
        position = end


def _entry(value: memoryview) -> tuple[str, str]:
    texts = {number: bytes(text).decode(errors="replace") for number, _, text in _fields(value)}
    return texts.get(_KEY, ""), texts.get(_VALUE, "")


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    """An unsigned integer of 7 bits per byte, and the position after it."""
    number = shift = 0
    while position < len(view) and shift < 64:
        byte = view[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, position
    raise HandoffError(f"ONNX file: no number at byte {position}. Is the file truncated?")


def _field(number: int, value: bytes) -> bytes:
    return _encoded(number << 3 | 2) + _encoded(len(value)) + value


def _encoded(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
