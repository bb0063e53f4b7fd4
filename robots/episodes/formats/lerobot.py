"""Reads LeRobot data sets v3.0, v2.1 and v2.0.

| v3.0 (`chunk-000/file-000`)        | v2.0, v2.1                            | content         |
|------------------------------------|---------------------------------------|-----------------|
| `meta/info.json`                   | `meta/info.json`                      | features, fps   |
| `meta/tasks.parquet`               | `meta/tasks.jsonl`                    | sentences       |
| `meta/episodes/CHUNK/FILE.parquet` | `meta/episodes.jsonl`                 | episodes        |
| `data/CHUNK/FILE.parquet`          | `data/CHUNK/episode_000000.parquet`   | a row per frame |
| `videos/KEY/CHUNK/FILE.mp4`        | `videos/CHUNK/KEY/episode_000000.mp4` | pictures        |

A file of v3.0 holds many episodes. Statistics are not read. Source: the code of LeRobot 0.6.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.episodes.formats.containers.parquet_rows import (
    ParquetRows,
    column_numbers,
    column_strings,
)
from robots.episodes.formats.containers.pictures import as_rgb, decode_picture
from robots.episodes.formats.lerobot_files.lerobot_features import (
    CAPTURED,
    INFO,
    Feature,
    depth_code,
    is_depth,
    number_field,
    picture_shape,
)
from robots.episodes.formats.lerobot_files.lerobot_metadata import (
    INDEX_COLUMNS,
    EpisodePlace,
    LeRobotMetadata,
    read_metadata,
)
from robots.episodes.formats.lerobot_files.lerobot_video import TOLERANCE_S, DepthCode, VideoFrames
from robots.episodes.formats.source import (
    SourceEpisode,
    SourceSchema,
    check_size,
    explain_damage,
    field_name,
)
from robots.episodes.metadata.capture_times import capture_time_name
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, encode, text_field
from robots.spec import FieldSpec, Role

if TYPE_CHECKING:
    import pyarrow as pa

_MARKS = ("meta/episodes.jsonl", "meta/episodes", "meta/tasks.jsonl", "meta/tasks.parquet")
_STATES = ("state", "states")
_SUCCESS = "next.success"
_BATCH_ROWS = 4096
_BATCH_PICTURES = 64
_MOST_LANGUAGE_ROWS = 10_000


def recognises(path: Path) -> bool:
    """Whether the folder has a `meta/info.json` beside tasks or episodes."""
    return path.is_dir() and (path / INFO).is_file() and any((path / n).exists() for n in _MARKS)


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[LeRobotSource]:
    """Opens a data set; reads the metadata only.

    Raises:
        HandoffError: files are missing or damaged, or the version is another one.
    """
    yield LeRobotSource(path, images)


class LeRobotSource:
    """An opened data set."""

    def __init__(self, path: Path, images: bool) -> None:
        """Reads the metadata.

        Raises:
            HandoffError: see `open_source`.
        """
        self._path = path
        self._meta = read_metadata(path)
        notes: list[str] = []
        self._depth: dict[str, DepthCode] = {}
        self._fields: dict[str, tuple[Feature, FieldSpec]] = {}
        self._words: list[str] = []
        for name, feature in self._meta.features.items():
            if name not in INDEX_COLUMNS:
                self._add(feature, images, notes)
        fields = {name: spec for name, (_, spec) in self._fields.items()}
        self._text_size = 0
        if self._meta.several_tasks and INSTRUCTION not in fields:
            tasks = self._meta.tasks.values()
            self._text_size = max(64, *(len(task.encode()) for task in tasks), 0)
            fields[INSTRUCTION] = _instruction_field(self._text_size)
            notes.append("Episodes have several tasks, which became the text field instruction.")
        if self._words:
            notes.append(
                f"Words {self._words} are metadata of an episode; those that change within it are left out."
            )
        self.schema = SourceSchema(
            form=f"LeRobot {self._meta.version}",
            task=self._meta.task or path.resolve().name,
            rate_hz=self._meta.rate_hz,
            fields=fields,
            robot=self._meta.robot,
            notes=tuple(notes),
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self._meta.rows)

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`; each row and each frame is decoded once.

        Raises:
            HandoffError: damaged files, missing frames, or rows that contradict the metadata.
        """
        used = [feature for feature, _ in self._fields.values()]
        columns = [f.name for f in used if f.dtype != "video"] + self._words + list(INDEX_COLUMNS)
        pictures = any(f.dtype == "image" for f in used)
        rows = ParquetRows(columns, _BATCH_PICTURES if pictures else _BATCH_ROWS)
        with ExitStack() as stack:
            stack.callback(rows.close)
            videos: dict[str, VideoFrames] = {}
            for feature, spec in self._fields.values():
                if feature.dtype == "video":
                    frames = VideoFrames(tuple(spec.shape), self._depth.get(feature.name))
                    videos[feature.name] = frames
                    stack.callback(frames.close)
            for number in range(first, stop):
                yield self._episode(self._meta.place(number), rows, videos)

    def _add(self, feature: Feature, images: bool, notes: list[str]) -> None:
        """Adds the field of a feature, or a note why there is none."""
        pictures = feature.info.get(CAPTURED)
        name, captured = field_name(feature.name), False
        if isinstance(pictures, str) and feature.is_number and feature.shape == (1,):
            name, captured = capture_time_name(field_name(pictures)), True
        if not name or name in self._fields:
            raise HandoffError(
                f"{self._path}: {INFO} has the feature {feature.name!r:.60}, whose name is empty or used twice."
            )
        if feature.dtype in ("video", "image"):
            if not images:
                return
            spec = self._picture(feature)
            if spec is None:
                notes.append(f"The depth of {feature.name} is left out: its coding is not stated.")
                return
            self._fields[name] = feature, spec
        elif feature.is_number:
            spec = number_field(feature, _role(feature, self._meta))
            self._fields[name] = feature, replace(spec, shape=()) if captured else spec
        elif feature.dtype in ("string", "language"):
            self._words.append(feature.name)
        else:
            notes.append(f"{feature.name} is left out: {feature.dtype:.20} is no known type.")

    def _picture(self, feature: Feature) -> FieldSpec | None:
        """Field of a picture or depth map; None for depth whose coding is not stated."""
        height, width = picture_shape(feature)
        if not is_depth(feature):
            return FieldSpec(shape=(height, width, 3), dtype="uint8", unit="u8", role="observation")
        code = depth_code(feature)
        if code is None:
            return None
        self._depth[feature.name] = code
        return FieldSpec(
            shape=(height, width, 1),
            dtype=code.dtype,
            unit="mm" if code.millimetres else "m",
            role="observation",
        )

    def _episode(
        self, place: EpisodePlace, rows: ParquetRows, videos: Mapping[str, VideoFrames]
    ) -> SourceEpisode:
        path = place.path
        if place.length == 0:
            raise HandoffError(f"{self._path}: episode {place.number} has 0 frames, expected 1.")
        if place.whole_file and rows.num_rows(path) != place.length:
            raise HandoffError(
                f"{path}: has {rows.num_rows(path)} rows, meta states {place.length} frames. Was it cut short?"
            )
        table = rows.read(path, place.first_row, place.length)
        tasks = self._check_index(place, table)
        arrays: dict[str, np.ndarray] = {}
        for name, (feature, spec) in self._fields.items():
            if feature.dtype == "video":
                video, rate = place.videos[feature.name], self._meta.rate_hz
                frames = videos[feature.name].read(video.path, video.start, place.length, rate)
                arrays[name] = frames
            elif feature.dtype == "image":
                arrays[name] = self._pictures(path, feature, spec, table.column(feature.name))
            else:
                column = table.column(feature.name)
                shape = tuple(spec.shape)
                arrays[name] = column_numbers(path, feature.name, column, shape, spec.dtype)
        if self._text_size:
            arrays[INSTRUCTION] = encode(tasks, self._text_size)
        metadata = {**self._stated_words(path, table), **place.metadata}
        if len(set(tasks)) == 1 and tasks[0]:
            metadata[INSTRUCTION] = tasks[0]
        if _SUCCESS in arrays and "success" not in metadata:
            metadata["success"] = bool(arrays[_SUCCESS].any())
        elif metadata.get("success") in (0, 1):
            metadata["success"] = bool(metadata["success"])
        return SourceEpisode(arrays, metadata)

    def _check_index(self, place: EpisodePlace, table: pa.Table) -> list[str]:
        """Checks the columns that count, and gives the task of every row."""
        path, length = place.path, place.length
        whole = {
            name: column_numbers(path, name, table.column(name), (1,), "int64")[:, 0]
            for name in INDEX_COLUMNS
            if name != "timestamp"
        }
        first = whole["index"][0] if place.first_index is None else place.first_index
        steps = np.arange(length)
        expected = {"frame_index": steps, "index": first + steps, "episode_index": place.number}
        for name, values in expected.items():
            wrong = np.flatnonzero(whole[name] != values)
            if len(wrong):
                row = int(wrong[0])
                raise HandoffError(
                    f"{path}: {name} in row {row} of episode {place.number} is {whole[name][row]}, expected "
                    f"{np.broadcast_to(values, length)[row]}. Are its rows in another order?"
                )
        times = column_numbers(path, "timestamp", table.column("timestamp"), (1,), "float64")[:, 0]
        grid = steps / self._meta.rate_hz
        # The column has 24 bits, which are coarser than the tolerance after half an hour.
        off = np.abs(times - grid) > TOLERANCE_S + grid * 2.0**-23
        if off.any() or not np.isfinite(times).all():
            row = int(np.argmax(off | ~np.isfinite(times)))
            raise HandoffError(
                f"{path}: timestamp in row {row} of episode {place.number} is {times[row]:.6f} s, expected "
                f"{grid[row]:.6f} s at {self._meta.rate_hz:g} Hz. Were frames dropped?"
            )
        unknown = sorted(set(whole["task_index"].tolist()) - self._meta.tasks.keys())
        if unknown:
            raise HandoffError(
                f"{path}: episode {place.number} has the task_index {unknown[:5]}, but meta lists no such task."
            )
        tasks = [self._meta.tasks[index] for index in whole["task_index"].tolist()]
        if not self._text_size and len(set(tasks)) > 1:
            raise HandoffError(
                f"{path}: episode {place.number} has {len(set(tasks))} tasks in its rows, but at most one in meta."
            )
        return tasks

    def _pictures(
        self, path: Path, feature: Feature, spec: FieldSpec, column: pa.ChunkedArray
    ) -> np.ndarray:
        """`(T, height, width, 3)` uint8, or the depth of a column of encoded pictures."""
        shape = (len(column), *spec.shape)
        check_size(path, feature.name, shape, np.dtype(spec.dtype).itemsize)
        pictures = np.empty(shape, spec.dtype)
        row = 0
        for chunk in column.chunks:
            for value in chunk:
                with explain_damage(path, f"a picture of {feature.name}"):
                    entry = value.as_py()
                    content = entry["bytes"] if isinstance(entry, dict) else entry
                    if not isinstance(content, bytes):
                        raise ValueError("it is not in the file")
                if feature.name in self._depth:
                    picture = _decode_depth(path, feature.name, content, pictures.dtype)
                else:
                    picture = as_rgb(
                        path, feature.name, decode_picture(path, feature.name, content)
                    )
                if picture.shape[:2] != shape[1:3]:
                    raise HandoffError(
                        f"{path}: a picture of {feature.name} has {picture.shape[:2]} pixels, expected {shape[1:3]} as "
                        f"in {INFO}."
                    )
                pictures[row] = picture.reshape(shape[1:])
                row += 1
        return pictures

    def _stated_words(self, path: Path, table: pa.Table) -> dict[str, Any]:
        """Words of an episode: a feature of words that is constant, and annotations."""
        words: dict[str, Any] = {}
        for name in self._words:
            column = table.column(name)
            if self._meta.features[name].dtype == "language":
                with explain_damage(path, name):
                    words[name] = _annotations(name, column, self._meta.rate_hz)
                continue
            sentences = column_strings(path, name, column)
            if len(set(sentences)) == 1 and sentences[0]:
                words[name] = sentences[0]
                if "instruction" in name:
                    words.setdefault(INSTRUCTION, sentences[0])
        return words


