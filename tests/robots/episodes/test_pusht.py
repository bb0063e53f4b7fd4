import os
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.demonstrations import identify, open_demonstrations
from robots.episodes.formats.pusht import METRES_PER_PIXEL, find_replay_buffer, pusht_schema
from robots.episodes.pack import pack_store
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from tests.robots.episodes.replay_buffer import ENDS, arrays, write_folder, write_zip

REPOSITORY = Path(__file__).parents[3]
OFFICIAL = (
    Path(os.environ.get("HANDOFF_DATA") or REPOSITORY / "../shared/data")
    / "pusht/pusht_cchi_v7_replay.zarr.zip"
)


def read_all(path: Path, images: bool = True) -> list[dict[str, np.ndarray]]:
    with open_demonstrations(path, images) as demonstrations:
        return [
            streams["policy"]
            for streams, _ in demonstrations.episodes(0, demonstrations.num_episodes)
        ]


def read_error(path: Path, images: bool = True) -> str:
    with pytest.raises(HandoffError) as caught:
        read_all(path, images)
    return str(caught.value)


@pytest.mark.parametrize("prefix", ["", "pusht/pusht_cchi_v7_replay.zarr/"])
def test_a_zip_reads_as_episodes_in_metres(tmp_path, prefix):
    values = arrays()
    episodes = read_all(write_zip(tmp_path / "p.zip", values, prefix))
    assert [len(episode["agent"]) for episode in episodes] == [4, 6, 3]
    second = slice(ENDS[0], ENDS[1])
    np.testing.assert_allclose(
        episodes[1]["agent"], values["data/state"][second, :2] * 1e-3, rtol=1e-6
    )
    np.testing.assert_allclose(
        episodes[1]["block_pose"][:, :2], values["data/state"][second, 2:4] * 1e-3, rtol=1e-6
    )
    np.testing.assert_array_equal(episodes[1]["block_pose"][:, 2], values["data/state"][second, 4])
    np.testing.assert_allclose(
        episodes[1]["keypoints"], values["data/keypoint"][second] * 1e-3, rtol=1e-6
    )
    np.testing.assert_allclose(
        episodes[1]["action"], values["data/action"][second] * 1e-3, rtol=1e-6
    )


def test_every_episode_gets_its_own_images_as_uint8(tmp_path):
    values = arrays()
    episodes = read_all(write_folder(tmp_path / "p.zarr", values))
    images = np.concatenate([episode["image"] for episode in episodes])
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images, values["data/img"])


def test_reading_may_start_at_any_episode(tmp_path):
    values = arrays()
    with open_demonstrations(write_zip(tmp_path / "p.zip", values), images=True) as demonstrations:
        ((streams, metadata),) = demonstrations.episodes(1, 2)
    np.testing.assert_array_equal(streams["policy"]["image"], values["data/img"][4:10])
    assert metadata == {"source_episode": 1}


def test_images_are_left_out_on_request_even_if_missing(tmp_path):
    values = arrays()
    del values["data/img"]
    episodes = read_all(write_zip(tmp_path / "p.zip", values), images=False)
    assert "image" not in episodes[0]


@pytest.mark.parametrize("name", ["data/state", "data/img", "data/action", "data/keypoint"])
def test_a_missing_array_is_named(tmp_path, name):
    values = arrays()
    del values[name]
    assert f"{name} is missing" in read_error(write_zip(tmp_path / "p.zip", values))


@pytest.mark.parametrize("name", ["data/state", "data/img"])
def test_an_array_shorter_than_the_episodes_is_named(tmp_path, name):
    values = arrays()
    values[name] = values[name][:-1]
    assert f"{name} has shape (12, " in read_error(write_zip(tmp_path / "p.zip", values))


def test_a_missing_chunk_is_not_read_as_zeros(tmp_path):
    folder = write_folder(tmp_path / "p.zarr", arrays())
    (folder / "data/state/1.0").unlink()
    assert "data/state has 2 of 3 chunks" in read_error(folder)


