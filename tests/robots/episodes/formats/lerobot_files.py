"""Writes small LeRobot data sets with pyarrow and PyAV alone, as LeRobot lays them out."""

from __future__ import annotations

import json
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from av.video.stream import VideoStream
from PIL import Image

RATE = 10
LENGTHS = (5, 8, 6)
TASKS = ("pick the cube", "place the cube", "pick the cube")
FRONT = "observation.images.front"
WRIST = "observation.images.wrist"
DEPTH = "observation.images.depth"
Arrays = dict[str, np.ndarray]

FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": [3], "names": {"motors": ["a", "b", "c"]}},
    "observation.gripper": {"dtype": "float32", "shape": [1], "names": None},
    "observation.points": {"dtype": "float64", "shape": [2, 3], "names": None},
    FRONT: {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"]},
    WRIST: {"dtype": "image", "shape": [3, 12, 16], "names": ["channels", "height", "width"]},
    "action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    "next.success": {"dtype": "bool", "shape": [1], "names": None},
    "attempt": {"dtype": "int64", "shape": [1], "names": None},
    "remark": {"dtype": "string", "shape": [1], "names": None},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}


def recorded(episode: int) -> Arrays:
    """The arrays of one episode."""
    rng = np.random.default_rng(episode)
    length = LENGTHS[episode]
    return {
        "observation.state": rng.normal(size=(length, 3)).astype(np.float32),
        "observation.gripper": rng.normal(size=(length, 1)).astype(np.float32),
        "observation.points": rng.normal(size=(length, 2, 3)),
        FRONT: pictures(length, 48, 64, 9 * episode),
        WRIST: rng.integers(256, size=(length, 12, 16, 3), dtype=np.uint8),
        "action": rng.normal(size=(length, 2)).astype(np.float32),
        "next.reward": np.arange(length, dtype=np.float32)[:, None],
        "next.success": (np.arange(length) == length - 1)[:, None] & (episode != 1),
        "attempt": np.full((length, 1), episode + 7),
    }


