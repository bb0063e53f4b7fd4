"""Reads the folder `meta` of LeRobot data sets: features, tasks, and the places of the episodes.

| version    | tasks                | episodes                                                   |
|------------|----------------------|------------------------------------------------------------|
| v2.0, v2.1 | `meta/tasks.jsonl`   | `meta/episodes.jsonl`                                      |
| v3.0       | `meta/tasks.parquet` | `meta/episodes/chunk-*/file-*.parquet`                     |

`meta/info.json` states the version, frames per second, features and the names of the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.formats.containers.folder import check_inside, read_json
from robots.episodes.formats.containers.parquet_rows import column_strings, read_table
from robots.episodes.formats.lerobot_files.lerobot_features import (
    INFO,
    Feature,
    parse_feature,
    whole_number,
)
from robots.episodes.formats.source import explain_damage
from robots.errors import HandoffError

VERSIONS = ("v2.0", "v2.1", "v3.0")
INDEX_COLUMNS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns of every data set; they are checked and become no fields."""
ABOUT = "meta/handoff.json"
"""File that Handoff writes beside LeRobot's, with the name of the task."""
EXTRA = "handoff"
"""Column of the episodes in which Handoff writes entries of the metadata as JSON."""
LARGEST_LINES = 2**28
"""Largest size of a file of JSON lines [bytes]; 100,000 episodes have 15 MB."""
LONGEST_TASK = 2**12
"""Largest size of the sentence of a task [bytes]."""
_PLACEHOLDER = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")
_PLACES = ("videos/", "data/", "meta/", "stats/")
_KNOWN = frozenset(
    ("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index", "task")
)


class VideoPlace(NamedTuple):
    """Place of the frames of one episode and camera."""

    path: Path
    """The MP4 file."""
    start: float
    """Time of the episode's first frame in it [s]."""


class EpisodePlace(NamedTuple):
    """Place of one episode."""

    number: int
    """Number of the episode in the data set."""
    length: int
    """Number of frames."""
    path: Path
    """Its parquet file."""
    first_row: int
    """Row of its first frame in that file."""
    first_index: int | None
    """Value of its first frame in the column `index`; None if the metadata does not state it."""
    whole_file: bool
    """Whether the file holds no other episode."""
    videos: Mapping[str, VideoPlace]
    """By feature."""
    metadata: Mapping[str, Any]
    """Numbers and words that the data set states about the episode."""


