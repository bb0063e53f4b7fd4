"""Finds the coded frames in a video file, and stores their places beside it."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from robots.episodes.segments.video_codec import HEADER, VideoHeader, write_header
from robots.errors import HandoffError
from robots.storage.durable import write_atomically

VIDEO = "video.mp4"
PACKETS = "packets.npy"
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


def read_packets(folder: Path, header: VideoHeader) -> np.ndarray:
    """Places of the frames, of which the file has all bytes."""
    path = folder / PACKETS
    try:
        data = path.read_bytes()
        size = (folder / VIDEO).stat().st_size
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
            f"{folder / VIDEO}: has {size} bytes, its frames take {end}. Was it cut short?"
        )
    return packets


def coded_frames(
    path: Path, packets: np.ndarray, wanted: np.ndarray
) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of the coded frames that the frames `wanted` need, in rising order."""
    if not len(wanted):
        return
    keys = np.flatnonzero(packets["key"])
    groups = np.searchsorted(keys, wanted, side="right") - 1
    last_of_group = np.append(np.flatnonzero(np.diff(groups)), len(wanted) - 1)
    with path.open("rb", buffering=0) as file:
        for last in last_of_group.tolist():
            for number in range(int(keys[groups[last]]), int(wanted[last]) + 1):
                place, size, checksum, _ = packets[number].item()
                coded = os.pread(file.fileno(), size, place)
                if zlib.crc32(coded) != checksum:
                    raise HandoffError(
                        f"{path}: the bytes of frame {number} have changed. Was the file damaged?"
                    )
                yield number, coded
