import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robots.control.rotations import convert_rotation
from robots.episodes.exports.mcap import write_mcap
from robots.episodes.exports.ros_topics import field_topics, topic_name
from robots.episodes.formats.ros.mcap import McapReader
from robots.episodes.formats.ros.ros_types import RosTypes
from robots.episodes.formats.rosbag import open_source
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec
from tests.robots.episodes.exports.limited_files import limit_files
from tests.robots.episodes.exports.viewer_store import FIELDS, LENGTHS, RATE_HZ, arrays, make_store


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcap")
    write_mcap(make_store(folder / "s.zarr"), folder / "out")
    return folder / "out"


def read(path: Path) -> tuple[SourceSchema, list[SourceEpisode]]:
    with open_source(path, True) as source:
        return source.schema, list(source.episodes(0, source.num_episodes))


def sent(path: Path, topic: str) -> list[tuple[int, Any]]:
    """Time of recording [ns] and content of the messages of a topic."""
    types = RosTypes(path)
    found = []
    for message in McapReader(path).messages():
        schema = message.channel.schema
        if message.channel.topic == topic and schema is not None:
            name = types.define(schema.name, schema.encoding, schema.text.decode())
            found.append((message.log_ns, types.decode(name, message.data, False)))
    return found


def texts(path: Path, topic: str) -> list[tuple[int, str]]:
    return [(time, message.data) for time, message in sent(path, topic)]


def test_an_episode_is_one_file_of_a_folder(exported):
    names = sorted(path.name for path in exported.iterdir())
    assert names == ["episode_000000.mcap", "episode_000001.mcap"]


@pytest.mark.parametrize("field", list(FIELDS))
def test_every_field_comes_back_with_its_name_and_number_type_bit_for_bit(exported, field):
    for number, episode in enumerate(read(exported)[1]):
        given = arrays(number)["policy"][field]
        if field == "instruction":
            # The topics of this store have samples of their own, so its text has its changes.
            changes = [tuple(row) for row in episode.arrays[field]]
            assert list(dict.fromkeys(changes)) == list(dict.fromkeys(map(tuple, given)))
            continue
        found = episode.arrays[field]
        assert found.dtype == given.dtype
        np.testing.assert_array_equal(found, given)


def test_the_specification_of_every_field_comes_back(exported):
    found = read(exported)[0].fields
    for name, spec in FIELDS.items():
        assert found[name] == spec
        assert (found[name].names, found[name].about) == (spec.names, spec.about)
        assert found[name].role == (spec.role or "observation")


def test_a_rotation_vector_is_shown_as_a_pose_beside_its_numbers(exported):
    poses = sent(exported / "episode_000000.mcap", "/grasp_pose_pose")
    given = arrays(0)["policy"]["grasp_pose"]
    turns = convert_rotation(given[:, 3:], "rotation_vector", "matrix")
    for (_, message), place, turn in zip(poses, given[:, :3], turns, strict=True):
        point, shown = message.pose.position, message.pose.orientation
        np.testing.assert_array_equal([point.x, point.y, point.z], place)
        quaternion = np.array([[shown.w, shown.x, shown.y, shown.z]])
        matrix = convert_rotation(quaternion, "quaternion_wxyz", "matrix")[0]
        np.testing.assert_allclose(matrix, turn, atol=1e-7)


def test_every_stream_has_the_times_of_its_rate(exported):
    for episode, length in zip(read(exported)[1], LENGTHS, strict=True):
        np.testing.assert_allclose(episode.times["action"], np.arange(length) / RATE_HZ, atol=1e-9)
        np.testing.assert_allclose(
            episode.times["robot/tau"], np.arange(4 * length) / (4 * RATE_HZ), atol=1e-9
        )
        assert len(episode.arrays["robot/tau"]) == 4 * length


def test_messages_are_in_the_order_of_their_times(exported):
    times = [message.log_ns for message in McapReader(exported / "episode_000000.mcap").messages()]
    assert times == sorted(times)
    assert times[-1] == round(19 / (4 * RATE_HZ) * 1e9)


def test_the_instruction_is_sent_at_every_change(exported):
    assert texts(exported / "episode_000000.mcap", "/instruction") == [
        (0, "open"),
        (100_000_000, "close"),
    ]


def test_the_topic_episode_has_the_metadata_and_the_fields(exported):
    ((time, text),) = texts(exported / "episode_000001.mcap", "/episode")
    about = json.loads(text)
    assert time == 0
    assert (about["task"], about["robot"], about["rate_hz"]) == ("drawer", "fr3", RATE_HZ)
    assert about["metadata"] == {"seed": 1, "success": True}
    assert about["fields"]["/q"]["field"] == "policy/q"
    assert about["fields"]["/q"]["unit"] == "rad"
    assert about["fields"]["/cameras/front"]["dtype"] == "uint8"


def test_labels_of_an_array_are_the_names_of_its_entries(exported):
    actions = sent(exported / "episode_000000.mcap", "/action")
    assert len(actions) == LENGTHS[0]
    for _, message in actions:
        (dimension,) = message.layout.dim
        assert (dimension.label, dimension.size, dimension.stride) == ("j1,j2", 2, 2)