@dataclass(frozen=True)
class LeRobotMetadata:
    """The folder `meta` of a data set."""

    root: Path
    version: str
    rate_hz: float
    robot: str
    features: Mapping[str, Feature]
    tasks: Mapping[int, str]
    """Sentences by `task_index`."""
    rows: Sequence[Mapping[str, Any]]
    """What the data set states about each episode."""
    data_path: str
    video_path: str
    chunks_size: int
    file_starts: Mapping[tuple[int, int], int]
    """First frame, counted over the data set, of each parquet file of v3.0."""
    task: str
    """Name of the task, which only data sets that Handoff wrote state; otherwise empty."""

    @property
    def several_tasks(self) -> bool:
        """Whether an episode has several tasks."""
        return any(len(row["tasks"]) > 1 for row in self.rows)

    def place(self, number: int) -> EpisodePlace:
        """Place of an episode.

        Raises:
            HandoffError: a file is missing or lies outside the data set.
        """
        row = self.rows[number]
        with explain_damage(self.root, f"the entry of episode {number} in meta"):
            index, length = whole_number(row["episode_index"]), whole_number(row["length"])
            metadata = {key: value for key, value in row.items() if _is_stated(key, value)}
            metadata |= _extra(metadata.pop(EXTRA, None))
            if self.version == "v3.0":
                first_index = whole_number(row["dataset_from_index"])
                part = (whole_number(row["data/chunk_index"]), whole_number(row["data/file_index"]))
                values = {"chunk_index": part[0], "file_index": part[1]}
                first_row = first_index - self.file_starts[part]
            else:
                first_index, first_row = None, 0
                values = {"episode_chunk": index // self.chunks_size, "episode_index": index}
            videos = {
                name: self._video(row, name, values)
                for name, feature in self.features.items()
                if feature.dtype == "video"
            }
        path = _file(self.root, self.data_path, values)
        whole = self.version != "v3.0"
        return EpisodePlace(index, length, path, first_row, first_index, whole, videos, metadata)

    def _video(self, row: Mapping[str, Any], name: str, values: Mapping[str, int]) -> VideoPlace:
        start = 0.0
        if self.version == "v3.0":
            prefix = f"videos/{name}"
            chunk, file = row[f"{prefix}/chunk_index"], row[f"{prefix}/file_index"]
            values = {"chunk_index": whole_number(chunk), "file_index": whole_number(file)}
            start = float(row[f"{prefix}/from_timestamp"])
            if not (isfinite(start) and start >= 0.0):
                raise ValueError(f"{prefix}/from_timestamp is {start} s")
        return VideoPlace(_file(self.root, self.video_path, {**values, "video_key": name}), start)


def read_metadata(root: Path) -> LeRobotMetadata:
    """Reads and checks the folder `meta`.

    Raises:
        HandoffError: a file is missing or damaged, the version is another one, or the numbers of
            episodes contradict each other.
    """
    info = read_json(_file(root, INFO, {}))
    version = info.get("codebase_version")
    if version not in VERSIONS:
        raise HandoffError(
            f"{root}: {INFO} states the version {version!r:.40}, expected one of {', '.join(VERSIONS)}. "
            "LeRobot converts older ones."
        )
    with explain_damage(root, INFO):
        rate = float(info["fps"])
        chunks_size = whole_number(info.get("chunks_size", 1000))
        if not (isfinite(rate) and 0 < rate <= 1e6 and chunks_size > 0):
            raise ValueError(f"fps {rate}, chunks_size {chunks_size}")
        features = {name: parse_feature(name, entry) for name, entry in info["features"].items()}
        total = whole_number(info["total_episodes"])
        data_path, video_path = str(info["data_path"]), str(info.get("video_path") or "")
    newest = version == "v3.0"
    tasks = _tasks_table(root) if newest else _task_lines(root)
    rows = _episodes_table(root) if newest else _episode_lines(root)
    if len(rows) != total or not rows:
        raise HandoffError(
            f"{root}: meta lists {len(rows)} episodes, {INFO} states {total}, expected the same number above 0. "
            "Was the recording interrupted?"
        )
    return LeRobotMetadata(
        root=root,
        version=version,
        rate_hz=rate,
        robot=str(info.get("robot_type") or "")[:100],
        features=features,
        tasks=tasks,
        rows=rows,
        data_path=data_path,
        video_path=video_path,
        chunks_size=chunks_size,
        file_starts=_file_starts(root, rows) if newest else {},
        task=_task_name(root),
    )


def is_place(key: str) -> bool:
    """Whether an entry of an episode is one of LeRobot's own, such as the place of its data."""
    return key in _KNOWN or key.startswith(_PLACES)


def _task_name(root: Path) -> str:
    """The name of the task that Handoff wrote; empty in other data sets."""
    if not (root / ABOUT).is_file():
        return ""
    return str(read_json(_file(root, ABOUT, {})).get("task") or "")[:200]


def _extra(text: object) -> dict[str, Any]:
    """The entries that Handoff wrote as JSON; empty for a column that is something else."""
    if not isinstance(text, str):
        return {}
    entries = json.loads(text)
    if not isinstance(entries, dict):
        raise ValueError(f"{EXTRA} is no JSON object")
    return entries


def _tasks_table(root: Path) -> dict[int, str]:
    path = _file(root, "meta/tasks.parquet", {})
    table = read_table(path, lambda name: True)
    with explain_damage(path, "its tasks"):
        words = [name for name in table.column_names if name != "task_index"]
        name = "task" if "task" in words else words[0]
        sentences = column_strings(path, name, table.column(name))
        indices = table.column("task_index").to_pylist()
        tasks = {whole_number(i): text for i, text in zip(indices, sentences, strict=True)}
    return _checked_tasks(path, tasks)


def _task_lines(root: Path) -> dict[int, str]:
    path = _file(root, "meta/tasks.jsonl", {})
    with explain_damage(path, "its tasks"):
        tasks = {whole_number(line["task_index"]): str(line["task"]) for line in _json_lines(path)}
    return _checked_tasks(path, tasks)


def _checked_tasks(path: Path, tasks: dict[int, str]) -> dict[int, str]:
    for index, text in tasks.items():
        size = len(text.encode(errors="replace"))
        if size > LONGEST_TASK or "\0" in text:
            raise HandoffError(
                f"{path}: task {index} has {size} bytes, the limit is {LONGEST_TASK}, none of them 0. Is it a sentence?"
            )
    return tasks


def _episode_lines(root: Path) -> list[dict[str, Any]]:
    path = _file(root, "meta/episodes.jsonl", {})
    rows = _json_lines(path)
    with explain_damage(path, "its episodes"):
        for row in rows:
            row["tasks"] = _words(row.get("tasks", []))
        rows.sort(key=lambda row: whole_number(row["episode_index"]))
        _check_rising(path, [row["episode_index"] for row in rows])
    return rows


def _episodes_table(root: Path) -> list[dict[str, Any]]:
    with explain_damage(root, "meta/episodes"):
        files = sorted(path.relative_to(root) for path in root.glob("meta/episodes/*/*.parquet"))
    rows: list[dict[str, Any]] = []
    for file in files:
        path = _file(root, file.as_posix(), {})
        table = read_table(path, lambda name: not name.startswith("stats/"))
        with explain_damage(path, "its episodes"):
            for row in table.to_pylist():
                row["tasks"] = _words(row["tasks"])
                rows.append(row)
    with explain_damage(root, "meta/episodes"):
        _check_rising(root / "meta/episodes", [whole_number(row["episode_index"]) for row in rows])
    return rows


def _file_starts(root: Path, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], int]:
    starts: dict[tuple[int, int], int] = {}
    with explain_damage(root, "meta/episodes"):
        for row in rows:
            part = (whole_number(row["data/chunk_index"]), whole_number(row["data/file_index"]))
            first = whole_number(row["dataset_from_index"])
            if whole_number(row["dataset_to_index"]) - first != whole_number(row["length"]):
                raise ValueError(f"episode {row['episode_index']} has another number of rows")
            starts[part] = min(first, starts.get(part, first))
    return starts


