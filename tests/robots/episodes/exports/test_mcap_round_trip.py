"""A store that is exported to MCAP and imported again, without a map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robots.episodes.config import FieldMapConfig
from robots.episodes.demonstrations import field_role, open_demonstrations
from robots.episodes.exports.mcap import write_mcap
from robots.episodes.formats.ros.mcap import McapReader
from robots.episodes.formats.ros.ros_types import RosTypes
from robots.episodes.formats.rosbag import open_source
from robots.episodes.metadata.capture_times import capture_time_field
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.language.text import encode
from robots.spec import FieldSpec
from tests.robots.episodes.exports.viewer_store import (
    FIELDS,
    LENGTHS,
    RATE_HZ,
    ROBOT,
    arrays,
    make_store,
)

CAPTURED = {
    "cameras/front_time": capture_time_field("cameras/front"),
    "depth_time": capture_time_field("depth"),
    "action_time": capture_time_field("action"),
}
OTHERS = {
    "half": FieldSpec(shape=(2,), dtype="float16", role="observation"),
    "flags": FieldSpec(shape=(2, 2), dtype="bool", role="other"),
    "speed": FieldSpec(shape=(), dtype="float32", unit="m/s", about="of the tip", role="other"),
    "turned": FieldSpec(shape=(4,), names=(("x", "y", "z", "w"),), role="observation"),
    "pose": FieldSpec(
        shape=(7,), names=(("x", "y", "z", "qx", "qy", "qz", "qw"),), role="observation"
    ),
    "target": FieldSpec(shape=(4,), names=(("x", "y", "z", "w"),), role="other"),
    "subtask": FieldSpec(shape=(32,), dtype="uint8", unit="utf8", role="observation"),
}
METADATA = {
    "success": True,
    "operator": "ada",
    "seed": 3,
    "people": ["ada", "bob"],
    "calibration": {"front": {"matrix": [[1.5, 0.0], [0.0, 1.5]]}},
    "instruction": "tidy",
    "fault": None,
}


def captured(length: int, first: float) -> np.ndarray:
    """Capture times of whole microseconds, from `first` on [s]."""
    return np.round(first + np.arange(length) / RATE_HZ + 0.000123, 6)


def episode(number: int, first: float = 0.001) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(number)
    length = LENGTHS[number]
    values = arrays(number)["policy"]
    values |= {name: captured(length, first) for name in CAPTURED}
    for name, spec in OTHERS.items():
        values[name] = rng.normal(size=(length, *spec.shape)).astype(spec.dtype)
    values["flags"] = rng.random((length, 2, 2)) < 0.5
    values["subtask"] = encode(["", "reach", "", "grasp", "grasp"][:length], 32)
    return values


def store_of(path: Path, first: float = 0.001, **others: StreamSpec) -> EpisodeStore:
    fields = {**FIELDS, **CAPTURED, **OTHERS}
    streams = {"policy": StreamSpec(rate_hz=RATE_HZ, fields=fields), **others}
    schema = EpisodeSchema(name="drawer", streams=streams, robot="fr3")
    with EpisodeStore.create(path, schema) as store:
        for number in range(len(LENGTHS)):
            given = {"policy": episode(number, first)}
            given |= {name: arrays(number)[name] for name in others}
            store.append(given, {**METADATA, "episode": number})
    return EpisodeStore.open(path)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcap")
    write_mcap(store_of(folder / "s.zarr"), folder / "out")
    return folder / "out"


def stamps(path: Path, topic: str) -> list[tuple[int, int]]:
    """Time of recording and stamp of the messages of a topic [ns]."""
    types = RosTypes(path)
    found = []
    for message in McapReader(path).messages():
        schema = message.channel.schema
        if message.channel.topic == topic and schema is not None:
            name = types.define(schema.name, schema.encoding, schema.text.decode())
            stamp = types.decode(name, message.data, False).header.stamp
            found.append((message.log_ns, stamp.sec * 10**9 + stamp.nanosec))
    return found


def topics(path: Path) -> set[str]:
    return {message.channel.topic for message in McapReader(path).messages()}


def imported(
    path: Path, mapping: FieldMapConfig | None = None
) -> tuple[EpisodeSchema, list[tuple[dict[str, np.ndarray], dict[str, Any]]]]:
    with open_demonstrations(path, True, mapping=mapping) as read:
        episodes = list(read.episodes(0, read.num_episodes))
        return read.schema, [(streams["policy"], about) for streams, about in episodes]


def test_every_step_of_every_field_comes_back_bit_for_bit(exported: Path) -> None:
    for number, (found, _) in enumerate(imported(exported)[1]):
        given = episode(number)
        assert found.keys() == given.keys()
        for name, values in given.items():
            assert found[name].dtype == values.dtype, name
            np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_task_rate_and_fields_come_back(exported: Path) -> None:
    schema = imported(exported)[0]
    assert (schema.name, schema.streams["policy"].rate_hz) == ("drawer", RATE_HZ)
    for name, spec in {**FIELDS, **CAPTURED, **OTHERS}.items():
        found = schema.streams["policy"].fields[name]
        expected = replace(spec, role=field_role(name, spec))
        assert (found, found.names, found.about, found.role) == (
            expected,
            expected.names,
            expected.about,
            expected.role,
        )


def test_metadata_and_robot_come_back(exported: Path) -> None:
    for number, (_, found) in enumerate(imported(exported)[1]):
        assert found == {
            **METADATA,
            "episode": number,
            "source_file": f"episode_{number:06d}.mcap",
            "source_episode": number,
            "source_robot": "fr3",
        }


def test_a_picture_is_recorded_at_its_step_and_stamped_with_its_capture_time(
    exported: Path,
) -> None:
    given = np.round(captured(LENGTHS[0], 0.001) * 1e9).astype(int).tolist()
    steps = [round(step / RATE_HZ * 1e9) for step in range(LENGTHS[0])]
    found = stamps(exported / "episode_000000.mcap", "/cameras/front")
    assert found == list(zip(steps, given, strict=True))


def test_capture_times_are_a_topic_only_where_messages_have_no_stamp(exported: Path) -> None:
    found = topics(exported / "episode_000000.mcap")
    assert {topic for topic in found if topic.endswith("_time")} == {"/action_time"}


def test_capture_times_before_the_beginning_become_0_and_are_counted(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.zarr", first=-0.06)
    notes = write_mcap(store, tmp_path / "out")["notes"]
    # At 20 Hz the first two of either episode lie before 0.
    assert (
        "cameras/front_time: no topic, but the stamps of cameras/front, to the nanosecond; 4 that ROS has no time for "
        "became 0 or 2^31 s"
    ) in notes
    (found, _), _ = imported(tmp_path / "out")[1]
    expected = np.maximum(captured(LENGTHS[0], -0.06), 0.0)
    np.testing.assert_array_equal(found["cameras/front_time"], expected)
    np.testing.assert_array_equal(found["action_time"], captured(LENGTHS[0], -0.06))


def test_an_export_of_two_streams_is_resampled_with_its_capture_times(tmp_path: Path) -> None:
    robot = StreamSpec(rate_hz=4 * RATE_HZ, fields=ROBOT)
    write_mcap(store_of(tmp_path / "s.zarr", -0.02, robot=robot), tmp_path / "out")
    schema, episodes = imported(tmp_path / "out", FieldMapConfig(resample_hz=RATE_HZ))
    fields = {*FIELDS, *CAPTURED, *OTHERS, "robot/tau"}
    assert set(schema.streams["policy"].fields) == fields
    for number, (found, _) in enumerate(episodes):
        # The last picture was taken before the last step, which has no newer one.
        given = episode(number, -0.02)
        steps = LENGTHS[number] - 1
        for name in ("action", "subtask", "flags", "cameras/front"):
            np.testing.assert_array_equal(found[name], given[name][:steps], err_msg=name)
        times = np.maximum(given["cameras/front_time"], 0.0)[:steps]
        np.testing.assert_allclose(found["cameras/front_time"], times, atol=1e-9)


def test_streams_of_other_rates_need_a_rate_and_a_note_says_so_once(tmp_path: Path) -> None:
    notes = write_mcap(make_store(tmp_path / "s.zarr"), tmp_path / "out")["notes"]
    assert [note for note in notes if "resample_hz" in note] == [
        "the streams robot have samples of their own, so an import needs resample_hz; it makes one stream"
    ]
    with open_source(tmp_path / "out", True) as source:
        assert (source.schema.rate_hz, source.schema.own_times) == (None, True)
        assert sum("resample_hz" in note for note in source.schema.notes) == 1


def test_an_export_of_one_stream_states_its_rate_and_asks_for_no_map(exported: Path) -> None:
    with open_source(exported, True) as source:
        assert (source.schema.rate_hz, source.schema.own_times) == (RATE_HZ, False)
        assert source.schema.robot == "fr3"
        assert not any("map" in note for note in source.schema.notes)


def test_notes_of_an_export_name_what_handoff_alone_reads_and_flat_arrays(tmp_path: Path) -> None:
    notes = write_mcap(store_of(tmp_path / "s.zarr"), tmp_path / "out")["notes"]
    assert notes[0] == (
        "metadata, units, roles, names and number types are JSON on /episode, which only Handoff reads"
    )
    assert "matrix, flags: arrays of several axes, flat in their messages" in notes


def test_pictures_are_left_out_if_they_are_not_wanted(exported: Path) -> None:
    with open_source(exported, False) as source:
        (first, _) = source.episodes(0, 2)
    assert not {"cameras/front", "depth"} & first.arrays.keys()
    np.testing.assert_array_equal(first.arrays["action"], episode(0)["action"])
