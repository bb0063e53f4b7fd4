"""A LeRobot data set keeps what a store says about its episodes, and names what it loses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import pytest

from robots.episodes.exports.lerobot import write_lerobot
from robots.episodes.exports.lerobot_entries import episode_columns
from robots.episodes.formats.lerobot import open_source
from robots.episodes.metadata.capture_times import capture_time_field, capture_times
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec
from tests.robots.episodes.formats.lerobot_files import pictures

VERSIONS: tuple[Literal["v3.0", "v2.1"], ...] = ("v3.0", "v2.1")
METADATA: tuple[dict[str, Any], ...] = (
    {
        "instruction": "fold it",
        "success": True,
        "operator": "ada",
        "session": "2026-11-24T08:00:00Z",
        "people": ["ada", "bob"],
        "action_steps": {"axes": ["x", "y"], "translation": 0.01},
        "weight": 0.5,
    },
    {
        "instruction": "fold it",
        "success": False,
        "operator": "bob",
        "session": "2026-11-24T09:00:00Z",
        "people": ["bob"],
        "fault": "the gripper did not answer",
        "weight": 1.0,
    },
)
TIMES = np.array([-0.02, 0.08, 0.08, 0.27])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> EpisodeStore:
    policy = {
        "front": FieldSpec(shape=(48, 64, 3), dtype="uint8", unit="u8", role="observation"),
        "front_time": capture_time_field("front"),
        "action": FieldSpec(shape=(2,), role="action", interface="joint_target"),
    }
    streams = {
        "policy": StreamSpec(rate_hz=10.0, fields=policy),
        "robot": StreamSpec(rate_hz=100.0, fields={"q": FieldSpec(shape=(7,), unit="rad")}),
    }
    schema = EpisodeSchema(name="fold_towel", streams=streams)
    made = EpisodeStore.create(tmp_path_factory.mktemp("store") / "s.zarr", schema)
    with made.writer() as writer:
        for number, metadata in enumerate(METADATA):
            arrays = {
                "front": pictures(4, 48, 64, number),
                "front_time": TIMES + number,
                "action": np.zeros((4, 2), np.float32),
            }
            robot = {"q": np.zeros((40, 7), np.float32)}
            writer.append({"policy": arrays, "robot": robot}, metadata)
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_of_episodes_are_read_back(
    store: EpisodeStore, tmp_path: Path, version: Literal["v3.0", "v2.1"]
) -> None:
    write_lerobot(store, tmp_path / "d", version=version)
    with open_source(tmp_path / "d", False) as source:
        found = [episode.metadata for episode in source.episodes(0, 2)]
        assert source.schema.task == "fold_towel"
    assert found == list(METADATA)


@pytest.mark.parametrize("version", VERSIONS)
def test_capture_times_stay_beside_their_pictures(
    store: EpisodeStore, tmp_path: Path, version: Literal["v3.0", "v2.1"]
) -> None:
    write_lerobot(store, tmp_path / "d", version=version)
    with open_source(tmp_path / "d", True) as source:
        pairs = capture_times(source.schema.fields)
        (episode,) = source.episodes(1, 2)
    assert pairs == {"observation.images.front": "observation.images.front_time"}
    np.testing.assert_array_equal(episode.arrays["observation.images.front_time"], TIMES + 1)


def test_the_meaning_of_the_action_is_kept(store: EpisodeStore, tmp_path: Path) -> None:
    write_lerobot(store, tmp_path / "d", version="v3.0", videos=False)
    with open_source(tmp_path / "d", False) as source:
        assert source.schema.fields["action"].interface == "joint_target"


def test_an_interface_that_no_controller_has_is_passed_over(
    store: EpisodeStore, tmp_path: Path
) -> None:
    write_lerobot(store, tmp_path / "d", version="v3.0", videos=False)
    file = tmp_path / "d/meta/info.json"
    file.write_text(file.read_text().replace("joint_target", "telekinesis"))
    with open_source(tmp_path / "d", False) as source:
        assert source.schema.fields["action"].interface == ""


def test_what_is_lost_is_said(store: EpisodeStore, tmp_path: Path) -> None:
    notes = write_lerobot(store, tmp_path / "d", version="v3.0")["notes"]
    lossy, streams, hidden = notes
    assert lossy.startswith("front: encoded as lossy video (h264, crf 18, yuv420p, colours at half")
    assert "the streams robot" in streams
    assert hidden.endswith("action_steps, fault, people")


def test_pictures_without_loss_are_not_called_lossy(store: EpisodeStore, tmp_path: Path) -> None:
    notes = write_lerobot(store, tmp_path / "d", version="v3.0", videos=False)["notes"]
    assert not any("lossy" in note for note in notes)


def test_words_and_numbers_of_all_episodes_are_columns(store: EpisodeStore, tmp_path: Path) -> None:
    write_lerobot(store, tmp_path / "d", version="v3.0", videos=False)
    table = pq.read_table(tmp_path / "d/meta/episodes/chunk-000/file-000.parquet")
    assert table.column("operator").to_pylist() == ["ada", "bob"]
    assert table.column("weight").to_pylist() == [0.5, 1.0]


def test_an_entry_of_two_types_is_no_column() -> None:
    rows = episode_columns([{"grade": 1}, {"grade": "good"}], [["a"], ["a"]])
    assert [json.loads(row["handoff"])["grade"] for row in rows] == [1, "good"]
    assert "grade" not in rows[0]


def test_an_entry_with_the_name_of_a_place_does_not_replace_it() -> None:
    rows = episode_columns([{"length": 5, "data/file_index": 7}], [["a"]])
    assert list(rows[0]) == ["handoff"]


def test_an_instruction_that_is_the_task_is_written_once() -> None:
    assert episode_columns([{"instruction": "a"}], [["a"]]) == [{}]
    assert episode_columns([{"instruction": "a"}], [["a", "b"]]) == [{"instruction": "a"}]


def test_damaged_metadata_of_an_episode_are_named(store: EpisodeStore, tmp_path: Path) -> None:
    write_lerobot(store, tmp_path / "d", version="v2.1", videos=False)
    file = tmp_path / "d/meta/episodes.jsonl"
    file.write_text(file.read_text().replace('"handoff": "{', '"handoff": "['))
    with (
        open_source(tmp_path / "d", False) as source,
        pytest.raises(HandoffError, match="the entry of episode 0 in meta cannot be read"),
    ):
        next(source.episodes(0, 1))
