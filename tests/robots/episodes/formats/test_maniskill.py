import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from robots.episodes.formats.maniskill import ManiSkillSource, open_source, recognises
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.errors import HandoffError
from tests.robots.episodes.formats.hdf5_files import (
    LENGTHS,
    episode_arrays,
    write_maniskill_files,
    write_robomimic_file,
)
from tests.robots.episodes.formats.mutations import check_mutations

CAMERA = "obs/sensor_data/base_camera"


def read_all(path: Path, images: bool = True) -> tuple[SourceSchema, list[SourceEpisode]]:
    with open_source(path, images) as source:
        return source.schema, list(source.episodes(0, source.num_episodes))


def read_error(path: Path) -> str:
    with pytest.raises(HandoffError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change_sidecar(path: Path, **entries: object) -> None:
    """Changes entries of the first episode in the JSON file."""
    sidecar = path.with_suffix(".json")
    content = json.loads(sidecar.read_text())
    content["episodes"][0].update(entries)
    sidecar.write_text(json.dumps(content))


def test_the_observation_after_the_last_action_is_left_out(tmp_path):
    schema, read = read_all(write_maniskill_files(tmp_path / "d.h5"))
    for number, episode in enumerate(read):
        steps = LENGTHS[number]
        given = episode_arrays(number, extra=1)
        assert {len(array) for array in episode.arrays.values()} == {steps}
        np.testing.assert_array_equal(episode.arrays[f"{CAMERA}/rgb"], given["camera"][:-1])
        np.testing.assert_array_equal(episode.arrays["actions"], given["actions"])
        states = episode.arrays["env_states/actors/cube"]
        np.testing.assert_array_equal(states, given["state"][:-1])
    assert any("observation after the last action" in note for note in schema.notes)


def test_colours_are_pictures_and_depth_is_in_mm(tmp_path):
    schema, _ = read_all(write_maniskill_files(tmp_path / "d.h5"))
    assert schema.fields[f"{CAMERA}/rgb"].unit == "u8"
    depth = schema.fields[f"{CAMERA}/depth"]
    assert (depth.unit, depth.dtype, depth.shape) == ("mm", "int16", (8, 10, 1))


def test_roles_follow_the_groups(tmp_path):
    schema, _ = read_all(write_maniskill_files(tmp_path / "d.h5"))
    roles = {name: spec.role for name, spec in schema.fields.items()}
    assert roles["actions"] == "action"
    assert roles["obs/agent/qpos"] == "observation"
    assert roles["env_states/actors/cube"] == "other"
    assert {roles[name] for name in ("terminated", "truncated", "success")} == {"outcome"}


def test_the_json_file_states_seed_success_and_control_mode(tmp_path):
    schema, read = read_all(write_maniskill_files(tmp_path / "d.h5"))
    assert schema.task == "PickCube-v1"
    assert [episode.metadata["success"] for episode in read] == [False, False, True]
    assert read[1].metadata["seed"] == 31
    assert read[1].metadata["control_mode"] == "pd_ee_delta_pose"


def test_the_rate_is_that_of_the_arguments_or_not_stated(tmp_path):
    schema, _ = read_all(write_maniskill_files(tmp_path / "d.h5"))
    assert schema.rate_hz is None
    other = write_maniskill_files(tmp_path / "e.h5", sim_config={"control_freq": 10})
    assert read_all(other)[0].rate_hz == 10.0


def test_observations_may_be_one_array(tmp_path):
    path = write_maniskill_files(tmp_path / "d.h5")
    flat = [episode_arrays(number, extra=1)["state"] for number in range(3)]
    with h5py.File(path, "a") as file:
        for number in range(3):
            del file[f"traj_{number}/obs"]
            file[f"traj_{number}/obs"] = flat[number]
    schema, read = read_all(path)
    assert schema.fields["obs"].role == "observation"
    np.testing.assert_array_equal(read[1].arrays["obs"], flat[1][:-1])


def test_files_without_observations_say_how_to_replay_them(tmp_path):
    path = write_maniskill_files(tmp_path / "d.h5")
    with h5py.File(path, "a") as file:
        for number in range(3):
            del file[f"traj_{number}/obs"]
    schema, _ = read_all(path)
    assert any("replay_trajectory" in note for note in schema.notes)


def test_pictures_are_left_out_on_request(tmp_path):
    schema, _ = read_all(write_maniskill_files(tmp_path / "d.h5"), images=False)
    assert not [name for name in schema.fields if name.startswith(CAMERA)]


def test_episodes_come_in_the_order_of_the_json_file(tmp_path):
    path = write_maniskill_files(tmp_path / "d.h5")
    sidecar = path.with_suffix(".json")
    content = json.loads(sidecar.read_text())
    content["episodes"] = [content["episodes"][2], content["episodes"][0]]
    sidecar.write_text(json.dumps(content))
    schema, read = read_all(path)
    assert [episode.metadata["episode_id"] for episode in read] == [2, 0]
    assert any("1 trajectories are not in the JSON file" in note for note in schema.notes)


def test_a_missing_json_file_is_named(tmp_path):
    path = write_maniskill_files(tmp_path / "d.h5")
    path.with_suffix(".json").unlink()
    assert recognises(path)
    assert "lacks d.json beside it" in read_error(path)


def test_a_json_file_of_another_data_set_is_refused(tmp_path):
    path = write_maniskill_files(tmp_path / "d.h5")
    change_sidecar(path, elapsed_steps=9)
    assert "traj_0 has 4 actions, its JSON file says 9 steps" in read_error(path)
    change_sidecar(path, episode_id=8)
    assert "lacks traj_8, which its JSON file lists" in read_error(path)


def test_a_json_file_outside_the_folder_is_refused(tmp_path):
    (tmp_path / "inside").mkdir()
    path = write_maniskill_files(tmp_path / "inside" / "d.h5")
    path.with_suffix(".json").rename(tmp_path / "other.json")
    path.with_suffix(".json").symlink_to(tmp_path / "other.json")
    assert "outside the data set" in read_error(path)


def test_observations_without_the_last_one_are_named(tmp_path):
    path = write_maniskill_files(tmp_path / "d.h5")
    with h5py.File(path, "a") as file:
        del file["traj_1/obs/agent/qpos"]
        file["traj_1/obs/agent/qpos"] = np.zeros((6, 5), np.float32)
    assert "traj_1/obs/agent/qpos has the shape (6, 5), expected 7 rows" in read_error(path)


def test_other_files_are_not_recognised(tmp_path):
    assert recognises(write_maniskill_files(tmp_path / "a.h5"))
    assert not recognises(write_robomimic_file(tmp_path / "b.hdf5"))
    assert not recognises(tmp_path)


@contextmanager
def open_folder(path: Path, images: bool) -> Iterator[ManiSkillSource]:
    with open_source(path / "d.h5", images) as source:
        yield source


def test_damaged_copies_are_read_or_refused_in_one_line(tmp_path):
    (tmp_path / "data").mkdir()
    write_maniskill_files(tmp_path / "data" / "d.h5")
    assert check_mutations(tmp_path / "data", tmp_path / "scratch", open_folder) >= 20