def pictures(length: int, height: int, width: int, phase: int) -> np.ndarray:
    """Smooth pictures that differ from frame to frame, `(T, height, width, 3)`."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        [
            128 + 100 * np.sin((x + 5 * t + phase) / 15),
            128 + 100 * np.cos((y + 4 * t + phase) / 13),
            128 + 100 * np.sin((x + y + 3 * t) / 17),
        ]
        for t in range(length)
    ]
    return np.moveaxis(np.array(waves), 1, -1).astype(np.uint8)


def write_v2(root: Path, version: str = "v2.1") -> Path:
    """Writes v2.0 or v2.1: a parquet file and a video per episode."""
    starts = np.cumsum([0, *LENGTHS])
    for episode, length in enumerate(LENGTHS):
        data = root / f"data/chunk-000/episode_{episode:06d}.parquet"
        data.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table([episode], starts), data)
        write_video(
            root / f"videos/chunk-000/{FRONT}/episode_{episode:06d}.mp4", recorded(episode)[FRONT]
        )
        line = {"episode_index": episode, "tasks": [TASKS[episode]], "length": length}
        append(root / "meta/episodes.jsonl", line)
    for index, task in enumerate(sorted(set(TASKS))):
        append(root / "meta/tasks.jsonl", {"task_index": index, "task": task})
    write_info(
        root,
        codebase_version=version,
        data_path="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        video_path="videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        total_videos=len(LENGTHS),
        total_chunks=1,
    )
    return root


def write_v3(root: Path) -> Path:
    """Writes v3.0: episodes 0 and 1 in one parquet file, all episodes in one video."""
    starts = np.cumsum([0, *LENGTHS])
    for file, episodes in enumerate(([0, 1], [2])):
        data = root / f"data/chunk-000/file-{file:03d}.parquet"
        data.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(episodes, starts), data, compression="snappy")
    frames = np.concatenate([recorded(episode)[FRONT] for episode in range(3)])
    write_video(root / f"videos/{FRONT}/chunk-000/file-000.mp4", frames)
    tasks = sorted(set(TASKS))
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": "object"}
        for name, kind in (("task_index", "int64"), ("task", "unicode"))
    ]
    pandas = {"index_columns": ["task"], "columns": columns, "column_indexes": []}
    sentences = pa.table({"task_index": list(range(len(tasks))), "task": tasks})
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    pq.write_table(
        sentences.replace_schema_metadata({"pandas": json.dumps(pandas)}),
        root / "meta/tasks.parquet",
    )
    rows = {
        "episode_index": [0, 1, 2],
        "tasks": [[task] for task in TASKS],
        "length": list(LENGTHS),
        "data/chunk_index": [0, 0, 0],
        "data/file_index": [0, 0, 1],
        "dataset_from_index": starts[:-1].tolist(),
        "dataset_to_index": starts[1:].tolist(),
        f"videos/{FRONT}/chunk_index": [0, 0, 0],
        f"videos/{FRONT}/file_index": [0, 0, 0],
        f"videos/{FRONT}/from_timestamp": (starts[:-1] / RATE).tolist(),
        f"videos/{FRONT}/to_timestamp": (starts[1:] / RATE).tolist(),
        "stats/action/mean": [[0.0, 0.0]] * 3,
        "operator": ["ada", "bo", "ada"],
    }
    pq.write_table(pa.table(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    write_info(
        root,
        codebase_version="v3.0",
        data_path="data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        video_path="videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        data_files_size_in_mb=100,
        video_files_size_in_mb=200,
    )
    return root


def write_info(root: Path, **about: object) -> None:
    """Writes `meta/info.json`."""
    info = {
        "robot_type": "so101",
        "total_episodes": len(LENGTHS),
        "total_frames": sum(LENGTHS),
        "total_tasks": len(set(TASKS)),
        "chunks_size": 1000,
        "fps": RATE,
        "splits": {"train": f"0:{len(LENGTHS)}"},
        "features": FEATURES,
        **about,
    }
    (root / "meta").mkdir(parents=True, exist_ok=True)
    (root / "meta/info.json").write_text(json.dumps(info))


def change_info(root: Path, **about: Any) -> None:
    """Replaces entries of `meta/info.json`."""
    path = root / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **about}))


def change_column(path: Path, name: str, values: Any) -> None:
    """Replaces a column of a parquet file; None deletes it."""
    table = pq.read_table(path)
    place = table.column_names.index(name)
    table = table.remove_column(place)
    if values is not None:
        table = table.add_column(place, name, pa.array(values))
    pq.write_table(table, path)


def table(episodes: list[int], starts: np.ndarray) -> pa.Table:
    """The rows of some episodes: lists for vectors, plain numbers for the shape (1,), lists of
    lists for more axes, PNG in a struct."""
    columns: dict[str, list[Any]] = {}
    for episode in episodes:
        arrays = recorded(episode)
        steps = range(LENGTHS[episode])
        task = sorted(set(TASKS)).index(TASKS[episode])
        index = {
            "remark": ["good light"] * len(steps),
            "timestamp": [np.float32(step / RATE) for step in steps],
            "frame_index": list(steps),
            "episode_index": [episode] * len(steps),
            "index": [int(starts[episode]) + step for step in steps],
            "task_index": [task] * len(steps),
        }
        for name, feature in FEATURES.items():
            if feature["dtype"] == "video":
                continue
            if name in index:
                values = index[name]
            elif feature["dtype"] == "image":
                values = [{"bytes": png(picture), "path": "x.png"} for picture in arrays[name]]
            elif feature["shape"] == [1]:
                values = arrays[name][:, 0].tolist()
            else:
                values = arrays[name].tolist()
            columns.setdefault(name, []).extend(values)
    return pa.table({name: pa.array(v, _kind(name)) for name, v in columns.items()})


def _kind(name: str) -> pa.DataType | None:
    feature = FEATURES[name]
    if feature["dtype"] in ("image", "string"):
        return None
    kind = pa.from_numpy_dtype(np.dtype(feature["dtype"]))
    if feature["shape"] == [1]:
        return kind
    kind = pa.list_(kind, feature["shape"][-1])
    return pa.list_(kind) if len(feature["shape"]) == 2 else kind


def png(picture: np.ndarray) -> bytes:
    """One picture as PNG."""
    buffer = BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return buffer.getvalue()


def write_video(path: Path, frames: np.ndarray, rate: int = RATE) -> None:
    """An H.264 video of good quality, with a key frame every other frame."""
    _write(path, frames, rate, "libx264", "yuv420p", "rgb24", {"crf": "10", "g": "2"})


def write_depth(path: Path, codes: np.ndarray) -> None:
    """A lossless video of 12-bit numbers, `(T, height, width)` uint16."""
    # Between frames of few pixels, x265 is now and then not lossless.
    options = {"x265-params": "lossless=1:log-level=none:keyint=1:bframes=0", "g": "1"}
    _write(path, codes, RATE, "libx265", "gray12le", "gray12le", options)


def _write(
    path: Path,
    frames: np.ndarray,
    rate: int,
    encoder: str,
    stored: str,
    given: str,
    options: dict[str, str],
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="mp4") as container:
        stream = cast(VideoStream, container.add_stream(encoder, rate=rate, options=options))
        stream.pix_fmt = stored
        stream.height, stream.width = frames.shape[1:3]
        stream.time_base = Fraction(1, rate)
        for number, array in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format=given)
            frame.pts = number
            frame.time_base = Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def append(path: Path, line: object) -> None:
    """Adds a JSON line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio of 8-bit pictures [dB]."""
    error = float(np.mean((a.astype(float) - b.astype(float)) ** 2))
    return float("inf") if error == 0 else 10 * np.log10(255.0**2 / error)
