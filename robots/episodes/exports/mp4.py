"""Encodes pictures as MP4 files whose frames have exact times: frame n at n / rate.

A pair of frames shares one key frame, so that a learner that reads single frames in any order
decodes at most two.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from robots.errors import HandoffError

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream


class VideoCodec(NamedTuple):
    """One encoder and its settings."""

    encoder: str
    """Name of the encoder in FFmpeg."""
    name: str
    """Name of the codec in metadata."""
    pixel_format: str
    """Layout of the colours: yuv420p, or yuv444p for pictures of an odd height or width."""
    options: dict[str, str]


_GROUP = {"g": "2", "bf": "0"}
_H264 = {**_GROUP, "crf": "18", "preset": "veryfast", "forced-idr": "1"}
_AV1 = {**_GROUP, "crf": "25", "preset": "10"}
_CODECS = (
    VideoCodec("libx264", "h264", "yuv420p", _H264),
    VideoCodec("libx264", "h264", "yuv444p", _H264),
    VideoCodec("libsvtav1", "av1", "yuv420p", _AV1),
)


def choose_codec(name: str, height: int, width: int) -> VideoCodec:
    """The codec for pictures of a size, by what this build of PyAV has.

    Args:
        name: the camera, for messages.
        height: rows [px].
        width: columns [px].

    Raises:
        HandoffError: there is no encoder for this size.
    """
    import av

    wanted = "yuv444p" if height % 2 or width % 2 else "yuv420p"
    for codec in _CODECS:
        if codec.pixel_format == wanted and codec.encoder in av.codecs_available:
            return codec
    raise HandoffError(
        f"{name}: this build of PyAV has no encoder for {height} x {width} pixels in {wanted}; libx264 and libsvtav1 "
        "were tried. Install `av` from its wheels, or store pictures with videos=False."
    )


class Mp4File:
    """One file that frames are added to; complete once it is closed without an error."""

    def __init__(self, path: Path, codec: VideoCodec, height: int, width: int, rate: int) -> None:
        """Creates the file, in a folder that exists.

        Args:
            path: the file.
            codec: encoder and settings.
            height: rows [px].
            width: columns [px].
            rate: frames per second.
        """
        import av

        self.path = path
        self.frames = 0
        self._rate = rate
        container = av.open(str(path), "w", format="mp4")
        added = container.add_stream(codec.encoder, rate=rate, options=dict(codec.options))
        stream = cast("VideoStream", added)
        stream.pix_fmt = codec.pixel_format
        stream.height = height
        stream.width = width
        stream.time_base = Fraction(1, rate)
        self._container: OutputContainer | None = container
        self._stream = stream

    @property
    def seconds(self) -> float:
        """Time of the next frame [s]."""
        return self.frames / self._rate

    def add(self, pictures: np.ndarray, *, key: bool) -> None:
        """Appends frames.

        Args:
            pictures: `(N, height, width, 3)` uint8 RGB.
            key: whether the first one starts an episode and can be decoded alone.

        Raises:
            HandoffError: the encoder refuses a frame.
        """
        from av import VideoFrame
        from av.error import FFmpegError
        from av.video.frame import PictureType

        if self._container is None:
            raise HandoffError(f"{self.path.name}: is closed, no frame can be added.")
        for number, picture in enumerate(pictures):
            frame = VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts = self.frames
            frame.time_base = Fraction(1, self._rate)
            if key and number == 0:
                frame.pict_type = PictureType.I
            try:
                self._container.mux(self._stream.encode(frame))
            except FFmpegError as error:
                if isinstance(error, OSError):
                    raise
                raise HandoffError(
                    f"{self.path.name}: frame {self.frames} cannot be encoded ({error}). Store pictures with "
                    "videos=False."
                ) from None
            self.frames += 1

    def close(self) -> None:
        """Encodes what is left and completes the file; a second call does nothing."""
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._container = None

    def abandon(self) -> None:
        """Closes the file without completing it."""
        if self._container is not None:
            self._container.close()
            self._container = None

    def __enter__(self) -> Mp4File:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close() if kind is None else self.abandon()
