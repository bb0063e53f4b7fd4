from pathlib import Path

import h5py
import numpy as np
import pytest

from robots.episodes.formats.aloha import open_source, recognises
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.errors import HandoffError
from tests.robots.episodes.formats.hdf5_files import (
    LENGTHS,
    dataset,
    smooth_pictures,
    write_aloha_folder,
    write_d4rl_file,
    write_robomimic_file,
)
from tests.robots.episodes.formats.mutations import check_mutations

CAMERA = "observations/images/cam_high"


def read_all(path: Path, images: bool = True) -> tuple[SourceSchema, list[SourceEpisode]]:
    with open_source(path, images) as source:
        return source.schema, list(source.episodes(0, source.num_episodes))


def read_error(path: Path) -> str:
    with pytest.raises(HandoffError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def psnr(first: np.ndarray, second: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two pictures [dB]."""
    error = np.mean((first.astype(float) - second.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / error))


def test_files_come_in_the_order_of_their_numbers(tmp_path):
    # By text, episode_10 would come before episode_8.
    _, read = read_all(write_aloha_folder(tmp_path / "d"))
    assert [episode.metadata["source_file"] for episode in read] == [
        "episode_8.hdf5",
        "episode_9.hdf5",
        "episode_10.hdf5",
    ]
    assert [len(episode.arrays["action"]) for episode in read] == list(LENGTHS)


def test_pictures_that_are_arrays_are_bit_equal(tmp_path):
    schema, read = read_all(write_aloha_folder(tmp_path / "d"))
    assert schema.fields[CAMERA].unit == "u8"
    for number, episode in enumerate(read):
        np.testing.assert_array_equal(episode.arrays[CAMERA], smooth_pictures(number))


def test_jpeg_pictures_have_their_colours_and_little_loss(tmp_path):
    schema, read = read_all(write_aloha_folder(tmp_path / "d", compress=True))
    assert tuple(schema.fields[CAMERA].shape) == (32, 40, 3)
    for number, episode in enumerate(read):
        # With red and blue swapped, it would be 8 dB.
        assert psnr(episode.arrays[CAMERA], smooth_pictures(number)) > 42
    assert any("red and blue were swapped back" in note for note in schema.notes)


def test_pictures_of_their_own_lengths_are_decoded(tmp_path):
    path = write_aloha_folder(tmp_path / "d", compress=True)
    for file_path in path.iterdir():
        with h5py.File(file_path, "a") as file:
            padded = dataset(file, CAMERA)[:]
            del file[CAMERA]
            rows = file.create_dataset(CAMERA, (len(padded),), h5py.vlen_dtype(np.uint8))
            for number, row in enumerate(padded):
                rows[number] = row[: row.nonzero()[0][-1] + 1]
    _, read = read_all(path)
    assert psnr(read[0].arrays[CAMERA], smooth_pictures(0)) > 42


def test_joints_have_names_and_units(tmp_path):
    schema, _ = read_all(write_aloha_folder(tmp_path / "d"))
    assert schema.fields["action"].role == "action"
    assert schema.fields["action"].names[0][:2] == ("left_waist", "left_shoulder")
    assert schema.fields["observations/qpos"].unit.split(", ")[6:8] == ["1", "rad"]
    assert schema.fields["observations/qvel"].unit.startswith("rad/s")


def test_the_rate_is_the_convention_and_a_note_says_so(tmp_path):
    schema, _ = read_all(write_aloha_folder(tmp_path / "d"))
    assert schema.rate_hz == 50.0
    assert any("50 Hz is ALOHA's convention" in note for note in schema.notes)


def test_the_action_of_the_base_is_another_field(tmp_path):
    path = write_aloha_folder(tmp_path / "d")
    for number, steps in enumerate(LENGTHS):
        with h5py.File(path / f"episode_{number + 8}.hdf5", "a") as file:
            file["base_action"] = np.zeros((steps, 2))
            file["language_raw"] = "fold the shirt"
    schema, read = read_all(path)
    assert schema.fields["base_action"].role == "other"
    assert read[0].metadata["instruction"] == "fold the shirt"


def test_pictures_are_left_out_on_request(tmp_path):
    for compress in (False, True):
        path = write_aloha_folder(tmp_path / f"d{compress}", compress)
        assert CAMERA not in read_all(path, images=False)[0].fields


def test_one_file_is_a_data_set_of_one_episode(tmp_path):
    path = write_aloha_folder(tmp_path / "fold") / "episode_9.hdf5"
    schema, read = read_all(path)
    assert (schema.task, len(read)) == ("fold", 1)


def test_other_files_are_not_recognised(tmp_path):
    assert recognises(write_aloha_folder(tmp_path / "a"))
    assert not recognises(write_robomimic_file(tmp_path / "episode_0.hdf5"))
    assert not recognises(tmp_path)
    assert not recognises(write_d4rl_file(tmp_path / "d.hdf5"))


def test_an_array_of_another_length_is_named(tmp_path):
    path = write_aloha_folder(tmp_path / "d")
    with h5py.File(path / "episode_9.hdf5", "a") as file:
        del file["observations/qpos"]
        file["observations/qpos"] = np.zeros((5, 14), np.float32)
    assert "observations/qpos has the shape (5, 14), expected 6 rows" in read_error(path)


def test_too_few_encoded_pictures_are_named(tmp_path):
    path = write_aloha_folder(tmp_path / "d", compress=True)
    with h5py.File(path / "episode_9.hdf5", "a") as file:
        pictures = dataset(file, CAMERA)[:-1]
        del file[CAMERA]
        file[CAMERA] = pictures
    assert "has 5 pictures, expected 6, one per action" in read_error(path)


def test_a_file_that_lacks_a_camera_is_named(tmp_path):
    path = write_aloha_folder(tmp_path / "d")
    with h5py.File(path / "episode_9.hdf5", "a") as file:
        del file[CAMERA]
    assert f"episode 1 lacks ['{CAMERA}']" in read_error(path)


def test_a_file_outside_the_folder_is_refused(tmp_path):
    path = write_aloha_folder(tmp_path / "d")
    (path / "episode_9.hdf5").rename(tmp_path / "other.hdf5")
    (path / "episode_9.hdf5").symlink_to(tmp_path / "other.hdf5")
    assert "outside the data set" in read_error(path)


def test_an_encoded_picture_of_many_pixels_is_refused(tmp_path):
    path = write_aloha_folder(tmp_path / "d", compress=True)
    with h5py.File(path / "episode_8.hdf5", "a") as file:
        rows = dataset(file, CAMERA)[:]
        # Height and width in the header of the frame.
        place = rows[0].tobytes().index(b"\xff\xc0") + 5
        rows[:, place : place + 4] = 255
        dataset(file, CAMERA)[:] = rows
    assert "a picture of observations/images/cam_high is too large" in read_error(path)


@pytest.mark.parametrize("compress", [False, True])
def test_damaged_copies_are_read_or_refused_in_one_line(tmp_path, compress):
    path = write_aloha_folder(tmp_path / "d", compress)
    assert check_mutations(path, tmp_path / "scratch", open_source) >= 20
