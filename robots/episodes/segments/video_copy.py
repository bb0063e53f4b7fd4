"""Copies coded frames from videos to a new one, without decoding them."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from robots.episodes.segments.video import VideoField
from robots.episodes.segments.video_codec import MOVFLAGS, write_header
from robots.episodes.segments.video_packets import VIDEO, complete, frame_bytes, scan
from robots.errors import HandoffError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer


@dataclass(frozen=True)
class CodedFrames:
    """The frames `[start, stop)` of a video, as they are coded in its file."""

    video: VideoField
    """Video of the frames."""
    start: int
    """First frame."""
    stop: int
    """Exclusive end."""

    def __len__(self) -> int:
        """Number of frames."""
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """Size of the coded frames [bytes]."""
        return int(self.video.packets["size"][self.start : self.stop].sum())

    @property
    def decodable(self) -> bool:
        """Whether they can be decoded without the frames before them."""
        return bool(self.video.packets["key"][self.start])

    def joins(self, other: CodedFrames) -> bool:
        """Whether one video can hold both: one decoder reads them."""
        mine, theirs = self.video.header, other.video.header
        return _decoding(mine) == _decoding(theirs)


def _decoding(header: object) -> tuple[object, ...]:
    """What a decoder depends on."""
    return tuple(getattr(header, name) for name in ("shape", "rate_hz", "codec", "codec_data"))


def write_copy(folder: Path, parts: Sequence[CodedFrames]) -> None:
    """Writes the frames of all parts, one part after another, as a new video; frame n has the time
    n / rate. It is not flushed to the disk.

    Args:
        folder: folder of the field, missing or empty.
        parts: one or more, which join and are decodable.

    Raises:
        HandoffError: a source is damaged, or a part cannot be decoded alone.
        OSError: the disk is full or not writable.
    """
    import av
    from av.error import FFmpegError

    first = parts[0].video
    for part in parts:
        if not (part.decodable and part.joins(parts[0])):
            raise HandoffError(
                f"{part.video.folder}: frames from {part.start} on cannot be copied as they are coded, they need "
                "earlier frames or another decoder."
            )
    header = replace(first.header, frames=0, packets_checksum=0)
    folder.mkdir(parents=True, exist_ok=True)
    write_header(folder, header)
    rate = header.rate
    try:
        with (
            av.open(io.BufferedReader(_Video(first)), format="mp4") as source,
            av.open(
                str((folder / VIDEO).absolute()),
                "w",
                format="mp4",
                options={
                    "movflags": MOVFLAGS,
                    "video_track_timescale": str(rate.numerator),
                    "fflags": "bitexact",
                },
            ) as container,
        ):
            stream = container.add_stream_from_template(source.streams.video[0], opaque=True)
            stream.time_base = 1 / rate
            for number, (coded, key) in enumerate(_coded(parts)):
                packet = av.Packet(coded)
                packet.stream = stream
                packet.time_base = 1 / rate
                packet.pts = packet.dts = number
                packet.duration = 1
                packet.is_keyframe = key
                container.mux(packet)
    except FFmpegError as error:
        shutil.rmtree(folder)
        if isinstance(error, OSError):
            raise
        raise HandoffError(
            f"{first.folder}: the video cannot be copied ({error}). Was it damaged?"
        ) from None
    packets, codec_data = scan(folder, header)
    expected = sum(len(part) for part in parts)
    if len(packets) != expected or codec_data.hex() != first.header.codec_data:
        raise HandoffError(
            f"{folder / VIDEO}: holds {len(packets)} frames of {expected} that were copied from {first.folder}. "
            "Was a source changed?"
        )
    complete(folder, header, packets, codec_data)


def _coded(parts: Sequence[CodedFrames]) -> Iterator[tuple[bytes, bool]]:
    """Bytes of every frame of the parts, and whether it can be decoded alone."""
    for part in parts:
        video = part.video
        for number, coded in frame_bytes(video.folder, video.packets, part.start, part.stop):
            yield coded, bool(video.packets["key"][number])


class _Video(io.RawIOBase):
    """The file of a video, of which a read transfers the bytes that it needs.

    Args:
        video: the video.
    """

    def __init__(self, video: VideoField) -> None:
        super().__init__()
        self._folder = video.folder
        self._size = video.folder.size(VIDEO)
        self._place = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Place of the next read [bytes]."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Sets the place of the next read; returns it [bytes]."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def readinto(self, buffer: Buffer) -> int:
        """Reads into a buffer; returns the number of bytes, 0 at the end."""
        view = memoryview(buffer).cast("B")
        stop = min(self._place + len(view), self._size)
        data = self._folder.read_range(VIDEO, self._place, stop) if stop > self._place else b""
        view[: len(data)] = data
        self._place += len(data)
        return len(data)
