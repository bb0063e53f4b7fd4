"""Writes an edited copy of a store: without some episodes, shortened, or with other labels.

The source is never changed. Every episode of the copy records where it comes from
(`source_store`, `source_digest`, `source_episode`) and what was done (`edits`): to itself, and
which episodes of the store were deleted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from robots.config import Whole, config
from robots.episodes.merge import lineage, merged_episode, with_copied_videos
from robots.episodes.metadata.labels import check_labels
from robots.episodes.schema import CheckedStreams, EpisodeSchema
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.language.text import INSTRUCTION, encode
from robots.language.text import UNIT as TEXT

FINAL = "final"
"""Stream of the single observation after the last step, see `robots.episodes.corrections`."""
MOST_RANGES = 20
"""Largest number of ranges of deleted episodes that every other episode names."""


@config
class Edits:
    """Changes of a store; episodes are numbered as in the source."""

    delete: tuple[Whole, ...] = ()
    """Episodes that are left out."""
    trim: dict[Whole, tuple[Whole, Whole]] = field(default_factory=dict)
    """First step and end (exclusive) of the steps that are kept, by episode."""
    labels: dict[Whole, dict[str, Any]] = field(default_factory=dict)
    """New entries of the metadata by episode, such as `success` and `instruction`; None removes an
    entry."""
    new_labels: bool = False
    """Whether labels that Handoff does not know and that no episode states are accepted."""
    by: str = ""
    """Person who edits."""
    reason: str = ""
    """Why, one sentence."""
    when: str = ""
    """Wall time of the edit, ISO 8601 in UTC; empty if it is not to be stated."""


def write_edited(
    source: Path, out: Path, edits: Edits, *, digest: str = "", progress: Progress = no_progress
) -> dict[str, Any]:
    """Writes an edited copy of the store at `source` to the new store `out`.

    Args:
        source: folder of the store.
        out: folder of the copy, which must not exist.
        edits: what is changed.
        digest: digest of the source, for the lineage; empty if it has none.
        progress: counts episodes.

    Returns:
        `episodes`, `frames` of the first stream, `deleted`, `trimmed` and `relabelled` episodes,
        and `notes`, what the copy changes beside.

    Raises:
        HandoffError: an episode or step that does not exist, an unknown label or one of another
            type, nothing is left or changed, or `out` exists.
    """
    if out.exists():
        raise HandoffError(
            f"{out}: already exists. An edited store is a new one; choose another path."
        )
    with EpisodeStore.open(source) as store:
        _check(store, edits)
        kept = [number for number in range(store.num_episodes) if number not in edits.delete]
        done = False
        try:
            schema = store.schema.exact
            if not edits.trim.keys() & set(kept):
                schema = with_copied_videos(store.schema, [(store, kept)])
            with EpisodeStore.create(out, schema) as copy, copy.writer() as writer:
                for number in kept:
                    trimmed = edits.trim.get(number)
                    streams = (
                        merged_episode(store, number, schema)
                        if trimmed is None
                        else _shortened(store, number, trimmed)
                    )
                    _relabel_steps(store, streams, edits.labels.get(number, {}))
                    metadata = lineage(store.metadata(number), source.name, digest, number)
                    writer.append(streams, _relabelled(metadata, number, edits))
                    progress(number + 1, store.num_episodes, "episodes")
            done = True
        finally:
            if not done:
                shutil.rmtree(out, ignore_errors=True)
        frames = int(EpisodeStore.open(out).ends(next(iter(store.schema.streams)))[-1])
    decoded = sorted(store.schema.videos.keys() - schema.videos.keys())
    return {
        "episodes": len(kept),
        "frames": frames,
        "deleted": sorted(edits.delete),
        "trimmed": sorted(edits.trim),
        "relabelled": sorted(edits.labels),
        "notes": [
            f"{', '.join(decoded)}: a shortened episode has no copy of its coded frames, so all pictures are stored as "
            "they are decoded, without further loss and larger"
        ]
        if decoded
        else [],
    }


def _check(store: EpisodeStore, edits: Edits) -> None:
    stream = steps_stream(store.schema)
    for number in (*edits.delete, *edits.trim, *edits.labels):
        if not 0 <= number < store.num_episodes:
            raise HandoffError(
                f"{store.path}: no episode {number}, the store has 0 to {store.num_episodes - 1}."
            )
    if not (edits.delete or edits.trim or edits.labels):
        raise HandoffError(f"{store.path}: nothing to change. Name episodes to edit.")
    if len(set(edits.delete)) == store.num_episodes:
        raise HandoffError(f"{store.path}: all {store.num_episodes} episodes would be deleted.")
    lengths = np.diff(store.ends(stream), prepend=0)
    for number, (first, stop) in edits.trim.items():
        if first >= stop:
            raise HandoffError(
                f"{store.path}: episode {number} would keep the steps from {first} to before {stop}, of which there is "
                "none. The first step must be below the stop."
            )
        if stop > lengths[number]:
            raise HandoffError(
                f"{store.path}: steps [{first}, {stop}) of episode {number}, which has {lengths[number]} steps."
            )
    metadata = [store.metadata(number) for number in range(store.num_episodes)]
    checked: list[Mapping[str, Any]] = []
    for labels in edits.labels.values():
        if labels not in checked:
            check_labels(labels, metadata, new=edits.new_labels)
            checked.append(labels)


def steps_stream(schema: EpisodeSchema) -> str:
    """Name of the stream of the steps: `policy`, or the first one."""
    return "policy" if "policy" in schema.streams else next(iter(schema.streams))


def _shortened(store: EpisodeStore, number: int, kept: tuple[int, int]) -> CheckedStreams:
    streams = {name: store.read(number, name) for name in store.schema.streams}
    steps = steps_stream(store.schema)
    rate, length = store.schema.streams[steps].rate_hz, len(next(iter(streams[steps].values())))
    first, stop = kept
    shortened: CheckedStreams = {}
    for name, arrays in streams.items():
        if name == FINAL and name != steps:
            # The observation after the last step that is kept.
            after = stop if stop < length else None
            shortened[name] = {
                field: rows if after is None else streams[steps][field][after : after + 1]
                for field, rows in arrays.items()
            }
            continue
        ratio = store.schema.streams[name].rate_hz / rate
        start, end = round(first * ratio), max(round(first * ratio) + 1, round(stop * ratio))
        shortened[name] = {field: rows[start:end] for field, rows in arrays.items()}
    return shortened


def _relabel_steps(store: EpisodeStore, streams: CheckedStreams, labels: Mapping[str, Any]) -> None:
    """Writes a new instruction also into the text fields with the instruction of every step."""
    sentence = labels.get(INSTRUCTION)
    if not isinstance(sentence, str):
        return
    for name, arrays in streams.items():
        spec = store.schema.streams[name].fields.get(INSTRUCTION)
        if spec is not None and spec.unit == TEXT:
            arrays[INSTRUCTION] = np.broadcast_to(
                encode([sentence], spec.shape[0]), (len(arrays[INSTRUCTION]), *spec.shape)
            )


def _relabelled(metadata: dict[str, Any], number: int, edits: Edits) -> dict[str, Any]:
    """Metadata with new entries, and a line for every edit of the episode."""
    done: list[str] = []
    if edits.delete:
        done.append(f"deleted {_numbers(edits.delete)} of {metadata['source_store']}")
    if number in edits.trim:
        first, stop = edits.trim[number]
        done.append(f"steps [{first}, {stop})")
    for key, value in edits.labels.get(number, {}).items():
        done.append(f"{key}: {_word(metadata.get(key))} to {_word(value)}")
        if value is None:
            metadata.pop(key, None)
        else:
            metadata[key] = value
    if not done:
        return metadata
    stated = {"when": edits.when} if edits.when else {}
    entry = {"done": done, "by": edits.by, "reason": edits.reason, **stated}
    return {**metadata, "edits": [*metadata.get("edits", []), entry]}


def _numbers(episodes: Iterable[int]) -> str:
    """Words for numbers of episodes, with ranges for those that follow one another."""
    ranges: list[list[int]] = []
    for number in sorted(set(episodes)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    parts = [str(low) if low == high else f"{low} to {high}" for low, high in ranges[:MOST_RANGES]]
    rest = sum(high - low + 1 for low, high in ranges[MOST_RANGES:])
    many = "s" if len(ranges) > 1 or ranges[0][0] < ranges[0][1] else ""
    return f"episode{many} {', '.join(parts)}" + (f" and {rest} more" if rest else "")


def _word(value: Any) -> str:
    """A value as JSON, and `none` for an entry that is missing."""
    return "none" if value is None else json.dumps(value)