def _check_rising(path: Path, indices: Sequence[int]) -> None:
    if np.any(np.diff(indices) <= 0):
        raise HandoffError(
            f"{path}: lists an episode twice, or not in their order. Were two recordings copied together?"
        )


def _json_lines(path: Path) -> list[dict[str, Any]]:
    with explain_damage(path, "its lines"):
        size = path.stat().st_size
        if size > LARGEST_LINES:
            raise HandoffError(
                f"{path}: has {size / 1e6:.0f} MB, the limit is {LARGEST_LINES / 1e6:.0f} MB. Is it metadata?"
            )
        lines = [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError("a line is no JSON object")
    return lines


def _words(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]


def _is_stated(key: str, value: object) -> bool:
    """Whether an entry of an episode is a number or word about it, not a place of its data."""
    if is_place(key) or key in INDEX_COLUMNS:
        return False
    if key == EXTRA:
        return isinstance(value, str)
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, bool | int) or (isinstance(value, str) and len(value) <= LONGEST_TASK)


def _file(root: Path, template: str, values: Mapping[str, int | str]) -> Path:
    """A file of the data set by its template in `meta/info.json`.

    Raises:
        HandoffError: the template names something else, or the file is missing or elsewhere.
    """
    name = _fill(template, values)
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\0" in name:
        raise HandoffError(
            f"{root}: {INFO} names the file {name!r:.80}, expected one inside the data set."
        )
    path = root / place
    if not path.is_file():
        raise HandoffError(
            f"{path}: no such file, but meta names it. Was the data set downloaded in part?"
        )
    blobs = root.resolve().parent.parent / "blobs"
    if not (_is_snapshot(root) and path.resolve().is_relative_to(blobs)):
        check_inside(root, path)
    return path


def _fill(template: str, values: Mapping[str, int | str]) -> str:
    """Fills `{name}` and `{name:06d}`; nothing else of Python's format strings is known, since
    these can read attributes and ask for any length."""
    rest = _PLACEHOLDER.sub("", template)
    known = {match[1] for match in _PLACEHOLDER.finditer(template)} <= values.keys()
    if not known or "{" in rest or "}" in rest:
        raise HandoffError(
            f"{INFO}: the path {template!r:.80} has placeholders other than {sorted(values)}."
        )

    def value(match: re.Match[str]) -> str:
        return str(values[match[1]]).zfill(int(match[2] or 0))

    return _PLACEHOLDER.sub(value, template)


def _is_snapshot(root: Path) -> bool:
    """Whether the folder is a snapshot in a cache of the Hugging Face Hub, whose files are links to
    the folder `blobs` beside the snapshots."""
    return root.resolve().parent.name == "snapshots"
