"""Damaged, incomplete and hostile LeRobot data sets give one clear line."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robots.episodes.formats.containers import parquet_rows
from robots.episodes.formats.lerobot import open_source
from robots.errors import HandoffError
from tests.robots.episodes.formats import lerobot_files as files
from tests.robots.episodes.formats.lerobot_files import FRONT, WRIST
from tests.robots.episodes.formats.mutations import check_mutations

DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
VIDEO = f"videos/{FRONT}/chunk-000/file-000.mp4"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.write_v3(tmp_path_factory.mktemp("lerobot") / "cube")


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "cube")


def error(root: Path) -> str:
    with pytest.raises(HandoffError) as raised, open_source(root, True) as source:
        list(source.episodes(0, source.num_episodes))
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("name", ["action", "timestamp", "task_index"])
def test_a_missing_column_is_named(root: Path, name: str) -> None:
    files.change_column(root / DATA, name, None)
    assert f"lacks the column(s) ['{name}']" in error(root)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("frame_index", [0, 1, 3, 2, 4, *range(8)], "frame_index in row 2 of episode 0 is 3"),
        ("index", range(1, 14), "index in row 0 of episode 0 is 1, expected 0"),
        ("episode_index", [0] * 6 + [1] * 7, "episode_index in row 0 of episode 1 is 0"),
        ("timestamp", [*np.arange(5) / 10, *np.arange(8) / 9], "1 is 0.111111 s, expected 0.100"),
        ("timestamp", [float("nan")] * 13, "timestamp in row 0 of episode 0 is nan"),
        ("task_index", [7] * 13, "task_index [7], but meta lists no such task"),
        ("task_index", [0, 1] + [0] * 11, "episode 0 has 2 tasks in its rows"),
    ],
)
def test_columns_that_count_are_checked(root: Path, name: str, values: list, words: str) -> None:
    files.change_column(root / DATA, name, list(values))
    assert words in error(root)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[1.0, 2.0]] * 13, "has rows of 2 entries along axis 0, expected the shape (3,)"),
        ([[1.0, 2.0, 3.0]] * 12 + [[1.0]], "has rows of 1 entries"),
        ([1.0] * 13, "has 5 numbers in 5 rows, expected the shape (3,)"),
        ([[1.0, 2.0, None]] * 13, "lacks 5 of 15 values"),
        ([None] + [[1.0, 2.0, 3.0]] * 12, "lacks 1 of 5 values"),
        ([["a", "b", "c"]] * 13, "holds string, expected numbers"),
    ],
)
def test_rows_of_another_shape_are_refused(root: Path, values: list, words: str) -> None:
    files.change_column(root / DATA, "observation.state", values)
    assert words in error(root)


def test_fractions_do_not_become_whole_numbers(root: Path) -> None:
    files.change_column(root / DATA, "attempt", [0.5] * 13)
    assert "attempt holds float64 that cannot become int64" in error(root)


def test_fewer_rows_than_stated_are_refused(root: Path) -> None:
    table = pq.read_table(root / DATA)
    pq.write_table(table.slice(0, 11), root / DATA)
    assert "ends after 11 rows, 2 more were expected" in error(root)


def test_more_rows_than_stated_are_refused(tmp_path: Path) -> None:
    root = files.write_v2(tmp_path / "cube")
    path = root / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table]), path)
    assert "has 16 rows, meta states 8 frames" in error(root)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"codebase_version": "v1.6"}, "'v1.6', expected one of v2.0, v2.1, v3.0"),
        ({"total_episodes": 4}, "meta lists 3 episodes, meta/info.json states 4"),
        ({"fps": 0}, "meta/info.json cannot be read"),
        ({"fps": float("nan")}, "meta/info.json cannot be read"),
        ({"features": 3}, "meta/info.json cannot be read"),
        ({"features": {"a": {"dtype": "float32", "shape": [2**40]}}}, "more than an episode may"),
        ({"features": {"": {"dtype": "float32", "shape": [1]}}}, "empty or used twice"),
        ({"fps": 20}, "expected 0.050000 s at 20 Hz"),
    ],
)
def test_metadata_that_contradicts_the_data_is_refused(root: Path, about: dict, words: str) -> None:
    files.change_info(root, **about)
    assert words in error(root)


def test_an_episode_listed_twice_is_refused(root: Path) -> None:
    files.change_column(root / EPISODES, "episode_index", [0, 1, 1])
    assert "lists an episode twice" in error(root)


def test_a_video_that_ends_early_is_refused(root: Path) -> None:
    files.write_video(root / VIDEO, files.pictures(17, 48, 64, 0))
    assert "has no frame at 1.7000 s, the last one is at 1.6000 s" in error(root)


def test_a_video_of_another_rate_is_refused(root: Path) -> None:
    files.write_video(root / VIDEO, files.pictures(19, 48, 64, 0), rate=9)
    assert "has no frame at 0.1000 s within 0.0001 s, the next one is at 0.1111 s" in error(root)


def test_a_video_of_another_size_is_refused(root: Path) -> None:
    files.write_video(root / VIDEO, files.pictures(19, 64, 64, 0))
    assert "64 x 64 pixels, info.json states 48 x 64" in error(root)


def test_a_picture_of_another_size_is_refused(root: Path) -> None:
    content = [{"bytes": files.png(np.zeros((9, 16, 3), np.uint8)), "path": None}] * 13
    files.change_column(root / DATA, WRIST, content)
    assert "has (9, 16) pixels, expected (12, 16)" in error(root)


def test_pictures_outside_the_file_are_refused(root: Path) -> None:
    content = [{"bytes": None, "path": "/etc/hostname"}] * 13
    files.change_column(root / DATA, WRIST, content)
    assert "it is not in the file" in error(root)


@pytest.mark.parametrize(
    "template",
    [
        "/etc/hostname",
        "../cube/data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "data/{chunk_index.__class__}",
        "data/{chunk_index:0999999999d}",
        "data/{chunk_index!r}",
        "data/{other}.parquet",
        "data/\0.parquet",
    ],
)
def test_paths_lead_nowhere_outside_and_run_nothing(root: Path, template: str) -> None:
    files.change_info(root, data_path=template)
    message = error(root)
    assert "placeholders" in message or "expected one inside" in message


@pytest.mark.parametrize("name", [DATA, VIDEO, "meta/tasks.parquet", EPISODES])
def test_links_out_of_the_data_set_are_refused(root: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (root / name).rename(outside)
    (root / name).symlink_to(outside)
    assert "outside the data set" in error(root)


@pytest.mark.parametrize(
    "content",
    [
        "ffconcat version 1.0\nfile secret.mp4\n",
        "#EXTM3U\n#EXTINF:10,\nsecret.mp4\n",
    ],
)
def test_a_playlist_in_place_of_a_video_opens_no_other_file(root: Path, content: str) -> None:
    (root / VIDEO).rename(root / VIDEO.replace("file-000", "secret"))
    (root / VIDEO).write_text(content)
    assert "the video cannot be read" in error(root)


def test_a_row_group_that_states_too_much_is_not_decoded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_rows, "LARGEST_EPISODE", 1000)
    assert "row group 0 states" in error(root)


def test_a_table_of_episodes_that_states_too_much_is_not_decoded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_rows, "LARGEST_TABLE", 100)
    assert "tasks.parquet: row group 0 states" in error(root)


def test_an_episode_of_endless_length_allocates_nothing(root: Path) -> None:
    files.change_column(root / EPISODES, "length", [2**40, 8, 6])
    assert "has another number of rows" in error(root)


@pytest.mark.parametrize("name", ["meta/info.json", "meta/tasks.parquet", DATA, VIDEO])
def test_a_missing_file_is_named(root: Path, name: str) -> None:
    (root / name).unlink()
    assert f"{root / name}: no such file" in error(root)


def test_deeply_nested_json_is_refused(root: Path) -> None:
    (root / "meta/info.json").write_text("[" * 100_000)
    assert "info.json: the file cannot be read" in error(root)


def test_a_stream_larger_than_its_container_states_is_refused(root: Path) -> None:
    files.write_video(root / VIDEO, np.zeros((19, 480, 640, 3), np.uint8))
    content = bytearray((root / VIDEO).read_bytes())
    # Width and height of the sample entry of ISO 14496-12.
    place = content.rindex(b"avc1") + 28
    assert content[place : place + 4] == bytes.fromhex("028001e0")
    content[place : place + 4] = (64).to_bytes(2, "big") + (48).to_bytes(2, "big")
    (root / VIDEO).write_bytes(bytes(content))
    assert "480 x 640 pixels, info.json states 48 x 64" in error(root)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_random_damage_gives_one_line(tmp_path: Path, version: str) -> None:
    write = files.write_v3 if version == "v3.0" else files.write_v2
    root = write(tmp_path / "cube")
    assert check_mutations(root, tmp_path / "scratch", open_source, seed=1) >= 20
