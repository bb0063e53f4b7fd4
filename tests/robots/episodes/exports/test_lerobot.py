"""Episode stores become LeRobot data sets, and reading these gives the same arrays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from robots.episodes.exports import lerobot_layouts, mp4
from robots.episodes.exports.lerobot import write_lerobot
from robots.episodes.exports.lerobot_statistics import (
    NumberStatistics,
    PictureStatistics,
    sampled_frames,
)
from robots.episodes.exports.mp4 import choose_codec
from robots.episodes.formats.lerobot import open_source
from robots.episodes.formats.source import SourceEpisode
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.language.text import decode, encode, text_field
from robots.spec import FieldSpec, Role
from tests.robots.episodes.formats.lerobot_files import pictures, psnr

LENGTHS = (7, 12, 5)
VERSIONS: tuple[Literal["v3.0", "v2.1"], ...] = ("v3.0", "v2.1")
FEATURES = {
    "state": "observation.state",
    "arm/grip": "observation.arm.grip",
    "observation.points": "observation.points",
    "front": "observation.images.front",
    "odd": "observation.images.odd",
    "command": "action",
    "reward": "next.reward",
    "next.success": "next.success",
    "step": "step",
}


def spec(shape: tuple[int, ...], role: Role, dtype: str = "float32", unit: str = "1") -> FieldSpec:
    return FieldSpec(shape=shape, dtype=dtype, unit=unit, role=role)


FIELDS = {
    "state": FieldSpec(
        shape=(3,), unit="rad", frame="base", names=(("a", "b", "c"),), role="observation"
    ),
    "arm/grip": spec((), "observation"),
    "observation.points": FieldSpec(
        shape=(2, 3), dtype="float64", names=(("p", "q"), ("x", "y", "z")), role="observation"
    ),
    "front": spec((48, 64, 3), "observation", "uint8", "u8"),
    "odd": spec((33, 47, 3), "observation", "uint8", "u8"),
    "command": spec((2,), "action"),
    "reward": spec((1,), "outcome"),
    "next.success": spec((1,), "outcome", "bool"),
    "step": spec((1,), "other", "int64"),
}


def recorded(episode: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(episode)
    length = LENGTHS[episode]
    return {
        "state": rng.normal(size=(length, 3)).astype(np.float32),
        "arm/grip": rng.normal(size=length).astype(np.float32),
        "observation.points": rng.normal(size=(length, 2, 3)),
        "front": pictures(length, 48, 64, 9 * episode),
        "odd": pictures(length, 33, 47, 7 * episode),
        "command": rng.normal(size=(length, 2)).astype(np.float32),
        "reward": rng.normal(size=(length, 1)).astype(np.float32),
        "next.success": np.arange(length)[:, None] == length - 1,
        "step": np.arange(length)[:, None],
    }


def make_store(path: Path, rate_hz: float = 10.0, **more: FieldSpec) -> EpisodeStore:
    """A store of three episodes; two underscores in a further field's name are a dot."""
    more = {name.replace("__", "."): field for name, field in more.items()}
    stream = StreamSpec(rate_hz=rate_hz, fields={**FIELDS, **more})
    store = EpisodeStore.create(
        path, EpisodeSchema(name="stack", streams={"policy": stream}, robot="fr3")
    )
    with store.writer() as writer:
        for episode, length in enumerate(LENGTHS):
            extra = {
                name: encode(["first"] * 3 + ["second"] * (length - 3), 64)
                if field.unit == "utf8"
                else np.zeros((length, *field.shape), field.dtype)
                for name, field in more.items()
            }
            metadata = {"instruction": f"task {episode % 2}", "success": episode != 1}
            writer.append({"policy": {**recorded(episode), **extra}}, metadata)
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> EpisodeStore:
    return make_store(tmp_path_factory.mktemp("store") / "s.zarr")


def read_all(path: Path) -> list[SourceEpisode]:
    with open_source(path, True) as source:
        return list(source.episodes(0, source.num_episodes))


