"""Refers to the samples of an episode store elsewhere: a folder with schema and index of its own,
whose segments stay in another folder or in a bucket.

Segments are never rewritten, so the index states the content of the episodes, whatever is appended
to the other store later.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from robots.episodes.schema import EpisodeSchema
from robots.episodes.segments.index import Index, read_index, read_schema, schema_attributes
from robots.errors import HandoffError
from robots.storage.durable import (
    explain_write_errors,
    sync_tree,
    temporary_beside,
    write_atomically,
)
from robots.storage.location import Location, location_of

REFERENCE = "reference.json"


def write_reference(
    path: Path,
    source: Location,
    schema: EpisodeSchema,
    episodes: int,
    metadata: Callable[[int, Mapping[str, Any]], dict[str, Any]],
) -> None:
    """Writes a store at `path` whose samples stay in the store at `source`.

    Args:
        path: folder of the new store, which is replaced.
        source: place of the other store, complete and of this format.
        schema: its schema, or the part of it that the new store has.
        episodes: number of its first episodes that the new store has.
        metadata: metadata of an episode, by its number and its metadata in the other store.

    Raises:
        HandoffError: the other store is a reference itself, or the disk is full.
    """
    import zarr

    if referenced(source) is not source:
        raise HandoffError(f"{source}: refers to another store; refer to {referenced(source)}.")
    known = read_index(source, read_schema(source))
    index = _first_episodes(known, schema, episodes, metadata)
    aside = temporary_beside(path)
    with explain_write_errors(path, "the reference was not written"):
        try:
            zarr.create_group(aside, attributes=schema_attributes(schema), zarr_format=3)
            write_atomically(aside / "index.json", index.to_json())
            text = json.dumps({"store": str(source)})
            write_atomically(aside / REFERENCE, text.encode())
            sync_tree(aside)
            shutil.rmtree(path, ignore_errors=True)
            aside.rename(path)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise


def referenced(store: Location) -> Location:
    """Place of the store with the samples: `store` itself unless it is a reference.

    Raises:
        HandoffError: the reference is damaged.
    """
    try:
        return location_of(json.loads(store.read(REFERENCE))["store"])
    except FileNotFoundError:
        return store
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HandoffError(f"{store}/{REFERENCE}: damaged ({error}). Was it edited?") from None


def _first_episodes(
    index: Index,
    schema: EpisodeSchema,
    episodes: int,
    metadata: Callable[[int, Mapping[str, Any]], dict[str, Any]],
) -> Index:
    """The index of the first episodes, with their metadata, and of the fields of `schema`."""
    fields = {f"{stream}/{name}" for stream, spec in schema.streams.items() for name in spec.fields}
    segments, number = [], 0
    for segment in index.segments:
        records = []
        for record in segment.episodes[: episodes - number]:
            lengths = {stream: record.lengths[stream] for stream in schema.streams}
            about = metadata(number, record.metadata)
            records.append(replace(record, lengths=lengths, metadata=about))
            number += 1
        if records:
            sizes = {name: size for name, size in segment.stored_bytes.items() if name in fields}
            segments.append(replace(segment, stored_bytes=sizes, episodes=tuple(records)))
    return Index(segments=tuple(segments))
