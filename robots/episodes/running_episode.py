"""Records an episode sample by sample: to the disk while it runs, or in memory.

A `RunningEpisode` writes while it records: threads compress the pictures and write all samples, so
that `append` returns within microseconds, memory does not grow with the length of the episode, and
a kill loses the samples of a few milliseconds. What it leaves is committed by
`recover_interrupted`, or `handoff episodes doctor --repair`. Until the commit no reader sees the
episode.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from robots.episodes.metadata.episode_metadata import EpisodeEnd
from robots.episodes.schema import (
    EpisodeSchema,
    check_metadata,
    check_samples,
)
from robots.episodes.segments.episode_files import (
    RECORDING,
    EpisodeFiles,
    complete_lengths,
    unfinished,
)
from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors

if TYPE_CHECKING:
    from robots.episodes.episode_writer import EpisodeWriter
    from robots.episodes.store import EpisodeStore

LOG = logging.getLogger(__name__)
QUEUE_BYTES = 256 * 2**20
"""Largest size of the samples that wait to be written; beyond it `append` waits [bytes]."""
INTERRUPTED: Literal["interrupted"] = "interrupted"
"""`ended_by` and `discard_reason` of an episode that a kill ended."""


class EpisodeSink(Protocol):
    """An episode that is being recorded."""

    def append(self, stream: str, sample: Mapping[str, np.ndarray]) -> None:
        """Adds one sample `{field: (*field shape)}` to a stream; the arrays are copied.

        Raises:
            HandoffError: the sample does not match the schema, or earlier ones could not be
                written.
        """
        ...

    def extend(self, stream: str, samples: Mapping[str, np.ndarray]) -> None:
        """Adds several samples `{field: (T, *field shape)}`; see `append`."""
        ...

    def commit(self, metadata: Mapping[str, Any], into: EpisodeStore | None = None) -> int:
        """Commits the episode, which ends the recording, and returns its number.

        Args:
            metadata: JSON-ready metadata.
            into: another store with the same schema, on the same disk; None is the one with which
                the recording began.

        Raises:
            HandoffError: a stream has no sample, the metadata is not JSON, or the episode cannot be
                written.
        """
        ...

    def discard(self) -> None:
        """Drops the episode, which ends the recording."""
        ...


class RunningEpisode:
    """An `EpisodeSink` that writes while it records.

    Args:
        store: store, open for writing.
        metadata: JSON-ready metadata that are known now, for the case that a kill cuts the
            recording off.
        sync_seconds: time after which the small fields are flushed to the disk while samples come,
            which bounds their loss if the power fails [s]; None leaves it to the operating system.

    Raises:
        HandoffError: the store is open for reading only, or the disk is full.
    """

    def __init__(
        self,
        store: EpisodeStore,
        metadata: Mapping[str, Any] | None = None,
        sync_seconds: float | None = None,
    ) -> None:
        store.check_writable()
        self._store = store
        folder = store.path / "segments" / f"{RECORDING}{time.time_ns():x}"
        with explain_write_errors(store.path, "no recording can begin"):
            self._files = EpisodeFiles(folder, store.schema, check_metadata(metadata or {}))
        self._budget = _Budget(QUEUE_BYTES)
        self._lanes: dict[tuple[str, str], _Lane] = {}
        for name, stream in self._files.streams.items():
            if stream.row_type.names:
                write = stream.append_rows
                if sync_seconds is not None:
                    write = _flushed(write, stream.sync, sync_seconds)
                self._lanes[name, ""] = _Lane(write, self._budget)
            for field, writer in stream.large.items():
                self._lanes[name, field] = _Lane(partial(_append_all, writer.append), self._budget)
        self.lengths = dict.fromkeys(self._files.streams, 0)
        """Number of samples that were added per stream."""

    @property
    def waited(self) -> float:
        """Time for which `append` waited for the disk [s]."""
        return self._budget.waited

    def append(self, stream: str, sample: Mapping[str, np.ndarray]) -> None:
        """See `EpisodeSink`."""
        self.extend(stream, {name: np.asarray(value)[None] for name, value in sample.items()})

    def extend(self, stream: str, samples: Mapping[str, np.ndarray]) -> None:
        """See `EpisodeSink`."""
        spec = self._store.schema.stream(stream)
        checked = check_samples(stream, spec, samples)
        self._check_written()
        files = self._files.streams[stream]
        count = len(next(iter(checked.values())))
        if files.row_type.names:
            rows = np.empty(count, files.row_type)
            for name in files.row_type.names:
                rows[name] = checked[name]
            self._lanes[stream, ""].put(rows)
        for name in files.large:
            self._lanes[stream, name].put(checked[name])
        self.lengths[stream] += count

    def commit(self, metadata: Mapping[str, Any], into: EpisodeStore | None = None) -> int:
        """See `EpisodeSink`."""
        store = self._store if into is None else into
        checked = check_metadata(metadata)
        for name, length in self.lengths.items():
            if not length:
                raise HandoffError(
                    f"{name}: 0 samples, expected at least 1. Was the episode stopped before it began?"
                )
        self._end()
        self._check_written()
        with explain_write_errors(store.path, "the running episode was not stored"):
            self._files.finish(self.lengths)
        return store.adopt(self._files.folder, self.lengths, checked)

    def discard(self) -> None:
        """See `EpisodeSink`."""
        self._end()
        self._files.close()
        shutil.rmtree(self._files.folder, ignore_errors=True)

    def _end(self) -> None:
        """Waits until everything is written, and ends the threads."""
        for lane in self._lanes.values():
            lane.end()

    def _check_written(self) -> None:
        for (stream, field), lane in self._lanes.items():
            if lane.error is not None:
                name = f"{stream}/{field}" if field else stream
                with explain_write_errors(
                    self._files.folder,
                    f"the running episode cannot be written ({name}); the episodes before it are safe",
                ):
                    raise lane.error


class MemoryRecording:
    """An `EpisodeSink` in memory, for episodes that a simulator makes faster than a disk writes.

    Args:
        store: store of the episode, or a writer that commits many together.
        schema: schema of the store.
    """

    def __init__(self, store: EpisodeStore | EpisodeWriter, schema: EpisodeSchema) -> None:
        self._store = store
        self._parts: dict[str, dict[str, list[np.ndarray]]] = {
            name: {field: [] for field in stream.fields} for name, stream in schema.streams.items()
        }
        self._schema = schema

    def append(self, stream: str, sample: Mapping[str, np.ndarray]) -> None:
        """See `EpisodeSink`; values are checked by `commit`."""
        self.extend(stream, {name: np.asarray(value)[None] for name, value in sample.items()})

    def extend(self, stream: str, samples: Mapping[str, np.ndarray]) -> None:
        """See `EpisodeSink`; values are checked by `commit`."""
        parts = self._parts[self._checked(stream, samples)]
        for name, values in samples.items():
            parts[name].append(np.array(values))

    def commit(self, metadata: Mapping[str, Any], into: EpisodeStore | None = None) -> int:
        """See `EpisodeSink`."""
        streams = {
            stream: {
                name: np.concatenate(rows) if rows else self._nothing(stream, name)
                for name, rows in fields.items()
            }
            for stream, fields in self._parts.items()
        }
        return (self._store if into is None else into).append(streams, metadata)

    def discard(self) -> None:
        """See `EpisodeSink`."""
        for fields in self._parts.values():
            for parts in fields.values():
                parts.clear()

    def _checked(self, stream: str, samples: Mapping[str, np.ndarray]) -> str:
        fields = self._schema.stream(stream).fields
        if fields.keys() != samples.keys():
            raise HandoffError(
                f"{stream}: fields {sorted(samples)}, expected {sorted(fields)}. Was one of them renamed?"
            )
        return stream

    def _nothing(self, stream: str, name: str) -> np.ndarray:
        field = self._schema.streams[stream].fields[name]
        return np.zeros((0, *field.shape), field.dtype)


def recover_interrupted(
    store: EpisodeStore, into: EpisodeStore | None = None, log: Callable[[str], None] = LOG.warning
) -> int:
    """Commits the recordings that a kill cut off, and returns their number.

    Args:
        store: store, open for writing.
        into: store of the recovered episodes, with the same schema; None is `store`.
        log: called with a line per recording.

    The episodes have the metadata with which their recording began, `success: false`, and
    `interrupted` as `ended_by` and `discard_reason`. A recording without a complete sample is
    deleted.

    Raises:
        HandoffError: the disk is full or not writable.
    """
    recovered = 0
    for folder in list(unfinished(store.path)):
        with explain_write_errors(store.path, f"the recording {folder.name} was not recovered"):
            files = EpisodeFiles.reopen(folder, store.schema)
            try:
                lengths = complete_lengths(files)
            except HandoffError as error:
                files.close()
                shutil.rmtree(folder)
                log(str(error))
                continue
            files.finish(lengths)
        end = EpisodeEnd(ended_by=INTERRUPTED, discard_reason=INTERRUPTED).entries()
        metadata = {**files.metadata, "success": False, **end}
        number = (store if into is None else into).adopt(folder, lengths, metadata)
        samples = ", ".join(f"{count} of {name}" for name, count in lengths.items())
        log(f"{store.path}: an interrupted recording is now episode {number} ({samples}).")
        recovered += 1
    return recovered


class _Budget:
    """Bounds the size of the samples that wait to be written.

    Args:
        limit: largest size [bytes]; a single larger sample may pass.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()
        self.waited = 0.0

    def take(self, size: int) -> None:
        """Waits until there is room."""
        with self._changed:
            if self._used and self._used + size > self._limit:
                began = time.monotonic()
                self._changed.wait_for(lambda: not self._used or self._used + size <= self._limit)
                self.waited += time.monotonic() - began
            self._used += size

    def give(self, size: int) -> None:
        """Returns room."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()


class _Lane:
    """A thread that writes what is put, in order; after an error it drops everything.

    Args:
        write: writes samples.
        budget: bound that all lanes of a recording share.
    """

    def __init__(self, write: Callable[[np.ndarray], None], budget: _Budget) -> None:
        self.error: OSError | HandoffError | None = None
        self._write = write
        self._budget = budget
        self._queue: SimpleQueue[np.ndarray | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._thread.start()

    def put(self, samples: np.ndarray) -> None:
        """Queues samples."""
        self._budget.take(samples.nbytes)
        self._queue.put(samples)

    def end(self) -> None:
        """Waits until all is written, and ends the thread; a second call does nothing."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (samples := self._queue.get()) is not None:
            try:
                if self.error is None:
                    self._write(samples)
            except (OSError, HandoffError) as error:
                self.error = error
            finally:
                self._budget.give(samples.nbytes)


def _flushed(
    write: Callable[[np.ndarray], None], sync: Callable[[], None], seconds: float
) -> Callable[[np.ndarray], None]:
    """Writes and flushes what is older than `seconds`."""
    flushed = time.monotonic()

    def write_and_flush(samples: np.ndarray) -> None:
        nonlocal flushed
        write(samples)
        if time.monotonic() - flushed >= seconds:
            sync()
            flushed = time.monotonic()

    return write_and_flush


def _append_all(append: Callable[[np.ndarray], None], samples: np.ndarray) -> None:
    for sample in samples:
        append(sample)
