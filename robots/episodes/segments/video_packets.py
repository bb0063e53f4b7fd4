"""Finds the coded frames in a video file, and stores their places beside it."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from robots.episodes.segments.video_codec import HEADER, VideoHeader, write_header
from robots.errors import HandoffError
from robots.storage.durable import write_atomically
from robots.storage.location import Location

VIDEO = "video.mp4"
PACKETS = "packets.npy"
_AT_ONCE = 64
"""Largest number of frames that are read at once."""
_PACKET = np.dtype([("offset", "<u8"), ("size", "<u4"), ("checksum", "<u4"), ("key", "?")])
"""Place of a coded frame in the file [bytes], its size [bytes], its CRC-32, and whether it can be
decoded alone."""


def whole_boxes(path: Path) -> int:
    """Size of the part of an MP4 file that consists of complete boxes, without the table of a
    fragment (moof) whose frames (mdat) are incomplete [bytes]."""
    size = path.stat().st_size
    place = end = 0
    with path.open("rb") as file:
        while True:
            file.seek(place)
            head = file.read(16)
            length = int.from_bytes(head[:4], "big")
            if length == 1:  # the length does not fit into 4 bytes and follows the type
                length = int.from_bytes(head[8:16], "big")
            if length < 8 or place + length > size:
                return end
            place += length
            if head[4:8] != b"moof":
                end = place


def scan(folder: Path, header: VideoHeader) -> tuple[np.ndarray, bytes]:
    """Places of the frames in the file, up to the first one that is incomplete, and the parameters
    of the codec; none if it is no MP4 file."""
    import av
    from av.error import FFmpegError

    path = folder / VIDEO
    rows: list[tuple[int, int, int, bool]] = []
    size = path.stat().st_size
    codec_data = b""
    try:
        with av.open(str(path.absolute()), format="mp4") as container, path.open("rb") as file:
            stream = container.streams.video[0]
            codec_data = bytes(stream.codec_context.extradata or b"")
            for packet in container.demux(stream):
                place, length = packet.pos, packet.size
                if place is None or place + length > size or not length or packet.is_corrupt:
                    break
                if packet.pts != len(rows) * header.rate.denominator:
                    break
                file.seek(place)
                coded = file.read(length)
                # Power failures leave zeros, whose checksum in FFV1 is right.
                if not any(coded):
                    break
                rows.append((place, length, zlib.crc32(coded), packet.is_keyframe))
    except (FFmpegError, IndexError) as error:
        # What comes after damage is given up; errors of the disk are not damage.
        if isinstance(error, OSError):
            raise
    return np.array(rows, _PACKET), codec_data


def complete(folder: Path, header: VideoHeader, packets: np.ndarray, codec_data: bytes) -> None:
    """Writes the places of the frames, and then the header that says that they are complete."""
    buffer = io.BytesIO()
    np.save(buffer, packets, allow_pickle=False)
    data = buffer.getvalue()
    write_atomically(folder / PACKETS, data)
    finished = replace(
        header,
        frames=len(packets),
        packets_checksum=zlib.crc32(data),
        codec_data=codec_data.hex(),
    )
    write_header(folder, finished)


def read_packets(folder: Location, header: VideoHeader) -> np.ndarray:
    """Places of the frames, of which the file has all bytes."""
    path = f"{folder}/{PACKETS}"
    try:
        data = folder.read(PACKETS)
        size = folder.size(VIDEO)
    except OSError as error:
        raise HandoffError(
            f"{folder}: the video cannot be read ({error}). Was it damaged?"
        ) from None
    if zlib.crc32(data) != header.packets_checksum:
        raise HandoffError(
            f"{path}: does not belong to {HEADER} beside it. Was one of them damaged or replaced?"
        )
    packets = np.load(io.BytesIO(data), allow_pickle=False)
    if packets.dtype != _PACKET or packets.shape != (header.frames,) or not packets["key"][0]:
        raise HandoffError(
            f"{path}: lists {packets.shape} frames, the header states {header.frames}. Was it replaced?"
        )
    end = int(packets["offset"][-1]) + int(packets["size"][-1])
    if end > size:
        raise HandoffError(
            f"{folder}/{VIDEO}: has {size} bytes, its frames take {end}. Was it cut short?"
        )
    return packets


def coded_frames(
    folder: Location, packets: np.ndarray, wanted: np.ndarray
) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of the coded frames that the frames `wanted` need, in rising order."""
    if not len(wanted):
        return
    # Only the wanted part of the table is searched, since a video may have millions of frames.
    is_key = packets["key"]
    first = int(wanted[0])
    while not is_key[first]:
        first -= 1
    keys = first + np.flatnonzero(is_key[first : int(wanted[-1]) + 1])
    groups = np.searchsorted(keys, wanted, side="right") - 1
    last_of_group = np.append(np.flatnonzero(np.diff(groups)), len(wanted) - 1)
    # Groups that follow one another are one range, so that an episode needs few requests.
    ranges: list[list[int]] = []
    for last in last_of_group.tolist():
        start, stop = int(keys[groups[last]]), int(wanted[last]) + 1
        if ranges and ranges[-1][1] == start:
            ranges[-1][1] = stop
        else:
            ranges.append([start, stop])
    for start, stop in ranges:
        yield from frame_bytes(folder, packets, start, stop)


def frame_bytes(
    folder: Location, packets: np.ndarray, start: int, stop: int
) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of the coded frames `[start, stop)`.

    Raises:
        HandoffError: their bytes have changed.
    """
    for first in range(start, stop, _AT_ONCE):
        yield from _read_at_once(folder, packets, first, min(first + _AT_ONCE, stop))


def _read_at_once(
    folder: Location, packets: np.ndarray, start: int, stop: int
) -> Iterator[tuple[int, bytes]]:
    rows = packets[start:stop].tolist()
    begin = rows[0][0]
    data = folder.read_range(VIDEO, begin, rows[-1][0] + rows[-1][1])
    for number, (place, size, checksum, _) in enumerate(rows, start):
        coded = data[place - begin : place - begin + size]
        if zlib.crc32(coded) != checksum:
            raise HandoffError(
                f"{folder}/{VIDEO}: the bytes of frame {number} have changed. Was the file damaged?"
            )
        yield number, coded
