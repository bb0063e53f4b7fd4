"""Stores the pictures of a camera, or its depth maps, as one video, and reads its frames by number.

| file          | content                                                                 |
|---------------|-------------------------------------------------------------------------|
| `video.json`  | size of the frames, rate and codec; written first, and again with the   |
|               | number of frames when the video is complete                             |
| `video.mp4`   | frame n has the time n / rate; other players show it                    |
| `packets.npy` | place, size and checksum of every coded frame                           |

While it is written, the MP4 file consists of fragments that begin with a key frame, so that
`recover` finds all complete ones if the writer is killed. A reader takes the bytes of a frame, and
of those from the key frame before it, at the places in `packets.npy`; it needs no demuxer.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.episodes.segments.video_codec import (
    Av1Config,
    Ffv1Config,
    H264Config,
    VideoHeader,
    coding,
    decoder_for,
    explain_encoding,
    new_header,
    open_output,
    read_header,
    to_layout,
    write_header,
)
from robots.episodes.segments.video_packets import (
    VIDEO,
    coded_frames,
    complete,
    read_packets,
    scan,
    whole_boxes,
)
from robots.errors import HandoffError
from robots.storage.location import Folder, Location, location_of

if TYPE_CHECKING:
    from av import VideoFrame


class VideoWriter:
    """Writes a new video on the thread that calls it; the encoder releases Python's global lock.
    The video is complete after `finish`."""

    def __init__(
        self,
        folder: Path,
        shape: Sequence[int],
        rate_hz: float,
        options: H264Config | Av1Config | Ffv1Config | None = None,
    ) -> None:
        """Creates the files.

        Args:
            folder: folder of the field, missing or empty.
            shape: (height, width, 3) of uint8 RGB; (height, width) or (height, width, 1) of uint16
                depth.
            rate_hz: frames per second.
            options: codec; None for `H264Config()` of pictures, `Ffv1Config()` of depth.

        Raises:
            HandoffError: the folder is not empty, or the codec has no such frames.
            OSError: the disk is full or not writable.
        """
        from av.video.reformatter import VideoReformatter

        self.folder = Path(folder)
        self.frames = 0
        self._header = new_header(self.folder, tuple(shape), rate_hz, options)
        if self.folder.exists() and any(self.folder.iterdir()):
            raise HandoffError(f"{folder}: is not empty, expected a new folder for a video.")
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            write_header(self.folder, self._header)
            with explain_encoding(self.folder, f"frames of the shape {self._header.shape}"):
                self._container, self._stream = open_output(self.folder / VIDEO, self._header)
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        self._converter = VideoReformatter()
        self._open = True

    def append(self, frame: np.ndarray, *, key: bool = False) -> None:
        """Appends a frame of the video's shape and type.

        Args:
            frame: the frame.
            key: whether it can be decoded without those before it, such as the first one of an
                episode, which can then be copied as it is coded.

        Raises:
            HandoffError: another shape or type, the encoder refuses it, or the video is finished.
            OSError: the disk is full.
        """
        from av.video.frame import PictureType

        shape, dtype = self._header.shape, self._header.dtype
        if not self._open:
            raise HandoffError(f"{self.folder}: the video is closed, no frame can be added.")
        if frame.shape != shape or frame.dtype != dtype:
            raise HandoffError(
                f"{self.folder}: frame {self.frames} has the shape {frame.shape} of {frame.dtype}, expected {shape} "
                f"of {dtype}."
            )
        picture = self._picture(frame)
        picture.pts = self.frames
        picture.time_base = 1 / self._header.rate
        if key:
            picture.pict_type = PictureType.I
        with explain_encoding(self.folder, f"frame {self.frames}"):
            self._container.mux(self._stream.encode(picture))
        self.frames += 1

    def finish(self) -> None:
        """Completes the video, without flushing it to the disk; a second call does nothing.

        Raises:
            HandoffError: it has no frames, or the file does not hold all of them.
            OSError: the disk is full.
        """
        if not self._open:
            return
        if not self.frames:
            raise HandoffError(f"{self.folder}: the video has no frames, expected at least 1.")
        with explain_encoding(self.folder, "the last frames"):
            self._container.mux(self._stream.encode(None))
            self._container.close()
        packets, codec_data = scan(self.folder, self._header)
        if len(packets) != self.frames:
            raise HandoffError(
                f"{self.folder / VIDEO}: holds {len(packets)} frames, but {self.frames} were appended. Was it changed?"
            )
        complete(self.folder, self._header, packets, codec_data)
        self._open = False

    def abort(self) -> None:
        """Deletes the folder of a video that is not finished."""
        from av.error import FFmpegError

        if self._open:
            self._open = False
            # Closing writes, which fails on a full disk; the file is deleted in either case.
            with suppress(FFmpegError, OSError):
                self._container.close()
            shutil.rmtree(self.folder)

    def close(self) -> None:
        """Closes the file of a video that is not finished, which `recover` can complete."""
        from av.error import FFmpegError

        if self._open:
            self._open = False
            with suppress(FFmpegError, OSError):
                self._container.close()

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.abort()

    def _picture(self, frame: np.ndarray) -> VideoFrame:
        """The frame in the layout of the encoder."""
        from av import VideoFrame

        height, width = frame.shape[:2]
        if frame.dtype == np.uint16:
            depth = np.ascontiguousarray(frame.reshape(height, width))
            return VideoFrame.from_ndarray(depth, format="gray16le")
        coded = self._header.coded_size
        if coded != (height, width):
            edges = ((0, coded[0] - height), (0, coded[1] - width), (0, 0))
            frame = np.pad(frame, edges, mode="edge")
        rgb = VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        layout = coding(self._header).pixel_format
        return to_layout(self._converter, rgb, layout)


class VideoField:
    """Frames of a complete video; may be used by several threads and processes, and pickled, which
    stores the path only."""

    def __init__(
        self, folder: Path | Location | str, sample_shape: Sequence[int] | None = None
    ) -> None:
        """Reads the header and the places of the frames.

        Args:
            folder: folder of the field, or its place in a bucket.
            sample_shape: expected shape of a frame; None accepts any.

        Raises:
            HandoffError: there is no complete video of that shape, or its files are damaged.
        """
        self.folder = location_of(folder)
        """Place of the files."""
        self.header = header = read_header(self.folder)
        """Shape, rate and codec."""
        self._sample_shape = None if sample_shape is None else tuple(sample_shape)
        if self._sample_shape not in (None, header.shape):
            raise HandoffError(
                f"{folder}: frames have the shape {header.shape}, expected {self._sample_shape}. "
                "Is it another field's video?"
            )
        if not header.frames:
            raise HandoffError(
                f"{folder}: the video is incomplete. Was its writer killed? `recover` keeps the frames that are there."
            )
        self.packets = read_packets(self.folder, header)
        """Place, size and checksum of every coded frame, and whether it can be decoded alone."""
        self.shape = (header.frames, *header.shape)
        """(N, height, width, ..) of all frames."""
        self.dtype = header.dtype
        """uint8 of pictures, uint16 of depth."""

    def __reduce__(self) -> tuple[Any, ...]:
        return VideoField, (str(self.folder), self._sample_shape)

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, start: int, stop: int) -> np.ndarray:
        """The frames `[start, stop)`, `(stop - start, *shape[1:])`.

        Raises:
            HandoffError: there are fewer frames, or the file is damaged.
        """
        return self.frames(np.arange(start, stop))

    def frames(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """The frames with the given numbers, `(len(indices), *shape[1:])`.

        Args:
            indices: numbers of frames in any order, also repeated.

        Raises:
            HandoffError: there is no such frame, or the file is damaged.
        """
        numbers = np.asarray(indices, np.int64).reshape(-1)
        outside = numbers[(numbers < 0) | (numbers >= len(self))]
        if len(outside):
            raise HandoffError(
                f"{self.folder}: has no frame {outside[0]}, expected 0 to {len(self) - 1}."
            )
        wanted, places = np.unique(numbers, return_inverse=True)
        frames = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        _decode(self.folder, self.header, self.packets, wanted, (frames, np.arange(len(wanted))))
        return frames if np.array_equal(wanted, numbers) else frames[places]

    def read_into(self, start: int, stop: int, target: np.ndarray, rows: np.ndarray) -> None:
        """Decodes the frames `[start, stop)` into rows of an array, without a copy of them.

        Args:
            start: first frame.
            stop: exclusive end.
            target: `(N, *shape[1:])` of the video's type, contiguous.
            rows: `(stop - start,)` index of each frame in `target`.

        Raises:
            HandoffError: there are fewer frames, or the file is damaged.
        """
        if stop > len(self):
            raise HandoffError(
                f"{self.folder}: has no frame {stop - 1}, expected 0 to {len(self) - 1}."
            )
        wanted = np.arange(start, stop)
        _decode(self.folder, self.header, self.packets, wanted, (target, rows))


def recover(folder: Path) -> int:
    """Completes the video of a writer that was killed, as far as its frames can be decoded.

    Returns:
        The number of frames. If it is 0, the folder holds no video and can be deleted.

    Raises:
        HandoffError: the header, or a video that was complete, is damaged.
        OSError: the disk is full or not writable.
    """
    folder = Path(folder)
    if not (folder / VIDEO).exists():
        return 0
    header = read_header(folder)
    if header.frames:
        return len(VideoField(folder))
    os.truncate(folder / VIDEO, whole_boxes(folder / VIDEO))
    packets, codec_data = scan(folder, header)
    if not packets["key"][:1].any():
        return 0
    header = replace(header, codec_data=codec_data.hex())
    readable = 0
    for stop in [*np.flatnonzero(packets["key"])[1:].tolist(), len(packets)]:
        wanted = np.arange(readable, stop)
        frames = np.empty((len(wanted), *header.shape), header.dtype)
        try:
            place = Folder(folder)
            _decode(place, header, packets, wanted, (frames, np.arange(len(wanted))))
        except HandoffError:
            break
        readable = stop
    if readable:
        complete(folder, header, packets[:readable], codec_data)
    return readable


def _decode(
    folder: Location,
    header: VideoHeader,
    packets: np.ndarray,
    wanted: np.ndarray,
    into: tuple[np.ndarray, np.ndarray],
) -> None:
    """Decodes the frames with the numbers `wanted`, ascending and without repeats, into an array,
    at the rows of the same order."""
    from av.error import FFmpegError

    if not len(wanted):
        return
    target, rows = into
    place = 0
    try:
        with decoder_for(header) as decoder:
            for number, picture in decoder.decode(coded_frames(folder, packets, wanted)):
                if place < len(wanted) and number == wanted[place]:
                    if not decoder.copy_pixels(picture, target[rows[place]]):
                        break
                    place += 1
            if place < len(wanted):
                raise HandoffError(
                    f"{folder}/{VIDEO}: frame {wanted[place]} is missing, damaged or of another size than "
                    f"{header.coded_size}. Was the file replaced?"
                )
    except (FFmpegError, OSError, ValueError, MemoryError) as error:
        raise HandoffError(
            f"{folder}/{VIDEO}: frames {wanted[0]} to {wanted[-1]} cannot be decoded ({error}). "
            "Was the file damaged?"
        ) from None
