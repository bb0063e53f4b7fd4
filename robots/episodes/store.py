"""The episode store: a Zarr v3 folder that only ever grows, and that a crash cannot damage.

    store.zarr/
        zarr.json                                  format, version and schema, as group attributes;
        never rewritten index.json                                 committed segments with lengths
        and metadata of their episodes segments/000000/<stream>/<field>/          one sharded array
        per field; never rewritten once committed .lock                                      held by
        the one writer

Episodes are appended as a new segment. Its files are written and flushed to the disk first;
replacing `index.json` by a rename is the commit. Zarr's own writes are renames too, but it does not
flush them, and growing an array in place would rewrite the shard that holds its last committed
samples, under the feet of whoever reads them; so segments never grow. A segment that the index does
not name was left by a crash: readers do not see it, the next writer removes it.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from robots.episodes.index import (
    EpisodeRecord,
    Index,
    SegmentRecord,
    check_complete,
    read_index,
    read_schema,
    schema_attributes,
)
from robots.episodes.schema import (
    EpisodeSchema,
    Streams,
    check_episode,
    check_metadata,
    check_schema,
)
from robots.episodes.segment import open_field, read_rows, stored_bytes, write_segment
from robots.errors import HandoffError
from robots.spec import FieldSpec
from robots.storage.durable import WriterLock, explain_write_errors, sync_tree, write_atomically

_Episode = tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]


class EpisodeStore:
    """Episodes by number, in the order they were appended. A reader sees what was committed when it
    opened."""

    def __init__(
        self, path: Path, schema: EpisodeSchema, index: Index, lock: WriterLock | None
    ) -> None:
        """Use `open` or `create`."""
        self.path = path
        self.schema = schema
        self._lock = lock
        self._arrays: dict[tuple[str, str, str], Any] = {}
        self._adopt(index)
        self._next_segment = max((int(segment.name) for segment in index.segments), default=-1) + 1

    @classmethod
    def create(cls, path: Path, schema: EpisodeSchema) -> EpisodeStore:
        """Makes an empty store at `path` (absent, or an empty folder) and opens it for writing.

        Raises:
            HandoffError: something is there already, the schema has a name or dtype that cannot be
                stored, or the disk is full.
        """
        import zarr

        path = Path(path)
        check_schema(schema)
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise HandoffError(
                f"{path}: already exists; open it with mode 'a' to add episodes, or choose another path."
            )
        aside = path.with_name(f".{path.name}.partial")
        with explain_write_errors(path, "the store was not created"):
            shutil.rmtree(aside, ignore_errors=True)
            zarr.create_group(
                aside, attributes=schema_attributes(schema), zarr_format=3
            ).create_group("segments")
            write_atomically(aside / "index.json", Index().to_json())
            sync_tree(aside)
            os.rename(aside, path)
            sync_tree(path)
        return cls.open(path, "a")

    @classmethod
    def open(cls, path: Path, mode: Literal["r", "a"] = "r") -> EpisodeStore:
        """Opens the store at `path`; "a" takes the writer's lock and removes what a killed writer
        left unfinished.

        Raises:
            HandoffError: no store there, another format or version, a damaged index, an array whose
                files are missing or cut short, or (mode "a") another writer.
        """
        path = Path(path)
        schema = read_schema(path)
        if mode == "r":
            return cls._opened(path, schema, None)
        with explain_write_errors(path, "the store cannot be opened for writing"):
            lock = WriterLock(path / ".lock")
            try:
                store = cls._opened(path, schema, lock)
                store._remove_uncommitted()
            except BaseException:
                lock.release()
                raise
        return store

    @classmethod
    def _opened(cls, path: Path, schema: EpisodeSchema, lock: WriterLock | None) -> EpisodeStore:
        index = read_index(path, schema)
        check_complete(path, schema, index)
        return cls(path, schema, index, lock)

    @property
    def num_episodes(self) -> int:
        """Committed episodes."""
        return len(self._places)

    def metadata(self, episode: int) -> dict[str, Any]:
        """What was handed in with the episode."""
        record, _, _ = self._place(episode)
        return copy.deepcopy(record.metadata)

    def ends(self, stream: str) -> np.ndarray:
        """`(E,)` int64: where each episode ends, exclusive, in the column of any field of
        `stream`."""
        self.schema.stream(stream)
        return np.cumsum([record.lengths[stream] for record, _, _ in self._places], dtype=np.int64)

    def read(
        self,
        episode: int,
        stream: str,
        fields: Sequence[str] | None = None,
        steps: slice = slice(None),
    ) -> dict[str, np.ndarray]:
        """Fields of one episode, each `(T, *field shape)`, or of the window `steps` of it (a slice
        without a step).

        Raises:
            HandoffError: no such episode, stream or field, or damaged files.
        """
        record, segment, first = self._place(episode)
        names = list(self.schema.stream(stream).fields if fields is None else fields)
        start, stop, stride = steps.indices(record.lengths[stream])
        if stride != 1:
            raise HandoffError(
                f"steps: stride is {stride}, expected 1. Thin the window after reading it."
            )
        start, stop = first[stream] + start, first[stream] + max(start, stop)
        return {name: read_rows(self._array(segment, stream, name), start, stop) for name in names}

    def column(self, stream: str, field: str) -> np.ndarray:
        """`(N, *field shape)`: the samples of all committed episodes, in memory.

        Raises:
            HandoffError: no such stream or field, or damaged files.
        """
        spec = self._field(stream, field)
        column = np.empty(
            (sum(record.lengths[stream] for record, _, _ in self._places), *spec.shape), spec.dtype
        )
        filled = 0
        for segment in self._index.segments:
            size = sum(episode.lengths[stream] for episode in segment.episodes)
            column[filled : filled + size] = read_rows(
                self._array(segment.name, stream, field), 0, size
            )
            filled += size
        return column

    def append(self, streams: Streams, metadata: Mapping[str, Any]) -> int:
        """Commits one episode and returns its number. When this returns, the episode is on the
        disk.

        Raises:
            HandoffError: the episode does not meet the schema, or cannot be written; the store is
                then as before.
        """
        self._commit([(check_episode(self.schema, streams), check_metadata(metadata))])
        return self.num_episodes - 1

    @contextmanager
    def writer(self, commit_bytes: int = 128 * 2**20) -> Iterator[EpisodeWriter]:
        """Appends many episodes in few large segments; those handed in are committed on leaving,
        error or not.

        Args:
            commit_bytes: held in memory at most, plus one episode; a crash loses what was not yet
                committed.
        """
        writer = EpisodeWriter(self, commit_bytes)
        try:
            yield writer
        finally:
            writer.commit()

    def close(self) -> None:
        """Lets another process write; reading goes on working."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> EpisodeStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _adopt(self, index: Index) -> None:
        """Takes `index` over as what is committed: per episode its record, its segment, its first
        sample per stream."""
        self._index = index
        self._places: list[tuple[EpisodeRecord, str, dict[str, int]]] = []
        for segment in index.segments:
            self._place_episodes(segment)

    def _place_episodes(self, segment: SegmentRecord) -> None:
        first = dict.fromkeys(self.schema.streams, 0)
        for record in segment.episodes:
            self._places.append((record, segment.name, first))
            first = {stream: first[stream] + record.lengths[stream] for stream in first}

    def _place(self, episode: int) -> tuple[EpisodeRecord, str, dict[str, int]]:
        if not 0 <= episode < self.num_episodes:
            raise HandoffError(
                f"{self.path}: no episode {episode}, expected 0 to {self.num_episodes - 1}."
            )
        return self._places[episode]

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
            self._field(stream, field)
            self._arrays[key] = open_field(self.path / "segments" / segment, stream, field)
        return self._arrays[key]

    def _commit(self, episodes: Sequence[_Episode]) -> None:
        if self._lock is None:
            raise HandoffError(
                f"{self.path}: open for reading only; open it with mode 'a' to add episodes."
            )
        name = f"{self._next_segment:06d}"
        self._next_segment += (
            1  # even if this fails: Zarr's threads may still be writing below the name
        )
        folder = self.path / "segments" / name
        with explain_write_errors(
            self.path, f"{len(episodes)} episode(s) not stored, the earlier ones are safe"
        ):
            try:
                write_segment(folder, self.schema, [streams for streams, _ in episodes])
                sync_tree(folder)
                segment = SegmentRecord(
                    name=name,
                    stored_bytes=stored_bytes(folder, self.schema),
                    episodes=tuple(_record(streams, metadata) for streams, metadata in episodes),
                )
                index = Index(segments=(*self._index.segments, segment))
                write_atomically(self.path / "index.json", index.to_json())
            except BaseException:
                self._adopt(read_index(self.path, self.schema))
                self._remove_uncommitted(
                    ignore_errors=True
                )  # what is left goes when the next writer opens
                raise
        self._index = index
        self._place_episodes(segment)

    def _remove_uncommitted(self, ignore_errors: bool = False) -> None:
        committed = {segment.name for segment in self._index.segments}
        for folder in (self.path / "segments").iterdir():
            if folder.is_dir() and folder.name not in committed:
                shutil.rmtree(folder, ignore_errors)


