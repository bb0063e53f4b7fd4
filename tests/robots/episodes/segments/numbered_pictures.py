"""Pictures that show their number, for tests of videos."""

from pathlib import Path

import numpy as np

from robots.episodes.segments.video import VideoField, VideoWriter
from robots.episodes.segments.video_codec import Av1Config, Ffv1Config, H264Config

CONFIGS = {
    "h264": H264Config(),
    "h264-gop-7": H264Config(gop=7, preset="superfast"),
    "h264-yuv444p": H264Config(pixel_format="yuv444p"),
    "av1": Av1Config(),
    "ffv1": Ffv1Config(),
}
HEIGHT, WIDTH = 45, 63
"""An odd size, of 3 x 3 blocks of 15 x 21 pixels."""


def picture(number: int) -> np.ndarray:
    """A picture whose 3 x 3 blocks show the bits of its number."""
    bits = np.array([number >> bit & 1 for bit in range(9)], np.uint8).reshape(3, 3)
    blocks = np.repeat(np.repeat(bits, HEIGHT // 3, axis=0), WIDTH // 3, axis=1)
    return np.repeat(60 + 130 * blocks[:, :, None], 3, axis=2)


def numbers_in(pictures: np.ndarray) -> list[int]:
    """The numbers that pictures show."""
    centres = pictures[:, HEIGHT // 6 :: HEIGHT // 3, WIDTH // 6 :: WIDTH // 3, 1]
    return ((centres.reshape(-1, 9) > 125) @ (1 << np.arange(9))).tolist()


def write(folder: Path, frames, config=None, rate_hz: float = 30.0) -> VideoField:
    with VideoWriter(folder, frames[0].shape, rate_hz, config) as writer:
        for frame in frames:
            writer.append(frame)
    return VideoField(folder)


def noise(shape: tuple[int, ...], dtype: type, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
