import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from robots.episodes.formats.minari import open_source, recognises
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.errors import HandoffError
from robots.language.text import decode
from tests.robots.episodes.formats.hdf5_files import (
    LENGTHS,
    dataset,
    episode_arrays,
    smooth_pictures,
    write_minari_folder,
)
from tests.robots.episodes.formats.mutations import check_mutations


def read_all(path: Path, images: bool = True) -> tuple[SourceSchema, list[SourceEpisode]]:
    with open_source(path, images) as source:
        return source.schema, list(source.episodes(0, source.num_episodes))


def read_error(path: Path) -> str:
    with pytest.raises(HandoffError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change_metadata(path: Path, **entries: object) -> None:
    file = path / "data" / "metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def test_the_observation_after_the_last_action_is_left_out(tmp_path):
    schema, read = read_all(write_minari_folder(tmp_path / "d"))
    for number, episode in enumerate(read):
        given = episode_arrays(number, extra=1)
        assert {len(array) for array in episode.arrays.values()} == {LENGTHS[number]}
        state = episode.arrays["observations/state"]
        np.testing.assert_array_equal(state, given["state"][:-1])
        np.testing.assert_array_equal(episode.arrays["actions"], given["actions"])
    assert any("observation after the last action" in note for note in schema.notes)


def test_entries_of_a_tuple_space_are_fields(tmp_path):
    schema, read = read_all(write_minari_folder(tmp_path / "d"))
    assert schema.fields["observations/pair/_index_1"].role == "observation"
    second = read[0].arrays["observations/pair/_index_1"]
    np.testing.assert_array_equal(second, 2 * episode_arrays(0, extra=1)["state"][:-1])


def test_jpeg_pictures_are_decoded_with_little_loss(tmp_path):
    schema, read = read_all(write_minari_folder(tmp_path / "d"))
    assert schema.fields["observations/image"].unit == "u8"
    for number, episode in enumerate(read):
        given = smooth_pictures(number, extra=1)[:-1].astype(float)
        error = np.mean((episode.arrays["observations/image"] - given) ** 2)
        assert 10 * np.log10(255**2 / error) > 42


def test_pictures_that_are_arrays_are_bit_equal(tmp_path):
    path = write_minari_folder(tmp_path / "d")
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        for number in range(3):
            del file[f"episode_{number}/observations/image"]
            pictures = smooth_pictures(number, extra=1)
            file[f"episode_{number}/observations/image"] = pictures
    _, read = read_all(path)
    np.testing.assert_array_equal(read[1].arrays["observations/image"], smooth_pictures(1))


def test_small_whole_numbers_are_no_pictures(tmp_path):
    path = write_minari_folder(tmp_path / "d")
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        for number, steps in enumerate(LENGTHS):
            file[f"episode_{number}/observations/grid"] = np.ones((steps + 1, 9), np.uint8)
    schema, _ = read_all(path)
    assert tuple(schema.fields["observations/grid"].shape) == (9,)


def test_metadata_state_task_seed_success_and_instruction(tmp_path):
    schema, read = read_all(write_minari_folder(tmp_path / "d"))
    assert (schema.task, schema.rate_hz) == ("test/drawer-v0", None)
    # The success of episode 1 is that of the state after its last action.
    assert [episode.metadata["success"] for episode in read] == [False, True, False]
    assert read[2].metadata["seed"] == 42
    assert read[0].metadata["instruction"] == "open the drawer"


def test_an_instruction_that_changes_becomes_a_field(tmp_path):
    path = write_minari_folder(tmp_path / "d")
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        dataset(file, "episode_0/observations/mission")[2:] = "close it"
    schema, read = read_all(path)
    assert schema.fields["instruction"].unit == "utf8"
    assert decode(read[0].arrays["instruction"]) == (
        *["open the drawer"] * 2,
        *["close it"] * 2,
    )
    assert decode(read[1].arrays["instruction"]) == ("open the drawer",) * 6


def test_an_instruction_that_changes_in_a_later_episode_only_is_kept_per_step(tmp_path):
    path = write_minari_folder(tmp_path / "d")
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        dataset(file, "episode_2/observations/mission")[1:] = "close it"
    _, read = read_all(path)
    assert set(decode(read[0].arrays["instruction"])) == {"open the drawer"}
    assert decode(read[2].arrays["instruction"])[:2] == ("open the drawer", "close it")


def test_roles_follow_the_names(tmp_path):
    schema, _ = read_all(write_minari_folder(tmp_path / "d"))
    roles = {name: spec.role for name, spec in schema.fields.items()}
    assert roles["actions"] == "action"
    assert roles["infos/success"] == "other"
    assert {roles[n] for n in ("rewards", "terminations", "truncations")} == {"outcome"}


def test_pictures_are_left_out_on_request(tmp_path):
    schema, _ = read_all(write_minari_folder(tmp_path / "d"), images=False)
    assert "observations/image" not in schema.fields


def test_arrow_is_refused_by_name(tmp_path):
    path = write_minari_folder(tmp_path / "d")
    change_metadata(path, data_format="arrow")
    assert recognises(path)
    assert "is stored as 'arrow'; of Minari's storages, 'hdf5' is read" in read_error(path)


def test_missing_episodes_are_named(tmp_path):
    path = write_minari_folder(tmp_path / "d")
    change_metadata(path, total_episodes=5)
    assert "holds 3 episodes, data/metadata.json says 5" in read_error(path)


def test_an_array_of_another_length_is_named(tmp_path):
    path = write_minari_folder(tmp_path / "d")
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1/actions"]
        file["episode_1/actions"] = np.zeros((7, 7), np.float32)
    assert "episode_1/actions has the shape (7, 7), expected 6 rows" in read_error(path)


def test_fewer_steps_than_stated_are_named(tmp_path):
    path = write_minari_folder(tmp_path / "d")
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        file["episode_2"].attrs["total_steps"] = 30
    assert "episode_2 has 3 rewards, total_steps says 30" in read_error(path)


def test_a_file_outside_the_folder_is_refused(tmp_path):
    path = write_minari_folder(tmp_path / "d")
    (path / "data" / "main_data.hdf5").rename(tmp_path / "other.hdf5")
    (path / "data" / "main_data.hdf5").symlink_to(tmp_path / "other.hdf5")
    assert "outside the data set" in read_error(path)


def test_other_folders_are_not_recognised(tmp_path):
    assert recognises(write_minari_folder(tmp_path / "d"))
    assert not recognises(tmp_path)
    assert not recognises(tmp_path / "d" / "data" / "main_data.hdf5")
    (tmp_path / "e" / "data").mkdir(parents=True)
    (tmp_path / "e" / "data" / "metadata.json").write_text("{")
    assert not recognises(tmp_path / "e")


def test_damaged_copies_are_read_or_refused_in_one_line(tmp_path):
    path = write_minari_folder(tmp_path / "d")
    assert check_mutations(path, tmp_path / "scratch", open_source) >= 20
