import struct
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.demonstrations import identify
from robots.episodes.formats.ros.mcap import LARGEST_CHUNK
from robots.episodes.formats.ros.ros1_bag import MAGIC, Ros1Reader
from robots.episodes.formats.rosbag import open_source, recognises
from robots.episodes.formats.source import SourceEpisode
from robots.errors import HandoffError
from tests.robots.episodes.formats.mutations import check_mutations
from tests.robots.episodes.formats.rosbag_files import LENGTHS, messages, values, write_ros1

COMPRESSIONS = ("none", "bz2", "lz4")
FIRST_CHUNK = len(MAGIC) + 1 + 4096 + 4
"""Place of the first chunk: the record before it is padded."""


def index_place(content: bytes) -> tuple[int, int]:
    """Where a bag says where its index begins, and where that is."""
    said = content.index(b"index_pos=") + len(b"index_pos=")
    return said, struct.unpack_from("<Q", content, said)[0]


def write_all(path: Path, compression: str = "none") -> Path:
    path.mkdir()
    for number, given in enumerate(values()):
        write_ros1(path / f"run_{number + 8}.bag", messages(given, ros1=True), compression)
    return path


def write_one(path: Path, compression: str = "none") -> Path:
    return write_ros1(path, messages(values()[1], ros1=True), compression)


def read_all(path: Path, images: bool = True) -> list[SourceEpisode]:
    with open_source(path, images) as source:
        return list(source.episodes(0, source.num_episodes))


