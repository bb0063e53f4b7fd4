"""Opens the episodes of a data set of any format for the doctor and the statistics, which read them
by number and field as they read an episode store.

Nothing is imported for it: one episode is in memory at a time, and its pictures only while they are
asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.curation.readable import ReadableEpisodes
from robots.episodes.demonstrations import (
    TITLES,
    Demonstrations,
    identify,
    open_any_source,
    open_demonstrations,
)
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.storage.location import bucket_of

STORE = "episode_store"


@contextmanager
def open_readable(path: Path, form: str | None = None) -> Iterator[ReadableEpisodes]:
    """Opens the data set at `path`, a store or one of any other known format.

    Args:
        path: the file or folder.
        form: see `open_demonstrations`.

    Raises:
        HandoffError: it is missing or damaged, of no known format, or does not state its rate.
    """
    found = form or identify(path)
    if found == STORE and (path.is_dir() or bucket_of(path) is not None):
        with EpisodeStore.open(path) as store:
            yield store
        return
    with open_any_source(path, images=False, form=found) as source:
        if source.schema.rate_hz is None:
            raise HandoffError(
                f"{path}: the format {TITLES.get(found, found)} does not state the rate. Import it with a map that has "
                f"rate_hz or resample_hz: handoff episodes import {path} OUT --map FILE"
            )
    with ExitStack() as stack:
        opened = [
            stack.enter_context(open_demonstrations(path, images, found))
            for images in (False, True)
        ]
        yield _SourceEpisodes(path, *opened)


class _SourceEpisodes:
    """Episodes of a data set that are read one after another, as `ReadableEpisodes`.

    Args:
        path: the data set.
        plain: its episodes without pictures.
        whole: its episodes with pictures.
    """

    def __init__(self, path: Path, plain: Demonstrations, whole: Demonstrations) -> None:
        self.path = path
        self.schema = whole.schema
        self._parts = (_LastEpisode(plain), _LastEpisode(whole))
        lengths: dict[str, list[int]] = {name: [] for name in plain.schema.streams}
        self._metadata: list[dict[str, Any]] = []
        for streams, metadata in plain.episodes(0, plain.num_episodes):
            for name, fields in streams.items():
                lengths[name].append(len(next(iter(fields.values()))))
            self._metadata.append(metadata)
        self._lengths = lengths

    @property
    def num_episodes(self) -> int:
        return len(self._metadata)

    def metadata(self, episode: int) -> dict[str, Any]:
        return dict(self._metadata[episode])

    def ends(self, stream: str) -> np.ndarray:
        if stream not in self._lengths:
            raise HandoffError(
                f"{self.path}: {stream} has nothing but pictures. Import it first: handoff episodes import "
                f"{self.path} OUT"
            )
        return np.cumsum(self._lengths[stream], dtype=np.int64)

    def read(
        self,
        episode: int,
        stream: str,
        fields: Sequence[str] | None = None,
        steps: slice = slice(None),
    ) -> dict[str, np.ndarray]:
        plain, whole = self._parts
        names = list(self.schema.stream(stream).fields if fields is None else fields)
        return {
            name: (plain if plain.has(stream, name) else whole).read(episode)[stream][name][steps]
            for name in names
        }


class _LastEpisode:
    """Keeps the episode that was read last."""

    def __init__(self, demonstrations: Demonstrations) -> None:
        self._demonstrations = demonstrations
        self._number = -1
        self._streams: dict[str, dict[str, np.ndarray]] = {}

    def has(self, stream: str, field: str) -> bool:
        """Whether the episodes have the field."""
        spec = self._demonstrations.schema.streams.get(stream)
        return spec is not None and field in spec.fields

    def read(self, episode: int) -> dict[str, dict[str, np.ndarray]]:
        """Streams of an episode."""
        if episode != self._number:
            self._streams = {}
            ((self._streams, _),) = self._demonstrations.episodes(episode, episode + 1)
            self._number = episode
        return self._streams
