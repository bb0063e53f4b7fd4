import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robots.episodes.formats.npz import open_source, recognises
from robots.episodes.formats.source import SourceEpisode
from robots.errors import HandoffError
from robots.language.text import decode
from tests.robots.episodes.formats.mutations import check_mutations

ENDS = (4, 10, 13)
ABOUT = {
    "rate_hz": 20,
    "task": "pour",
    "units": {"position": "rad"},
    "robot": "ur5",
    "instruction": "pour the water",
}


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    frames = ENDS[-1]
    return {
        "position": rng.normal(size=(frames, 6)),
        "camera": rng.integers(0, 256, (frames, 8, 10, 3)).astype(np.uint8),
        "action": rng.normal(size=(frames, 7)).astype(np.float32),
        "reward": rng.normal(size=frames).astype(np.float32),
    }


def write_archive(path: Path, values: dict[str, np.ndarray], **more: np.ndarray) -> Path:
    content: Any = {**values, **more}
    np.savez(path, episode_ends=np.array(ENDS), **content)
    return path


def write_folder(path: Path, values: dict[str, np.ndarray], about: object = ABOUT) -> Path:
    path.mkdir()
    starts = (0, *ENDS[:-1])
    for number, (start, end) in enumerate(zip(starts, ENDS, strict=True)):
        rows: Any = {name: array[start:end] for name, array in values.items()}
        np.savez(path / f"run_{number + 8}.npz", **rows, success=np.bool_(number == 1))
    if about is not None:
        (path / "dataset.json").write_text(json.dumps(about))
    return path


def read_all(path: Path, images: bool = True) -> list[SourceEpisode]:
    with open_source(path, images) as source:
        return list(source.episodes(0, source.num_episodes))


