"""Defines the codecs of videos, their settings, and the header of a video; opens encoders and
decoders."""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import numpy as np
from pydantic import Field

from robots.config import Pixels, Whole, config, to_plain, validate
from robots.errors import HandoffError
from robots.storage.durable import write_atomically
from robots.storage.location import Location, location_of

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import OutputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.reformatter import VideoReformatter
    from av.video.stream import VideoStream

FORMAT = "handoff.video"
VERSION = 1
HEADER = "video.json"
MOVFLAGS = "hybrid_fragmented+frag_keyframe+empty_moov+default_base_moof"
"""Fragments while the file is written, one index of all frames once it is complete."""
_DECODERS = {"h264": "h264", "av1": "libdav1d", "ffv1": "ffv1"}
_KEPT_DECODERS = 4
"""Number of decoders that a thread keeps; videos of one codec and size share a decoder."""
_LIMITED = 1
"""FFmpeg's number of the range 16 to 235 of brightness."""
_BT601 = 6
"""FFmpeg's number of the colours of SMPTE 170M, which are those of BT.601."""
_PADDING = 128
"""Rows and columns that a codec may add to a picture [px]."""


@config
class H264Config:
    """H.264 of lossy pictures: the fastest to decode, and shown by every browser. Frames are coded
    in their order, at once, and without the loop filter and arithmetic coding."""

    kind: Literal["h264"] = "h264"
    """Discriminator of the codec."""
    crf: Annotated[int, Field(ge=1, le=51)] = 20
    """Constant rate factor; a larger one gives smaller files and coarser pictures."""
    gop: Annotated[int, Field(ge=1, le=1000)] = 2
    """Largest number of frames from one key frame to the next. Larger groups are smaller; reading
    one frame decodes half a group on average."""
    preset: Literal["ultrafast", "superfast", "veryfast", "faster", "fast", "medium"] = "veryfast"
    """Setting of x264 between speed and size."""
    pixel_format: Literal["yuv420p", "yuv444p"] = "yuv420p"
    """Layout of the colours: one colour per 2 x 2 pixels, where an odd height or width is coded
    with a copy of its last row or column, or one per pixel, which fewer players show."""
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of threads of the encoder."""


@config
class Av1Config:
    """AV1 of lossy pictures, the codec of LeRobot's data sets: smaller files, slower to decode."""

    kind: Literal["av1"] = "av1"
    """Discriminator of the codec."""
    crf: Annotated[int, Field(ge=1, le=63)] = 30
    """Constant rate factor; a larger one gives smaller files and coarser pictures."""
    gop: Annotated[int, Field(ge=1, le=1000)] = 4
    """Number of frames from one key frame to the next."""
    preset: Annotated[int, Field(ge=0, le=10)] = 10
    """Setting of SVT-AV1 between size (0) and speed (10). The presets from 11 are refused, because
    they may leave out a change of a plain surface altogether."""
    threads: Annotated[int, Field(ge=1, le=6)] = 1
    """Level of parallelism of SVT-AV1; it starts more threads, of which one works at level 1."""


@config
class Ffv1Config:
    """FFV1 of exact pictures and of depth maps; every frame is a key frame."""

    kind: Literal["ffv1"] = "ffv1"
    """Discriminator of the codec."""
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of threads of the encoder."""


VideoConfig = Annotated[H264Config | Av1Config | Ffv1Config, Field(discriminator="kind")]
"""Codec of a video and its settings."""


@config
class VideoHeader:
    """Content of `video.json`."""

    shape: tuple[Pixels, ...]
    """(height, width, 3) of uint8 RGB; (height, width) or (height, width, 1) of uint16 depth."""
    rate_hz: Annotated[float, Field(ge=0.001, le=10_000.0)]
    """Frames per second."""
    codec: VideoConfig
    """Codec and its settings."""
    frames: Whole = 0
    """Number of frames; 0 until the video is complete."""
    packets_checksum: Whole = 0
    """CRC-32 of `packets.npy`."""
    codec_data: str = ""
    """Parameters of the codec that its decoder needs, in hexadecimal."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers: uint8 of pictures, uint16 of depth."""
        return np.dtype("uint8" if self.shape[2:] == (3,) else "uint16")

    @property
    def rate(self) -> Fraction:
        """Frames per second as the file states it."""
        return Fraction(self.rate_hz).limit_denominator(1000)

    @property
    def coded_size(self) -> tuple[int, int]:
        """Height and width of the coded frames [px]."""
        height, width = self.shape[:2]
        if coding(self).pixel_format == "yuv420p":
            return height + height % 2, width + width % 2
        return height, width


class Coding(NamedTuple):
    """One encoder and its settings."""

    encoder: str
    pixel_format: str
    options: dict[str, str]


