import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.formats.replay_buffer import open_source, recognises
from robots.episodes.formats.source import SourceEpisode
from robots.errors import HandoffError
from tests.robots.episodes.formats.mutations import check_mutations
from tests.robots.episodes.replay_buffer import ENDS, write_folder, write_zip
from tests.robots.episodes.replay_buffer import arrays as pusht_arrays


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    frames = ENDS[-1]
    return {
        "data/robot_eef_pose": rng.normal(size=(frames, 6)),
        "data/camera_0": rng.integers(0, 256, (frames, 8, 10, 3)).astype(np.float32),
        "data/camera_1": rng.integers(0, 256, (frames, 8, 10, 3)).astype(np.uint8),
        "data/action": rng.normal(size=(frames, 7)).astype(np.float32),
        "data/reward": rng.normal(size=frames).astype(np.float32),
        "meta/episode_ends": np.array(ENDS, np.int64),
    }


def umi_arrays(seed: int = 0, robots: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    frames = ENDS[-1]
    values: dict[str, np.ndarray] = {"meta/episode_ends": np.array(ENDS, np.int64)}
    for robot in range(robots):
        sizes = {"eef_pos": 3, "eef_rot_axis_angle": 3, "gripper_width": 1}
        for part, size in sizes.items():
            state = rng.normal(size=(frames, size)).astype(np.float32)
            values[f"data/robot{robot}_{part}"] = state
        for part in ("demo_start_pose", "demo_end_pose"):
            values[f"data/robot{robot}_{part}"] = rng.normal(size=(frames, 6))
    return values


def write_jpeg_xl(path: Path, pictures: np.ndarray | None, frames: int = ENDS[-1]) -> None:
    """The array of UMI's camera in a folder; without pictures, its chunks are no JPEG XL."""
    array = path / "data/camera0_rgb"
    array.mkdir(parents=True)
    shape = [frames, 16, 16, 3]
    metadata = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": [1, *shape[1:]],
        "dtype": "|u1",
        "compressor": {"id": "imagecodecs_jpegxl", "level": 99, "numthreads": 1},
        "fill_value": 0,
        "filters": None,
        "order": "C",
    }
    (array / ".zarray").write_text(json.dumps(metadata))
    for frame in range(frames):
        if pictures is None:
            content = b"x" * 20
        else:
            from imagecodecs import jpegxl_encode  # pyright: ignore[reportMissingImports]

            content = jpegxl_encode(pictures[frame], lossless=True)
        (array / f"{frame}.0.0.0").write_bytes(content)


def read_all(path: Path, images: bool = True) -> list[SourceEpisode]:
    with open_source(path, images) as source:
        return list(source.episodes(0, source.num_episodes))