def test_the_reader_of_rosbags_reads_a_file(exported):
    from rosbags.highlevel import AnyReader

    with AnyReader([exported / "episode_000000.mcap"]) as reader:
        counts = {topic: about.msgcount for topic, about in reader.topics.items()}
    assert counts["/cameras/front"] == LENGTHS[0]
    assert counts["/robot/tau"] == 4 * LENGTHS[0]


def test_recorded_times_take_the_place_of_the_rate(tmp_path):
    times = np.array([0.0, 0.1, 0.35])
    fields = {
        "action": FieldSpec(shape=(2,)),
        "step_time": FieldSpec(shape=(), dtype="float64", unit="s"),
    }
    schema = EpisodeSchema(name="t", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)})
    with EpisodeStore.create(tmp_path / "s.zarr", schema) as store:
        store.append({"policy": {"action": np.ones((3, 2)), "step_time": times}}, {})
        write_mcap(store, tmp_path / "out")
    logs = [time for time, _ in sent(tmp_path / "out/episode_000000.mcap", "/action")]
    assert logs == [0, 100_000_000, 350_000_000]


def test_the_last_observation_of_corrections_follows_their_steps(tmp_path):
    fields = {"action": FieldSpec(shape=(2,)), "q": FieldSpec(shape=(2,))}
    streams = {
        "policy": StreamSpec(rate_hz=10.0, fields=fields),
        "final": StreamSpec(rate_hz=10.0, fields={"q": fields["q"]}),
    }
    with EpisodeStore.create(
        tmp_path / "s.zarr", EpisodeSchema(name="t", streams=streams)
    ) as store:
        steps = {"action": np.ones((3, 2)), "q": np.ones((3, 2))}
        store.append({"policy": steps, "final": {"q": np.full((1, 2), 2.0)}}, {})
        write_mcap(store, tmp_path / "out")
    (episode,) = read(tmp_path / "out")[1]
    np.testing.assert_allclose(episode.times["final/q"], [0.3], atol=1e-9)
    np.testing.assert_array_equal(episode.arrays["final/q"], [[2.0, 2.0]])


def test_the_result_counts_messages_and_names_topics(tmp_path):
    calls = []
    result = write_mcap(
        make_store(tmp_path / "s.zarr"),
        tmp_path / "out",
        progress=lambda done, total, note="": calls.append((done, total)),
    )
    assert calls == [(1, 2), (2, 2)]
    # 11 fields and a pose at every step, 4 samples of the robot, the texts, and the metadata.
    assert result["messages"] == 8 * (12 + 4) + (2 + 2) + 2
    assert result["topics"]["/q"] == "JointState"
    assert result["topics"]["/action"] == "Float32MultiArray"
    assert result["topics"]["/done"] == "Bool"


def test_two_fields_of_one_topic_are_refused(tmp_path):
    store = make_store(
        tmp_path / "s.zarr", **{"a.b": FieldSpec(shape=(1,)), "a_b": FieldSpec(shape=(1,))}
    )
    with pytest.raises(
        HandoffError, match=r"policy/a_b would be the topic /a_b, as policy/a\.b is"
    ):
        write_mcap(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_number_type_that_ros_lacks_is_refused():
    with pytest.raises(HandoffError, match="/wide: numbers are longdouble, which no message"):
        field_topics({}, "wide", FieldSpec(shape=(2,), dtype="longdouble"))


@pytest.mark.parametrize(
    ("field", "topic"),
    [("observation.q-1", "/observation_q_1"), ("obs/2nd", "/obs/_2nd"), ("3d", "/_3d")],
)
def test_names_of_topics_are_those_that_ros_allows(field, topic):
    assert topic_name(field) == topic


def test_an_existing_folder_is_refused_and_kept(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(HandoffError, match="exists already"):
        write_mcap(make_store(tmp_path / "s.zarr"), tmp_path / "out")


def test_nothing_is_left_after_an_interruption(tmp_path):
    def stop(done: int, total: int, note: str = "") -> None:
        raise KeyboardInterrupt

    store = make_store(tmp_path / "s.zarr")
    with pytest.raises(KeyboardInterrupt):
        write_mcap(store, tmp_path / "out", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


def test_a_full_disk_is_explained_in_one_line(tmp_path):
    make_store(tmp_path / "s.zarr")
    code = (
        "import sys; from pathlib import Path; from robots.errors import HandoffError\n"
        "from robots.episodes.store import EpisodeStore\n"
        "from robots.episodes.exports.mcap import write_mcap\n"
        "try: write_mcap(EpisodeStore.open(Path(sys.argv[1])), Path(sys.argv[2]))\n"
        "except HandoffError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, tmp_path / "s.zarr", tmp_path / "out"]
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=limit_files, check=True, timeout=60
    )
    (line,) = done.stdout.splitlines()
    assert "out: the recordings were not written: File too large" in line
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]