def coding(header: VideoHeader) -> Coding:
    """The encoder of a video; none holds frames back, and all code them in their order."""
    match header.codec:
        case H264Config(crf=crf, gop=gop, preset=preset, pixel_format=layout):
            options = {"crf": str(crf), "g": str(gop), "preset": preset, "bf": "0"}
            # Most of the time of a read goes into the bits of key frames. In short groups, key
            # frames as coarse as the others, and one quality for all parts of a picture, give
            # the same mean error with fewer bits.
            options |= {"tune": "fastdecode+zerolatency", "x264-params": "ipratio=1:aq-mode=0"}
            options["forced-idr"] = "1"
            return Coding("libx264", layout, options)
        case Av1Config(crf=crf, gop=gop, preset=preset, threads=level):
            parameters = f"pred-struct=1:lookahead=0:lp={level}"
            options = {"crf": str(crf), "g": str(gop), "preset": str(preset)}
            return Coding("libsvtav1", "yuv420p", {**options, "svtav1-params": parameters})
        case Ffv1Config():
            layout = "bgr0" if header.dtype == np.uint8 else "gray16le"
            options = {"level": "3", "g": "1", "slices": "4", "coder": "rice", "context": "0"}
            return Coding("ffv1", layout, options)


def new_header(
    folder: Path,
    shape: tuple[int, ...],
    rate_hz: float,
    options: H264Config | Av1Config | Ffv1Config | None,
) -> VideoHeader:
    """The header of a video without frames.

    Raises:
        HandoffError: the shape, the rate or the options are invalid.
    """
    color = shape[2:] == (3,)
    codec = options or (H264Config() if color else Ffv1Config())
    values = {"shape": shape, "rate_hz": rate_hz, "codec": codec}
    header = validate(VideoHeader, values, str(folder))
    check_shape(folder, header)
    return header


def check_shape(folder: Path | Location, header: VideoHeader) -> None:
    """Checks that the frames are pictures or depth maps, and that their codec can store them.

    Raises:
        HandoffError: they are not, or it cannot.
    """
    shape, kind = header.shape, header.codec.kind
    if len(shape) != 2 and shape[2:] not in ((1,), (3,)):
        raise HandoffError(
            f"{folder}: frames have the shape {shape}, expected (height, width, 3) of pictures, (height, width) or "
            "(height, width, 1) of depth."
        )
    if header.dtype == np.uint16 and kind != "ffv1":
        raise HandoffError(
            f"{folder}: depth of the shape {shape} cannot be stored by {kind}, which is lossy; choose ffv1."
        )


def write_header(folder: Path, header: VideoHeader) -> None:
    """Writes `video.json` atomically, with a checksum over its other entries."""
    value = {"format": FORMAT, "version": VERSION, **to_plain(header)}
    value["checksum"] = _checksum(value)
    write_atomically(folder / HEADER, json.dumps(value, indent=1).encode())


def read_header(folder: Path | Location) -> VideoHeader:
    """Content of `video.json` in the folder of a video.

    Raises:
        HandoffError: it is missing, damaged, or of another format or version.
    """
    path = f"{folder}/{HEADER}"
    try:
        value = json.loads(location_of(folder).read(HEADER))
        intact = value.pop("checksum", None) == _checksum(value)
        found = value.pop("format", None), value.pop("version", None)
    except FileNotFoundError:
        raise HandoffError(f"{folder}: holds no video, it has no {HEADER}.") from None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise HandoffError(f"{path}: cannot be read ({error}). Was it damaged?") from None
    if found != (FORMAT, VERSION):
        raise HandoffError(
            f"{path}: has the format and version {found}, this build reads {(FORMAT, VERSION)}. Was it written by a "
            "newer Handoff?"
        )
    if not intact:
        raise HandoffError(f"{path}: its checksum is wrong. Was it damaged or edited?")
    header = validate(VideoHeader, value, path)
    check_shape(folder, header)
    return header


def _checksum(entries: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(entries, sort_keys=True).encode())


def open_output(path: Path, header: VideoHeader) -> tuple[OutputContainer, VideoStream]:
    """Creates an MP4 file whose bytes depend on the frames and settings only.

    Raises:
        FFmpegError: the encoder refuses the size or a setting.
    """
    import av

    # SVT-AV1 prints its settings for every file otherwise.
    os.environ.setdefault("SVT_LOG", "1")
    chosen = coding(header)
    rate = header.rate
    container = av.open(
        str(path.absolute()),
        "w",
        format="mp4",
        options={
            "movflags": MOVFLAGS,
            "video_track_timescale": str(rate.numerator),
            "fflags": "bitexact",
            "flush_packets": "1",
        },
    )
    stream = cast(
        "VideoStream", container.add_stream(chosen.encoder, rate=rate, options=chosen.options)
    )
    stream.height, stream.width = header.coded_size
    stream.pix_fmt = chosen.pixel_format
    stream.time_base = 1 / rate
    context = stream.codec_context
    context.time_base = 1 / rate
    context.thread_count = header.codec.threads
    if chosen.pixel_format.startswith("yuv"):
        context.color_range = _LIMITED
        context.colorspace = _BT601
    container.start_encoding()
    return container, stream


