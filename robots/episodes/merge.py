"""Merges episode stores into one, episode by episode.

Stores may differ in their fields (`missing`), but a field of one name must have the same shape,
dtype, unit and frame in all of them unless it is left out (`fields`), and all must be of one robot
and one rate. Every merged episode records which store and episode it comes from, and the words of
its task.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from robots.episodes.schema import CheckedStreams, EpisodeSchema, StreamSpec
from robots.episodes.segments.video_copy import CodedFrames
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError, suggest
from robots.interfaces import Progress, no_progress
from robots.language.text import INSTRUCTION, UNIT, decode, task_sentence
from robots.spec import FieldSpec

Missing = Literal["refuse", "drop", "pad"]
MOST_PAIRS = 5
"""Largest number of equal episodes that a warning names."""


class MergeSource(NamedTuple):
    """One of the merged stores."""

    name: str
    """Name in messages and in the metadata of its episodes."""
    path: Path
    """Folder of the store."""
    digest: str
    """Digest of its artifact, for the lineage; empty if it has none."""


def merge_stores(
    sources: Sequence[MergeSource],
    out: Path,
    *,
    task: str | None = None,
    fields: Sequence[str] = (),
    missing: Missing = "refuse",
    successes: bool = False,
    episodes_each: int | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Writes the episodes of all stores, one store after another, to a new store at `out`.

    An episode keeps its metadata, to which `source_store`, `source_digest` and `source_episode` are
    added; those of an earlier merge are kept under `origin`. Where the stores are of several tasks,
    an episode without an `instruction` gets the one that a policy would read in its own store: the
    recorded words if the merged store lacks them, else the name of the task.

    Args:
        sources: one or more stores of distinct names.
        out: folder of the new store; one that is there is replaced.
        task: name of the task; None takes that of the stores.
        fields: names of the fields that are kept, in every stream that has them; empty keeps all.
        missing: treatment of fields that not every store has: `refuse` them, `drop` them, or `pad`
            with zeros.
        successes: takes only episodes whose metadata have `success: true`, or no `success`.
        episodes_each: largest number of episodes of each store; None takes all.
        progress: counts episodes.

    Returns:
        episodes, frames of the stream `policy` or of the first one, `episodes_of` each store,
        `dropped` fields and `padded` fields by store; a `warning` if merged episodes are equal in
        all samples that are no video.

    Raises:
        HandoffError: stores that do not agree, or a store without an episode to take.
    """
    if not sources or len({source.name for source in sources}) < len(sources):
        raise HandoffError(
            f"merge: stores {', '.join(source.name for source in sources) or 'none'}, expected one or more distinct "
            "ones."
        )
    with ExitStack() as stack:
        stores = {
            source.name: stack.enter_context(EpisodeStore.open(source.path)) for source in sources
        }
        schemas = {name: store.schema for name, store in stores.items()}
        merged = merged_schema(schemas, task, missing, fields)
        taken = {
            name: _taken(name, store, successes, episodes_each) for name, store in stores.items()
        }
        pieces = [(source, stores[source.name], taken[source.name]) for source in sources]
        numbers: dict[str, list[int]] = {}
        figures = _write(pieces, out, merged, progress, numbers)
    return {
        **figures,
        "episodes_of": {name: len(episodes) for name, episodes in taken.items()},
        "dropped": sorted(
            {name for schema in schemas.values() for name in _names(schema)} - _names(merged)
        ),
        "padded": {
            name: sorted(_names(merged) - _names(schema)) for name, schema in schemas.items()
        },
        **_warning(numbers),
    }


def copy_episodes(
    source: MergeSource, out: Path, episodes: Sequence[int], progress: Progress = no_progress
) -> dict[str, int]:
    """Writes some episodes of one store, with the same lineage as `merge_stores`.

    Args:
        source: the store.
        out: folder of the new store; one that is there is replaced.
        episodes: numbers of the episodes, in the order in which they are written.
        progress: counts episodes.

    Returns:
        episodes, and frames of the stream `policy` or of the first one.

    Raises:
        HandoffError: there is no such episode, or the store is damaged.
    """
    with EpisodeStore.open(source.path) as store:
        return _write([(source, store, episodes)], out, store.schema, progress)


def _write(
    pieces: Sequence[tuple[MergeSource, EpisodeStore, Sequence[int]]],
    out: Path,
    schema: EpisodeSchema,
    progress: Progress,
    numbers: dict[str, list[int]] | None = None,
) -> dict[str, int]:
    """Writes the named episodes of all stores to a new store, and counts episodes and frames;
    `numbers` collects their numbers by the digest of their samples."""
    schema = with_copied_videos(schema, [(store, episodes) for _, store, episodes in pieces])
    total = sum(len(episodes) for _, _, episodes in pieces)
    several = len({store.schema.name for _, store, _ in pieces}) > 1
    shutil.rmtree(out, ignore_errors=True)
    done = 0
    with EpisodeStore.create(out, schema) as target, target.writer() as writer:
        for source, store, episodes in pieces:
            for episode in episodes:
                metadata = lineage(store.metadata(episode), source.name, source.digest, episode)
                streams = merged_episode(store, episode, schema)
                if several:
                    metadata.setdefault(INSTRUCTION, _words(store, episode))
                if numbers is not None:
                    numbers.setdefault(_digest(streams), []).append(done)
                writer.append(streams, metadata)
                done += 1
                progress(done, total, source.name)
    stream = "policy" if "policy" in schema.streams else next(iter(schema.streams))
    return {"episodes": total, "frames": int(EpisodeStore.open(out).ends(stream)[-1])}


