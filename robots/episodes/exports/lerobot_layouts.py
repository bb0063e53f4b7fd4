"""Lays out the files of LeRobot data sets of both versions, and writes the folder `meta`.

v3.0 has many episodes per file, with a row group per episode and a new file once one is large; v2.1
has a parquet file and a video per episode. `robots.episodes.formats.lerobot` has the table of the
names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from robots.episodes.exports.lerobot_statistics import Statistics
from robots.episodes.exports.mp4 import Mp4File, VideoCodec
from robots.episodes.formats.lerobot_files.lerobot_metadata import ABOUT

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

CHUNK_FILES = 1000
"""Files per folder."""
LARGEST_DATA_MB = 100
"""Size after which v3.0 starts another parquet file [MiB]."""
LARGEST_VIDEO_MB = 200
"""Size after which v3.0 starts another video [MiB]."""
_PANDAS = {
    "index_columns": ["task"],
    "column_indexes": [],
    "columns": [
        {
            "name": "task_index",
            "field_name": "task_index",
            "pandas_type": "int64",
            "numpy_type": "int64",
            "metadata": None,
        },
        {
            "name": "task",
            "field_name": "task",
            "pandas_type": "unicode",
            "numpy_type": "object",
            "metadata": None,
        },
    ],
    "creator": {"library": "pyarrow", "version": "26.0.0"},
    "pandas_version": "2.2.0",
}
"""Description with which pandas reads the sentences of `meta/tasks.parquet` as its index."""


class CameraVideos:
    """A camera whose pictures become videos."""

    def __init__(self, feature: str, codec: VideoCodec, height: int, width: int, rate: int) -> None:
        """Describes the videos.

        Args:
            feature: name in the data set.
            codec: encoder and settings.
            height: rows [px].
            width: columns [px].
            rate: frames per second.
        """
        self.feature = feature
        self._codec = codec
        self._height = height
        self._width = width
        self._rate = rate

    def create(self, path: Path) -> Mp4File:
        """Creates one video file, with its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        return Mp4File(path, self._codec, self._height, self._width, self._rate)


class DataSetLayout(Protocol):
    """Files of a data set that is being written, episode after episode."""

    templates: Mapping[str, str]
    """`data_path` and `video_path` of `meta/info.json`."""

    def add_rows(self, episode: int, table: pa.Table) -> dict[str, Any]:
        """Writes the rows of an episode; returns their place, in columns of `meta/episodes`."""
        ...

    def add_video(
        self, episode: int, camera: CameraVideos, windows: Iterable[np.ndarray]
    ) -> dict[str, Any]:
        """Writes the frames of an episode, a window `(N, height, width, 3)` at a time; returns
        their place."""
        ...

    def add_meta(
        self,
        info: dict[str, Any],
        about: Mapping[str, Any],
        tasks: Sequence[str],
        episodes: Sequence[dict[str, Any]],
        statistics: Sequence[Mapping[str, Statistics]],
        total: Mapping[str, Statistics],
    ) -> None:
        """Closes the files of the data, and writes the folder `meta`.

        Args:
            info: content of `meta/info.json` that both versions share.
            about: content of `meta/handoff.json`.
            tasks: sentences by index.
            episodes: `episode_index`, `tasks`, `length`, places, and what else is known.
            statistics: of each episode, by feature.
            total: of all episodes, by feature.
        """
        ...

    def close(self) -> None:
        """Closes all files, complete or not."""
        ...


class LayoutV3:
    """Files of v3.0."""

    templates: Mapping[str, str] = {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }

    def __init__(self, root: Path) -> None:
        """Writes below the folder `root`."""
        self._root = root
        self._rows: pq.ParquetWriter | None = None
        self._rows_path = root
        self._rows_file = -1
        self._frames = 0
        self._videos: dict[str, tuple[int, Mp4File]] = {}

    def add_rows(self, episode: int, table: pa.Table) -> dict[str, Any]:
        """Writes one row group."""
        import pyarrow.parquet as pq

        if self._rows is None or _is_large(self._rows_path, LARGEST_DATA_MB):
            if self._rows is not None:
                self._rows.close()
            self._rows_file += 1
            name = self.templates["data_path"].format(**_numbered(self._rows_file))
            self._rows_path = self._root / name
            self._rows_path.parent.mkdir(parents=True, exist_ok=True)
            self._rows = pq.ParquetWriter(
                self._rows_path, table.schema, compression="snappy", write_page_checksum=True
            )
        self._rows.write_table(table, row_group_size=max(1, table.num_rows))
        first = self._frames
        self._frames += table.num_rows
        place = _numbered(self._rows_file)
        return {
            **{f"data/{key}": value for key, value in place.items()},
            "dataset_from_index": first,
            "dataset_to_index": self._frames,
        }

    def add_video(
        self, episode: int, camera: CameraVideos, windows: Iterable[np.ndarray]
    ) -> dict[str, Any]:
        """Appends to the camera's file."""
        number, file = self._videos.get(camera.feature, (-1, None))
        if file is None or _is_large(file.path, LARGEST_VIDEO_MB):
            if file is not None:
                file.close()
            number += 1
            place = {"video_key": camera.feature, **_numbered(number)}
            file = camera.create(self._root / self.templates["video_path"].format(**place))
            self._videos[camera.feature] = number, file
        start = file.seconds
        for index, pictures in enumerate(windows):
            file.add(pictures, key=index == 0)
        entries = {**_numbered(number), "from_timestamp": start, "to_timestamp": file.seconds}
        return {f"videos/{camera.feature}/{key}": value for key, value in entries.items()}

    def add_meta(
        self,
        info: dict[str, Any],
        about: Mapping[str, Any],
        tasks: Sequence[str],
        episodes: Sequence[dict[str, Any]],
        statistics: Sequence[Mapping[str, Statistics]],
        total: Mapping[str, Statistics],
    ) -> None:
        """Writes `info.json`, `stats.json`, `tasks.parquet` and the table of episodes."""
        if self._rows is not None:
            self._rows.close()
        for _, file in self._videos.values():
            file.close()
        sizes = {
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": LARGEST_DATA_MB,
            "video_files_size_in_mb": LARGEST_VIDEO_MB,
        }
        meta = self._root / "meta"
        _write_json(self._root / ABOUT, about)
        _write_json(meta / "info.json", {**info, **sizes})
        _write_json(meta / "stats.json", _plain(total))
        _write_tasks(meta / "tasks.parquet", tasks)
        _write_episodes(meta / "episodes/chunk-000/file-000.parquet", episodes, statistics)

    def close(self) -> None:
        """Closes all files."""
        with ExitStack() as stack:
            for _, file in self._videos.values():
                stack.callback(file.abandon)
            if self._rows is not None:
                stack.callback(self._rows.close)


