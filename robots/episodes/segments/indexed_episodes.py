"""Reads the episodes that an index names: their metadata, and windows of their samples."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.schema import EpisodeSchema
from robots.episodes.segments.index import EpisodeRecord, Index, SegmentRecord
from robots.episodes.segments.segment import open_field, read_rows, read_rows_into
from robots.episodes.segments.video import VideoField
from robots.episodes.segments.video_copy import CodedFrames
from robots.errors import HandoffError
from robots.spec import FieldSpec
from robots.storage.location import Location


class IndexedEpisodes:
    """Episodes by number, in the order of the index.

    Args:
        location: place of the store.
        schema: streams and fields.
        index: the committed episodes.
        samples: place of the segments.
    """

    def __init__(
        self, location: Location, schema: EpisodeSchema, index: Index, samples: Location
    ) -> None:
        self.location = location
        """Place of the store."""
        self.path = Path(str(location))
        """Folder of the store; of one in a bucket, its address with one slash, for `open`."""
        self.schema = schema
        self._samples = samples
        self._arrays: dict[tuple[str, str, str], Any] = {}
        self._set_index(index)

    @property
    def parallel_reads(self) -> int:
        """Number of windows that are best read at the same time."""
        return self._samples.parallel_reads

    @property
    def num_episodes(self) -> int:
        """Number of committed episodes."""
        return len(self._locations)

    def metadata(self, episode: int) -> dict[str, Any]:
        """Metadata of an episode."""
        record, _, _ = self._location(episode)
        return copy.deepcopy(record.metadata)

    def ends(self, stream: str) -> np.ndarray:
        """`(E,)` int64: exclusive end of each episode in the columns of `stream`."""
        self.schema.stream(stream)
        return np.cumsum(
            [record.lengths[stream] for record, _, _ in self._locations], dtype=np.int64
        )

    def read(
        self,
        episode: int,
        stream: str,
        fields: Sequence[str] | None = None,
        steps: slice = slice(None),
    ) -> dict[str, np.ndarray]:
        """Fields of one episode, each `(T, *field shape)`.

        Args:
            episode: number of the episode.
            stream: name of the stream.
            fields: names of the fields; None reads all.
            steps: window of the episode, a slice without a stride.

        Raises:
            HandoffError: no such episode, stream or field, or damaged files.
        """
        names = list(self.schema.stream(stream).fields if fields is None else fields)
        segment, start, stop = self._window(episode, stream, steps)
        return {name: read_rows(self._array(segment, stream, name), start, stop) for name in names}

    def read_into(
        self,
        episode: int,
        stream: str,
        field: str,
        steps: slice,
        into: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Reads one field of one episode into an array, pictures of a video without a copy.

        Args:
            episode: number of the episode.
            stream: name of the stream.
            field: name of the field.
            steps: window of the episode, a slice without a stride.
            into: `(N, *field shape)` array, and the row of each step in it.

        Raises:
            HandoffError: see `read`.
        """
        segment, start, stop = self._window(episode, stream, steps)
        read_rows_into(self._array(segment, stream, field), start, stop, into)

    def coded(self, episode: int, stream: str, field: str) -> CodedFrames:
        """The frames of a camera that is kept as video, in one episode, as they are coded.

        Raises:
            HandoffError: no such episode, stream or field, it is no video, or damaged files.
        """
        segment, start, stop = self._window(episode, stream, slice(None))
        video = self._array(segment, stream, field)
        if not isinstance(video, VideoField):
            raise HandoffError(f"{self.location}: {stream}/{field} is not kept as video.")
        return CodedFrames(video, start, stop)

    def column(self, stream: str, field: str) -> np.ndarray:
        """`(N, *field shape)` samples of one field in all committed episodes, read into memory.

        Raises:
            HandoffError: no such stream or field, or damaged files.
        """
        spec = self._field(stream, field)
        column = np.empty(
            (sum(record.lengths[stream] for record, _, _ in self._locations), *spec.shape),
            spec.dtype,
        )
        filled = 0
        for segment in self._index.segments:
            size = sum(episode.lengths[stream] for episode in segment.episodes)
            column[filled : filled + size] = read_rows(
                self._array(segment.name, stream, field), 0, size
            )
            filled += size
        return column

    def _set_index(self, index: Index) -> None:
        """Sets the committed episodes to those of `index`, each with its record, its segment and
        its first sample per stream."""
        self._index = index
        self._locations: list[tuple[EpisodeRecord, str, dict[str, int]]] = []
        for segment in index.segments:
            self._add_locations(segment)

    def _add_locations(self, segment: SegmentRecord) -> None:
        first = dict.fromkeys(self.schema.streams, 0)
        for record in segment.episodes:
            self._locations.append((record, segment.name, first))
            first = {stream: first[stream] + record.lengths[stream] for stream in first}

    def _location(self, episode: int) -> tuple[EpisodeRecord, str, dict[str, int]]:
        if not 0 <= episode < self.num_episodes:
            raise HandoffError(
                f"{self.location}: no episode {episode}, expected 0 to {self.num_episodes - 1}."
            )
        return self._locations[episode]

    def _window(self, episode: int, stream: str, steps: slice) -> tuple[str, int, int]:
        """Segment of an episode, and the first sample and end of a window of it."""
        record, segment, first = self._location(episode)
        self.schema.stream(stream)
        start, stop, stride = steps.indices(record.lengths[stream])
        if stride != 1:
            raise HandoffError(
                f"steps: stride is {stride}, expected 1. Thin the window after reading it."
            )
        return segment, first[stream] + start, first[stream] + max(start, stop)

    def _field(self, stream: str, field: str) -> FieldSpec:
        fields = self.schema.stream(stream).fields
        if field not in fields:
            raise HandoffError(
                f"{self.schema.name}/{stream}: no field '{field}'; the schema has {sorted(fields)}."
            )
        return fields[field]

    def _array(self, segment: str, stream: str, field: str) -> Any:
        key = (segment, stream, field)
        if key not in self._arrays:
            spec = self._field(stream, field)
            name = f"{stream}/{field}"
            shape = tuple(spec.shape) if name in self.schema.videos else None
            self._arrays[key] = open_field(self._samples, f"segments/{segment}/{name}", shape)
        return self._arrays[key]
