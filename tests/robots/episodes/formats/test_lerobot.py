"""LeRobot data sets of all three versions are read; their files are written by pyarrow and PyAV."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robots.episodes.config import FieldMapConfig
from robots.episodes.field_map import MappedEpisodes
from robots.episodes.formats.lerobot import open_source, recognises
from robots.episodes.formats.lerobot_files import lerobot_video
from robots.episodes.formats.lerobot_files.lerobot_video import DepthCode, VideoFrames
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.language.text import decode
from tests.robots.episodes.formats import lerobot_files as files
from tests.robots.episodes.formats.lerobot_files import DEPTH, FRONT, LENGTHS, WRIST, psnr

REPOSITORY = Path(__file__).parents[4]
G1 = Path(os.environ.get("HANDOFF_DATA") or REPOSITORY / "../shared/data") / "g1_lerobot_v21"
VERSIONS = ("v2.0", "v2.1", "v3.0")


def write(path: Path, version: str) -> Path:
    return files.write_v3(path) if version == "v3.0" else files.write_v2(path, version)


@pytest.fixture(scope="module", params=VERSIONS)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("lerobot") / "cube", request.param)


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    return files.write_v3(tmp_path / "cube")


def read_all(path: Path, images: bool = True) -> list[SourceEpisode]:
    with open_source(path, images) as source:
        return list(source.episodes(0, source.num_episodes))


def schema(path: Path, images: bool = True) -> SourceSchema:
    with open_source(path, images) as source:
        return source.schema


def test_numbers_and_png_are_bit_equal(dataset: Path) -> None:
    for number, episode in enumerate(read_all(dataset)):
        given = files.recorded(number)
        assert episode.arrays.keys() == given.keys()
        for name in given.keys() - {FRONT}:
            np.testing.assert_array_equal(episode.arrays[name], given[name])
            assert episode.arrays[name].dtype == given[name].dtype


def test_every_frame_of_a_video_is_the_one_of_its_time(dataset: Path) -> None:
    for number, episode in enumerate(read_all(dataset)):
        frames, given = episode.arrays[FRONT], files.recorded(number)[FRONT]
        assert frames.dtype == np.uint8
        for step in range(LENGTHS[number]):
            assert psnr(frames[step], given[step]) > 35
            assert all(
                psnr(frames[step], given[other]) < 25
                for other in range(len(given))
                if other != step
            )


def test_the_last_episodes_are_those_of_the_whole_data_set(dataset: Path) -> None:
    whole = read_all(dataset)
    with open_source(dataset, True) as source:
        for first in (1, 2):
            for episode, expected in zip(source.episodes(first, 3), whole[first:], strict=True):
                for name, array in expected.arrays.items():
                    np.testing.assert_array_equal(episode.arrays[name], array)


def test_features_have_roles_names_and_units(dataset: Path) -> None:
    fields = schema(dataset).fields
    assert [name for name, spec in fields.items() if spec.role == "action"] == ["action"]
    roles = {
        "observation.state": "observation",
        FRONT: "observation",
        WRIST: "observation",
        "next.reward": "outcome",
        "next.success": "outcome",
        "attempt": "other",
    }
    assert {name: fields[name].role for name in roles} == roles
    assert fields["observation.state"].names == (("a", "b", "c"),)
    assert fields["action"].names == (("x", "y"),)
    assert fields["observation.gripper"].shape == (1,)
    assert (fields[WRIST].shape, fields[WRIST].unit) == ((12, 16, 3), "u8")


def test_the_data_set_states_rate_robot_version_and_task(dataset: Path) -> None:
    stated = schema(dataset)
    assert (stated.rate_hz, stated.robot, stated.task) == (10.0, "so101", "cube")
    assert (
        stated.form
        == f"LeRobot {json.loads((dataset / 'meta/info.json').read_text())['codebase_version']}"
    )


def test_the_task_is_the_instruction_and_words_are_metadata(dataset: Path) -> None:
    metadata = [episode.metadata for episode in read_all(dataset)]
    assert [entry["instruction"] for entry in metadata] == list(files.TASKS)
    assert [entry["success"] for entry in metadata] == [True, False, True]
    assert metadata[0]["remark"] == "good light"
    assert "remark" in schema(dataset).notes[0]


def test_without_images_no_video_is_opened(dataset: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(dataset, tmp_path / "copy", ignore=shutil.ignore_patterns("*.mp4"))
    videos = list(json.loads((copy / "meta/info.json").read_text())["features"])
    assert FRONT in videos
    for video in dataset.rglob("*.mp4"):
        (copy / video.relative_to(dataset)).parent.mkdir(parents=True, exist_ok=True)
        (copy / video.relative_to(dataset)).write_bytes(b"no video")
    episodes = read_all(copy, images=False)
    assert {FRONT, WRIST}.isdisjoint(episodes[0].arrays)
    assert len(episodes) == 3


def test_only_a_folder_of_the_format_is_recognised(dataset: Path) -> None:
    assert recognises(dataset)
    assert not recognises(dataset / "meta")
    assert not recognises(dataset / "meta/info.json")


def test_a_store_gets_the_fields(dataset: Path) -> None:
    with open_source(dataset, True) as source:
        mapped = MappedEpisodes(source, FieldMapConfig(rest="drop", rename={"action": "action"}))
        streams, metadata = next(mapped.episodes(0, 1))
    assert mapped.schema.streams["policy"].rate_hz == 10.0
    assert streams["policy"]["action"].shape == (5, 2)
    assert metadata["source_robot"] == "so101"


def test_entries_of_an_episode_are_metadata(newest: Path) -> None:
    assert [episode.metadata["operator"] for episode in read_all(newest)] == ["ada", "bo", "ada"]


def test_success_of_the_table_of_episodes_counts(newest: Path) -> None:
    path = newest / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path).append_column("success", pa.array([0, 1, 0]))
    pq.write_table(table, path)
    success = [episode.metadata["success"] for episode in read_all(newest)]
    assert success == [False, True, False]
    assert all(isinstance(value, bool) for value in success)


def test_several_tasks_of_an_episode_are_a_text_field(newest: Path) -> None:
    files.change_column(
        newest / "data/chunk-000/file-000.parquet", "task_index", [0] * 5 + [1, 1, 1, 0, 0, 0, 0, 0]
    )
    episodes_file = newest / "meta/episodes/chunk-000/file-000.parquet"
    files.change_column(
        episodes_file, "tasks", [["pick the cube"], list(files.TASKS[:2]), ["pick the cube"]]
    )
    episodes = read_all(newest)
    place, pick = "place the cube", "pick the cube"
    assert decode(episodes[1].arrays["instruction"]) == (place,) * 3 + (pick,) * 5
    assert episodes[0].metadata["instruction"] == pick
    assert "instruction" not in episodes[1].metadata
    assert schema(newest).fields["instruction"].unit == "utf8"


def test_row_groups_of_any_size_give_the_same_rows(newest: Path) -> None:
    path = newest / "data/chunk-000/file-000.parquet"
    expected = read_all(newest, images=False)
    for size in (1, 4, 7):
        pq.write_table(pq.read_table(path), path, row_group_size=size)
        with open_source(newest, False) as source:
            second = next(iter(source.episodes(1, 2)))
        np.testing.assert_array_equal(second.arrays["action"], expected[1].arrays["action"])


def test_lists_without_a_fixed_length_are_arrays(newest: Path) -> None:
    path = newest / "data/chunk-000/file-001.parquet"
    expected = files.recorded(2)["observation.state"]
    values = expected.astype(np.float64).tolist()
    files.change_column(path, "observation.state", values)
    files.change_column(path, "observation.gripper", [[value] for value in [0.5] * 6])
    episode = read_all(newest)[2]
    np.testing.assert_array_equal(episode.arrays["observation.state"], expected)
    np.testing.assert_array_equal(episode.arrays["observation.gripper"], np.full((6, 1), 0.5))
    assert episode.arrays["observation.state"].dtype == np.float32


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "b", "c"], (("a", "b", "c"),)),
        ([["a", "b", "c"]], (("a", "b", "c"),)),
        ({"motors": ["a", "b"], "hand": ["c"]}, (("a", "b", "c"),)),
        ({"c": 2, "a": 0, "b": 1}, (("a", "b", "c"),)),
        (["a", "b"], ()),
        (None, ()),
        ("abc", ()),
        ([1, 2, 3], ()),
    ],
)
def test_names_have_several_forms(newest: Path, names: object, expected: object) -> None:
    features = {**files.FEATURES}
    features["observation.state"] = {**features["observation.state"], "names": names}
    files.change_info(newest, features=features)
    assert schema(newest).fields["observation.state"].names == expected


def test_actions_and_state_of_openpi_have_roles(newest: Path) -> None:
    renamed = {"action": "actions", "observation.state": "state"}
    files.change_info(newest, features={renamed.get(n, n): f for n, f in files.FEATURES.items()})
    fields = schema(newest).fields
    assert (fields["actions"].role, fields["state"].role) == ("action", "observation")


def test_language_annotations_are_metadata(newest: Path) -> None:
    path = newest / "data/chunk-000/file-001.parquet"
    row = {"role": "assistant", "content": "reach", "style": "subtask", "timestamp": 0.3}
    event = {"role": "user", "content": "stop", "style": "interjection"}
    for name, values in (
        ("language_persistent", [[row]] * 6),
        ("language_events", [[], [], [event], [], [], []]),
    ):
        for file, content in ((path, values), (path.with_name("file-000.parquet"), [[]] * 13)):
            table = pq.read_table(file)
            pq.write_table(table.append_column(name, pa.array(content)), file)
        features = json.loads((newest / "meta/info.json").read_text())["features"]
        about = {"dtype": "language", "shape": [1], "names": None}
        files.change_info(newest, features={**features, name: about})
    metadata = read_all(newest, images=False)[2].metadata
    assert metadata["language_persistent"] == [{**row, "timestamp": pytest.approx(0.3)}]
    assert metadata["language_events"] == [{**event, "timestamp": pytest.approx(0.2)}]


def test_unknown_types_are_left_out_with_a_note(newest: Path) -> None:
    features = {**files.FEATURES, "sound": {"dtype": "audio", "shape": [1], "names": None}}
    files.change_info(newest, features=features)
    assert "sound" not in schema(newest).fields
    assert any("sound is left out" in note for note in schema(newest).notes)


def add_depth(root: Path, info: dict[str, object]) -> np.ndarray:
    """Adds a depth video of all episodes; returns its 12-bit numbers."""
    size = (sum(LENGTHS), 48, 64)
    codes = (np.arange(np.prod(size)).reshape(size) % 4096).astype(np.uint16)
    files.write_depth(root / f"videos/{DEPTH}/chunk-000/file-000.mp4", codes)
    feature = {"dtype": "video", "shape": [48, 64, 1], "names": None, "info": info}
    files.change_info(root, features={**files.FEATURES, DEPTH: feature})
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for key in ("chunk_index", "file_index", "from_timestamp", "to_timestamp"):
        table = table.append_column(f"videos/{DEPTH}/{key}", table.column(f"videos/{FRONT}/{key}"))
    pq.write_table(table, path)
    return codes


LOG = {
    "is_depth_map": True,
    "video.depth_min": 0.01,
    "video.depth_max": 10.0,
    "video.shift": 3.5,
    "video.use_log": True,
}


def test_the_log_code_of_a_depth_video_is_undone(newest: Path) -> None:
    codes = add_depth(newest, {**LOG, "depth_unit": "mm"})
    depth = np.concatenate([episode.arrays[DEPTH] for episode in read_all(newest)])
    low, high = np.log(3.51), np.log(13.5)
    expected = np.exp(low + (high - low) * codes / 4095) - 3.5
    assert (schema(newest).fields[DEPTH].unit, depth.dtype) == ("mm", np.uint16)
    assert np.abs(depth[..., 0] - 1000 * expected).max() < 0.6


def test_depth_recorded_in_metres_stays_in_metres(newest: Path) -> None:
    codes = add_depth(newest, {**LOG, "depth_unit": "m", "video.use_log": False})
    depth = np.concatenate([episode.arrays[DEPTH] for episode in read_all(newest)])
    assert (schema(newest).fields[DEPTH].unit, depth.dtype) == ("m", np.float32)
    np.testing.assert_allclose(depth[..., 0], 0.01 + 9.99 * codes / 4095, atol=1e-5)


def test_depth_whose_code_is_not_stated_is_left_out(newest: Path) -> None:
    add_depth(newest, {"video.is_depth_map": True})
    assert DEPTH not in schema(newest).fields
    assert any("depth" in note and DEPTH in note for note in schema(newest).notes)
    assert DEPTH not in read_all(newest)[0].arrays


def test_the_code_of_4095_is_the_largest_distance() -> None:
    code = DepthCode(0.01, 10.0, 3.5, True, True)
    assert code.distances(np.array([0, 4095], np.uint16)).tolist() == [10, 10000]


def test_consecutive_episodes_of_a_video_decode_each_frame_once(
    newest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeks: list[float] = []
    original = VideoFrames._go_to

    def counted(self: VideoFrames, path: Path, start: float) -> None:
        seeks.append(start)
        original(self, path, start)

    monkeypatch.setattr(VideoFrames, "_go_to", counted)
    assert len(read_all(newest)) == 3
    assert seeks == [0.0]


@pytest.mark.parametrize("options", [{"g": "2"}, {"g": "250"}, {"g": "12", "bf": "3"}])
def test_a_frame_far_inside_a_video_is_found_from_the_key_frame_before(
    tmp_path: Path, options: dict[str, str]
) -> None:
    frames = files.pictures(60, 48, 64, 0)
    path = tmp_path / "v.mp4"
    files._write(path, frames, 10, "libx264", "yuv420p", "rgb24", {"crf": "10", **options})
    reader = VideoFrames((48, 64, 3))
    for start in (3.1, 5.7, 0.4):
        found = reader.read(path, start, 2, 10.0)
        first = round(start * 10)
        assert psnr(found, frames[first : first + 2]) > 35
    reader.close()


def test_times_differ_by_a_tenth_of_a_millisecond_at_most(newest: Path) -> None:
    path = newest / "meta/episodes/chunk-000/file-000.parquet"
    name = f"videos/{FRONT}/from_timestamp"
    starts = pq.read_table(path).column(name).to_numpy()
    files.change_column(path, name, starts + 0.5 * lerobot_video.TOLERANCE_S)
    assert len(read_all(newest)) == 3


def test_a_snapshot_of_the_hubs_cache_is_read(newest: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "datasets--a--b/snapshots/0123"
    blobs = tmp_path / "datasets--a--b/blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(f for f in newest.rglob("*") if f.is_file())):
        link = snapshot / file.relative_to(newest)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, blobs / str(number))
        link.symlink_to(blobs / str(number))
    assert len(read_all(snapshot)) == 3


@pytest.mark.skipif(not G1.exists(), reason=f"the G1 data set is not at {G1}")
def test_the_g1_data_set_has_765_frames() -> None:
    with open_source(G1, True) as source:
        episodes = [(e.arrays["action"], e.metadata, e.arrays) for e in source.episodes(0, 3)]
        fields = source.schema.fields
        assert source.schema.robot == "Unitree_G1_Inspire"
    assert [len(action) for action, _, _ in episodes] == [221, 277, 267]
    assert fields["action"].names[0][:2] == ("kLeftShoulderPitch", "kLeftShoulderRoll")
    assert episodes[0][1] == {"instruction": "Pick up the yellow bottle on the table."}
    frames = episodes[2][2]["observation.images.cam_high"]
    assert frames.shape == (267, 480, 640, 3)
    # Frames of one scene are alike and none is empty.
    assert frames[::50].std(axis=(1, 2, 3)).min() > 20
