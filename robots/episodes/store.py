"""Stores episodes in an append-only Zarr v3 folder that a crash cannot damage.

| path                                     | content                                            |
|------------------------------------------|----------------------------------------------------|
| `zarr.json`                              | format, version and schema; never rewritten        |
| `index.json`                             | committed segments, and lengths and metadata of    |
|                                          | their episodes                                     |
| `segments/000000/<stream>/<field>/`      | one sharded array per field; never rewritten       |
| `segments/000000/record.json`            | the segment's entry in the index                   |
| `.lock`                                  | lock of the writer                                 |

Episodes are appended as a new segment. Its files are written and flushed to the disk first; an
atomic replacement of `index.json` is the commit. Segments never grow, because Zarr does not flush
its files, and growing an array would rewrite the shard with its last committed samples while others
may read them. Readers ignore a segment that is not in the index; the next writer deletes it if a
crash left it, and puts it back if the index is an older one (`robots.episodes.segments.recovery`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from robots.episodes.episode_writer import CheckedEpisode, EpisodeWriter
from robots.episodes.reference import REFERENCE, referenced
from robots.episodes.schema import (
    CheckedStreams,
    EpisodeSchema,
    Streams,
    check_episode,
    check_metadata,
    check_schema,
)
from robots.episodes.segments.episode_files import SEGMENT, remove_committed
from robots.episodes.segments.index import (
    EpisodeRecord,
    Index,
    SegmentRecord,
    check_complete,
    read_index,
    read_schema,
    schema_attributes,
)
from robots.episodes.segments.indexed_episodes import IndexedEpisodes
from robots.episodes.segments.recovery import RECORD, record_json, recover, write_records
from robots.episodes.segments.segment import stored_bytes, write_segment
from robots.errors import HandoffError
from robots.storage.durable import (
    WriterLock,
    explain_write_errors,
    is_temporary,
    sync_path,
    sync_tree,
    temporary_beside,
    write_atomically,
)
from robots.storage.location import Folder, Location, location_of


class EpisodeStore(IndexedEpisodes):
    """Episodes by number, in the order of appending. A reader sees the episodes that were committed
    when it opened the store."""

    def __init__(
        self,
        location: Location,
        schema: EpisodeSchema,
        index: Index,
        lock: WriterLock | None,
        samples: Location | None = None,
    ) -> None:
        """Internal; use `open` or `create`."""
        super().__init__(location, schema, index, location if samples is None else samples)
        self._lock = lock
        self._next_segment = max((int(segment.name) for segment in index.segments), default=-1) + 1

    @classmethod
    def create(cls, path: Path, schema: EpisodeSchema) -> EpisodeStore:
        """Creates an empty store at `path` (missing, or an empty folder) and opens it for writing.

        Raises:
            HandoffError: `path` exists, the schema has a name or dtype that cannot be stored, or
                the disk is full.
        """
        import zarr

        path = Path(path)
        check_schema(schema)
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise HandoffError(
                f"{path}: already exists; open it with mode 'a' to add episodes, or choose another path."
            )
        aside = temporary_beside(path)
        with explain_write_errors(path, "the store was not created"):
            try:
                zarr.create_group(
                    aside, attributes=schema_attributes(schema), zarr_format=3
                ).create_group("segments")
                write_atomically(aside / "index.json", Index().to_json())
                sync_tree(aside)
                os.rename(aside, path)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise
            sync_tree(path)
        return cls.open(path, "a")

    @classmethod
    def open(cls, path: Path | str, mode: Literal["r", "a"] = "r") -> EpisodeStore:
        """Opens the store at `path`, for reading also one at `s3://BUCKET/PREFIX`; mode "a" locks
        it for writing, deletes the segment that an interrupted commit left, and puts back committed
        segments that the index does not name.

        Raises:
            HandoffError: there is no store, it has another format or version, its index is damaged,
                files of an array are missing or truncated, or (mode "a") it is in a bucket, its
                samples are in another store, there is another writer, or several segments are not
                in the index and have no record.
            ModuleNotFoundError: the client of buckets, obstore, is not installed.
        """
        location = location_of(path)
        schema = read_schema(location)
        if mode == "r":
            index, samples = read_index(location, schema), referenced(location)
            check_complete(samples, index)
            return cls(location, schema, index, None, samples)
        if not isinstance(location, Folder) or (location.path / REFERENCE).exists():
            raise HandoffError(
                f"{location}: its samples are in {referenced(location)}, which is read only; copy it to add episodes "
                "(handoff episodes import)."
            )
        path = location.path
        with explain_write_errors(path, "the store cannot be opened for writing"):
            lock = WriterLock(path / ".lock")
            try:
                index = recover(path, schema, read_index(path, schema))
                check_complete(path, index)
                write_records(path, index.segments)
                remove_committed(path)
                for file in filter(lambda file: is_temporary(file.name), list(path.iterdir())):
                    file.unlink()
            except BaseException:
                lock.release()
                raise
        return cls(location, schema, index, lock)

    def append(self, streams: Streams, metadata: Mapping[str, Any]) -> int:
        """Commits one episode, which is then on the disk, and returns its number.

        Raises:
            HandoffError: the episode does not match the schema, or cannot be written; the store is
                unchanged then.
        """
        self._commit([(check_episode(self.schema, streams), check_metadata(metadata))])
        return self.num_episodes - 1

    def adopt(self, folder: Path, lengths: Mapping[str, int], metadata: dict[str, Any]) -> int:
        """Commits the finished files of a recording; used by `robots.episodes.running_episode`.

        Args:
            folder: folder of the recording, on the disk of the store; it is deleted.
            lengths: number of samples per stream.
            metadata: checked metadata.

        Returns:
            Number of the episode.

        Raises:
            HandoffError: the files cannot be written; the folder is kept then.
        """
        self.check_writable()
        name = self._new_name()
        files, target = folder / SEGMENT, self.path / "segments" / name
        with explain_write_errors(
            self.path,
            f"the running episode was not stored, but can be (handoff episodes doctor {self.path} --repair)",
        ):
            sync_tree(files)
            segment = SegmentRecord(
                name=name,
                stored_bytes=stored_bytes(files, self.schema),
                episodes=(EpisodeRecord(lengths=dict(lengths), metadata=metadata),),
            )
            # A segment with a record is put into the index by the next writer, if this one is
            # killed before it does.
            write_atomically(files / RECORD, record_json(segment))
            os.rename(files, target)
            try:
                sync_path(target.parent)
                self._add_to_index(segment)
            except BaseException:
                if name not in {kept.name for kept in read_index(self.path, self.schema).segments}:
                    os.rename(target, files)
                raise
        shutil.rmtree(folder, ignore_errors=True)
        return self.num_episodes - 1

    @contextmanager
    def writer(self, commit_bytes: int = 128 * 2**20) -> Iterator[EpisodeWriter]:
        """Context that appends many episodes in few large segments; pending episodes are committed
        at its end, even after an error.

        Args:
            commit_bytes: size of the pending episodes from which they are committed [bytes]; a
                crash loses the pending ones.
        """
        writer = EpisodeWriter(self.schema, lambda: self.num_episodes, self._commit, commit_bytes)
        try:
            yield writer
        finally:
            writer.commit()

    def close(self) -> None:
        """Releases the writer's lock; reading remains possible."""
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

    def check_writable(self) -> None:
        """Checks that episodes can be added.

        Raises:
            HandoffError: the store is open for reading only.
        """
        if self._lock is None:
            raise HandoffError(
                f"{self.path}: open for reading only; open it with mode 'a' to add episodes."
            )

    def _new_name(self) -> str:
        """Name of the next segment. It is used once, even if the commit fails, because Zarr's
        threads may still write to its folder."""
        name = f"{self._next_segment:06d}"
        self._next_segment += 1
        return name

    def _commit(self, episodes: Sequence[CheckedEpisode]) -> None:
        self.check_writable()
        name = self._new_name()
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
                self._add_to_index(segment)
            except BaseException:
                self._set_index(read_index(self.path, self.schema))
                # Files that cannot be deleted now are deleted by the next writer.
                if name not in {segment.name for segment in self._index.segments}:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
        # The episodes are committed, and the next writer adds a record that is missing.
        with suppress(OSError):
            write_records(self.path, [segment])

    def _add_to_index(self, segment: SegmentRecord) -> None:
        """Commits a segment whose files are complete and on the disk."""
        index = Index(segments=(*self._index.segments, segment))
        write_atomically(self.path / "index.json", index.to_json())
        self._index = index
        self._add_locations(segment)


def _record(streams: CheckedStreams, metadata: dict[str, Any]) -> EpisodeRecord:
    lengths = {stream: len(next(iter(fields.values()))) for stream, fields in streams.items()}
    return EpisodeRecord(lengths=lengths, metadata=metadata)
