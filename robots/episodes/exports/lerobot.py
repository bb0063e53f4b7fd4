"""Writes an episode store as a LeRobot data set v3.0 or v2.1, which LeRobot, openpi and GR00T read.

The stream `policy` is written: numbers and words as columns of parquet files, pictures as videos or
PNG. The sentence of an episode is the task of its frames; `robots.episodes.exports.lerobot_entries`
places the other metadata. The data set is written aside and renamed when it is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from robots.episodes.exports.lerobot_entries import episode_columns, export_notes
from robots.episodes.exports.lerobot_features import (
    ExportedField,
    exported_fields,
    feature_entries,
)
from robots.episodes.exports.lerobot_layouts import CameraVideos, DataSetLayout, LayoutV3, LayoutV21
from robots.episodes.exports.lerobot_statistics import (
    NumberStatistics,
    PictureStatistics,
    Statistics,
    sampled_frames,
)
from robots.episodes.exports.mp4 import VideoCodec, choose_codec
from robots.episodes.exports.png import encode_png
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.language.text import INSTRUCTION, decode
from robots.language.text import UNIT as TEXT
from robots.storage.durable import whole_folder

if TYPE_CHECKING:
    import pyarrow as pa

STREAM = "policy"
_WINDOW = 64
"""Pictures that are in memory at a time."""


def write_lerobot(
    store: EpisodeStore,
    out: Path,
    *,
    version: Literal["v3.0", "v2.1"],
    videos: bool = True,
    repo_robot: str | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Writes the stream `policy` of all episodes.

    Args:
        store: the episodes.
        out: folder of the data set; it must not exist.
        version: version of the format.
        videos: whether pictures become videos, which lose some detail, rather than PNG.
        repo_robot: name of the robot in the data set; None takes that of the store.
        progress: called with the number of written episodes.

    Returns:
        `episodes`, `frames`, `cameras`, and `notes`, what is lost or read by Handoff alone.

    Raises:
        HandoffError: `out` exists, the store has no episode or a rate that is no whole number, two
            fields would have one name, no encoder, or the disk is full.
    """
    export = _Export(store, version, videos, repo_robot)
    with whole_folder(out, "the data set was not written") as aside:
        layout: DataSetLayout = LayoutV3(aside) if version == "v3.0" else LayoutV21(aside)
        try:
            metrics = export.write(layout, progress)
        finally:
            layout.close()
    return metrics


