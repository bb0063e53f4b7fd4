import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from robots.episodes.exports.robomimic import Flavour, write_robomimic
from robots.episodes.formats.robomimic import open_source
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import WXYZ, FieldSpec
from tests.robots.episodes.formats.hdf5_files import dataset

LENGTHS = (4, 6, 3)
FIELDS = {
    "state": FieldSpec(shape=(5,), dtype="float64", role="observation"),
    "tool_quat": FieldSpec(shape=(4,), names=WXYZ, role="observation"),
    "camera": FieldSpec(shape=(8, 10, 3), dtype="uint8", unit="u8", role="observation"),
    "action": FieldSpec(shape=(7,), role="action"),
    "reward": FieldSpec(shape=(1,), role="outcome"),
    "done": FieldSpec(shape=(), dtype="bool", role="outcome"),
    "truncated": FieldSpec(shape=(), dtype="bool", role="outcome"),
    "cube/root_pose": FieldSpec(shape=(7,), role="other"),
}
PLACES = {
    "state": "obs/state",
    "tool_quat": "obs/tool_quat",
    "camera": "obs/camera",
    "action": "actions",
    "reward": "rewards",
    "done": "dones",
    "truncated": "truncated",
    "cube/root_pose": "cube/root_pose",
}
METADATA: tuple[dict[str, Any], ...] = (
    {"instruction": "lift the cube", "success": True, "seed": 7, "split": ["train", "few"]},
    {"instruction": "lift the cube", "success": False, "split": "train"},
    {"split": ["valid"], "operator": "Ada"},
)
FLAVOURS: tuple[Flavour, ...] = ("robomimic", "isaaclab")


