"""Writes the pictures of a running episode as video, so that a kill leaves all but the last few."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.segments.video import VideoField, VideoWriter, recover
from robots.episodes.segments.video_codec import VideoConfig
from robots.errors import HandoffError
from robots.spec import FieldSpec


class RunningVideo:
    """Appends samples to one video; one that a killed recording left is taken over as it is.

    Args:
        folder: folder of the field, below its stream's group.
        field: shape and dtype of a sample.
        rate_hz: samples per second.
        codec: codec and its settings.
    """

    def __init__(self, folder: Path, field: FieldSpec, rate_hz: float, codec: VideoConfig) -> None:
        self._folder = folder
        self._field = field
        self._rate = rate_hz
        self._codec = codec
        self._writer: VideoWriter | None = None
        self._recovered = recover(folder)
        if not self._recovered:
            shutil.rmtree(folder, ignore_errors=True)

    def __len__(self) -> int:
        """Number of samples."""
        return self._recovered if self._writer is None else self._writer.frames

    def append(self, sample: np.ndarray) -> None:
        """Appends one sample.

        Raises:
            HandoffError: the encoder refuses it, or the video was taken over from a kill.
            OSError: the disk is full or not writable.
        """
        if self._recovered:
            raise HandoffError(f"{self._folder}: the video of a killed recording cannot go on.")
        if self._writer is None:
            self._writer = VideoWriter(self._folder, self._field.shape, self._rate, self._codec)
        self._writer.append(sample)

    def sample(self, number: int) -> np.ndarray:
        """A copy of frame `number`, of a video that was taken over."""
        return VideoField(self._folder, self._field.shape).frames([number])[0]

    def finish(self, group: Any, name: str, length: int) -> None:
        """Completes the video; frames from `length` on stay in it, but in no episode.

        Args:
            group: Zarr group of the stream, which does not list videos.
            name: name of the field.
            length: number of samples of the episode.

        Raises:
            HandoffError: there are fewer frames.
            OSError: the disk is full or not writable.
        """
        if self._writer is not None:
            self._writer.finish()
        if len(self) < length:
            raise HandoffError(f"{self._folder}: has {len(self)} frames, expected {length}.")

    def close(self) -> None:
        """Closes the file of a video that was not finished, which stays as it is."""
        if self._writer is not None:
            self._writer.close()
