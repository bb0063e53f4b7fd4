"""Summarises the recordings of a store in a few lines: when, by whom, where, and how they ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from robots.episodes.metadata.episode_metadata import (
    CLASSIFIER_DIGEST,
    CLASSIFIER_VERSION,
    EpisodeEnd,
    EpisodeOrigin,
)

SHARED = frozenset(
    (
        *EpisodeOrigin.__dataclass_fields__,
        *EpisodeEnd.__dataclass_fields__,
        "began",
        "ended",
        "people",
        "operator",
        "device",
        "policy_versions",
        CLASSIFIER_VERSION,
        CLASSIFIER_DIGEST,
    )
)
"""Entries of the metadata that are the same for all recorders."""
CELLS = ("began", "operator", "ended by")
"""Headings of `recording_cells`."""
_MOST_NAMES = 6
"""Largest number of values that a line names."""


def recording_lines(metadata: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a line for everything that recordings state; none where they state nothing.

    Args:
        metadata: metadata of every episode.
    """
    began = sorted(str(entries["began"]) for entries in metadata if entries.get("began"))
    sessions = {entries["session"] for entries in metadata if entries.get("session")}
    if began:
        last = max(str(entries.get("ended") or entries.get("began") or "") for entries in metadata)
        count = f", {len(sessions)} session{'s' * (len(sessions) > 1)}" if sessions else ""
        yield f"recorded  {_seconds(began[0])} to {_seconds(last)}{count}"
    for title, key in (
        ("host", "host"),
        ("operators", "operator"),
        ("policies", "policy_digest"),
        ("ended by", "ended_by"),
        ("discarded", "discard_reason"),
    ):
        line = _counted(entries.get(key) for entries in metadata)
        if line:
            yield f"{title:<10}{line}"
    yield from _tracking_lines(metadata)


def _tracking_lines(metadata: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the worst figures of the episodes that an arm executed, with their numbers."""
    for title, key, worst, form in (
        ("tracking", "tracking_max_m", max, _tracking),
        ("commands", "min_success_rate", min, _commands),
    ):
        values = {
            number: float(entries[key])
            for number, entries in enumerate(metadata)
            if isinstance(entries.get(key), float | int)
        }
        if values:
            number = worst(values, key=lambda number: values[number])
            yield f"{title:<10}{form(values[number])} (episode {number}; {key})"


def _tracking(metres: float) -> str:
    return f"largest distance of the arm from its reference {metres * 1000.0:.1f} mm"


def _commands(share: float) -> str:
    return f"smallest share of commands that arrived in time {share:.3f}"


def edit_lines(metadata: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a line for every edit that episodes record: when, by whom, what was done and why; the
    newest last.

    Args:
        metadata: metadata of every episode.
    """
    edits: dict[tuple[str, str, str], dict[str, list[int]]] = {}
    for number, entries in enumerate(metadata):
        for entry in entries.get("edits") or ():
            key = tuple(str(entry.get(name) or "") for name in ("when", "by", "reason"))
            episodes = edits.setdefault(key, {})  # type: ignore[arg-type]
            for done in entry.get("done") or ():
                episodes.setdefault(str(done), []).append(number)
    newest = sorted(edits.items(), key=lambda item: item[0][0])
    if len(newest) > _MOST_NAMES:
        yield f"edited    {len(newest) - _MOST_NAMES} times before"
    for (when, by, reason), episodes in newest[-_MOST_NAMES:]:
        most = sorted(episodes.items(), key=lambda item: -len(item[1]))
        done = [_of_episodes(words, numbers) for words, numbers in most[:_MOST_NAMES]]
        rest = len(most) - len(done)
        said = "; ".join(done) + (f" and {rest} more" if rest else "")
        who = " ".join(part for part in (_seconds(when), f"by {by}" if by else "") if part)
        yield f"edited    {who}: {said}" + (f" ({reason})" if reason else "")


def _of_episodes(done: str, numbers: Sequence[int]) -> str:
    """What was done, with the numbers of the episodes unless it was done to the store."""
    if done.startswith("deleted "):
        return done
    if len(numbers) > _MOST_NAMES:
        return f"{done} in {len(numbers)} episodes"
    named = ", ".join(map(str, numbers))
    return f"{done} in episode{'s' * (len(numbers) > 1)} {named}"


def recording_cells(metadata: Mapping[str, Any]) -> tuple[str, str, str]:
    """When the recording of an episode began, its operator, and what ended it; empty where it is
    not stated."""
    ended = dict.fromkeys((metadata.get("ended_by"), metadata.get("discard_reason")))
    return (
        _seconds(str(metadata.get("began") or "")),
        str(metadata.get("operator") or ""),
        " ".join(str(part) for part in ended if part),
    )


def other_entries(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of one number or word that neither a recorder shares with all others nor a
    lineage has."""
    shown = {"success", "instruction", "origin", "edits", *SHARED}
    for key, value in metadata.items():
        structured = isinstance(value, Mapping | list)
        if key not in shown and not key.startswith("source_") and not structured:
            yield key, value


def filled(
    heading: tuple[str, ...], rows: Sequence[tuple[str, ...]], always: int
) -> Iterator[tuple[str, ...]]:
    """Yields the heading and the rows of a table without the columns that no row fills.

    Args:
        heading: names of the columns.
        rows: cells; an empty one is not filled.
        always: number of the first columns that stay in any case.
    """
    kept = [
        column
        for column in range(len(heading))
        if column < always or any(row[column] for row in rows)
    ]
    for row in (heading, *rows):
        yield tuple(row[column] for column in kept)


def _seconds(time: str) -> str:
    """A wall time in ISO 8601 without fractions of a second."""
    whole, point, _ = time.partition(".")
    return f"{whole}Z" if point else time


def _counted(values: Iterable[Any]) -> str:
    """The values with the number of their episodes, the most frequent first."""
    counts = Counter(str(value) for value in values if value)
    parts = [f"{_short(value)} {number}" for value, number in counts.most_common(_MOST_NAMES)]
    rest = len(counts) - len(parts)
    return ", ".join(parts) + (f" and {rest} more" if rest else "")


def _short(value: str) -> str:
    """The beginning of a digest, and other words as they are."""
    digest = len(value) == 64 and set(value) <= set("0123456789abcdef")
    return value[:12] if digest else value[:40]
