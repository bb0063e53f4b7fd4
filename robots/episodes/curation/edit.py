"""Writes an edited copy of a store: without some episodes, shortened, or with other labels, by one
person or by several.

The source is never changed, and the copy appears with all its episodes or not at all. Every
episode of the copy records where it comes from (`source_store`, `source_digest`, `source_episode`)
and what was done (`edits`): to itself, and which episodes of the store were deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
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
from robots.storage.durable import whole_folder

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
    source: Path, out: Path, *edits: Edits, digest: str = "", progress: Progress = no_progress
) -> dict[str, Any]:
    """Writes an edited copy of the store at `source` to the new store `out`.

    Args:
        source: folder of the store.
        out: folder of the copy, which must not exist.
        edits: what is changed, by whom and why; an episode has a line for each. Of two labels of
            one name the later is kept.
        digest: digest of the source, for the lineage; empty if it has none.
        progress: counts episodes.

    Returns:
        `episodes`, `frames` of the first stream, `deleted`, `trimmed` and `relabelled` episodes,
        and `notes`, what the copy changes beside.

    Raises:
        HandoffError: an episode or step that does not exist, an episode that is shortened twice, an
            unknown label or one of another type, nothing is left or changed, or `out` exists.
    """
    if out.exists():
        raise HandoffError(
            f"{out}: already exists. An edited store is a new one; choose another path."
        )
    with EpisodeStore.open(source) as store:
        _check(store, edits)
        deleted = {number for each in edits for number in each.delete}
        kept = [number for number in range(store.num_episodes) if number not in deleted]
        trimmed = {number: steps for each in edits for number, steps in each.trim.items()}
        schema = store.schema.exact
        if not trimmed.keys() & set(kept):
            schema = with_copied_videos(store.schema, [(store, kept)])
        of_episode = _by_episode(edits)
        with whole_folder(out, "the edited store was not written") as aside:
            with EpisodeStore.create(aside, schema) as copy, copy.writer() as writer:
                for number in kept:
                    own = [edits[place] for place in of_episode.get(number, of_episode[None])]
                    streams = (
                        _shortened(store, number, trimmed[number])
                        if number in trimmed
                        else merged_episode(store, number, schema)
                    )
                    _relabel_steps(store, streams, _labels(own, number))
                    metadata = lineage(store.metadata(number), source.name, digest, number)
                    writer.append(streams, _relabelled(metadata, number, own))
                    progress(number + 1, store.num_episodes, "episodes")
            frames = int(copy.ends(next(iter(store.schema.streams)))[-1])
    return {
        "episodes": len(kept),
        "frames": frames,
        "deleted": sorted(deleted),
        "trimmed": sorted(trimmed),
        "relabelled": sorted({number for each in edits for number in each.labels}),
        "notes": _notes(store.schema.videos.keys() - schema.videos.keys()),
    }


def _notes(decoded: Set[str]) -> list[str]:
    """What a copy changes beside the edits: cameras whose video it stores as pictures."""
    if not decoded:
        return []
    return [
        f"{', '.join(sorted(decoded))}: a shortened episode has no copy of its coded frames, so all pictures are "
        "stored as they are decoded, without further loss and larger"
    ]


def _by_episode(edits: Sequence[Edits]) -> dict[int | None, list[int]]:
    """Places of the edits that an episode has a line for: those of itself, and those that delete
    episodes. The key None has the latter, for episodes that are not edited themselves."""
    deleting = [place for place, each in enumerate(edits) if each.delete]
    found: dict[int | None, set[int]] = {None: set()}
    for place, each in enumerate(edits):
        for number in (*each.trim, *each.labels):
            found.setdefault(number, set()).add(place)
    return {number: sorted({*deleting, *places}) for number, places in found.items()}


def _check(store: EpisodeStore, edits: Sequence[Edits]) -> None:
    for number in (number for each in edits for number in _numbers_of(each)):
        if not 0 <= number < store.num_episodes:
            raise HandoffError(
                f"{store.path}: no episode {number}, the store has 0 to {store.num_episodes - 1}."
            )
    if not any(_numbers_of(each) for each in edits):
        raise HandoffError(f"{store.path}: nothing to change. Name episodes to edit.")
    if len({number for each in edits for number in each.delete}) == store.num_episodes:
        raise HandoffError(f"{store.path}: all {store.num_episodes} episodes would be deleted.")
    _check_steps(store, edits)
    metadata = [store.metadata(number) for number in range(store.num_episodes)]
    checked: list[tuple[Mapping[str, Any], bool]] = []
    for each in edits:
        for labels in each.labels.values():
            if (labels, each.new_labels) not in checked:
                check_labels(labels, metadata, new=each.new_labels)
                checked.append((labels, each.new_labels))


def _numbers_of(edits: Edits) -> tuple[int, ...]:
    """Episodes that an edit names."""
    return (*edits.delete, *edits.trim, *edits.labels)


def _check_steps(store: EpisodeStore, edits: Sequence[Edits]) -> None:
    """Checks the steps that shortened episodes keep."""
    lengths = np.diff(store.ends(steps_stream(store.schema)), prepend=0)
    shortened: set[int] = set()
    for number, (first, stop) in (item for each in edits for item in each.trim.items()):
        if number in shortened:
            raise HandoffError(f"{store.path}: episode {number} is shortened twice in one copy.")
        shortened.add(number)
        if first >= stop:
            raise HandoffError(
                f"{store.path}: episode {number} would keep the steps from {first} to before {stop}, of which there is "
                "none. The first step must be below the stop."
            )
        if stop > lengths[number]:
            raise HandoffError(
                f"{store.path}: steps [{first}, {stop}) of episode {number}, which has {lengths[number]} steps."
            )


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


def _labels(edits: Sequence[Edits], number: int) -> dict[str, Any]:
    """New entries of the metadata of an episode."""
    return {key: value for each in edits for key, value in each.labels.get(number, {}).items()}


def _relabelled(metadata: dict[str, Any], number: int, edits: Sequence[Edits]) -> dict[str, Any]:
    """Metadata with new entries, and a line for every edit of the episode."""
    entries: list[dict[str, Any]] = []
    for each in edits:
        done: list[str] = []
        if each.delete:
            done.append(f"deleted {_numbers(each.delete)} of {metadata['source_store']}")
        if number in each.trim:
            first, stop = each.trim[number]
            done.append(f"steps [{first}, {stop})")
        for key, value in each.labels.get(number, {}).items():
            done.append(f"{key}: {_word(metadata.get(key))} to {_word(value)}")
            if value is None:
                metadata.pop(key, None)
            else:
                metadata[key] = value
        stated = {"when": each.when} if each.when else {}
        entries.append({"done": done, "by": each.by, "reason": each.reason, **stated})
    return {**metadata, "edits": [*metadata.get("edits", []), *entries]} if entries else metadata


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