def to_layout(converter: VideoReformatter, frame: VideoFrame, layout: str) -> VideoFrame:
    """The frame with its colours in another layout, on the calling thread only.

    Args:
        converter: keeps its tables from frame to frame.
        frame: one frame.
        layout: name of a pixel format.
    """
    from av.video.reformatter import Interpolation

    # Only layouts with one colour per 2 x 2 pixels are interpolated: coded is their mean, which is
    # the nearest to what the decoder gives each of them.
    return converter.reformat(frame, format=layout, interpolation=Interpolation.AREA, threads=1)


class Decoder:
    """Decoder of one codec, size and set of parameters, for one thread."""

    def __init__(self, header: VideoHeader) -> None:
        """Creates the decoder; damaged parameters are found when it decodes."""
        import av
        from av.video.reformatter import VideoReformatter

        context = av.CodecContext.create(_DECODERS[header.codec.kind], "r")
        self._context = cast("VideoCodecContext", context)
        self._context.extradata = bytes.fromhex(header.codec_data)
        height, width = header.coded_size
        if header.codec.kind == "ffv1":
            # Its frames do not state their size; those of the others do, and it is checked.
            self._context.height = height
            self._context.width = width
        self._context.thread_count = 1
        # A frame that is larger than the header states is refused before memory is taken for it.
        pixels = (height + _PADDING) * (width + _PADDING)
        self._context.options = {"max_pixels": str(pixels)}
        self._converter = VideoReformatter()
        self._size = height, width

    def decode(self, packets: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, VideoFrame]]:
        """Decodes frames, and is then ready for others.

        Args:
            packets: number and bytes of the coded frames, in rising order; before each one that
                cannot be decoded alone comes what it needs.

        Yields:
            Number and picture of each frame.

        Raises:
            FFmpegError: the bytes are damaged.
        """
        import av

        for number, coded in packets:
            packet = av.Packet(coded)
            packet.pts = number
            yield from self._decoded(packet)
        yield from self._decoded(None)
        self._context.flush_buffers()

    def copy_pixels(self, frame: VideoFrame, target: np.ndarray) -> bool:
        """Copies the pixels of a frame to `target` (height, width, ..) of the video's type.

        Returns:
            Whether the frame is whole and has the size that the header states.
        """
        if (frame.height, frame.width) != self._size or frame.is_corrupt:
            return False
        layout = "rgb24" if target.dtype == np.uint8 else "gray16le"
        plane = to_layout(self._converter, frame, layout).planes[0]
        rows = target.view(np.uint8).reshape(target.shape[0], -1)
        lines = np.frombuffer(cast("Any", plane), np.uint8).reshape(-1, plane.line_size)
        rows[:] = lines[: rows.shape[0], : rows.shape[1]]
        return True

    def _decoded(self, packet: Packet | None) -> Iterator[tuple[int, VideoFrame]]:
        for frame in self._context.decode(packet):
            yield -1 if frame.pts is None else frame.pts, frame


class _Kept(threading.local):
    """Decoders of the calling thread, the last used one last. Without a lock they also work in a
    process that was forked while other threads decoded."""

    def __init__(self) -> None:
        self.decoders: OrderedDict[tuple[Any, ...], Decoder] = OrderedDict()


_KEPT = _Kept()


@contextmanager
def decoder_for(header: VideoHeader) -> Iterator[Decoder]:
    """A decoder for the videos of a header; it is kept for the next caller unless it fails."""
    key = header.codec.kind, header.shape, header.codec_data
    decoder = _KEPT.decoders.pop(key, None) or Decoder(header)
    yield decoder
    _KEPT.decoders[key] = decoder
    while len(_KEPT.decoders) > _KEPT_DECODERS:
        _KEPT.decoders.popitem(last=False)


@contextmanager
def explain_encoding(folder: Path, name: str) -> Iterator[None]:
    """Turns errors of the encoder into one line; errors of the disk pass.

    Raises:
        HandoffError: `name` cannot be encoded.
    """
    from av.error import FFmpegError

    try:
        yield
    except (FFmpegError, ValueError) as error:
        if isinstance(error, OSError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise HandoffError(
            f"{folder}: {name} cannot be encoded ({reason}). Choose another codec, or store pictures without video."
        ) from None
