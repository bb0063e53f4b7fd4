"""The topic `/episode` of recordings: Handoff's description, or something else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robots.episodes.formats.ros.description import LARGEST, parse_description
from robots.episodes.formats.rosbag import open_source
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.errors import HandoffError
from tests.robots.episodes.formats.mutations import check_mutations
from tests.robots.episodes.formats.rosbag_files import (
    START_NS,
    Sent,
    messages,
    typestore,
    values,
    write_mcap,
)

STRING = "std_msgs/msg/String"
ACTION = {"field": "policy/action", "shape": [7], "dtype": "float64", "unit": "rad"}
GRIPPER = {"field": "policy/width", "shape": [], "dtype": "float32", "unit": "m"}


def description(**changed: Any) -> dict[str, Any]:
    about = {
        "task": "fold",
        "robot": "fr3",
        "episode": 0,
        "rate_hz": 10.0,
        "metadata": {"success": True},
        "fields": {"/arm/command": ACTION, "/gripper": GRIPPER},
    }
    return {**about, **changed}


def described(text: str, times: int = 1) -> list[Sent]:
    message = typestore().types[STRING](data=text)
    return [Sent("/episode", STRING, START_NS, message) for _ in range(times)]


def recording(
    path: Path,
    about: Mapping[str, Any] | str,
    topics: tuple[str, ...] = ("/arm/command", "/gripper"),
    times: int = 1,
    number: int = 0,
) -> Path:
    """A recording of some topics of `values()`, with a description."""
    others = [one for one in messages(values()[number]) if one.topic in topics]
    text = about if isinstance(about, str) else json.dumps(about)
    return write_mcap(path, [*described(text, times), *others])


def read(path: Path) -> tuple[SourceSchema, list[SourceEpisode]]:
    with open_source(path, True) as source:
        return source.schema, list(source.episodes(0, source.num_episodes))


def test_described_topics_have_the_fields_names_and_the_rate(tmp_path: Path) -> None:
    schema, (episode,) = read(recording(tmp_path / "d.mcap", description()))
    assert (schema.task, schema.robot, schema.rate_hz) == ("fold", "fr3", 10.0)
    assert schema.fields.keys() == {"action", "width"}
    assert (schema.fields["action"].unit, schema.fields["action"].role) == ("rad", "action")
    np.testing.assert_array_equal(episode.arrays["action"], values()[0]["action"])
    np.testing.assert_array_equal(episode.arrays["width"], values()[0]["width"])
    assert episode.metadata["success"] is True
    assert episode.times == {}


def test_another_topic_beside_them_takes_the_rate_away(tmp_path: Path) -> None:
    topics = ("/arm/command", "/gripper", "/pose")
    schema, (episode,) = read(recording(tmp_path / "d.mcap", description(), topics))
    assert (schema.rate_hz, schema.own_times) == (None, True)
    assert {"action", "width", "pose/pose/position"} <= schema.fields.keys()
    np.testing.assert_allclose(episode.times["action"], [0.0, 0.1, 0.2, 0.3], atol=1e-6)


def test_a_topic_of_another_shape_keeps_the_name_of_its_message(tmp_path: Path) -> None:
    about = description(fields={"/arm/command": {**ACTION, "shape": [6]}, "/gripper": GRIPPER})
    schema, _ = read(recording(tmp_path / "d.mcap", about))
    assert schema.fields.keys() == {"arm/command/data", "width"}
    assert schema.rate_hz is None


def test_a_topic_of_other_numbers_keeps_those_of_its_message(tmp_path: Path) -> None:
    about = description(fields={"/arm/command": {**ACTION, "dtype": "int32"}})
    schema, _ = read(recording(tmp_path / "d.mcap", about))
    assert schema.fields["arm/command/data"].dtype == "float64"


@pytest.mark.parametrize(
    "fields",
    [
        {"/arm/command": ACTION, "/gripper": {**GRIPPER, "field": "policy/action"}},
        {"/arm/command": ACTION, "/gripper": {**GRIPPER, "field": "policy/action/width"}},
    ],
)
def test_names_that_exclude_each_other_are_not_taken(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    schema, _ = read(recording(tmp_path / "d.mcap", description(fields=fields)))
    assert schema.fields.keys() == {"arm/command/data", "gripper/data"}


@pytest.mark.parametrize("text", ["", "[1]", "rolling", '{"task": "fold"}', '{"a": ' * 9000])
def test_a_foreign_topic_of_this_name_is_left_out(tmp_path: Path, text: str) -> None:
    schema, (episode,) = read(recording(tmp_path / "d.mcap", text))
    assert schema.fields.keys() == {"arm/command/data", "gripper/data"}
    assert (schema.task, schema.robot, schema.rate_hz) == ("d", "", None)
    assert any("/episode (std_msgs/msg/String)" in note for note in schema.notes)
    assert "success" not in episode.metadata


def test_two_descriptions_of_one_recording_are_none(tmp_path: Path) -> None:
    schema, _ = read(recording(tmp_path / "d.mcap", description(), times=2))
    assert schema.fields.keys() == {"arm/command/data", "gripper/data"}


@pytest.mark.parametrize(
    "changed",
    [
        {"rate_hz": 0.0},
        {"rate_hz": 1e9},
        {"rate_hz": True},
        {"rate_hz": "10"},
        {"rate_hz": float("nan")},
        {"task": 3},
        {"task": "a\x1b[2Jb"},
        {"robot": "x" * 201},
        {"metadata": []},
        {"fields": []},
        {"fields": {f"/{number}": GRIPPER for number in range(1001)}},
        {"fields": {"/a": {**ACTION, "capture_times": [1]}}},
        {"fields": {"/a": 3}},
        {"fields": {"/a": {**ACTION, "field": "policy/../x"}}},
        {"fields": {"/a": {**ACTION, "field": "action"}}},
        {"fields": {"/a": {**ACTION, "dtype": "object"}}},
        {"fields": {"/a": {**ACTION, "dtype": "(1000000000,)f4"}}},
        {"fields": {"/a": {**ACTION, "shape": [-1]}}},
        {"fields": {"/a": {**ACTION, "role": "king"}}},
        {"fields": {"/a": {**ACTION, "unit": "m\n"}}},
        {"fields": {"/a": {**ACTION, "further": 1}}},
        {"fields": {"/a": {**ACTION, "capture_times": GRIPPER}}},
        {"further": 1},
    ],
)
def test_a_description_with_a_wrong_entry_is_none(changed: dict[str, Any]) -> None:
    assert parse_description(json.dumps(description())) is not None
    assert parse_description(json.dumps(description(**changed))) is None


def test_a_description_that_is_too_large_is_none() -> None:
    assert parse_description(json.dumps(description(metadata={"a": "x" * LARGEST}))) is None


@pytest.mark.parametrize(
    "value", [float("inf"), 2**70, "x" * 70_000, "\ud800", [[[[[[[[[1]]]]]]]]], {"a": 2**70}]
)
def test_metadata_that_cannot_be_stored_are_left_out_with_a_note(
    tmp_path: Path, value: object
) -> None:
    about = description(metadata={"kept": [1, "two", {"three": 3.0}], "left": value})
    schema, (episode,) = read(recording(tmp_path / "d.mcap", about))
    assert episode.metadata["kept"] == [1, "two", {"three": 3.0}]
    assert "left" not in episode.metadata
    assert "Metadata that cannot be stored are left out: 'left'." in schema.notes


def test_a_meaning_to_a_controller_that_nobody_knows_is_left_open(tmp_path: Path) -> None:
    about = description(fields={"/arm/command": {**ACTION, "interface": "full_power"}})
    schema, _ = read(recording(tmp_path / "d.mcap", about))
    assert schema.fields["action"].interface == ""


def test_a_recording_that_describes_its_topics_otherwise_is_refused(tmp_path: Path) -> None:
    recording(tmp_path / "d_0.mcap", description())
    other = {"/arm/command": {**ACTION, "unit": "m"}, "/gripper": GRIPPER}
    recording(tmp_path / "d_1.mcap", description(fields=other))
    with pytest.raises(HandoffError, match=r"d_1.mcap: describes /arm/command otherwise than"):
        read(tmp_path)


def test_a_later_recording_with_other_topics_has_capture_times(tmp_path: Path) -> None:
    recording(tmp_path / "d_0.mcap", description())
    recording(tmp_path / "d_1.mcap", description(), ("/arm/command", "/gripper", "/pose"))
    schema, (first, second) = read(tmp_path)
    assert schema.rate_hz == 10.0
    assert first.times == {}
    assert second.times.keys() == {"action", "width"}


def test_damaged_descriptions_end_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.mkdir()
    for number in range(2):
        others = [one for one in messages(values()[number]) if one.type_name != STRING]
        sent = [*described(json.dumps(description())), *others]
        write_mcap(path / f"run_{number}.mcap", sent, compression="", chunk_messages=1)
    assert check_mutations(path, tmp_path / "scratch", open_source, seed=7) >= 20


def test_damaged_json_ends_in_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = json.dumps(description())
    read_as_is = 0
    for number in range(60):
        letters = list(text)
        for place in rng.integers(0, len(text), rng.integers(1, 4)):
            letters[place] = chr(int(rng.integers(32, 127)))
        path = recording(tmp_path / f"{number}.mcap", "".join(letters))
        schema, (episode,) = read(path)
        assert len(episode.arrays) == len(schema.fields)
        read_as_is += schema.rate_hz is not None
    assert 0 < read_as_is < 60
