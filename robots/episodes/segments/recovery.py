"""Finds segments of a store that its index does not name.

A segment is committed by its entry in the index. Afterwards the entry is also written into the
segment's folder, as `record.json`. So a segment without an entry in the index is one of two things:

- with a record: it was committed, and the index is older than it, such as one from a backup. Its
  episodes are put back into the index;
- without a record: a writer was killed while it wrote the segment. It is deleted.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from robots.config import validate
from robots.episodes.schema import EpisodeSchema
from robots.episodes.segments.index import Index, SegmentRecord
from robots.episodes.segments.segment import stored_bytes
from robots.errors import HandoffError
from robots.storage.durable import temporary_beside, write_atomically

LOG = logging.getLogger(__name__)
RECORD = "record.json"
"""File in the folder of a committed segment, with its entry in the index."""
SET_ASIDE = ".set-aside-"
"""Beginning of the names of folders that readers and writers ignore."""


def write_records(path: Path, segments: Iterable[SegmentRecord]) -> None:
    """Writes the missing records of committed segments of the store at `path`."""
    for segment in segments:
        file = path / "segments" / segment.name / RECORD
        if not file.exists():
            # Not flushed: a record that a power failure takes is written again by the next writer.
            aside = temporary_beside(file)
            aside.write_bytes(record_json(segment))
            os.replace(aside, file)


def record_json(segment: SegmentRecord) -> bytes:
    """Content of a segment's record."""
    return json.dumps(asdict(segment)).encode()


def recover(path: Path, schema: EpisodeSchema, index: Index) -> Index:
    """Returns the index with the committed segments that it does not name, and deletes what killed
    writers have left; the caller holds the writer's lock.

    Raises:
        HandoffError: several segments are neither in the index nor have a record, which a killed
            writer cannot leave.
    """
    recorded: list[SegmentRecord] = []
    unrecorded: list[Path] = []
    newest = max((int(segment.name) for segment in index.segments), default=-1)
    for folder in _unnamed(path, index):
        record = _read_record(folder, schema)
        if record is None:
            unrecorded.append(folder)
        elif int(folder.name) > newest and stored_bytes(folder, schema) == record.stored_bytes:
            recorded.append(record)
        else:
            _set_aside(folder, "its files are incomplete, or a later segment is in the index")
    _delete_uncommitted(path, index, unrecorded)
    if not recorded:
        return index
    recovered = Index(segments=(*index.segments, *recorded))
    write_atomically(path / "index.json", recovered.to_json())
    LOG.warning(
        "%s: index.json named %d segments, but %d more are complete (%s to %s); their %d episodes are in the index "
        "again. Was index.json put back from a backup, or a writer killed while it committed?",
        path,
        len(index.segments),
        len(recorded),
        recorded[0].name,
        recorded[-1].name,
        sum(len(segment.episodes) for segment in recorded),
    )
    return recovered


def _unnamed(path: Path, index: Index) -> Iterator[Path]:
    named = {segment.name for segment in index.segments}
    for folder in sorted((path / "segments").iterdir()):
        if folder.is_dir() and folder.name.isdecimal() and folder.name not in named:
            yield folder


def _read_record(folder: Path, schema: EpisodeSchema) -> SegmentRecord | None:
    """The record of a segment under its present name; None without a valid one."""
    try:
        value = json.loads((folder / RECORD).read_bytes())
        record = validate(SegmentRecord, {**value, "name": folder.name})
    except (OSError, ValueError, TypeError, HandoffError):
        return None
    if any(episode.lengths.keys() != schema.streams.keys() for episode in record.episodes):
        return None
    return record


def _delete_uncommitted(path: Path, index: Index, unrecorded: list[Path]) -> None:
    if len(unrecorded) > 1:
        names = [folder.name for folder in unrecorded]
        raise HandoffError(
            f"{path}: index.json names {len(index.segments)} segments, but {len(names)} more are there ({names[0]} to "
            f"{names[-1]}). Was index.json put back from a backup? Put back the newest one, or delete these folders "
            "below segments/ to give up their episodes."
        )
    # An older version wrote no records, so that a segment without one may be committed.
    old = index.segments and not any(
        (path / "segments" / segment.name / RECORD).exists() for segment in index.segments
    )
    for folder in unrecorded:
        if old:
            _set_aside(folder, "index.json does not name it, and it has no record")
        else:
            shutil.rmtree(folder)


def _set_aside(folder: Path, reason: str) -> None:
    aside = folder.with_name(f"{SET_ASIDE}{folder.name}")
    number = 1
    while aside.exists():
        number += 1
        aside = folder.with_name(f"{SET_ASIDE}{folder.name}-{number}")
    os.rename(folder, aside)
    LOG.warning("%s: moved to %s: %s", folder, aside.name, reason)