def read_error(path: Path) -> str:
    with pytest.raises(HandoffError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("writer", [write_archive, write_folder])
def test_every_episode_has_its_own_rows(tmp_path, writer):
    values = arrays()
    read = read_all(writer(tmp_path / "d.npz", values))
    assert [len(episode.arrays["action"]) for episode in read] == [4, 6, 3]
    for name, array in values.items():
        joined = np.concatenate([episode.arrays[name] for episode in read])
        np.testing.assert_array_equal(joined, array)
        assert joined.dtype == array.dtype


def test_files_come_in_the_order_of_their_numbers(tmp_path):
    # By text, run_10 would come before run_8 and run_9.
    read = read_all(write_folder(tmp_path / "d", arrays()))
    assert [episode.metadata["success"] for episode in read] == [False, True, False]


def test_the_description_states_rate_units_task_robot_and_instruction(tmp_path):
    with open_source(write_folder(tmp_path / "d", arrays()), True) as source:
        schema = source.schema
        (first, *_) = source.episodes(0, 1)
    assert (schema.rate_hz, schema.task, schema.robot) == (20.0, "pour", "ur5")
    assert schema.fields["position"].unit == "rad"
    assert first.metadata["instruction"] == "pour the water"


def test_roles_follow_the_names(tmp_path):
    with open_source(write_archive(tmp_path / "d.npz", arrays()), True) as source:
        fields = source.schema.fields
        assert source.schema.rate_hz is None
        assert any("dataset.json" in note for note in source.schema.notes)
    assert {name: spec.role for name, spec in fields.items()} == {
        "position": "observation",
        "camera": "observation",
        "action": "action",
        "reward": "outcome",
    }
    assert fields["camera"].unit == "u8"


def test_values_of_whole_episodes_are_metadata(tmp_path):
    words = np.array(["pour", "stir", "wash"])
    seeds = np.array([5, 6, 7])
    read = read_all(write_archive(tmp_path / "d.npz", arrays(), instructions=words, seed=seeds))
    assert [episode.metadata for episode in read] == [
        {"instruction": "pour", "seed": 5},
        {"instruction": "stir", "seed": 6},
        {"instruction": "wash", "seed": 7},
    ]


def test_an_instruction_that_changes_becomes_a_text_field(tmp_path):
    words = np.array(["go", "stop"] * 6 + ["go"])
    read = read_all(write_folder(tmp_path / "d", {**arrays(), "instruction": words}, None))
    assert decode(read[0].arrays["instruction"]) == ("go", "stop", "go", "stop")


def test_an_instruction_that_changes_in_a_later_episode_only_is_kept_per_step(tmp_path):
    words = np.array(["go"] * 12 + ["stop"])
    read = read_all(write_folder(tmp_path / "d", {**arrays(), "instruction": words}, None))
    assert set(decode(read[0].arrays["instruction"])) == {"go"}
    assert decode(read[-1].arrays["instruction"])[-2:] == ("go", "stop")


def test_images_are_left_out_on_request(tmp_path):
    path = write_archive(tmp_path / "d.npz", arrays())
    assert "camera" not in read_all(path, images=False)[0].arrays


def test_reading_may_start_at_any_episode(tmp_path):
    values = arrays()
    with open_source(write_archive(tmp_path / "d.npz", values), True) as source:
        (episode,) = source.episodes(1, 2)
    np.testing.assert_array_equal(episode.arrays["camera"], values["camera"][4:10])


def test_fortran_order_and_big_endian_numbers_read_as_written(tmp_path):
    values = arrays()
    values["position"] = np.asfortranarray(values["position"])
    values["action"] = values["action"].astype(">f4")
    read = read_all(write_archive(tmp_path / "d.npz", values))
    np.testing.assert_array_equal(read[1].arrays["position"], values["position"][4:10])
    np.testing.assert_array_equal(read[1].arrays["action"], values["action"][4:10])
    assert read[1].arrays["action"].dtype == np.float32


def test_the_format_is_recognised(tmp_path):
    assert recognises(write_archive(tmp_path / "d.npz", arrays()))
    assert recognises(write_folder(tmp_path / "d", arrays()))
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    assert not recognises(tmp_path / "other.npz")


def test_an_array_of_another_length_is_named(tmp_path):
    values = arrays()
    values["action"] = values["action"][:-1]
    assert "action has the shape (12, 7)" in read_error(write_archive(tmp_path / "d.npz", values))


def test_an_episode_that_lacks_an_array_is_named(tmp_path):
    path = write_folder(tmp_path / "d", arrays())
    np.savez(path / "run_9.npz", position=np.zeros((3, 6)))
    assert "episode 1 lacks ['action', 'camera', 'reward']" in read_error(path)


def test_ends_that_do_not_rise_are_refused(tmp_path):
    np.savez(tmp_path / "d.npz", episode_ends=np.array([4, 4]), action=np.zeros((4, 2)))
    assert "episode_ends[1] is 4" in read_error(tmp_path / "d.npz")


def test_an_archive_without_ends_is_refused(tmp_path):
    np.savez(tmp_path / "d.npz", action=np.zeros((4, 2)))
    assert "has no array episode_ends" in read_error(tmp_path / "d.npz")


def test_objects_are_refused_and_nothing_runs(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    evil = np.array([Evil()] * 13, dtype=object)
    path = write_archive(tmp_path / "d.npz", arrays(), extra=evil)
    assert "Arrays of objects can run code" in read_error(path)
    assert not (tmp_path / "ran").exists()


def test_a_header_that_promises_more_than_the_archive_has_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        with archive.open("episode_ends.npy", "w") as file:
            np.save(file, np.array([13]))
        with archive.open("action.npy", "w") as file:
            header = {"shape": (13, 2**40), "fortran_order": False, "descr": "<f8"}
            np.lib.format.write_array_header_1_0(file, header)
    assert "action has 0 bytes, expected" in read_error(tmp_path / "d.npz")


def test_a_zip_bomb_is_refused_before_it_is_decompressed(tmp_path):
    with zipfile.ZipFile(tmp_path / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("episode_ends.npy", "w") as file:
            np.save(file, np.array([4]))
        with archive.open("action.npy", "w", force_zip64=True) as file:
            for _ in range(80):
                file.write(bytes(2**20))
    assert "times its own size" in read_error(tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"rate": 20}, "unknown entry 'rate'"),
        ({"rate_hz": 0}, "rate_hz is 0"),
        ({"rate_hz": "20"}, "has the wrong type"),
        ({"units": {"joints": "rad"}}, "units of ['joints'], which are no arrays"),
        ([1], "expected a JSON object"),
    ],
)
def test_a_wrong_description_is_explained(tmp_path, about, message):
    assert message in read_error(write_folder(tmp_path / "d", arrays(), about))


@pytest.mark.parametrize("writer", [write_archive, write_folder])
def test_damaged_copies_are_read_or_refused_in_one_line(tmp_path, writer):
    path = writer(tmp_path / "d.npz", arrays())
    assert check_mutations(path, tmp_path / "scratch", open_source) >= 20
