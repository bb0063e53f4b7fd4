"""Reads and writes the schema of an episode store and the index of its committed episodes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robots.config import Whole, config, to_plain, validate
from robots.episodes.schema import EpisodeSchema
from robots.errors import HandoffError
from robots.storage.location import Folder, Location, location_of

FORMAT = "handoff.episodes"
VERSION = 1


@config
class EpisodeRecord:
    """One committed episode."""

    lengths: dict[str, Whole]
    """Number of samples per stream."""
    metadata: dict[str, Any]
    """Metadata of the episode, such as its seed and whether it succeeded."""


@config
class SegmentRecord:
    """One committed segment."""

    name: str
    """Name of its folder below `segments`, a number."""
    stored_bytes: dict[str, Whole]
    """Sizes of the files per `stream/field`, to detect an incomplete copy [bytes]."""
    episodes: tuple[EpisodeRecord, ...]
    """Episodes of the segment, in the order of their samples."""


@config
class Index:
    """Index of the committed segments."""

    segments: tuple[SegmentRecord, ...] = ()
    """Segments of the store, in the order in which they were committed."""

    def to_json(self) -> bytes:
        """JSON of the index; `read_index` reads it back."""
        return json.dumps(asdict(self)).encode()


def schema_attributes(schema: EpisodeSchema) -> dict[str, Any]:
    """Zarr group attributes that declare format, version and schema."""
    plain = to_plain(schema)
    if not schema.videos:
        # Builds from before videos read such a store.
        del plain["videos"]
    return {"handoff": {"format": FORMAT, "version": VERSION, "schema": plain}}


def read_schema(store: Path | Location) -> EpisodeSchema:
    """The schema of the store at `store`.

    Raises:
        HandoffError: there is no store, or it has another format or version.
    """
    attributes = _read_json(store, "zarr.json").get("attributes", {}).get("handoff", {})
    if attributes.get("format") != FORMAT:
        raise HandoffError(
            f"{store}: format is {attributes.get('format')!r}, expected '{FORMAT}'. Was this Zarr made by another tool?"
        )
    if attributes.get("version") != VERSION:
        raise HandoffError(
            f"{store}: format version is {attributes.get('version')!r}, this build reads {VERSION}. "
            "Was it written by a newer Handoff?"
        )
    return validate(EpisodeSchema, attributes.get("schema", {}), "schema")


def read_index(store: Path | Location, schema: EpisodeSchema) -> Index:
    """The index of the store at `store`.

    Raises:
        HandoffError: the index is missing, damaged, or does not belong to `schema`.
    """
    content = _read_json(store, "index.json")
    try:
        index = validate(Index, content)
    except HandoffError as error:
        raise HandoffError(f"{store}/index.json: damaged ({error}).") from None
    newest = -1
    for segment in index.segments:
        if not segment.name.isdecimal():
            raise HandoffError(
                f"{store}/index.json: segment name is '{segment.name}', expected a number."
            )
        if int(segment.name) <= newest:
            raise HandoffError(
                f"{store}/index.json: segment {segment.name} comes after {newest:06d}, expected rising numbers. Was it "
                "edited?"
            )
        newest = int(segment.name)
        for record in segment.episodes:
            if record.lengths.keys() != schema.streams.keys():
                raise HandoffError(
                    f"{store}/index.json: an episode has streams {sorted(record.lengths)}, "
                    f"the schema {sorted(schema.streams)}."
                )
            for stream, length in record.lengths.items():
                if length < 1:
                    raise HandoffError(
                        f"{store}/index.json: an episode has {length} samples of {stream}, expected at least 1. Was it "
                        "edited?"
                    )
    return index


def check_complete(store: Path | Location, index: Index) -> None:
    """Checks that the files of every committed array exist and are complete.

    Raises:
        HandoffError: an array is missing or truncated.
    """
    expected = {
        f"segments/{segment.name}/{name}": size
        for segment in index.segments
        for name, size in segment.stored_bytes.items()
    }
    sizes = location_of(store).folder_bytes(expected)
    for name, size in expected.items():
        if sizes[name] != size:
            raise HandoffError(
                f"{store}/{name}: files hold {sizes[name]} bytes, expected {size}. Was the store copied incompletely?"
            )


def _read_json(store: Path | Location, name: str) -> dict[str, Any]:
    place = location_of(store)
    if isinstance(place, Folder) and not place.path.is_dir():
        raise HandoffError(f"{store}: no such folder, expected an episode store.")
    try:
        value = json.loads(place.read(name))
    except FileNotFoundError:
        raise HandoffError(f"{store}: not an episode store, it has no {name}.") from None
    except (OSError, ValueError) as error:
        raise HandoffError(f"{store}/{name}: cannot be read ({error}). Was it damaged?") from None
    if not isinstance(value, dict):
        raise HandoffError(
            f"{store}/{name}: holds a {type(value).__name__}, expected a JSON object."
        )
    return value