def episode_arrays(episode: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(episode)
    steps = LENGTHS[episode]
    arrays = {}
    for name, spec in FIELDS.items():
        shape = (steps, *spec.shape)
        if spec.dtype == "uint8":
            arrays[name] = rng.integers(0, 256, shape).astype(np.uint8)
        elif spec.dtype == "bool":
            arrays[name] = np.arange(steps) == steps - 1
        else:
            arrays[name] = rng.normal(size=shape).astype(spec.dtype)
    return arrays


def make_store(path: Path, fields: dict[str, FieldSpec] | None = None) -> EpisodeStore:
    """A store with the given ones of `FIELDS`."""
    fields = FIELDS if fields is None else fields
    stream = StreamSpec(rate_hz=49.0, fields=fields)
    schema = EpisodeSchema(name="lift", streams={"policy": stream}, robot="fr3")
    store = EpisodeStore.create(path, schema)
    for number, metadata in enumerate(METADATA):
        arrays = episode_arrays(number)
        store.append({"policy": {name: arrays[name] for name in fields}}, metadata)
    return store


def read_all(path: Path) -> tuple[SourceSchema, list[SourceEpisode]]:
    with open_source(path, True) as source:
        return source.schema, list(source.episodes(0, source.num_episodes))


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_reader_gives_back_every_array(tmp_path, flavour):
    write_robomimic(make_store(tmp_path / "s"), tmp_path / "d.hdf5", flavour=flavour)
    schema, read = read_all(tmp_path / "d.hdf5")
    assert schema.fields.keys() == set(PLACES.values())
    for number, episode in enumerate(read):
        for name, array in episode_arrays(number).items():
            given = array.reshape(len(array)) if name == "reward" else array
            found = episode.arrays[PLACES[name]]
            np.testing.assert_array_equal(found, given)
            # `dones` are whole numbers in robomimic.
            assert name == "done" or found.dtype == given.dtype


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_reader_gives_back_task_rate_splits_success_seed_and_instruction(tmp_path, flavour):
    write_robomimic(make_store(tmp_path / "s"), tmp_path / "d.hdf5", flavour=flavour)
    schema, read = read_all(tmp_path / "d.hdf5")
    assert (schema.task, schema.rate_hz) == ("lift", 49.0)
    metadata = [episode.metadata for episode in read]
    assert [entry["split"] for entry in metadata] == [["few", "train"], ["train"], ["valid"]]
    assert [entry.get("success") for entry in metadata] == [True, False, None]
    assert [entry.get("instruction") for entry in metadata] == ["lift the cube"] * 2 + [None]
    assert metadata[0]["seed"] == 7
    assert (
        schema.form == ("robomimic (HDF5)", "Isaac Lab (HDF5, version 1)")[flavour != "robomimic"]
    )


def test_robomimic_gets_the_attributes_that_it_needs(tmp_path):
    write_robomimic(make_store(tmp_path / "s"), tmp_path / "d.hdf5")
    with h5py.File(tmp_path / "d.hdf5") as file:
        data: Any = file["data"]
        assert data.attrs["total"] == 13
        assert [data[f"demo_{n}"].attrs["num_samples"] for n in range(3)] == [4, 6, 3]
        assert json.loads(data.attrs["env_args"])["env_name"] == "lift"
        assert data["demo_0/dones"].dtype == np.int64
        assert list(dataset(file, "mask/train")[:]) == [b"demo_0", b"demo_1"]
        assert "format_version" not in file.attrs


def test_next_obs_is_obs_one_step_later(tmp_path):
    write_robomimic(make_store(tmp_path / "s"), tmp_path / "d.hdf5")
    state = episode_arrays(1)["state"]
    with h5py.File(tmp_path / "d.hdf5") as file:
        following: Any = file["data/demo_1/next_obs/state"]
        np.testing.assert_array_equal(following[:-1], state[1:])
        np.testing.assert_array_equal(following[-1], state[-1])
    write_robomimic(make_store(tmp_path / "t"), tmp_path / "e.hdf5", flavour="isaaclab")
    with h5py.File(tmp_path / "e.hdf5") as file:
        assert "next_obs" not in dataset(file, "data/demo_1")


def test_isaac_lab_gets_quaternions_x_y_z_w_compressed(tmp_path):
    result = write_robomimic(make_store(tmp_path / "s"), tmp_path / "d.hdf5", flavour="isaaclab")
    given = episode_arrays(0)
    with h5py.File(tmp_path / "d.hdf5") as file:
        assert file.attrs["format_version"] == 1
        quat: Any = file["data/demo_0/obs/tool_quat"]
        pose: Any = file["data/demo_0/cube/root_pose"]
        np.testing.assert_array_equal(quat[:], given["tool_quat"][:, [1, 2, 3, 0]])
        np.testing.assert_array_equal(pose[:], given["cube/root_pose"][:, [0, 1, 2, 4, 5, 6, 3]])
        assert (quat.compression, pose.compression) == ("gzip", "gzip")
    assert "quaternions became x, y, z, w in tool_quat, cube/root_pose" in result["assumed"]


def test_quaternions_that_are_named_x_y_z_w_are_not_turned(tmp_path):
    named = FieldSpec(shape=(4,), names=(("x", "y", "z", "w"),), role="observation")
    fields = {"tool_quat": named, "action": FIELDS["action"]}
    write_robomimic(make_store(tmp_path / "s", fields), tmp_path / "d.hdf5", flavour="isaaclab")
    with h5py.File(tmp_path / "d.hdf5") as file:
        stored: Any = file["data/demo_0/obs/tool_quat"]
        np.testing.assert_array_equal(stored[:], episode_arrays(0)["tool_quat"])


def test_the_initial_state_of_isaac_lab_comes_back(tmp_path):
    store = make_store(tmp_path / "s")
    pose = [[0.5, 0.25, 1.0, 1.0, 0.0, 0.0, 0.0]]
    state = {"articulation/robot/root_pose": pose}
    store.append({"policy": episode_arrays(0)}, {"initial_state": state})
    write_robomimic(store, tmp_path / "d.hdf5", flavour="isaaclab")
    with h5py.File(tmp_path / "d.hdf5") as file:
        stored: Any = file["data/demo_3/initial_state/articulation/robot/root_pose"]
        np.testing.assert_array_equal(stored[0], [0.5, 0.25, 1.0, 0.0, 0.0, 0.0, 1.0])
    assert read_all(tmp_path / "d.hdf5")[1][3].metadata["initial_state"] == state


def test_a_store_without_outcomes_gets_zeros_and_ends_and_the_result_says_so(tmp_path):
    fields = {"state": FIELDS["state"], "action": FIELDS["action"]}
    result = write_robomimic(make_store(tmp_path / "s", fields), tmp_path / "d.hdf5")
    _, read = read_all(tmp_path / "d.hdf5")
    np.testing.assert_array_equal(read[0].arrays["rewards"], np.zeros(4))
    np.testing.assert_array_equal(read[0].arrays["dones"], [0, 0, 0, 1])
    assert result["assumed"][:2] == [
        "rewards are 0, because the store has none",
        "dones are set at the last step of every episode",
    ]


def test_the_result_says_what_was_written_and_left_out(tmp_path):
    calls = []
    result = write_robomimic(
        make_store(tmp_path / "s"),
        tmp_path / "d.hdf5",
        progress=lambda done, total, note="": calls.append((done, total)),
    )
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert (result["episodes"], result["steps"]) == (3, 13)
    assert result["fields"] == sorted(PLACES.values())
    assert "the metadata operator" in result["left_out"]


def test_a_field_that_came_from_robomimic_goes_back_to_its_place(tmp_path):
    fields = {"obs/state": FIELDS["state"], "action": FIELDS["action"]}
    stream = StreamSpec(rate_hz=20.0, fields=fields)
    store = EpisodeStore.create(
        tmp_path / "s", EpisodeSchema(name="lift", streams={"policy": stream})
    )
    given = episode_arrays(0)
    store.append({"policy": {"obs/state": given["state"], "action": given["action"]}}, {})
    write_robomimic(store, tmp_path / "d.hdf5")
    np.testing.assert_array_equal(
        read_all(tmp_path / "d.hdf5")[1][0].arrays["obs/state"], given["state"]
    )


def test_two_fields_of_one_place_are_refused(tmp_path):
    fields = {
        "state": FIELDS["state"],
        "obs/state": FIELDS["state"],
        "action": FIELDS["action"],
    }
    stream = StreamSpec(rate_hz=20.0, fields=fields)
    store = EpisodeStore.create(
        tmp_path / "s", EpisodeSchema(name="lift", streams={"policy": stream})
    )
    given = episode_arrays(0)
    state = {"state": given["state"], "obs/state": given["state"]}
    store.append({"policy": {**state, "action": given["action"]}}, {})
    with pytest.raises(HandoffError, match="'obs/state' would be called obs/state"):
        write_robomimic(store, tmp_path / "d.hdf5")


def test_a_store_without_an_action_is_refused(tmp_path):
    store = make_store(tmp_path / "s", {"state": FIELDS["state"]})
    with pytest.raises(HandoffError, match="expected exactly one"):
        write_robomimic(store, tmp_path / "d.hdf5")


def test_an_existing_file_is_refused_and_kept(tmp_path):
    store = make_store(tmp_path / "s")
    (tmp_path / "d.hdf5").write_text("mine")
    with pytest.raises(HandoffError, match="exists already"):
        write_robomimic(store, tmp_path / "d.hdf5")
    assert (tmp_path / "d.hdf5").read_text() == "mine"


def test_an_interrupted_export_leaves_nothing(tmp_path):
    store = make_store(tmp_path / "s")

    def interrupt(done: int, total: int, note: str = "") -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_robomimic(store, tmp_path / "d.hdf5", progress=interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_a_full_disk_is_explained_in_one_line(tmp_path):
    make_store(tmp_path / "s").close()
    code = (
        "import sys; from pathlib import Path; from robots.errors import HandoffError\n"
        "from robots.episodes.store import EpisodeStore\n"
        "from robots.episodes.exports.robomimic import write_robomimic\n"
        "try: write_robomimic(EpisodeStore.open(Path(sys.argv[1])), Path(sys.argv[2]))\n"
        "except HandoffError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, tmp_path / "s", tmp_path / "d.hdf5"]
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=_limit_files, check=True, timeout=60
    )
    (line,) = done.stdout.splitlines()
    assert "d.hdf5: the file was not written: File too large" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]