def read_error(path: Path) -> str:
    with pytest.raises(HandoffError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def field(name: str, value: bytes) -> bytes:
    content = f"{name}=".encode() + value
    return struct.pack("<I", len(content)) + content


def record(operation: int, data: bytes, **fields: bytes) -> bytes:
    header = field("op", bytes([operation])) + b"".join(
        field(name, value) for name, value in fields.items()
    )
    return struct.pack("<I", len(header)) + header + struct.pack("<I", len(data)) + data


def bag(*records: bytes) -> bytes:
    index = struct.pack("<Q", 10**6)
    counts = struct.pack("<I", 0)
    start = record(3, bytes(100), index_pos=index, conn_count=counts, chunk_count=counts)
    return MAGIC + b"\n" + start + b"".join(records)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_bag_of_a_folder_is_an_episode(tmp_path, compression):
    read = read_all(write_all(tmp_path / "d", compression))
    assert [len(episode.arrays["pose/pose/position"]) for episode in read] == list(LENGTHS)
    for episode, given in zip(read, values(), strict=True):
        np.testing.assert_array_equal(episode.arrays["joint_states/position"], given["position"])
        np.testing.assert_array_equal(episode.arrays["arm/command/data"], given["action"])
        np.testing.assert_array_equal(episode.arrays["gripper/data"][:, 0], given["width"])
        np.testing.assert_array_equal(episode.arrays["camera/image"], given["image"][::2])
        np.testing.assert_array_equal(episode.arrays["camera/depth"], given["depth"][::2])
        np.testing.assert_array_equal(episode.arrays["pose/pose/orientation"], given["pose"][:, 3:])


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_messages_are_those_that_rosbags_reads(tmp_path, compression):
    from rosbags.rosbag1 import Reader

    path = write_one(tmp_path / "d.bag", compression)
    with Reader(path) as reader:
        expected = [(c.topic, time, bytes(data)) for c, time, data in reader.messages()]
    found = [(m.connection.topic, m.log_ns, m.data) for m in Ros1Reader(path).messages()]
    assert len(found) == len(expected) > 20
    assert sorted(found) == sorted(expected)


def test_fields_and_notes_are_those_of_other_recordings(tmp_path):
    with open_source(write_one(tmp_path / "d.bag"), True) as source:
        fields, notes = source.schema.fields, source.schema.notes
        (episode,) = source.episodes(0, 1)
    assert fields["arm/command/data"].role == "action"
    assert fields["joint_states/position"].names == (("a", "b", "c"),)
    assert (fields["joint_states/position"].frame, fields["camera/depth"].unit) == ("base", "mm")
    assert not any("cut short" in note for note in notes)
    assert episode.metadata == {
        "source_file": "d.bag",
        "began": "2023-11-14T22:13:20.000Z",
        "instruction": "open the drawer",
    }
    np.testing.assert_allclose(episode.times["camera/image"], [0.005, 0.205, 0.405], atol=1e-6)


def test_a_bag_is_recognised_by_its_content(tmp_path):
    path = write_all(tmp_path / "d")
    assert recognises(path)
    assert identify(path) == "rosbag"
    renamed = (path / "run_8.bag").rename(tmp_path / "recording")
    assert identify(renamed) == "rosbag"
    assert len(read_all(renamed)[0].arrays["arm/command/data"]) == LENGTHS[0]
    (tmp_path / "notes.bag").write_text("hello")
    assert not recognises(tmp_path / "notes.bag")


@pytest.mark.parametrize("share", [0.5, 0.8, 0.99])
def test_a_bag_cut_short_is_read_to_its_last_complete_chunk(tmp_path, share):
    path = write_one(tmp_path / "d.bag")
    content = path.read_bytes()
    _, place = index_place(content)
    path.write_bytes(content[: FIRST_CHUNK + int((place - FIRST_CHUNK) * share)])
    with open_source(path, True) as source:
        (episode,) = source.episodes(0, 1)
        assert any("cut short" in note for note in source.schema.notes)
    assert 0 < len(episode.arrays["arm/command/data"]) <= LENGTHS[1]
    assert episode.metadata["cut_short"] is True


def test_a_bag_that_was_not_closed_is_read_without_an_index(tmp_path):
    path = write_one(tmp_path / "d.bag")
    content = path.read_bytes()
    index, place = index_place(content)
    # What a killed recorder leaves: no index, and its place is 0.
    path.write_bytes(content[:index] + bytes(8) + content[index + 8 : place])
    (episode,) = read_all(path)
    np.testing.assert_array_equal(episode.arrays["arm/command/data"], values()[1]["action"])
    assert episode.metadata["cut_short"] is True


@pytest.mark.parametrize("compression", ["bz2", "lz4"])
def test_a_chunk_that_decompresses_to_more_than_it_states_is_refused(tmp_path, compression):
    import bz2

    import lz4.frame

    pack = {"bz2": bz2.compress, "lz4": lz4.frame.compress}[compression]
    path = tmp_path / "d.bag"
    name, small = compression.encode(), struct.pack("<I", 1000)
    path.write_bytes(bag(record(5, pack(bytes(2**24)), compression=name, size=small)))
    assert "another size than stated" in read_error(path)
    large = struct.pack("<I", LARGEST_CHUNK + 1)
    path.write_bytes(bag(record(5, pack(b""), compression=name, size=large)))
    assert "Was it made for this purpose?" in read_error(path)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (record(2, b"", conn=bytes(4), time=bytes(8)), "connection 0, which is not defined"),
        (record(9, b""), "the operation 9, which bags have not"),
        (record(5, b"", compression=b"xz", size=bytes(4)), "compressed by b'xz'"),
        (record(5, b"", size=bytes(4)), "cannot be read"),
        (record(7, b"", conn=bytes(4), topic=b"/a\nb"), "cannot be read"),
        (struct.pack("<I", 2**31), "a record has 2147483648 bytes"),
        (struct.pack("<II", 8, 100) + b"op=\x02" + bytes(4), "longer than it"),
        (record(5, b"abc", compression=b"none", size=b"\3\0\0\0"), "ends within a record"),
        (record(3, b"", encryptor=b"rosbag/AesCbcEncryptor"), "is encrypted"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path, records, message):
    path = tmp_path / "d.bag"
    path.write_bytes(bag(records))
    assert message in read_error(path)


def test_a_topic_with_a_line_break_is_refused(tmp_path):
    about = field("type", b"std_msgs/String") + field("message_definition", b"string data")
    path = tmp_path / "d.bag"
    path.write_bytes(bag(record(7, about, conn=bytes(4), topic=b"/a\nb")))
    assert "expected printable characters" in read_error(path)


def test_a_bag_of_an_older_version_is_refused(tmp_path):
    (tmp_path / "d.bag").write_bytes(b"#ROSBAG V1.2\n")
    assert "is no bag of ROS 1, version 2.0" in read_error(tmp_path / "d.bag")


def test_a_definition_that_asks_for_memory_is_refused(tmp_path):
    about = field("type", b"evil_msgs/Bomb") + field(
        "message_definition", b"string[9000] x\nstring[9000] y"
    )
    known = record(7, about, conn=bytes(4), topic=b"/a")
    sent = record(2, bytes(100), conn=bytes(4), time=bytes(8))
    path = tmp_path / "d.bag"
    path.write_bytes(bag(known, sent))
    assert "nested fields" in read_error(path)


def test_a_link_to_another_place_is_refused(tmp_path):
    path = write_all(tmp_path / "d")
    (path / "run_9.bag").rename(tmp_path / "secret.bag")
    (path / "run_9.bag").symlink_to(tmp_path / "secret.bag")
    assert "is a link" in read_error(path)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_damaged_copies_are_read_or_refused_in_one_line(tmp_path, compression):
    # Few types, because the code of each is made again for every copy.
    topics = ("/joint_states", "/camera/image")
    path = tmp_path / "d"
    path.mkdir()
    for number, given in enumerate(values()):
        part = [one for one in messages(given, ros1=True) if one.topic in topics]
        write_ros1(path / f"run_{number}.bag", part, compression, chunk_bytes=500)
    # Most of a small bag is the padding of its first record, whose damage does not matter.
    assert check_mutations(path, tmp_path / "scratch", open_source) >= 12
