import sqlite3
import struct
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.config import FieldMapConfig
from robots.episodes.field_map import MappedEpisodes
from robots.episodes.formats.ros.ros_types import RosTypes
from robots.episodes.formats.rosbag import open_source, recognises
from robots.episodes.formats.source import SourceEpisode
from robots.episodes.ingest import IngestConfig, ingest
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.robots.episodes.formats.mutations import check_mutations
from tests.robots.episodes.formats.rosbag_files import (
    LENGTHS,
    MAGIC,
    START_NS,
    Sent,
    channel,
    encoded,
    header,
    messages,
    pack,
    schema,
    string,
    typestore,
    values,
    write_mcap,
    write_rosbag2,
)


def write_all(path: Path, **options) -> Path:
    path.mkdir()
    for number, given in enumerate(values()):
        write_mcap(path / f"run_{number + 8}.mcap", messages(given), **options)
    return path


def read_all(path: Path, images: bool = True) -> list[SourceEpisode]:
    with open_source(path, images) as source:
        return list(source.episodes(0, source.num_episodes))


def read_error(path: Path) -> str:
    with pytest.raises(HandoffError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("compression", ["zstd", "lz4", ""])
def test_every_file_of_a_folder_is_an_episode(tmp_path, compression):
    given = values()
    read = read_all(write_all(tmp_path / "d", compression=compression))
    assert [len(episode.arrays["pose/pose/position"]) for episode in read] == list(LENGTHS)
    for episode, arrays in zip(read, given, strict=True):
        np.testing.assert_array_equal(episode.arrays["joint_states/position"], arrays["position"])
        np.testing.assert_array_equal(episode.arrays["arm/command/data"], arrays["action"])
        np.testing.assert_array_equal(episode.arrays["gripper/data"][:, 0], arrays["width"])


@pytest.mark.parametrize("storage", ["sqlite3", "mcap"])
def test_a_rosbag2_folder_is_one_episode(tmp_path, storage):
    given = values()[1]
    path = write_rosbag2(tmp_path / "bag", messages(given), storage)
    (episode,) = read_all(path)
    np.testing.assert_array_equal(episode.arrays["arm/command/data"], given["action"])
    assert episode.metadata == {
        "source_file": "bag",
        "began": "2023-11-14T22:13:20.000Z",
        "instruction": "open the drawer",
    }
    file = next(file for file in path.iterdir() if file.suffix in (".db3", ".mcap"))
    np.testing.assert_array_equal(read_all(file)[0].arrays["arm/command/data"], given["action"])


def test_folders_of_recordings_come_in_the_order_of_their_numbers(tmp_path):
    for number, given in enumerate(values()):
        write_rosbag2(tmp_path / f"bag_{number + 9}", messages(given))
    read = read_all(tmp_path)
    assert [len(episode.arrays["arm/command/data"]) for episode in read] == list(LENGTHS)


def test_pictures_and_depth_are_bit_equal(tmp_path):
    given = values()
    read = read_all(write_all(tmp_path / "d"))
    np.testing.assert_array_equal(read[1].arrays["camera/image"], given[1]["image"][::2])
    np.testing.assert_array_equal(read[1].arrays["camera/depth"], given[1]["depth"][::2])


def test_every_field_has_its_own_capture_times(tmp_path):
    first = read_all(write_all(tmp_path / "d"))[0]
    # The stamps of the joints are 2 ms before the time of recording, the pictures 5 ms later.
    np.testing.assert_allclose(
        first.times["joint_states/position"], [-0.002, 0.098, 0.198, 0.298], atol=1e-6
    )
    np.testing.assert_allclose(first.times["camera/image"], [0.005, 0.205], atol=1e-6)
    np.testing.assert_allclose(first.times["arm/command/data"], [0.0, 0.1, 0.2, 0.3], atol=1e-6)


def test_stamps_of_another_clock_give_way_to_the_time_of_recording(tmp_path):
    types = typestore().types
    name = "sensor_msgs/msg/JointState"
    sent = [
        Sent(
            "/joints",
            name,
            START_NS + step * 10**8,
            types[name](header(types, step * 10**8, ""), ["a"], np.ones(1), *[np.zeros(0)] * 2),
        )
        for step in range(3)
    ]
    (episode,) = read_all(write_mcap(tmp_path / "d.mcap", sent))
    np.testing.assert_allclose(episode.times["joints/position"], [0.0, 0.1, 0.2], atol=1e-6)


def test_quaternions_are_stored_with_the_scalar_first(tmp_path):
    given = values()[0]
    path = write_mcap(tmp_path / "d.mcap", messages(given))
    with open_source(path, True) as source:
        (episode,) = source.episodes(0, 1)
        spec = source.schema.fields["pose/pose/orientation"]
    np.testing.assert_array_equal(episode.arrays["pose/pose/orientation"], given["pose"][:, 3:])
    assert spec.names == (("w", "x", "y", "z"),)


def test_joints_are_ordered_by_their_names(tmp_path):
    given = values()[0]
    path = write_mcap(tmp_path / "d.mcap", messages(given, shuffle_joints=True))
    with open_source(path, True) as source:
        (episode,) = source.episodes(0, 1)
        spec = source.schema.fields["joint_states/position"]
    np.testing.assert_array_equal(episode.arrays["joint_states/position"], given["position"])
    assert spec.names == (("a", "b", "c"),)
    assert spec.frame == "base"


def test_roles_units_and_notes(tmp_path):
    with open_source(write_all(tmp_path / "d"), True) as source:
        schema_ = source.schema
    assert schema_.rate_hz is None
    assert {name: (spec.role, spec.unit) for name, spec in schema_.fields.items()} == {
        "arm/command/data": ("action", "1"),
        "camera/depth": ("observation", "mm"),
        "camera/image": ("observation", "u8"),
        "gripper/data": ("observation", "1"),
        "joint_states/position": ("observation", "1"),
        "pose/pose/orientation": ("observation", "1"),
        "pose/pose/position": ("observation", "m"),
    }
    assert any("arm/command/data" in note for note in schema_.notes)


def test_two_commands_leave_the_action_open(tmp_path):
    sent = messages(values()[0])
    sent += [one._replace(topic="/other/target") for one in sent if one.topic == "/arm/command"]
    with open_source(write_mcap(tmp_path / "d.mcap", sent), True) as source:
        assert {spec.role for spec in source.schema.fields.values()} == {"observation"}
        assert any("action: {source: TOPIC}" in note for note in source.schema.notes)


def test_the_field_map_resamples_a_recording(tmp_path):
    with open_source(write_all(tmp_path / "d"), True) as source:
        # From the first picture at 5 ms to the last one, or to the last joints at 198 ms.
        mapped = MappedEpisodes(source, FieldMapConfig(resample_hz=10.0))
        streams = [streams["policy"] for streams, _ in mapped.episodes(0, 3)]
    assert [len(fields["action"]) for fields in streams] == [3, 5, 2]
    for fields in streams:
        captured = fields["camera/image_time"]
        # A picture is as new as its step, or older.
        assert (captured <= np.arange(len(captured)) / 10.0 + 1e-6).all()
        assert (np.diff(captured) >= 0.0).all()
    assert mapped.schema.stream("policy").fields["camera/image_time"].unit == "s"


def test_a_topic_inside_another_one_gets_a_name_of_its_own(tmp_path):
    sent = messages(values()[0])
    sent += [one._replace(topic="/camera/image/raw") for one in sent if "image" in one.topic]
    with open_source(write_mcap(tmp_path / "d.mcap", sent), True) as source:
        assert {"camera/image/message", "camera/image/raw"} <= source.schema.fields.keys()


def test_images_are_left_out_on_request(tmp_path):
    names = read_all(write_all(tmp_path / "d"), images=False)[0].arrays.keys()
    assert "camera/image" not in names
    assert "camera/depth" not in names


def test_the_format_is_recognised(tmp_path):
    path = write_all(tmp_path / "d")
    assert recognises(path)
    assert recognises(path / "run_8.mcap")
    assert recognises(write_rosbag2(tmp_path / "bag", messages(values()[0])))
    assert recognises(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    assert not recognises(tmp_path / "notes.txt")


@pytest.mark.parametrize("share", [0.5, 0.8, 0.97])
def test_a_file_cut_short_is_read_to_its_last_complete_chunk(tmp_path, share):
    path = write_mcap(tmp_path / "d.mcap", messages(values()[1]))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with open_source(path, True) as source:
        (episode,) = source.episodes(0, 1)
        assert any("cut short" in note for note in source.schema.notes)
    assert 0 < len(episode.arrays["arm/command/data"]) <= 6
    assert episode.metadata["cut_short"] is True


def test_an_import_names_the_recordings_that_were_cut_short(tmp_path):
    path = write_mcap(tmp_path / "d.mcap", messages(values()[1]))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.97)])
    mapping = FieldMapConfig(resample_hz=10.0)
    config = IngestConfig(data=str(path), map=mapping, download=False)
    (tmp_path / "out").mkdir()
    notes = ingest(config, tmp_path / "out", no_progress, tmp_path / "none")["notes"]
    assert "1 recording was cut short (episode 0): what was complete is in the store" in notes