def _words(store: EpisodeStore, episode: int) -> str:
    """The recorded instruction of an episode, the first if it changes; else the name of its
    task."""
    for stream, spec in store.schema.streams.items():
        if INSTRUCTION in spec.fields and spec.fields[INSTRUCTION].unit == UNIT:
            recorded = decode(store.read(episode, stream, [INSTRUCTION])[INSTRUCTION])
            if stated := next(filter(None, recorded), None):
                return stated
    return task_sentence(store.schema.name)


def _digest(streams: CheckedStreams) -> str:
    """Digest of all samples of an episode that are no video."""
    digest = hashlib.blake2b(digest_size=16)
    for stream, fields in streams.items():
        for name, values in fields.items():
            digest.update(f"{stream}/{name} {len(values)}".encode())
            if isinstance(values, np.ndarray):
                digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _warning(numbers: Mapping[str, list[int]]) -> dict[str, str]:
    """A sentence about episodes that were merged more than once; nothing if there are none."""
    pairs = sorted((number, same[0]) for same in numbers.values() for number in same[1:])
    if not pairs:
        return {}
    shown = ", ".join(f"{number} as {first}" for number, first in pairs[:MOST_PAIRS])
    rest = f" and {len(pairs) - MOST_PAIRS} more" if len(pairs) > MOST_PAIRS else ""
    what = "episode is" if len(pairs) == 1 else "episodes are"
    return {
        "warning": f"{len(pairs)} {what} the same as an earlier one: {shown}{rest}. Are a store and a copy of it "
        "merged?"
    }


def merged_schema(
    schemas: Mapping[str, EpisodeSchema],
    task: str | None,
    missing: Missing,
    kept: Sequence[str] = (),
) -> EpisodeSchema:
    """Schema of a merged store.

    Args:
        schemas: schemas by the name of the store.
        task: name of the task; None takes that of the stores.
        missing: treatment of fields that not every store has.
        kept: names of the fields that are kept; empty keeps all.

    Raises:
        HandoffError: the stores do not agree, or none has a kept field.
    """
    if kept:
        schemas = _with_fields(schemas, kept)
    tasks = sorted({schema.name for schema in schemas.values()})
    if task is None and len(tasks) > 1:
        raise HandoffError(
            f"merge: the stores are of the tasks {', '.join(tasks)}. Give the merged store a name (task, --task)."
        )
    robots = sorted({schema.robot for schema in schemas.values() if schema.robot})
    if len(robots) > 1:
        raise HandoffError(
            f"merge: the stores are of the robots {', '.join(robots)}, expected one."
        )
    every = [set(schema.streams) for schema in schemas.values()]
    union = list(dict.fromkeys(name for schema in schemas.values() for name in schema.streams))
    common = [name for name in union if all(name in names for names in every)]
    if not common or (missing != "drop" and len(common) < len(union)):
        raise HandoffError(
            "merge: the streams of the stores differ: "
            + "; ".join(f"{name} has {', '.join(sorted(s.streams))}" for name, s in schemas.items())
            + ". Set missing: drop (--missing drop) for the common ones."
        )
    return EpisodeSchema(
        name=task or tasks[0],
        streams={stream: _merged_stream(stream, schemas, missing) for stream in common},
        robot=robots[0] if robots else "",
    )


def _with_fields(
    schemas: Mapping[str, EpisodeSchema], kept: Sequence[str]
) -> dict[str, EpisodeSchema]:
    """The schemas with some fields alone, and with the streams that have any of them."""
    known = sorted(
        {name.split("/", 1)[1] for schema in schemas.values() for name in _names(schema)}
    )
    if unknown := [name for name in kept if name not in known]:
        raise HandoffError(
            f"merge: no store has the field '{unknown[0]}', {suggest(unknown[0], known)}"
        )
    reduced = {}
    for name, schema in schemas.items():
        streams = {
            stream: replace(
                spec, fields={field: spec.fields[field] for field in spec.fields if field in kept}
            )
            for stream, spec in schema.streams.items()
            if any(field in kept for field in spec.fields)
        }
        reduced[name] = replace(schema, streams=streams, videos={})
    return reduced


