"""Decodes the frames of MP4 files at given times, and depth maps that were coded in 12 bits.

A frame belongs to a time if its presentation time differs from it by at most 1e-4 s, LeRobot's own
tolerance. Depth code: a picture of 12-bit numbers c = 0 .. 4095 is the distance
`exp(low + (high - low) c / 4095) - shift` with `low = ln(least + shift)`, `high = ln(most + shift)`
[m], or a linear one. Source: LeRobot 0.6, `depth_utils`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from robots.episodes.formats.source import check_size, explain_damage
from robots.errors import HandoffError

if TYPE_CHECKING:
    import av
    from av.container import InputContainer
    from av.video.stream import VideoStream

TOLERANCE_S = 1e-4
"""Largest difference between a time and that of its frame [s]."""
LONGEST_SKIP_S = 2.0
"""Time up to which frames are decoded and dropped rather than searched [s]."""
_MARGINS_S = (0.0, 1.0, 10.0, float("inf"))
"""Times before the first wanted frame to which is jumped, until one lands at or before it [s]."""
_PADDING = 128
"""Rows and columns that a codec may add to a picture [px]."""
_MOST_CODE = 4095


class DepthCode(NamedTuple):
    """Meaning of the 12-bit numbers of a depth map."""

    least: float
    """Distance of the number 0 [m]."""
    most: float
    """Distance of the number 4095 [m]."""
    shift: float
    """Number that is added before the logarithm [m]."""
    logarithmic: bool
    """Whether the numbers are equally spaced in the logarithm."""
    millimetres: bool
    """Whether the distances were recorded as whole millimetres."""

    @property
    def dtype(self) -> str:
        """Type of the distances: uint16 [mm] or float32 [m]."""
        return "uint16" if self.millimetres else "float32"

    def distances(self, codes: np.ndarray) -> np.ndarray:
        """Distances of 12-bit numbers, in the type `dtype`."""
        low, high = self.least, self.most
        if self.logarithmic:
            low, high = log(low + self.shift), log(high + self.shift)
        metres = codes.astype(np.float32) * np.float32((high - low) / _MOST_CODE) + np.float32(low)
        if self.logarithmic:
            metres = np.exp(metres) - np.float32(self.shift)
        metres = np.clip(metres, np.float32(self.least), np.float32(self.most))
        if self.millimetres:
            return np.clip(np.rint(metres * 1000.0), 0, 65535).astype(np.uint16)
        return metres


class VideoFrames:
    """Frames of the files of one camera; reading in rising order decodes each frame once."""

    def __init__(self, shape: tuple[int, ...], depth: DepthCode | None = None) -> None:
        """Opens nothing yet.

        Args:
            shape: (height, width, 3) of pictures, (height, width) or (height, width, 1) of depth.
            depth: meaning of depth maps; None for pictures.
        """
        self._shape = shape
        self._depth = depth
        self._path: Path | None = None
        self._container: InputContainer | None = None
        self._stream: VideoStream | None = None
        self._decoded: Iterator[av.VideoFrame] = iter(())
        self._next: av.VideoFrame | None = None
        self._time = 0.0

    def read(self, path: Path, start: float, count: int, rate_hz: float) -> np.ndarray:
        """The frames at `start`, `start + 1 / rate_hz`, and so on.

        Args:
            path: the MP4 file.
            start: time of the first frame in the file [s].
            count: number of frames.
            rate_hz: frames per second.

        Returns:
            `(count, height, width, 3)` uint8 RGB, or distances `(count, *shape)`.

        Raises:
            HandoffError: the file is damaged, a frame is missing or has another size.
        """
        dtype = np.dtype(self._depth.dtype if self._depth else np.uint8)
        check_size(path, "the video", (count, *self._shape), dtype.itemsize)
        frames = np.empty((count, *self._shape), dtype)
        with explain_damage(path, "the video"):
            if path != self._path:
                self._open(path)
            if self._next is None or not 0.0 <= start - self._time <= LONGEST_SKIP_S:
                self._go_to(path, start)
            for number in range(count):
                frame = self._frame_at(path, start + number / rate_hz)
                frames[number] = self._pixels(path, frame)
        return frames

    def close(self) -> None:
        """Closes the file that was read last."""
        self._decoded = iter(())
        self._next = None
        self._path = None
        if self._container is not None:
            self._container.close()
            self._container = None

    def _open(self, path: Path) -> None:
        import av

        self.close()
        # Without a fixed format, a file could be a playlist that names other files.
        container = av.open(str(path.absolute()), format="mp4")
        self._container = container
        if not container.streams.video:
            raise HandoffError(f"{path}: holds no video, expected one. Is it another file?")
        stream = container.streams.video[0]
        height, width = self._shape[:2]
        if (stream.height, stream.width) != (height, width):
            raise HandoffError(
                f"{path}: its frames have {stream.height} x {stream.width} pixels, info.json states {height} x {width}."
            )
        pixels = (height + _PADDING) * (width + _PADDING)
        stream.codec_context.options = {"max_pixels": str(pixels)}
        stream.thread_type = "AUTO"
        self._stream = stream
        self._path = path

    def _go_to(self, path: Path, start: float) -> None:
        """Jumps to the last key frame at or before `start`."""
        container, stream = self._container, self._stream
        if container is None or stream is None or stream.time_base is None:
            raise HandoffError(f"{path}: its frames have no times. Was it damaged?")
        for margin in _MARGINS_S:
            place = max(0.0, start - margin - TOLERANCE_S)
            container.seek(int(place / stream.time_base), stream=stream, backward=True)
            self._decoded = container.decode(stream)
            self._advance(path)
            if self._next is not None and self._time <= start + TOLERANCE_S:
                return

    def _advance(self, path: Path) -> None:
        """Decodes the next frame; None at the end of the file."""
        self._next = next(self._decoded, None)
        if self._next is None:
            return
        if self._next.pts is None or self._next.time_base is None:
            raise HandoffError(f"{path}: a frame has no time. Was it damaged?")
        self._time = float(self._next.pts * self._next.time_base)

    def _frame_at(self, path: Path, time: float) -> av.VideoFrame:
        while self._next is not None and self._time < time - TOLERANCE_S:
            self._advance(path)
        frame = self._next
        if frame is None:
            raise HandoffError(
                f"{path}: has no frame at {time:.4f} s, the last one is at {self._time:.4f} s. Was it cut short?"
            )
        if self._time > time + TOLERANCE_S:
            raise HandoffError(
                f"{path}: has no frame at {time:.4f} s within {TOLERANCE_S} s, the next one is at {self._time:.4f} s. "
                "Does the video have another frame rate?"
            )
        return frame

    def _pixels(self, path: Path, frame: av.VideoFrame) -> np.ndarray:
        if frame.is_corrupt:
            raise HandoffError(f"{path}: a frame cannot be decoded whole. Was it damaged?")
        if (frame.height, frame.width) != self._shape[:2]:
            raise HandoffError(
                f"{path}: a frame has {frame.height} x {frame.width} pixels, the first one {self._shape[:2]}."
            )
        if self._depth is None:
            return frame.to_ndarray(format="rgb24")
        return self._depth.distances(frame.to_ndarray(format="gray12le")).reshape(self._shape)