def test_a_file_that_was_cut_before_a_topic_is_no_node_that_did_not_run(tmp_path):
    write_mcap(tmp_path / "a.mcap", messages(values()[1]))
    path = write_mcap(tmp_path / "b.mcap", messages(values()[1]), compression="")
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"/arm/command")])
    with (
        open_source(tmp_path, True) as source,
        pytest.raises(HandoffError, match=r"b\.mcap.*cut short"),
    ):
        list(source.episodes(0, 2))


def test_a_flipped_bit_in_a_chunk_is_found_by_its_checksum(tmp_path):
    path = write_mcap(tmp_path / "d.mcap", messages(values()[0]), compression="")
    content = bytearray(path.read_bytes())
    content[content.index(b"open the drawer")] ^= 1
    path.write_bytes(content)
    assert "another size or checksum than stated" in read_error(path)


@pytest.mark.parametrize("encoding", ["protobuf", "jsonschema"])
def test_topics_of_other_systems_are_named(tmp_path, encoding):
    records = [schema(1, "foxglove.RawImage", encoding, b"{}"), channel(1, 1, "/cam", "json")]
    records += [encoded(5, struct.pack("<HIQQ", 1, 0, 0, 0) + b"{}")]
    path = tmp_path / "d.mcap"
    path.write_bytes(MAGIC + encoded(1, string("") * 2) + b"".join(records))
    error = read_error(path)
    assert f"/cam: json with {encoding} (foxglove.RawImage)" in error


