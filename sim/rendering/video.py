"""Writes frames to an H.264 video file."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import numpy as np

from robots.errors import HandoffError
from robots.storage.durable import temporary_beside


def write_video(path: Path, frames: Iterable[np.ndarray], fps: float) -> None:
    """Writes an MP4 (H.264, yuv420p) that browsers play; `path` appears only once it is complete.

    Args:
        path: the file to write; an older one is replaced.
        frames: images (H, W, 3) uint8 RGB of equal size. An odd last row or column is cut, because
            yuv420p needs even sizes.
        fps: frames per second.

    Raises:
        HandoffError: no frame, a frame of another shape or dtype, or no H.264 encoder in this build
            of PyAV.
    """
    import av

    if "libx264" not in av.codecs_available:
        raise HandoffError(
            "video: this build of PyAV has no H.264 encoder (libx264). Install `av` from its wheels."
        )
    partial = temporary_beside(path)
    try:
        with av.open(
            str(partial), "w", format="mp4", options={"movflags": "faststart"}
        ) as container:
            stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
            stream.pix_fmt = "yuv420p"
            # One encoder thread leaves the cores to the environments that render the frames.
            stream.options = {"crf": "23", "preset": "veryfast", "threads": "1"}
            shape: tuple[int, ...] | None = None
            for index, frame in enumerate(frames):
                if shape is None:
                    _check_frame(index, frame, None)
                    shape = frame.shape
                    stream.height = shape[0] // 2 * 2
                    stream.width = shape[1] // 2 * 2
                _check_frame(index, frame, shape)
                even = np.ascontiguousarray(frame[: stream.height, : stream.width])
                container.mux(stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))
            if shape is None:
                raise HandoffError(
                    f"video: no frame for {path.name}, expected at least 1. Was the episode empty?"
                )
            container.mux(stream.encode(None))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _check_frame(index: int, frame: np.ndarray, shape: tuple[int, ...] | None) -> None:
    if (
        frame.dtype != np.uint8
        or frame.ndim != 3
        or frame.shape[2] != 3
        or min(frame.shape[:2]) < 2
    ):
        raise HandoffError(
            f"video: frame {index} is {frame.dtype} {frame.shape}, expected uint8 (height, width, 3). "
            "Was it left as float or channel-first?"
        )
    if shape is not None and frame.shape != shape:
        raise HandoffError(f"video: frame {index} has shape {frame.shape}, the first had {shape}.")