@pytest.mark.parametrize("videos", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_reading_gives_the_arrays_of_the_store(
    store: EpisodeStore, tmp_path: Path, version: Literal["v3.0", "v2.1"], videos: bool
) -> None:
    out = tmp_path / "d"
    metrics = write_lerobot(store, out, version=version, videos=videos)
    assert metrics.keys() == {"episodes", "frames", "cameras", "notes"}
    assert (metrics["episodes"], metrics["frames"], metrics["cameras"]) == (3, 24, 2)
    for number, episode in enumerate(read_all(out)):
        given = recorded(number)
        assert list(episode.arrays) == list(FEATURES.values())
        for name, feature in FEATURES.items():
            array = episode.arrays[feature]
            if FIELDS[name].unit == "u8" and videos:
                assert psnr(array, given[name]) > 37
            else:
                np.testing.assert_array_equal(array, given[name].reshape(array.shape))
                assert array.dtype == given[name].dtype
        assert episode.metadata["instruction"] == f"task {number % 2}"
        assert episode.metadata["success"] == (number != 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_keep_units_frames_names_and_roles(
    store: EpisodeStore, tmp_path: Path, version: Literal["v3.0", "v2.1"]
) -> None:
    write_lerobot(store, tmp_path / "d", version=version, repo_robot="so101")
    with open_source(tmp_path / "d", True) as source:
        schema = source.schema
    assert (schema.rate_hz, schema.robot) == (10.0, "so101")
    for name, feature in FEATURES.items():
        found, given = schema.fields[feature], FIELDS[name]
        assert (found.role, found.names) == (given.role, given.names)
        assert (found.unit, found.frame) == (given.unit, given.frame)


def test_videos_have_exact_times_and_a_key_frame_at_every_episode(
    store: EpisodeStore, tmp_path: Path
) -> None:
    write_lerobot(store, tmp_path / "d", version="v3.0")
    path = tmp_path / "d/videos/observation.images.front/chunk-000/file-000.mp4"
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        assert container.streams.video[0].average_rate == 10
    assert [frame.time for frame in frames] == [number / 10 for number in range(24)]
    keys = [number for number, frame in enumerate(frames) if frame.key_frame]
    assert {0, 7, 19} <= set(keys)
    assert max(np.diff(keys)) <= 2
    assert frames[0].format.name == "yuv420p"


def test_the_table_of_episodes_has_all_columns(store: EpisodeStore, tmp_path: Path) -> None:
    write_lerobot(store, tmp_path / "d", version="v3.0")
    table = pq.read_table(tmp_path / "d/meta/episodes/chunk-000/file-000.parquet")
    rows = table.to_pylist()
    key = "videos/observation.images.front"
    assert [row[f"{key}/from_timestamp"] for row in rows] == [0.0, 0.7, 1.9]
    assert [row[f"{key}/to_timestamp"] for row in rows] == [0.7, 1.9, 2.4]
    assert [row["dataset_from_index"] for row in rows] == [0, 7, 19]
    assert rows[1]["tasks"] == ["task 1"]
    expected = {"data/chunk_index", "data/file_index", "meta/episodes/chunk_index", "success"}
    names = ("min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99")
    for feature in (*FEATURES.values(), "timestamp", "frame_index", "episode_index", "index"):
        expected |= {f"stats/{feature}/{name}" for name in names}
    assert expected <= set(table.column_names)
    assert np.shape(rows[0][f"stats/{FEATURES['front']}/mean"]) == (3, 1, 1)
    np.testing.assert_allclose(rows[2]["stats/action/mean"], recorded(2)["command"].mean(axis=0))


def test_each_episode_is_a_row_group(store: EpisodeStore, tmp_path: Path) -> None:
    write_lerobot(store, tmp_path / "d", version="v3.0")
    metadata = pq.read_metadata(tmp_path / "d/data/chunk-000/file-000.parquet")
    assert [metadata.row_group(i).num_rows for i in range(3)] == list(LENGTHS)


def test_pandas_finds_the_sentences_as_index(store: EpisodeStore, tmp_path: Path) -> None:
    write_lerobot(store, tmp_path / "d", version="v3.0")
    schema = pq.read_schema(tmp_path / "d/meta/tasks.parquet")
    pandas = json.loads(schema.metadata[b"pandas"])
    assert pandas["index_columns"] == ["task"]
    assert [column["name"] for column in pandas["columns"]] == schema.names


def test_files_end_when_they_are_large(
    store: EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lerobot_layouts, "LARGEST_DATA_MB", 0)
    monkeypatch.setattr(lerobot_layouts, "LARGEST_VIDEO_MB", 0)
    monkeypatch.setattr(lerobot_layouts, "CHUNK_FILES", 2)
    out = tmp_path / "d"
    write_lerobot(store, out, version="v3.0")
    data = sorted(file.relative_to(out).as_posix() for file in out.glob("data/*/*"))
    assert data == [
        "data/chunk-000/file-000.parquet",
        "data/chunk-000/file-001.parquet",
        "data/chunk-001/file-000.parquet",
    ]
    assert len(list(out.glob("videos/*/*/*.mp4"))) == 6
    for number, episode in enumerate(read_all(out)):
        assert psnr(episode.arrays["observation.images.front"], recorded(number)["front"]) > 37
        np.testing.assert_array_equal(episode.arrays["action"], recorded(number)["command"])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_text_field_instruction_becomes_the_tasks(
    tmp_path: Path, version: Literal["v3.0", "v2.1"]
) -> None:
    made = make_store(tmp_path / "s.zarr", instruction=text_field(64), remark=text_field(64))
    write_lerobot(made, tmp_path / "d", version=version, videos=False)
    episode = read_all(tmp_path / "d")[2]
    assert decode(episode.arrays["instruction"]) == ("first",) * 3 + ("second",) * 2
    data = next(iter((tmp_path / "d/data").rglob("*.parquet")))
    remarks = pq.read_table(data).column("observation.remark").to_pylist()
    assert remarks[:4] == ["first"] * 3 + ["second"]


def test_without_an_instruction_the_name_of_the_task_is_the_sentence(tmp_path: Path) -> None:
    stream = StreamSpec(rate_hz=5.0, fields={"action": spec((1,), "action")})
    made = EpisodeStore.create(
        tmp_path / "s.zarr", EpisodeSchema(name="wipe", streams={"policy": stream})
    )
    with made.writer() as writer:
        writer.append({"policy": {"action": np.zeros((3, 1), np.float32)}}, {})
    write_lerobot(made, tmp_path / "d", version="v2.1")
    assert read_all(tmp_path / "d")[0].metadata["instruction"] == "wipe"
    info = json.loads((tmp_path / "d/meta/info.json").read_text())
    assert (info["video_path"], info["robot_type"]) == (None, None)


def test_statistics_of_several_episodes_are_those_of_all_rows() -> None:
    parts = [np.random.default_rng(i).normal(i, 1 + i, size=(20 + i, 2)) for i in range(3)]
    statistics = NumberStatistics((2,), sum(map(len, parts)))
    for part in parts:
        statistics.add(part)
    found, rows = statistics.result(), np.concatenate(parts)
    np.testing.assert_allclose(found["mean"], rows.mean(axis=0))
    np.testing.assert_allclose(found["std"], rows.std(axis=0))
    np.testing.assert_array_equal(found["max"], rows.max(axis=0))
    np.testing.assert_allclose(found["q90"], np.quantile(rows, 0.9, axis=0))
    assert found["count"].tolist() == [63]


def test_statistics_of_pictures_are_shares_of_255() -> None:
    shown = np.zeros((4, 10, 10, 3), np.uint8)
    shown[..., 1] = 51
    shown[0, ..., 2] = 255
    statistics = PictureStatistics()
    statistics.add(shown)
    found = statistics.result()
    np.testing.assert_allclose(found["mean"].ravel(), [0.0, 0.2, 0.25])
    np.testing.assert_allclose(found["q50"].ravel(), [0.0, 0.2, 0.0])
    np.testing.assert_allclose(found["q99"].ravel(), [0.0, 0.2, 1.0])
    np.testing.assert_allclose(found["std"].ravel(), [0.0, 0.0, np.sqrt(3) / 4], atol=1e-7)


@pytest.mark.parametrize(
    ("length", "count"), [(1, 1), (99, 99), (500, 105), (2000, 299), (10**6, 10_000)]
)
def test_pictures_are_sampled_as_lerobot_samples_them(length: int, count: int) -> None:
    assert len(sampled_frames(length)) == count


def test_an_existing_folder_is_refused(store: EpisodeStore, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(HandoffError, match="exists already"):
        write_lerobot(store, tmp_path / "d", version="v3.0")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(HandoffError, match="exists already"):
        write_lerobot(store, tmp_path / "link", version="v3.0")


def test_a_rate_between_whole_numbers_is_refused(tmp_path: Path) -> None:
    made = make_store(tmp_path / "s.zarr", rate_hz=12.5)
    with pytest.raises(HandoffError, match=r"12\.5 steps per second"):
        write_lerobot(made, tmp_path / "d", version="v3.0")


def test_two_fields_of_one_name_are_refused(tmp_path: Path) -> None:
    made = make_store(tmp_path / "s.zarr", observation__state=spec((1,), "observation"))
    with pytest.raises(HandoffError, match=r"'state' and 'observation\.state' would both become"):
        write_lerobot(made, tmp_path / "d", version="v3.0")


def test_fields_named_as_columns_of_lerobot_get_another_name(tmp_path: Path) -> None:
    made = make_store(tmp_path / "s.zarr", timestamp=spec((1,), "other", "float64"))
    write_lerobot(made, tmp_path / "d", version="v3.0", videos=False)
    assert "other.timestamp" in read_all(tmp_path / "d")[0].arrays


def test_odd_sizes_need_an_encoder_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", {"libsvtav1"})
    assert choose_codec("front", 48, 64).name == "av1"
    with pytest.raises(HandoffError, match="no encoder for 33 x 47 pixels"):
        choose_codec("odd", 33, 47)


def test_av1_is_written_where_there_is_no_h264(
    store: EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "libsvtav1" not in av.codecs_available:
        pytest.skip("this build of PyAV has no AV1 encoder")
    path = tmp_path / "v.mp4"
    codec = next(codec for codec in mp4._CODECS if codec.name == "av1")
    shown = pictures(9, 96, 128, 0)
    with mp4.Mp4File(path, codec, 96, 128, 10) as file:
        file.add(shown[:5], key=True)
        file.add(shown[5:], key=True)
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    assert [frame.time for frame in frames] == [number / 10 for number in range(9)]
    assert psnr(np.stack([frame.to_ndarray(format="rgb24") for frame in frames]), shown) > 33


def test_an_error_leaves_nothing(
    store: EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lerobot_layouts, "_write_tasks", full)
    with pytest.raises(HandoffError, match="The disk is full"):
        write_lerobot(store, tmp_path / "d", version="v3.0")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_no_half_data_set(tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    program = (
        "import os, sys; from pathlib import Path\n"
        "from robots.episodes.store import EpisodeStore\n"
        "from robots.episodes.exports.lerobot import write_lerobot\n"
        "def die(done, total, note=''):\n"
        "    if done == 2: os.kill(os.getpid(), 9)\n"
        "folder = Path(sys.argv[1])\n"
        "write_lerobot(EpisodeStore.open(folder / 's.zarr'), folder / 'd', version='v3.0', progress=die)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=False)
    assert done.returncode == -9
    assert not (tmp_path / "d").exists()
    write_lerobot(EpisodeStore.open(tmp_path / "s.zarr"), tmp_path / "d", version="v3.0")
    assert len(read_all(tmp_path / "d")) == 3
