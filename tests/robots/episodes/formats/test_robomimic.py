import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from robots.episodes.formats.robomimic import open_source, recognises
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.errors import HandoffError
from robots.spec import WXYZ
from tests.robots.episodes.formats.hdf5_files import (
    LENGTHS,
    episode_arrays,
    write_d4rl_file,
    write_isaaclab_file,
    write_maniskill_files,
    write_robomimic_file,
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


def test_episodes_come_in_the_order_of_their_numbers(tmp_path):
    # By text, demo_10 would come before demo_2.
    _, read = read_all(write_robomimic_file(tmp_path / "d.hdf5"))
    assert [episode.metadata["demo"] for episode in read] == ["demo_2", "demo_9", "demo_10"]
    assert [len(episode.arrays["actions"]) for episode in read] == list(LENGTHS)


def test_every_array_is_bit_equal_and_keeps_its_type(tmp_path):
    _, read = read_all(write_robomimic_file(tmp_path / "d.hdf5"))
    for number, episode in enumerate(read):
        given = episode_arrays(number)
        np.testing.assert_array_equal(episode.arrays["obs/agentview_image"], given["camera"])
        np.testing.assert_array_equal(episode.arrays["actions"], given["actions"])
        assert episode.arrays["actions"].dtype == np.float32
        assert episode.arrays["dones"].dtype == np.bool_
        np.testing.assert_array_equal(episode.arrays["obs/robot0_eef_quat"], given["state"][:, :4])


def test_roles_follow_the_groups(tmp_path):
    schema, _ = read_all(write_robomimic_file(tmp_path / "d.hdf5"))
    assert {name: spec.role for name, spec in schema.fields.items()} == {
        "actions": "action",
        "dones": "outcome",
        "obs/agentview_image": "observation",
        "obs/robot0_eef_quat": "observation",
        "rewards": "outcome",
        "states": "other",
    }
    assert schema.fields["obs/agentview_image"].unit == "u8"
    assert any("next_obs is left out" in note for note in schema.notes)


def test_env_args_state_the_task_the_rate_and_the_robot(tmp_path):
    schema, _ = read_all(write_robomimic_file(tmp_path / "d.hdf5"))
    assert (schema.task, schema.rate_hz, schema.robot) == ("Lift", 20.0, "Panda")


def test_quaternions_of_robosuite_are_named_and_not_turned(tmp_path):
    schema, _ = read_all(write_robomimic_file(tmp_path / "d.hdf5"))
    assert schema.fields["obs/robot0_eef_quat"].names == (("x", "y", "z", "w"),)
    assert any("x, y, z, w, as robosuite" in note for note in schema.notes)


def test_masks_are_the_splits_of_an_episode(tmp_path):
    path = write_robomimic_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        file["mask/few"] = np.array(["demo_9", "demo_99"], dtype="S8")
    schema, read = read_all(path)
    assert [e.metadata["split"] for e in read] == [["train"], ["few", "train"], ["valid"]]
    assert any("1 episode(s) that the file does not have" in note for note in schema.notes)


def test_sparse_rewards_state_the_success(tmp_path):
    _, read = read_all(write_robomimic_file(tmp_path / "d.hdf5"))
    assert [episode.metadata["success"] for episode in read] == [False, True, False]


def test_dense_rewards_do_not_state_the_success(tmp_path):
    path = write_robomimic_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        arguments = {"env_name": "Lift", "type": 1, "env_kwargs": {"reward_shaping": True}}
        file["data"].attrs["env_args"] = json.dumps(arguments)
    schema, read = read_all(path)
    assert all("success" not in episode.metadata for episode in read)
    assert schema.rate_hz is None


def test_the_instruction_is_that_of_the_episode_or_of_libero(tmp_path):
    path = write_robomimic_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        problem = {"language_instruction": "put the bowl on the plate"}
        file["data"].attrs["problem_info"] = json.dumps(problem)
        file["data/demo_9"].attrs["ep_meta"] = json.dumps({"lang": "close the drawer"})
    _, read = read_all(path)
    assert [episode.metadata["instruction"] for episode in read] == [
        "put the bowl on the plate",
        "close the drawer",
        "put the bowl on the plate",
    ]


def test_isaac_lab_is_told_apart_and_states_its_rate(tmp_path):
    schema, read = read_all(write_isaaclab_file(tmp_path / "d.hdf5"))
    assert schema.form == "Isaac Lab (HDF5, version 1)"
    assert (schema.task, schema.rate_hz) == ("Isaac-Stack-Cube-Franka-v0", 50.0)
    assert [episode.metadata["seed"] for episode in read] == [7, 8, 9]
    assert [episode.metadata["success"] for episode in read] == [True, False, True]


def test_a_gym_environment_of_robomimic_is_not_isaac_lab(tmp_path):
    path = write_robomimic_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        arguments = {"env_name": "Hopper-v2", "type": 2, "env_kwargs": {}}
        file["data"].attrs["env_args"] = json.dumps(arguments)
    assert read_all(path)[0].form == "robomimic (HDF5)"


def test_quaternions_of_version_1_become_w_x_y_z(tmp_path):
    schema, read = read_all(write_isaaclab_file(tmp_path / "d.hdf5"))
    # Stored are x, y, z and the quaternion 3, 4, 5, 6, of which 6 is w.
    pose = read[0].arrays["states/articulation/robot/root_pose"]
    np.testing.assert_array_equal(pose[0], [0, 1, 2, 6, 3, 4, 5])
    np.testing.assert_array_equal(read[0].arrays["obs/eef_quat"][0], [6, 3, 4, 5])
    initial = read[0].metadata["initial_state"]["articulation/robot/root_pose"]
    assert initial == [[0, 1, 2, 6, 3, 4, 5]]
    assert schema.fields["obs/eef_quat"].names == WXYZ
    (note,) = [note for note in schema.notes if "converted" in note]
    assert "obs/eef_quat, states/articulation/robot/root_pose" in note


@pytest.mark.parametrize("version", [None, 0])
def test_quaternions_without_a_version_are_w_x_y_z_already(tmp_path, version):
    schema, read = read_all(write_isaaclab_file(tmp_path / "d.hdf5", version))
    pose = read[0].arrays["states/articulation/robot/root_pose"]
    np.testing.assert_array_equal(pose[0], [0, 1, 2, 3, 4, 5, 6])
    assert schema.form == "Isaac Lab (HDF5, version 0)"


def test_matrices_called_pose_are_not_turned(tmp_path):
    schema, read = read_all(write_isaaclab_file(tmp_path / "d.hdf5"))
    np.testing.assert_array_equal(read[0].arrays["obs/datagen_info/eef_pose/arm"][0], np.eye(4))
    assert schema.fields["obs/datagen_info/eef_pose/arm"].role == "other"
    assert schema.fields["processed_actions"].role == "other"


def test_pictures_are_left_out_on_request(tmp_path):
    schema, read = read_all(write_robomimic_file(tmp_path / "d.hdf5"), images=False)
    assert "obs/agentview_image" not in schema.fields
    assert read[0].arrays.keys() == schema.fields.keys()


def test_other_files_are_not_recognised(tmp_path):
    assert recognises(write_robomimic_file(tmp_path / "a.hdf5"))
    assert recognises(write_isaaclab_file(tmp_path / "b.hdf5"))
    assert not recognises(write_maniskill_files(tmp_path / "c.h5"))
    assert not recognises(write_d4rl_file(tmp_path / "d.hdf5"))
    (tmp_path / "text.hdf5").write_text("no")
    assert not recognises(tmp_path / "text.hdf5")
    assert not recognises(tmp_path)


def test_an_array_of_another_length_is_named(tmp_path):
    path = write_robomimic_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/rewards"]
        file["data/demo_9/rewards"] = np.zeros(5)
    assert "demo_9/rewards has the shape (5,), expected 6 rows" in read_error(path)


def test_fewer_actions_than_stated_are_named(tmp_path):
    path = write_robomimic_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        file["data/demo_10"].attrs["num_samples"] = 8
    assert "demo_10/actions has 3 rows, num_samples says 8" in read_error(path)


def test_an_episode_that_lacks_an_array_is_named(tmp_path):
    path = write_robomimic_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/obs/robot0_eef_quat"]
    assert "episode 1 lacks ['obs/robot0_eef_quat']" in read_error(path)


def test_an_episode_of_another_shape_is_named(tmp_path):
    path = write_robomimic_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/states"]
        file["data/demo_9/states"] = np.zeros((6, 4))
    assert "states of episode 1 has the shape (4,), expected (9,)" in read_error(path)


def test_an_array_in_another_file_is_refused(tmp_path):
    path = write_robomimic_file(tmp_path / "d.hdf5")
    other = write_robomimic_file(tmp_path / "other.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/obs"]
        file["data/demo_9/obs"] = h5py.ExternalLink(other.name, "/data/demo_9/obs")
    assert "data/demo_9/obs is a link to the file 'other.hdf5'" in read_error(path)


def test_env_args_that_are_no_json_are_refused(tmp_path):
    path = write_robomimic_file(tmp_path / "d.hdf5")
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = "{"
    assert "the attribute env_args of data cannot be read" in read_error(path)


@pytest.mark.parametrize("writer", [write_robomimic_file, write_isaaclab_file])
def test_damaged_copies_are_read_or_refused_in_one_line(tmp_path, writer):
    path = writer(tmp_path / "d.hdf5")
    assert check_mutations(path, tmp_path / "scratch", open_source) >= 20
