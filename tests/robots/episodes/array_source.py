"""A data set of arrays in memory, for tests of what follows a reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.spec import FieldSpec


class ArraySource:
    """Episodes in memory.

    Args:
        fields: specifications by name.
        episodes: arrays of every episode.
        rate_hz: rate of the data set.
        metadata: metadata of every episode.
        times: capture times of every episode.
        robot: robot as the data set names it.
    """

    def __init__(
        self,
        fields: Mapping[str, FieldSpec],
        episodes: Sequence[Mapping[str, np.ndarray]],
        *,
        rate_hz: float | None = 10.0,
        metadata: Sequence[dict[str, Any]] | None = None,
        times: Sequence[Mapping[str, np.ndarray]] | None = None,
        robot: str = "",
    ) -> None:
        self.schema = SourceSchema("arrays", "wave", rate_hz, dict(fields), robot)
        self._episodes = episodes
        self._metadata = metadata or [{} for _ in episodes]
        self._times = times or [{} for _ in episodes]

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self._episodes)

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`."""
        for number in range(first, stop):
            yield SourceEpisode(
                dict(self._episodes[number]), self._metadata[number], self._times[number]
            )
