"""Opens the episodes that are reviewed: of a store, which is read where it is, or of a data set of
another format, whose newest episode is in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from flows.datasets import find_data, find_store
from robots.episodes.curation.edit import steps_stream
from robots.episodes.demonstrations import TITLES, field_role, identify, open_any_source
from robots.episodes.formats.source import EpisodeSource, SourceEpisode
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec

PERSON, TAKEOVER = "intervention", "segment"
"""Fields that are 1 where a person acted, and the number of the takeover."""
STORE = "episode_store"


class EpisodeOutline(NamedTuple):
    """One episode of the list."""

    steps: int
    """Number of steps."""
    metadata: Mapping[str, Any]
    """Metadata of the episode."""
    takeovers: int | None
    """Number of takeovers; None if the data set does not state them."""
    corrected: float | None
    """Fraction of the steps at which a person acted; None if the data set does not state it."""


class ReviewedData(Protocol):
    """Episodes that can be looked at by number, field and step."""

    title: str
    """Words for the format."""
    task: str
    rate_hz: float | None
    """Steps per second; None if the format does not state it."""
    fields: Mapping[str, FieldSpec]
    """Fields of one step, each with its `role`."""

    @property
    def outlines(self) -> Sequence[EpisodeOutline]:
        """All episodes."""
        ...

    def read(
        self, episode: int, fields: Sequence[str], steps: slice = slice(None)
    ) -> dict[str, np.ndarray]:
        """Fields of one episode, each `(T, *field shape)`."""
        ...

    def refresh(self) -> bool:
        """Looks for episodes that were recorded meanwhile; whether there are any."""
        ...


@contextmanager
def open_reviewed(path: Path, form: str | None) -> Iterator[ReviewedData]:
    """Opens the data set that a path names.

    Args:
        path: the data set, or the artifact with it.
        form: see `open_demonstrations`; None recognises the format.

    Raises:
        HandoffError: it is missing, damaged, empty or of no known format, or its fields have
            capture times of their own.
    """
    if not why_not_edited(path, form):
        yield ReviewedStore(find_store(path))
        return
    found = find_data(path)
    known = form or identify(found)
    with (
        open_any_source(found, False, known) as plain,
        open_any_source(found, True, known) as whole,
    ):
        if whole.schema.own_times:
            raise HandoffError(
                f"{path}: its fields have capture times of their own. Import it first, with resample_hz in a map: "
                f"handoff episodes import {path} OUT --map FILE"
            )
        yield ReviewedSource(found, plain, whole)


def why_not_edited(path: Path, form: str | None) -> str:
    """Says why a data set is only looked at, with the remedy; empty for an episode store."""
    found = find_data(path)
    known = form or identify(found)
    if known != STORE:
        title = TITLES.get(known, known)
        return (
            f"The format is {title}; episode stores are edited. To label these episodes, import them first: "
            f"handoff episodes import {path} OUT"
        )
    try:
        find_store(path)
    except HandoffError:
        return (
            "The store is packed in one file; folders are edited. To label these episodes, import them first: handoff "
            f"episodes import {path} OUT"
        )
    return ""


class ReviewedStore:
    """An episode store, of which windows are read when they are asked for.

    Args:
        path: folder or address of the store.
    """

    title = "episode store"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store = EpisodeStore.open(path)
        _check_any(path, self._store.num_episodes)
        schema = self._store.schema
        self._stream = steps_stream(schema)
        stream = schema.streams[self._stream]
        self.task = schema.name
        self.rate_hz: float | None = stream.rate_hz
        self.fields: Mapping[str, FieldSpec] = {
            name: replace(spec, role=field_role(name, spec)) for name, spec in stream.fields.items()
        }
        self._index_time = self._changed()
        self.outlines: Sequence[EpisodeOutline] = self._outlined()

    def read(
        self, episode: int, fields: Sequence[str], steps: slice = slice(None)
    ) -> dict[str, np.ndarray]:
        """Fields of one episode, each `(T, *field shape)`."""
        return self._store.read(episode, self._stream, list(fields), steps)

    def refresh(self) -> bool:
        """Opens a folder again whose index was replaced; whether there are more episodes."""
        changed = self._changed()
        if changed == self._index_time:
            return False
        self._index_time = changed
        known = self._store.num_episodes
        self._store = EpisodeStore.open(self._path)
        self.outlines = self._outlined()
        return self._store.num_episodes != known

    def _changed(self) -> int:
        """Time of the last commit [ns]; 0 for a store in a bucket."""
        index = self._path / "index.json"
        return index.stat().st_mtime_ns if index.is_file() else 0

    def _outlined(self) -> list[EpisodeOutline]:
        ends = self._store.ends(self._stream)
        own = [name for name in (PERSON, TAKEOVER) if name in self.fields]
        columns = {name: self._store.column(self._stream, name) for name in own}
        starts = [0, *ends[:-1]]
        return [
            outline(
                int(end - start),
                self._store.metadata(number),
                {name: column[start:end] for name, column in columns.items()},
            )
            for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]


class ReviewedSource:
    """A data set of another format, read episode by episode.

    Args:
        path: the data set, for messages.
        plain: its episodes without pictures, for the list.
        whole: its episodes with pictures; the newest one is kept in memory.
    """

    def __init__(self, path: Path, plain: EpisodeSource, whole: EpisodeSource) -> None:
        _check_any(path, whole.num_episodes)
        self.title = whole.schema.form
        self.task = whole.schema.task
        self.rate_hz: float | None = whole.schema.rate_hz
        self.fields: Mapping[str, FieldSpec] = whole.schema.fields
        self._whole = whole
        # A data set of pictures alone has no arrays without them.
        listed = plain if plain.schema.fields else whole
        self.outlines: Sequence[EpisodeOutline] = [
            outline(len(next(iter(each.arrays.values()))), each.metadata, each.arrays)
            for each in listed.episodes(0, listed.num_episodes)
        ]
        self._newest: tuple[int, SourceEpisode] | None = None

    def read(
        self, episode: int, fields: Sequence[str], steps: slice = slice(None)
    ) -> dict[str, np.ndarray]:
        """Fields of one episode, each `(T, *field shape)`."""
        if self._newest is None or self._newest[0] != episode:
            self._newest = None
            (found,) = self._whole.episodes(episode, episode + 1)
            self._newest = episode, found
        return {name: self._newest[1].arrays[name][steps] for name in fields}

    def refresh(self) -> bool:
        """Other formats are complete; no episodes are added to them."""
        return False


def outline(
    steps: int, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> EpisodeOutline:
    """The outline of an episode from its fields `intervention` and `segment`, where it has them."""
    acted = arrays.get(PERSON)
    segments = arrays.get(TAKEOVER)
    if acted is None:
        return EpisodeOutline(steps, metadata, None, None)
    flat = np.any(acted.reshape(len(acted), -1) > 0, axis=1)
    if segments is not None:
        takeovers = int(segments.max()) + 1
    else:
        takeovers = int(flat[0]) + int((np.diff(flat.astype(np.int8)) == 1).sum())
    return EpisodeOutline(steps, metadata, takeovers, float(flat.mean()))


def _check_any(path: Path, episodes: int) -> None:
    if episodes == 0:
        raise HandoffError(f"{path}: has no episodes yet, so there is nothing to review.")
