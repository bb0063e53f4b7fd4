import io
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robots.episodes.formats.hil_serl import open_source, recognises
from robots.episodes.formats.source import SourceEpisode
from robots.errors import HandoffError
from tests.robots.episodes.formats.mutations import check_mutations

LENGTHS = (4, 6, 3)


def transitions(seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(LENGTHS):
        for step in range(length):
            last = step == length - 1
            observation = {
                "state": rng.normal(size=(1, 19)),
                "wrist_1": rng.integers(0, 256, (1, 8, 8, 3)).astype(np.uint8),
                "nested": {"force": rng.normal(size=3).astype(np.float32)},
            }
            rows.append(
                {
                    "observations": observation,
                    "actions": rng.normal(size=7).astype(np.float32),
                    "next_observations": observation,
                    "rewards": float(last and number != 1),
                    "masks": 1.0 - last,
                    "dones": bool(last),
                    "infos": {"note": "x"},
                }
            )
    return rows


def write_pickle(path: Path, content: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def read_all(path: Path, images: bool = True) -> list[SourceEpisode]:
    with open_source(path, images) as source:
        return list(source.episodes(0, source.num_episodes))


def read_error(path: Path) -> str:
    with pytest.raises(HandoffError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Protocol 2 and older store bytes by a call of _codecs.encode, which is refused.
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_episodes_are_cut_where_they_are_done(tmp_path, protocol):
    rows = transitions()
    read = read_all(write_pickle(tmp_path / "d.pkl", rows, protocol))
    assert [len(episode.arrays["actions"]) for episode in read] == list(LENGTHS)
    joined = np.concatenate([episode.arrays["actions"] for episode in read])
    np.testing.assert_array_equal(joined, np.stack([row["actions"] for row in rows]))


def test_observations_lose_their_history_axis_and_are_bit_equal(tmp_path):
    rows = transitions()
    first = read_all(write_pickle(tmp_path / "d.pkl", rows))[0].arrays
    assert first["observations/state"].shape == (4, 19)
    assert first["observations/wrist_1"].shape == (4, 8, 8, 3)
    assert first["observations/nested/force"].shape == (4, 3)
    given = np.concatenate([row["observations"]["wrist_1"] for row in rows[:4]])
    np.testing.assert_array_equal(first["observations/wrist_1"], given)


def test_roles_follow_the_names(tmp_path):
    with open_source(write_pickle(tmp_path / "d.pkl", transitions()), True) as source:
        fields = source.schema.fields
        assert source.schema.rate_hz is None
    assert fields["actions"].role == "action"
    assert {name for name, spec in fields.items() if spec.role == "outcome"} == {
        "rewards",
        "masks",
        "dones",
    }
    assert fields["observations/wrist_1"].unit == "u8"


def test_success_is_a_reward_at_the_end(tmp_path):
    read = read_all(write_pickle(tmp_path / "d.pkl", transitions()))
    assert [episode.metadata["success"] for episode in read] == [True, False, True]


def test_a_stated_success_goes_before_the_reward(tmp_path):
    rows = transitions()
    rows[3]["infos"] = {"succeed": np.bool_(False)}
    assert read_all(write_pickle(tmp_path / "d.pkl", rows))[0].metadata["success"] is False


def test_files_of_a_folder_come_in_the_order_of_their_numbers(tmp_path):
    rows = transitions()
    write_pickle(tmp_path / "transitions_1000.pkl", rows[4:])
    write_pickle(tmp_path / "transitions_200.pkl", rows[:4])
    read = read_all(tmp_path)
    assert [len(episode.arrays["actions"]) for episode in read] == list(LENGTHS)


def test_an_episode_without_an_end_is_kept_and_noted(tmp_path):
    path = write_pickle(tmp_path / "d.pkl", transitions()[:-1])
    with open_source(path, True) as source:
        assert source.num_episodes == 3
        assert any("without being done" in note for note in source.schema.notes)


def test_ordered_mappings_and_numpy_scalars_are_read(tmp_path):
    rows = transitions()
    for row in rows:
        row["observations"] = OrderedDict(row["observations"])
        row["rewards"] = np.float32(row["rewards"])
        row["dones"] = np.bool_(row["dones"])
    read = read_all(write_pickle(tmp_path / "d.pkl", rows))
    assert read[0].arrays["rewards"].dtype == np.float32


def test_names_of_older_numpy_are_read(tmp_path):
    content = pickle.dumps(transitions(), protocol=4)
    old = b"numpy._core.multiarray"
    new = b"numpy.core.multiarray"
    # SHORT_BINUNICODE has its length before it, and a frame the sum of all.
    content = content.replace(b"\x8c" + bytes([len(old)]) + old, b"\x8c" + bytes([len(new)]) + new)
    changed = len(pickle.dumps(transitions(), protocol=4)) - len(content)
    size = struct.unpack("<Q", content[3:11])[0]
    content = content[:3] + struct.pack("<Q", size - changed) + content[11:]
    (tmp_path / "d.pkl").write_bytes(content)
    assert len(read_all(tmp_path / "d.pkl")) == 3


def test_images_are_left_out_on_request(tmp_path):
    path = write_pickle(tmp_path / "d.pkl", transitions())
    assert "observations/wrist_1" not in read_all(path, images=False)[0].arrays


def test_the_format_is_recognised(tmp_path):
    assert recognises(write_pickle(tmp_path / "d.pkl", transitions()))
    assert recognises(tmp_path)
    (tmp_path / "e.pkl").write_text("hello")
    assert not recognises(tmp_path / "e.pkl")


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, function: Any, *values: Any) -> None:
        self.call = (function, values)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    ("function", "values", "name"),
    [
        (os.system, ("touch ran",), "posix.system"),
        (eval, ("1+1",), "builtins.eval"),
        (np.load, ("x.npy",), "numpy.load"),
        (getattr, (1, "real"), "builtins.getattr"),
        (io.open, ("ran", "w"), "io.open"),
    ],
)
def test_any_other_name_is_refused_and_nothing_runs(tmp_path, monkeypatch, function, values, name):
    monkeypatch.chdir(tmp_path)
    rows = transitions()
    rows[5]["infos"] = {"x": Evil(function, *values)}
    error = read_error(write_pickle(tmp_path / "d.pkl", rows))
    assert f"needs {name}, which is not allowed" in error
    assert not (tmp_path / "ran").exists()


def test_arrays_of_objects_are_refused(tmp_path):
    rows = transitions()
    rows[0]["observations"]["extra"] = np.array([None, {}], dtype=object)
    assert "the number type 'O8'" in read_error(write_pickle(tmp_path / "d.pkl", rows))


@pytest.mark.parametrize(
    "content",
    [
        # A memo of 2**31 places, a frame of 2**60 bytes, bytes of 2**60, and a stack of lists.
        b"\x80\x04]r\xff\xff\xff\x7f.",
        b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"].",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"x.",
        b"\x80\x04" + b"(" * 10**6 + b"l" * 10**6 + b".",
        b"\x80\x04" + b"]" * 3000 + b"a" * 2999 + b".",
        b"p99999999999\n.",
        b"\x80\x04.",
        b"",
    ],
)
def test_a_pickle_that_asks_for_memory_is_refused(tmp_path, content):
    (tmp_path / "d.pkl").write_bytes(content)
    assert "d.pkl" in read_error(tmp_path / "d.pkl")


def test_an_array_larger_than_its_bytes_is_refused(tmp_path):
    array = np.arange(7, dtype=np.float32)
    content = pickle.dumps([{"observations": {}, "actions": array}], protocol=4)
    # The shape (7,) becomes (127,).
    content = content.replace(b"K\x07\x85", b"K\x7f\x85")
    (tmp_path / "d.pkl").write_bytes(content)
    assert "28 bytes for an array (127,)" in read_error(tmp_path / "d.pkl")


def test_nested_lists_that_name_each_other_end(tmp_path):
    row: Any = []
    for _ in range(12):
        row = [row] * 100
    rows = transitions()
    rows[0]["infos"] = {"x": row}
    assert len(read_all(write_pickle(tmp_path / "d.pkl", rows))) == 3
    rows[0]["observations"] = {"x": row}
    assert "observations/x is list" in read_error(write_pickle(tmp_path / "d.pkl", rows))


def test_functions_that_are_allowed_cannot_be_changed(tmp_path):
    # BUILD on the name numpy.dtype.
    content = b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93}\x8c\x01a\x8c\x01bsb."
    (tmp_path / "d.pkl").write_bytes(content)
    assert "a function whose state is set" in read_error(tmp_path / "d.pkl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "holds dict, expected a list of transitions"),
        ([], "expected a list of transitions"),
        ([{"actions": 1}], "transition 0 lacks ['observations', 'rewards', 'dones']"),
        ([3], "transition 0 lacks"),
    ],
)
def test_other_content_is_explained(tmp_path, content, message):
    assert message in read_error(write_pickle(tmp_path / "d.pkl", content))


def test_a_transition_of_another_shape_is_named(tmp_path):
    rows = transitions()
    rows[2]["actions"] = np.zeros(6, np.float32)
    error = read_error(write_pickle(tmp_path / "d.pkl", rows))
    assert "actions of episode 0 has the shapes ['(6,)', '(7,)']" in error


def test_a_name_of_several_lines_is_refused_in_one(tmp_path):
    rows = transitions()
    rows[0]["observations"]["a\nb"] = np.zeros(3)
    assert "holds the name 'a\\nb'" in read_error(write_pickle(tmp_path / "d.pkl", rows))


def test_a_missing_observation_is_named(tmp_path):
    rows = transitions()
    del rows[8]["observations"]["state"]
    assert "observations/state" in read_error(write_pickle(tmp_path / "d.pkl", rows))


def test_damaged_copies_are_read_or_refused_in_one_line(tmp_path):
    path = write_pickle(tmp_path / "d.pkl", transitions())
    assert check_mutations(path, tmp_path / "scratch", open_source) >= 20
