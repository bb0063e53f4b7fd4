"""Collects episodes in memory and commits many of them together, as few large segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from robots.episodes.schema import (
    CheckedStreams,
    EpisodeSchema,
    Streams,
    check_episode,
    check_metadata,
)
from robots.episodes.segments.video_copy import CodedFrames

CheckedEpisode = tuple[CheckedStreams, dict[str, Any]]
"""Streams and metadata of an episode that matches its schema."""


class EpisodeWriter:
    """Collects episodes in memory and commits them together; created by `EpisodeStore.writer`."""

    def __init__(
        self,
        schema: EpisodeSchema,
        committed: Callable[[], int],
        commit: Callable[[Sequence[CheckedEpisode]], None],
        commit_bytes: int,
    ) -> None:
        """Internal; use `EpisodeStore.writer`."""
        self._schema = schema
        self._committed = committed
        self._commit = commit
        self._commit_bytes = commit_bytes
        self._pending: list[CheckedEpisode] = []
        self._pending_bytes = 0

    def append(self, streams: Streams, metadata: Mapping[str, Any]) -> int:
        """Adds a copy of one episode and returns its number.

        Raises:
            HandoffError: the episode does not match the schema and is not added, or a commit
                failed.
        """
        episode = check_episode(self._schema, streams)
        if self._pending and not _one_segment(self._pending[-1][0], episode):
            self.commit()
        self._pending.append((episode, check_metadata(metadata)))
        self._pending_bytes += sum(
            array.nbytes for fields in episode.values() for array in fields.values()
        )
        number = self._committed() + len(self._pending) - 1
        if self._pending_bytes >= self._commit_bytes:
            self.commit()
        return number

    def commit(self) -> None:
        """Commits the pending episodes, which are then on the disk.

        Raises:
            HandoffError: they cannot be written; the message says how many are lost.
        """
        pending = self._pending
        self._pending = []
        self._pending_bytes = 0
        if pending:
            self._commit(pending)


def _one_segment(earlier: CheckedStreams, later: CheckedStreams) -> bool:
    """Whether every camera of both episodes fits into one video."""
    for stream, fields in earlier.items():
        for name, value in fields.items():
            other = later[stream][name]
            if isinstance(value, CodedFrames) and isinstance(other, CodedFrames):
                if not value.joins(other):
                    return False
            elif isinstance(value, CodedFrames) or isinstance(other, CodedFrames):
                return False
    return True