def read_error(path: Path) -> str:
    with pytest.raises(HandoffError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("writer", [write_folder, write_zip])
def test_every_episode_has_its_own_rows(tmp_path, writer):
    values = arrays()
    read = read_all(writer(tmp_path / "d.zarr", values))
    assert [len(episode.arrays["action"]) for episode in read] == [4, 6, 3]
    for name in ("robot_eef_pose", "action", "reward", "camera_1"):
        joined = np.concatenate([episode.arrays[name] for episode in read])
        np.testing.assert_array_equal(joined, values[f"data/{name}"])
        assert joined.dtype == values[f"data/{name}"].dtype


def test_pictures_of_whole_numbers_become_uint8(tmp_path):
    values = arrays()
    read = read_all(write_folder(tmp_path / "d.zarr", values))
    joined = np.concatenate([episode.arrays["camera_0"] for episode in read])
    assert joined.dtype == np.uint8
    np.testing.assert_array_equal(joined, values["data/camera_0"])


def test_arrays_of_fractions_are_no_pictures(tmp_path):
    values = arrays()
    values["data/camera_0"] /= 255.0
    with open_source(write_folder(tmp_path / "d.zarr", values), True) as source:
        spec = source.schema.fields["camera_0"]
    assert (spec.dtype, spec.unit) == ("float32", "1")


def test_roles_follow_the_names(tmp_path):
    with open_source(write_folder(tmp_path / "d.zarr", arrays()), True) as source:
        schema = source.schema
    assert (schema.task, schema.rate_hz) == ("d", None)
    assert {name: spec.role for name, spec in schema.fields.items()} == {
        "action": "action",
        "camera_0": "observation",
        "camera_1": "observation",
        "reward": "outcome",
        "robot_eef_pose": "observation",
    }


def test_reading_may_start_at_any_episode(tmp_path):
    values = arrays()
    with open_source(write_folder(tmp_path / "d.zarr", values), True) as source:
        (episode,) = source.episodes(1, 2)
    np.testing.assert_array_equal(episode.arrays["camera_1"], values["data/camera_1"][4:10])


def test_images_are_left_out_on_request(tmp_path):
    read = read_all(write_folder(tmp_path / "d.zarr", arrays()), images=False)
    assert set(read[0].arrays) == {"action", "reward", "robot_eef_pose"}


def test_push_t_is_left_to_its_own_reader(tmp_path):
    assert recognises(write_zip(tmp_path / "a.zarr.zip", arrays()))
    assert recognises(write_folder(tmp_path / "b.zarr", arrays()))
    assert not recognises(write_folder(tmp_path / "c.zarr", pusht_arrays()))
    (tmp_path / "notes.txt").write_text("hello")
    assert not recognises(tmp_path / "notes.txt")


def test_the_action_of_umi_is_the_state_of_the_next_step(tmp_path):
    values = umi_arrays()
    with open_source(write_zip(tmp_path / "cup.zarr.zip", values), True) as source:
        schema = source.schema
        read = list(source.episodes(0, 3))
    state = np.concatenate(
        [
            values[f"data/robot0_{part}"]
            for part in ("eef_pos", "eef_rot_axis_angle", "gripper_width")
        ],
        axis=1,
    )
    np.testing.assert_array_equal(read[1].arrays["action"][:-1], state[5:10])
    np.testing.assert_array_equal(read[1].arrays["action"][-1], state[9])
    assert schema.fields["action"].names == (("x", "y", "z", "rx", "ry", "rz", "width"),)
    assert schema.fields["robot0_eef_pos"].unit == "m"
    assert schema.fields["robot0_demo_start_pose"].role == "other"
    assert any("59.94" in note for note in schema.notes)
    assert any("next one" in note for note in schema.notes)


def test_two_robots_of_umi_have_one_action(tmp_path):
    with open_source(write_folder(tmp_path / "d.zarr", umi_arrays(robots=2)), True) as source:
        spec = source.schema.fields["action"]
    assert spec.shape == (14,)
    assert spec.names[0][7] == "robot1.x"


def test_jpeg_xl_without_its_package_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    path = write_folder(tmp_path / "d.zarr", umi_arrays())
    write_jpeg_xl(path, None)
    assert "pip install imagecodecs" in read_error(path)
    assert "camera0_rgb" not in read_all(path, images=False)[0].arrays


def test_jpeg_xl_pictures_are_bit_equal(tmp_path):
    pytest.importorskip("imagecodecs")
    path = write_folder(tmp_path / "d.zarr", umi_arrays())
    pictures = np.random.default_rng(0).integers(0, 256, (ENDS[-1], 16, 16, 3)).astype(np.uint8)
    write_jpeg_xl(path, pictures)
    joined = np.concatenate([episode.arrays["camera0_rgb"] for episode in read_all(path)])
    np.testing.assert_array_equal(joined, pictures)


def test_jpeg_xl_of_another_size_is_refused(tmp_path):
    pytest.importorskip("imagecodecs")
    path = write_folder(tmp_path / "d.zarr", umi_arrays())
    write_jpeg_xl(path, np.zeros((ENDS[-1], 4096, 4096, 3), np.uint8)[:, :32, :32])
    assert "camera0_rgb cannot be read" in read_error(path)


def test_missing_chunks_are_not_read_as_zeros(tmp_path):
    path = write_folder(tmp_path / "d.zarr", arrays())
    next((path / "data/action").glob("[0-9]*")).unlink()
    assert "data/action has 2 of 3 chunks" in read_error(path)


def test_an_array_of_another_length_is_named(tmp_path):
    values = arrays()
    values["data/action"] = values["data/action"][:-1]
    assert "data/action has 12 rows, expected 13" in read_error(
        write_folder(tmp_path / "d.zarr", values)
    )


def test_a_part_of_umi_that_is_missing_is_named(tmp_path):
    values = umi_arrays()
    del values["data/robot0_gripper_width"]
    error = read_error(write_folder(tmp_path / "d.zarr", values))
    assert "data/robot0_gripper_width is missing" in error


def test_a_later_picture_with_fractions_is_named_with_its_place(tmp_path):
    values = arrays()
    values["data/camera_0"][11, 5, 6, 2] = 0.5
    error = read_error(write_folder(tmp_path / "d.zarr", values))
    assert "data/camera_0[11, 5, 6, 2] is 0.5" in error


@pytest.mark.parametrize("ends", [(4, 4, 13), (10, 4, 13), (0, 4, 13)])
def test_ends_that_do_not_rise_are_refused(tmp_path, ends):
    values = arrays()
    values["meta/episode_ends"] = np.array(ends)
    assert "Ends must increase" in read_error(write_folder(tmp_path / "d.zarr", values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"filters": [{"id": "pickle"}]}, "Other codecs can run code"),
        ({"compressor": {"id": "pickle"}}, "Other codecs can run code"),
        ({"dtype": "|O"}, "Arrays of objects can run code"),
        ({"chunks": [2**40, 7]}, "has chunks of"),
        ({"shape": [13, 2**50]}, "of"),
        ({"shape": [-1, 7]}, "expected lengths"),
        ({"shape": "x"}, "data/action"),
    ],
)
def test_metadata_that_could_do_harm_is_refused(tmp_path, change, message):
    path = write_folder(tmp_path / "d.zarr", arrays())
    file = path / "data/action/.zarray"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert message in read_error(path)


def test_a_link_to_another_place_is_refused(tmp_path):
    path = write_folder(tmp_path / "d.zarr", arrays())
    chunk = next((path / "data/action").glob("[0-9]*"))
    chunk.rename(tmp_path / "secret")
    chunk.symlink_to(tmp_path / "secret")
    assert "is a link inside a replay buffer" in read_error(path)


def test_a_zip_bomb_is_refused(tmp_path):
    path = write_zip(tmp_path / "d.zarr.zip", arrays())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/action/9.9", bytes(2**27))
    assert "times its own size" in read_error(path)


@pytest.mark.parametrize("writer", [write_folder, write_zip])
@pytest.mark.parametrize("values", [arrays, umi_arrays])
def test_damaged_copies_are_read_or_refused_in_one_line(tmp_path, writer, values):
    path = writer(tmp_path / "d.zarr", values())
    assert check_mutations(path, tmp_path / "scratch", open_source) >= 20