def _merged_stream(
    stream: str, schemas: Mapping[str, EpisodeSchema], missing: Missing
) -> StreamSpec:
    specs = {name: schema.streams[stream] for name, schema in schemas.items()}
    rates = {name: spec.rate_hz for name, spec in specs.items()}
    if len(set(rates.values())) > 1:
        text = ", ".join(f"{rate:g} Hz in {name}" for name, rate in rates.items())
        raise HandoffError(f"merge: the rates of {stream} differ: {text}, expected one.")
    fields: dict[str, FieldSpec] = {}
    for name, spec in specs.items():
        for field, declared in spec.fields.items():
            _check_same(f"{stream}/{field}", fields.setdefault(field, declared), declared, name)
    absent = {
        name: sorted(fields.keys() - spec.fields.keys())
        for name, spec in specs.items()
        if fields.keys() - spec.fields.keys()
    }
    if absent and missing == "refuse":
        text = "; ".join(f"{name} lacks {', '.join(names)}" for name, names in absent.items())
        raise HandoffError(
            f"merge: the fields of {stream} differ: {text}. Set missing: drop or missing: pad, or record the same "
            "observation in all."
        )
    if missing == "drop":
        lacking = {field for names in absent.values() for field in names}
        fields = {field: spec for field, spec in fields.items() if field not in lacking}
    if not fields:
        raise HandoffError(f"merge: the stores have no field of {stream} in common.")
    return StreamSpec(rate_hz=next(iter(rates.values())), fields=fields)


def _check_same(field: str, first: FieldSpec, other: FieldSpec, store: str) -> None:
    for attribute in ("shape", "dtype", "unit", "frame"):
        expected, found = getattr(first, attribute), getattr(other, attribute)
        if expected != found:
            raise HandoffError(
                f"merge: {field} of {store} has the {attribute} {found!r}, expected {expected!r} as in the other "
                "stores. Was it recorded with other actions or another robot? Leave it out: fields."
            )


def _names(schema: EpisodeSchema) -> set[str]:
    return {f"{stream}/{field}" for stream, spec in schema.streams.items() for field in spec.fields}


def _taken(name: str, store: EpisodeStore, successes: bool, episodes_each: int | None) -> list[int]:
    """Numbers of the episodes that are merged."""
    episodes = [
        episode
        for episode in range(store.num_episodes)
        if not successes or store.metadata(episode).get("success", True)
    ]
    if not episodes:
        failed = (
            "all failed, and successes alone are taken. Set successes: false to take failures, too"
        )
        raise HandoffError(
            f"merge: {name} has {store.num_episodes} episodes, {failed if store.num_episodes else 'nothing to merge'}."
        )
    return episodes if episodes_each is None else episodes[:episodes_each]


def with_copied_videos(
    schema: EpisodeSchema, pieces: Sequence[tuple[EpisodeStore, Sequence[int]]]
) -> EpisodeSchema:
    """The schema of a copy, in which a camera is kept as video if the frames of all copied episodes
    can be copied as they are coded. Others lose nothing more: they become arrays, or videos without
    loss if they are such.

    Args:
        schema: streams and fields of the copy.
        pieces: stores, and the numbers of their episodes that are copied as a whole.
    """
    first = pieces[0][0].schema
    videos = {
        name: first.videos[name]
        for stream, spec in schema.streams.items()
        for name in (f"{stream}/{field}" for field in spec.fields)
        if all(_is_copied(store, episodes, name) for store, episodes in pieces)
    }
    return replace(schema, videos={**schema.exact.videos, **videos})


def _is_copied(store: EpisodeStore, episodes: Sequence[int], name: str) -> bool:
    stream, _, field = name.partition("/")
    return name in store.schema.videos and all(
        store.coded(episode, stream, field).decodable for episode in episodes
    )


def merged_episode(store: EpisodeStore, episode: int, merged: EpisodeSchema) -> CheckedStreams:
    """One episode with the fields of the merged store: those of videos as they are coded, where
    they can be copied, and zeros where the store lacks a field."""
    coded = merged.videos.keys() & store.schema.videos.keys()
    streams: CheckedStreams = {}
    for stream, spec in merged.streams.items():
        own = [name for name in spec.fields if name in store.schema.stream(stream).fields]
        copied: dict[str, np.ndarray | CodedFrames] = {
            name: store.coded(episode, stream, name) for name in own if f"{stream}/{name}" in coded
        }
        copied |= store.read(episode, stream, [name for name in own if name not in copied])
        length = len(next(iter(copied.values())))
        streams[stream] = {
            name: copied[name] if name in copied else np.zeros((length, *field.shape), field.dtype)
            for name, field in spec.fields.items()
        }
    return streams


def lineage(metadata: dict[str, Any], name: str, digest: str, episode: int) -> dict[str, Any]:
    """Metadata of a copied episode, which name its source; those of an earlier copy are kept under
    `origin`.

    Args:
        metadata: metadata of the episode in its source.
        name: name of the source.
        digest: digest of the source; empty if it has none.
        episode: number of the episode in its source.
    """
    keys = ("source_store", "source_digest", "source_episode")
    earlier = {key: metadata[key] for key in (*keys, "origin") if key in metadata}
    origin = {"origin": earlier} if earlier else {}
    return {
        **metadata,
        **origin,
        "source_store": name,
        "source_digest": digest,
        "source_episode": episode,
    }