def _role(feature: Feature, meta: LeRobotMetadata) -> Role:
    """Part of a feature of numbers. Data sets for openpi call the action `actions` and the state
    `state`."""
    name = feature.name
    if name == "action" or (name == "actions" and "action" not in meta.features):
        return "action"
    if name.startswith(("observation.", "observation/")) or name in ("observation", *_STATES):
        return "observation"
    return "outcome" if name.startswith("next.") else "other"


def _instruction_field(size: int) -> FieldSpec:
    spec = text_field(size)
    return FieldSpec(
        shape=spec.shape, dtype=spec.dtype, unit=spec.unit, about=spec.about, role="observation"
    )


def _decode_depth(path: Path, name: str, content: bytes, dtype: np.dtype) -> np.ndarray:
    """(height, width) distances of one TIFF or 16-bit PNG."""
    from PIL import Image

    with explain_damage(path, f"a depth map of {name}"):
        with Image.open(BytesIO(content), formats=("TIFF", "PNG")) as picture:
            check_size(path, name, (picture.height, picture.width), dtype.itemsize)
            array = np.asarray(picture)
        if array.ndim != 2 or (array.dtype.kind == "f") != (dtype.kind == "f"):
            raise ValueError(f"it has the shape {array.shape} and type {array.dtype}")
    return array.astype(dtype)


def _annotations(name: str, column: pa.ChunkedArray, rate_hz: float) -> list[dict[str, Any]]:
    """Annotations of an episode in LeRobot's columns of language: persistent ones stand in every
    row with their own timestamp, events in the row at whose time they happen."""
    rows = column.slice(0, 1) if name.endswith("persistent") else column
    found: list[dict[str, Any]] = []
    for step, entries in enumerate(rows.to_pylist()):
        for entry in entries or ():
            about = {key: value for key, value in entry.items() if value is not None}
            found.append(json.loads(json.dumps({"timestamp": step / rate_hz, **about})))
            if len(found) > _MOST_LANGUAGE_ROWS:
                raise ValueError(f"more than {_MOST_LANGUAGE_ROWS} annotations")
    return found