class LayoutV21:
    """Files of v2.1."""

    templates: Mapping[str, str] = {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }

    def __init__(self, root: Path) -> None:
        """Writes below the folder `root`."""
        self._root = root
        self._videos = 0

    def add_rows(self, episode: int, table: pa.Table) -> dict[str, Any]:
        """Writes the file of the episode."""
        import pyarrow.parquet as pq

        path = self._root / self.templates["data_path"].format(**_of_episode(episode))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, compression="snappy", write_page_checksum=True)
        return {}

    def add_video(
        self, episode: int, camera: CameraVideos, windows: Iterable[np.ndarray]
    ) -> dict[str, Any]:
        """Writes the video of the episode."""
        place = {"video_key": camera.feature, **_of_episode(episode)}
        with camera.create(self._root / self.templates["video_path"].format(**place)) as file:
            for index, pictures in enumerate(windows):
                file.add(pictures, key=index == 0)
        self._videos += 1
        return {}

    def add_meta(
        self,
        info: dict[str, Any],
        about: Mapping[str, Any],
        tasks: Sequence[str],
        episodes: Sequence[dict[str, Any]],
        statistics: Sequence[Mapping[str, Statistics]],
        total: Mapping[str, Statistics],
    ) -> None:
        """Writes `info.json` and one line per task and episode; this version has no statistics of
        all episodes."""
        counts = {
            "total_videos": self._videos,
            "total_chunks": -(-len(episodes) // CHUNK_FILES),
            "chunks_size": CHUNK_FILES,
        }
        meta = self._root / "meta"
        _write_json(self._root / ABOUT, about)
        _write_json(meta / "info.json", {**info, **counts})
        _write_lines(
            meta / "tasks.jsonl",
            [{"task_index": index, "task": task} for index, task in enumerate(tasks)],
        )
        _write_lines(meta / "episodes.jsonl", episodes)
        _write_lines(
            meta / "episodes_stats.jsonl",
            [{"episode_index": i, "stats": _plain(s)} for i, s in enumerate(statistics)],
        )

    def close(self) -> None:
        """Closes nothing: every file is complete."""


def _numbered(file: int) -> dict[str, int]:
    return {"chunk_index": file // CHUNK_FILES, "file_index": file % CHUNK_FILES}


def _of_episode(episode: int) -> dict[str, int]:
    return {"episode_chunk": episode // CHUNK_FILES, "episode_index": episode}


def _is_large(path: Path, megabytes: int) -> bool:
    return path.stat().st_size >= megabytes * 2**20


def _plain(statistics: Mapping[str, Statistics]) -> dict[str, dict[str, Any]]:
    return {
        feature: {name: array.tolist() for name, array in entries.items()}
        for feature, entries in statistics.items()
    }


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False, allow_nan=False))


def _write_lines(path: Path, lines: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [json.dumps(line, ensure_ascii=False, allow_nan=False) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))


def _write_tasks(path: Path, tasks: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks)}
    described = {"pandas": json.dumps(_PANDAS)}
    pq.write_table(pa.table(columns).replace_schema_metadata(described), path)


def _write_episodes(
    path: Path,
    episodes: Sequence[Mapping[str, Any]],
    statistics: Sequence[Mapping[str, Statistics]],
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: pa.array([row[name] for row in episodes]) for name in episodes[0]}
    for feature, entries in statistics[0].items():
        for name in entries:
            values = [row[feature][name].tolist() for row in statistics]
            columns[f"stats/{feature}/{name}"] = pa.array(values)
    for name in ("chunk_index", "file_index"):
        columns[f"meta/episodes/{name}"] = pa.array([0] * len(episodes), pa.int64())
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, compression="snappy", write_page_checksum=True)