class EpisodeWriter:
    """Collects episodes in memory and commits them together; made by `EpisodeStore.writer`."""

    def __init__(self, store: EpisodeStore, commit_bytes: int) -> None:
        """Use `EpisodeStore.writer`."""
        self._store = store
        self._commit_bytes = commit_bytes
        self._pending: list[_Episode] = []
        self._pending_bytes = 0

    def append(self, streams: Streams, metadata: Mapping[str, Any]) -> int:
        """Takes one episode, copied, and returns the number it will have.

        Raises:
            HandoffError: the episode does not meet the schema (nothing is taken), or a commit
                failed.
        """
        episode = check_episode(self._store.schema, streams)
        self._pending.append((episode, check_metadata(metadata)))
        self._pending_bytes += sum(
            array.nbytes for fields in episode.values() for array in fields.values()
        )
        number = self._store.num_episodes + len(self._pending) - 1
        if self._pending_bytes >= self._commit_bytes:
            self.commit()
        return number

    def commit(self) -> None:
        """Commits what was taken so far; when this returns it is on the disk.

        Raises:
            HandoffError: it cannot be written; says how many episodes are lost.
        """
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if pending:
            self._store._commit(pending)


def _record(
    streams: Mapping[str, Mapping[str, np.ndarray]], metadata: dict[str, Any]
) -> EpisodeRecord:
    lengths = {stream: len(next(iter(fields.values()))) for stream, fields in streams.items()}
    return EpisodeRecord(lengths=lengths, metadata=metadata)