@pytest.mark.parametrize("ends", [(4, 4, 13), (10, 4, 13), (0, 4, 13)])
def test_ends_that_do_not_rise_are_refused(tmp_path, ends):
    values = arrays()
    values["meta/episode_ends"] = np.array(ends, np.int64)
    assert "Ends must increase" in read_error(write_zip(tmp_path / "p.zip", values))


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("data/state", (7, 2), 513.0, "data/state[7, 2] is 513.0, expected 0 to 512 px"),
        ("data/state", (3, 0), np.nan, "data/state[3, 0] is nan"),
        ("data/state", (3, 4), 400.0, "data/state[3, 4] is 400.0, expected an angle"),
        ("data/action", (12, 1), -1.0, "data/action[12, 1] is -1.0, expected 0 to 512 px"),
        ("data/keypoint", (0, 8, 1), np.inf, "data/keypoint[0, 8, 1] is inf"),
        (
            "data/img",
            (11, 5, 6, 2),
            0.5,
            "data/img[11, 5, 6, 2] is 0.5, expected a whole number from 0 to 255",
        ),
        ("data/img", (11, 5, 6, 2), 256.0, "data/img[11, 5, 6, 2] is 256.0"),
        ("data/img", (11, 5, 6, 2), np.nan, "data/img[11, 5, 6, 2] is nan"),
    ],
)
def test_an_implausible_value_is_named_with_its_place(tmp_path, name, index, value, message):
    values = arrays()
    values[name][index] = value
    assert message in read_error(write_zip(tmp_path / "p.zip", values))


def test_a_zip_cut_short_is_one_clear_error(tmp_path):
    path = write_zip(tmp_path / "p.zip", arrays())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "cannot be read as a zip" in read_error(path)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_a_corrupt_byte_inside_the_zip_is_an_error(tmp_path, place):
    path = write_zip(tmp_path / "p.zip", arrays())
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 0xFF
    path.write_bytes(content)
    assert str(path) in read_error(path)


@pytest.mark.parametrize("keep", [0, 10, 100])
def test_a_chunk_file_cut_short_is_an_error(tmp_path, keep):
    folder = write_folder(tmp_path / "p.zarr", arrays())
    chunk = folder / "data/img/1.0.0.0"
    chunk.write_bytes(chunk.read_bytes()[:keep])
    assert "img cannot be decoded" in read_error(folder)


def test_something_else_is_told_from_a_data_set(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "cut.zip").write_bytes(b"PK")
    assert "no format of demonstrations that is known" in read_error(tmp_path / "notes.txt")
    assert "cannot be read as a zip" in read_error(tmp_path / "cut.zip")
    assert "no format of demonstrations that is known" in read_error(tmp_path)
    assert "no such file or folder" in read_error(tmp_path / "absent")


def test_two_data_sets_in_one_folder_are_refused(tmp_path):
    write_folder(tmp_path / "a.zarr", arrays())
    write_folder(tmp_path / "b.zarr", arrays())
    with pytest.raises(HandoffError, match="holds 2 replay buffers"):
        find_replay_buffer(tmp_path)


def test_a_packed_store_of_own_episodes_reads_as_demonstrations(tmp_path):
    values = {
        name: np.zeros((3, *field.shape), field.dtype)
        for name, field in _fields(images=False).items()
    }
    with EpisodeStore.create(tmp_path / "s.zarr", pusht_schema(images=False)) as store:
        store.append({"policy": values}, {"seed": 5})
    pack_store(tmp_path / "s.zarr", tmp_path / "s.zarr.zip")
    for path in (tmp_path / "s.zarr", tmp_path / "s.zarr.zip"):
        assert identify(path) == "episode_store"
        with open_demonstrations(path, images=True) as demonstrations:
            ((streams, metadata),) = demonstrations.episodes(0, 1)
        assert metadata == {"seed": 5, "source_episode": 0}
        assert streams["policy"].keys() == values.keys()


def test_an_own_store_with_images_reads_without_them_on_request(tmp_path):
    values = {
        name: np.zeros((3, *field.shape), field.dtype)
        for name, field in _fields(images=True).items()
    }
    with EpisodeStore.create(tmp_path / "s.zarr", pusht_schema(images=True)) as store:
        store.append({"policy": values}, {})
    with open_demonstrations(tmp_path / "s.zarr", images=False) as demonstrations:
        assert demonstrations.schema == pusht_schema(images=False)


def test_the_board_of_512_pixels_is_512_millimetres():
    assert pytest.approx(0.512) == 512 * METRES_PER_PIXEL


@pytest.mark.skipif(
    not OFFICIAL.exists(), reason=f"official push-T demonstrations not at {OFFICIAL}"
)
def test_the_official_data_has_206_episodes_of_25650_frames():
    with open_demonstrations(OFFICIAL, images=False) as demonstrations:
        lengths = [
            len(streams["policy"]["action"]) for streams, _ in demonstrations.episodes(0, 206)
        ]
        assert demonstrations.num_episodes == 206
    assert sum(lengths) == 25_650
    assert (min(lengths), max(lengths)) == (49, 246)


def _fields(images: bool):
    return pusht_schema(images).streams["policy"].fields
