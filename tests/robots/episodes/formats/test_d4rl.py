from pathlib import Path

import h5py
import numpy as np
import pytest

from robots.episodes.formats.d4rl import open_source, recognises
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.errors import HandoffError
from tests.robots.episodes.formats.hdf5_files import (
    LENGTHS,
    episode_arrays,
    write_aloha_folder,
    write_d4rl_file,
    write_robomimic_file,
)
from tests.robots.episodes.formats.mutations import check_mutations


def read_all(path: Path) -> tuple[SourceSchema, list[SourceEpisode]]:
    with open_source(path, True) as source:
        return source.schema, list(source.episodes(0, source.num_episodes))


def read_error(path: Path) -> str:
    with pytest.raises(HandoffError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_episodes_end_at_terminals_and_timeouts(tmp_path):
    _, read = read_all(write_d4rl_file(tmp_path / "d.hdf5"))
    assert [len(episode.arrays["actions"]) for episode in read] == list(LENGTHS)
    assert [bool(episode.arrays["terminals"][-1]) for episode in read] == [True, False, True]
    assert [bool(episode.arrays["timeouts"][-1]) for episode in read] == [False, True, False]


def test_every_episode_has_its_own_rows(tmp_path):
    _, read = read_all(write_d4rl_file(tmp_path / "d.hdf5"))
    for number, episode in enumerate(read):
        given = episode_arrays(number)
        np.testing.assert_array_equal(episode.arrays["actions"], given["actions"])
        np.testing.assert_array_equal(episode.arrays["infos/qpos"], given["state"])


def test_a_range_of_episodes_has_the_same_rows(tmp_path):
    path = write_d4rl_file(tmp_path / "d.hdf5")
    with open_source(path, True) as source:
        (second,) = source.episodes(1, 2)
    np.testing.assert_array_equal(second.arrays["rewards"], episode_arrays(1)["rewards"])


def test_an_episode_that_the_file_cuts_off_is_kept_with_a_note(tmp_path):
    schema, read = read_all(write_d4rl_file(tmp_path / "d.hdf5", ended=False))
    assert [episode.metadata["complete"] for episode in read] == [True, True, False]
    assert len(read[2].arrays["actions"]) == 3
    assert any("complete: false" in note for note in schema.notes)


def test_without_timeouts_a_note_says_what_is_joined(tmp_path):
    path = write_d4rl_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        del file["timeouts"]
    schema, read = read_all(path)
    assert [len(episode.arrays["actions"]) for episode in read] == [4, 9]
    assert any("There are no timeouts" in note for note in schema.notes)


def test_roles_follow_the_names_and_next_observations_are_left_out(tmp_path):
    schema, _ = read_all(write_d4rl_file(tmp_path / "d.hdf5"))
    assert {name: spec.role for name, spec in schema.fields.items()} == {
        "actions": "action",
        "infos/qpos": "other",
        "observations": "observation",
        "rewards": "outcome",
        "terminals": "outcome",
        "timeouts": "outcome",
    }
    assert schema.rate_hz is None
    assert sum("left out" in note for note in schema.notes) == 2


def test_an_array_of_another_length_is_named(tmp_path):
    path = write_d4rl_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file["rewards"] = np.zeros(12)
    assert "rewards has the shape (12,), expected 13 rows as actions" in read_error(path)


def test_ends_of_another_shape_are_refused(tmp_path):
    path = write_d4rl_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        del file["terminals"]
        file["terminals"] = np.zeros((13, 4))
    assert "terminals has the shape (13, 4), expected (13,)" in read_error(path)


def test_a_missing_array_is_named(tmp_path):
    path = write_d4rl_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        del file["rewards"]
    assert not recognises(path)
    assert "lacks ['rewards']" in read_error(path)


def test_an_episode_that_is_too_large_is_refused(tmp_path):
    path = write_d4rl_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        del file["observations"]
        file.create_dataset("observations", (13, 2**31), "f4", chunks=(1, 1024))[0, 0] = 1
    assert "as a whole has the shape" in read_error(path)


def test_other_files_are_not_recognised(tmp_path):
    assert recognises(write_d4rl_file(tmp_path / "a.hdf5"))
    assert not recognises(write_robomimic_file(tmp_path / "b.hdf5"))
    assert not recognises(write_aloha_folder(tmp_path / "c") / "episode_8.hdf5")
    assert not recognises(tmp_path)


def test_damaged_copies_are_read_or_refused_in_one_line(tmp_path):
    path = write_d4rl_file(tmp_path / "d.hdf5")
    assert check_mutations(path, tmp_path / "scratch", open_source) >= 20