def test_a_topic_that_a_later_recording_lacks_is_named(tmp_path):
    path = write_all(tmp_path / "d")
    sent = [one for one in messages(values()[1]) if one.topic != "/gripper"]
    write_mcap(path / "run_9.mcap", sent)
    assert "has no gripper/data, which the first recording has" in read_error(path)


def test_other_joints_within_a_topic_are_refused(tmp_path):
    sent = messages(values()[0])
    second = [one for one in sent if one.topic == "/joint_states"][1]
    second.message.name[:] = ["x", "y", "z"]
    assert "a JointState has the joints" in read_error(write_mcap(tmp_path / "d.mcap", sent))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_chunk_that_decompresses_to_more_than_it_states_is_refused(tmp_path, compression):
    path = tmp_path / "d.mcap"
    bomb = pack(bytes(2**24), compression, size=1000)
    path.write_bytes(MAGIC + encoded(1, string("ros2") * 2) + bomb)
    assert "another size or checksum" in read_error(path)
    path.write_bytes(MAGIC + encoded(1, string("ros2") * 2) + pack(b"", compression, size=2**40))
    assert "Was it made for this purpose?" in read_error(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("string[1000000000] x", "array of the length 1000000000"),
        ("string[9000] x\nstring[9000] y", "nested fields"),
        ("float64[-5] x", "array of the length -5"),
        ("Bomb x", "nested more than"),
        ("Missing x", "is not defined"),
        ("float64 x\nprint(1)", "cannot be read"),
        ("float64 X=1e999", "cannot be read"),
        ("float64[999999999] x", "array of the length"),
        ("float64 x", "cannot be read"),
    ],
)
def test_a_definition_that_asks_for_memory_or_code_is_refused(tmp_path, text, message):
    types = RosTypes(tmp_path / "d.mcap")
    with pytest.raises(HandoffError) as caught:
        types.decode(types.define("evil_msgs/msg/Bomb", "ros2msg", text), b"\0\1\0\0", False)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_type_with_a_name_that_is_none_is_refused(tmp_path):
    types = RosTypes(tmp_path / "d.mcap")
    with pytest.raises(HandoffError, match="expected a name such as"):
        types.define("a/msg/B\nint8 x", "ros2msg", "int8 y")


def test_a_database_with_a_view_is_refused(tmp_path):
    path = write_rosbag2(tmp_path / "bag", messages(values()[0]))
    file = next(path.glob("*.db3"))
    with sqlite3.connect(file) as connection:
        connection.execute("ALTER TABLE messages RENAME TO rows")
        connection.execute("CREATE VIEW messages AS SELECT * FROM rows")
    assert "holds the view 'messages'" in read_error(path)


def test_a_part_that_the_metadata_names_must_be_there(tmp_path):
    path = write_rosbag2(tmp_path / "bag", messages(values()[0]))
    next(path.glob("*.db3")).unlink()
    assert "which are missing" in read_error(path)


def test_a_link_to_another_place_is_refused(tmp_path):
    path = write_all(tmp_path / "d")
    (path / "run_9.mcap").rename(tmp_path / "secret.mcap")
    (path / "run_9.mcap").symlink_to(tmp_path / "secret.mcap")
    assert "is a link" in read_error(path)


def test_a_message_without_a_definition_is_left_out(tmp_path):
    path = write_rosbag2(tmp_path / "bag", messages(values()[0]))
    file = next(path.glob("*.db3"))
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM message_definitions")
        connection.execute(
            "UPDATE topics SET type = 'franka_msgs/msg/State' WHERE name = '/gripper'"
        )
    with open_source(path, True) as source:
        assert "gripper/data" not in source.schema.fields
        assert any("franka_msgs/msg/State" in note for note in source.schema.notes)


@pytest.mark.parametrize("storage", ["folder", "sqlite3", "mcap"])
def test_damaged_copies_are_read_or_refused_in_one_line(tmp_path, storage):
    # Few types, because the code of each is made again for every copy.
    topics = ("/joint_states", "/camera/image")
    path = tmp_path / "d"
    sent = [[one for one in messages(given) if one.topic in topics] for given in values()]
    if storage == "folder":
        path.mkdir()
        for number, part in enumerate(sent):
            write_mcap(path / f"run_{number}.mcap", part, chunk_messages=3)
    else:
        write_rosbag2(path, sent[1], storage)
    assert check_mutations(path, tmp_path / "scratch", open_source) >= 20