class _Export:
    """One store on its way into a data set."""

    def __init__(self, store: EpisodeStore, version: str, videos: bool, robot: str | None) -> None:
        """Plans the features.

        Raises:
            HandoffError: see `write_lerobot`.
        """
        stream = store.schema.stream(STREAM)
        if store.num_episodes == 0:
            raise HandoffError(f"{store.path}: has no episode, expected at least 1.")
        if stream.rate_hz != round(stream.rate_hz):
            raise HandoffError(
                f"{store.path}: has {stream.rate_hz:g} steps per second; LeRobot's fps is a whole number. "
                "Resample the data when it is imported: resample_hz: 10 in the file of --map."
            )
        self._store = store
        self._version = version
        self._rate = round(stream.rate_hz)
        self._robot = robot if robot is not None else store.schema.robot or None
        self._fields = exported_fields(stream.fields)
        pictures = [field for field in self._fields if field.is_picture]
        codecs: dict[str, VideoCodec] = {}
        self._cameras: dict[str, CameraVideos] = {}
        for field in pictures if videos else ():
            height, width, _ = field.spec.shape
            codec = choose_codec(field.field, height, width)
            codecs[field.feature] = codec
            self._cameras[field.field] = CameraVideos(
                field.feature, codec, height, width, self._rate
            )
        self._pictures = pictures
        self._codecs = {field.field: codecs[field.feature] for field in pictures if videos}
        self._entries = feature_entries(self._fields, codecs, version, self._rate)
        self._spoken = INSTRUCTION in stream.fields and stream.fields[INSTRUCTION].unit == TEXT
        self._tasks: dict[str, int] = {}
        self._frames = int(store.ends(STREAM)[-1])
        self._numbers = {
            name: NumberStatistics(tuple(entry["shape"]), self._frames)
            for name, entry in self._entries.items()
            if entry["dtype"] not in ("video", "image", "string")
        }
        self._colours = {field.feature: PictureStatistics() for field in pictures}

    def write(self, layout: DataSetLayout, progress: Progress) -> dict[str, Any]:
        """Writes all episodes and the metadata."""
        number = self._store.num_episodes
        metadata = [self._store.metadata(episode) for episode in range(number)]
        episodes: list[dict[str, Any]] = []
        statistics: list[dict[str, Statistics]] = []
        first = 0
        for episode in range(number):
            row, found = self._episode(layout, episode, first, metadata[episode])
            episodes.append(row)
            statistics.append(found)
            first += row["length"]
            progress(episode + 1, number, "exporting")
        stated = episode_columns(metadata, [row["tasks"] for row in episodes])
        episodes = [{**row, **entries} for row, entries in zip(episodes, stated, strict=True)]
        total = {
            **{name: numbers.result() for name, numbers in self._numbers.items()},
            **{name: colours.result() for name, colours in self._colours.items()},
        }
        about = {"task": self._store.schema.name}
        tasks = list(self._tasks)
        layout.add_meta(self._info(layout, number), about, tasks, episodes, statistics, total)
        others = sorted(self._store.schema.streams.keys() - {STREAM})
        return {
            "episodes": number,
            "frames": self._frames,
            "cameras": len(self._pictures),
            "notes": export_notes(self._codecs, others, stated),
        }

    def _info(self, layout: DataSetLayout, episodes: int) -> dict[str, Any]:
        return {
            "codebase_version": self._version,
            "robot_type": self._robot,
            "total_episodes": episodes,
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "fps": self._rate,
            "splits": {"train": f"0:{episodes}"},
            "data_path": layout.templates["data_path"],
            "video_path": layout.templates["video_path"] if self._cameras else None,
            "features": self._entries,
        }

    def _episode(
        self, layout: DataSetLayout, episode: int, first: int, metadata: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Statistics]]:
        """Writes one episode whose first frame has the index `first`; returns its row of the
        episodes and its statistics."""
        pictures = {field.field for field in self._pictures}
        names = [name for name in self._store.schema.stream(STREAM).fields if name not in pictures]
        ends = self._store.ends(STREAM)
        length = int(ends[episode]) - first
        arrays = self._store.read(episode, STREAM, names)
        sentences = self._sentences(arrays, metadata, length)
        columns = self._index_columns(episode, first, sentences)
        found: dict[str, Statistics] = {}
        place: dict[str, Any] = {}
        encoded: dict[str, list[bytes]] = {}
        for field in self._pictures:
            colours = PictureStatistics()
            windows = self._windows(episode, field, length, colours)
            if field.field in self._cameras:
                place |= layout.add_video(episode, self._cameras[field.field], windows)
            else:
                encoded[field.feature] = [
                    encode_png(picture) for part in windows for picture in part
                ]
            found[field.feature] = colours.result()
            self._colours[field.feature].merge(colours)
        for field in self._fields:
            if not (field.is_picture or field.is_text):
                columns[field.feature] = arrays[field.field].reshape(length, *field.shape)
        for name, statistics in self._numbers.items():
            own = NumberStatistics(tuple(self._entries[name]["shape"]), length)
            for target in (own, statistics):
                target.add(columns[name].reshape(length, *self._entries[name]["shape"]))
            found[name] = own.result()
        words = {f.feature: decode(arrays[f.field]) for f in self._fields if f.is_text}
        place |= layout.add_rows(episode, self._table({**columns, **words, **encoded}))
        row = {
            "episode_index": episode,
            "tasks": list(dict.fromkeys(sentences)),
            "length": length,
            **place,
        }
        return row, found

    def _sentences(
        self, arrays: dict[str, np.ndarray], metadata: dict[str, Any], length: int
    ) -> list[str]:
        """The sentence of every frame."""
        stated = metadata.get(INSTRUCTION)
        sentence = stated if isinstance(stated, str) and stated else self._store.schema.name
        if not self._spoken:
            return [sentence] * length
        return [text or sentence for text in decode(arrays[INSTRUCTION])]

    def _index_columns(
        self, episode: int, first: int, sentences: list[str]
    ) -> dict[str, np.ndarray]:
        steps = np.arange(len(sentences))
        for sentence in sentences:
            self._tasks.setdefault(sentence, len(self._tasks))
        return {
            "timestamp": (steps / self._rate).astype(np.float32),
            "frame_index": steps,
            "episode_index": np.full(len(steps), episode),
            "index": first + steps,
            "task_index": np.array([self._tasks[sentence] for sentence in sentences]),
        }

    def _windows(
        self, episode: int, field: ExportedField, length: int, colours: PictureStatistics
    ) -> Iterator[np.ndarray]:
        """The pictures of an episode, `(N, height, width, 3)` at a time, which are counted on the
        way."""
        sampled = sampled_frames(length)
        for start in range(0, length, _WINDOW):
            steps = slice(start, min(start + _WINDOW, length))
            pictures = self._store.read(episode, STREAM, [field.field], steps)[field.field]
            inside = sampled[(sampled >= steps.start) & (sampled < steps.stop)] - start
            if len(inside):
                colours.add(pictures[inside])
            yield pictures

    def _table(self, columns: dict[str, Any]) -> pa.Table:
        """The rows of an episode, with the features in their order."""
        import pyarrow as pa

        made: dict[str, Any] = {}
        for name, entry in self._entries.items():
            if entry["dtype"] == "video":
                continue
            values = columns[name]
            if entry["dtype"] == "image":
                kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
                made[name] = pa.array([{"bytes": v, "path": None} for v in values], kind)
            elif entry["dtype"] == "string":
                made[name] = pa.array(values, pa.string())
            else:
                made[name] = _nested(values.reshape(len(values), *entry["shape"]))
        return pa.table(made)


def _nested(array: np.ndarray) -> pa.Array:
    """An array `(T, *shape)` as a column: plain numbers for the shape (1,), a list of fixed length
    for a vector, and lists of lists for more axes."""
    import pyarrow as pa

    values: pa.Array = pa.array(np.ascontiguousarray(array).reshape(-1))
    if array.shape[1:] == (1,):
        return values
    if array.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(values, array.shape[1])
    for axis in range(array.ndim - 1, 0, -1):
        size = array.shape[axis]
        offsets = np.arange(0, len(values) + 1, size, dtype=np.int32)
        values = pa.ListArray.from_arrays(pa.array(offsets), values)
    return values
