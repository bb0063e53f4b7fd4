"""Places the metadata of episodes in LeRobot's table of episodes, and says what an export loses.

| entries of the metadata                                     | place                         |
|-------------------------------------------------------------|-------------------------------|
| numbers and words of one type that every episode states     | a column of the same name     |
| all others: lists, tables, and what only some episodes have | the column `handoff`, as JSON |
| the sentence, where it is the task of all frames            | the task                      |
| the name of the task                                        | `meta/handoff.json`           |

LeRobot's readers pass over columns and files that they do not know; ours reads all of it back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from robots.episodes.exports.mp4 import VideoCodec
from robots.episodes.formats.lerobot_files.lerobot_metadata import (
    EXTRA,
    INDEX_COLUMNS,
    LONGEST_TASK,
    is_place,
)
from robots.language.text import INSTRUCTION

_SUBSAMPLED = "yuv420p"


def episode_columns(
    metadata: Sequence[Mapping[str, Any]], sentences: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """The entries of every episode, with the same names for all episodes.

    Args:
        metadata: metadata of every episode.
        sentences: tasks of every episode, as its row lists them.
    """
    entries = [
        {
            key: value
            for key, value in about.items()
            if key != INSTRUCTION or list(tasks) != [about[INSTRUCTION]]
        }
        for about, tasks in zip(metadata, sentences, strict=True)
    ]
    columns = [
        key
        for key in (entries[0] if entries else ())
        if not (is_place(key) or key in INDEX_COLUMNS or key == EXTRA)
        and len({_kind(about.get(key)) for about in entries} - {None}) == 1
        and all(_kind(about.get(key)) is not None for about in entries)
    ]
    rest = [{key: value for key, value in about.items() if key not in columns} for about in entries]
    rows = [{key: about[key] for key in columns} for about in entries]
    if any(rest):
        for row, others in zip(rows, rest, strict=True):
            row[EXTRA] = json.dumps(others, ensure_ascii=False, allow_nan=False)
    return rows


def export_notes(
    codecs: Mapping[str, VideoCodec], other_streams: Sequence[str], rows: Sequence[Mapping]
) -> list[str]:
    """What the data set does not hold, or holds where only Handoff reads it, one sentence each.

    Args:
        codecs: codec by the name of the picture.
        other_streams: streams that are not written.
        rows: see `episode_columns`.
    """
    notes = []
    for codec in dict.fromkeys(map(_described, codecs.values())):
        names = [name for name, other in codecs.items() if _described(other) == codec]
        notes.append(
            f"{', '.join(names)}: encoded as lossy video ({codec}); the store keeps its pictures as they are"
        )
    if other_streams:
        notes.append(f"left out: the streams {', '.join(other_streams)}, which have other rates")
    hidden = sorted({key for row in rows for key in json.loads(row.get(EXTRA, "{}"))})
    if hidden:
        notes.append(
            f"metadata that only Handoff reads, in the column {EXTRA} of meta/episodes: {', '.join(hidden)}"
        )
    return notes


def _described(codec: VideoCodec) -> str:
    """Codec, quality and resolution of the colours."""
    halved = ", colours at half the resolution" if codec.pixel_format == _SUBSAMPLED else ""
    return f"{codec.name}, crf {codec.options['crf']}, {codec.pixel_format}{halved}"


def _kind(value: object) -> type | None:
    """Type of a value that can be a column; None for others."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, int):
        return int if abs(value) < 2**63 else None
    if isinstance(value, float):
        return float if isfinite(value) else None
    if isinstance(value, str):
        return str if len(value) <= LONGEST_TASK else None
    return None
