"""Instructions of ROS recordings: one sentence per episode, or one per step where it changes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from robots.episodes.config import FieldMapConfig
from robots.episodes.field_map import MappedEpisodes
from robots.episodes.formats.rosbag import open_source
from robots.errors import HandoffError
from robots.language.text import decode
from tests.robots.episodes.formats.rosbag_files import (
    START_NS,
    Sent,
    messages,
    typestore,
    values,
    write_mcap,
)

STRING = "std_msgs/msg/String"


def said(step: float, sentence: str, topic: str = "/instruction") -> Sent:
    message = typestore().types[STRING](data=sentence)
    return Sent(topic, STRING, START_NS + int(step * 10**8), message)


def recording(path: Path, number: int, sentences: Iterable[Sent]) -> None:
    """One of the recordings of `values()`, at 10 Hz, with other sentences."""
    others = [one for one in messages(values()[number]) if one.type_name != STRING]
    write_mcap(path, sorted([*others, *sentences], key=lambda one: one.log_ns))


def test_a_sentence_that_changes_is_a_field_of_every_step(tmp_path: Path) -> None:
    recording(tmp_path / "d.mcap", 1, [said(0, "open the drawer"), said(2.5, "close it")])
    with open_source(tmp_path / "d.mcap", False) as source:
        episodes = MappedEpisodes(source, FieldMapConfig(resample_hz=10.0))
        ((streams, metadata),) = episodes.episodes(0, 1)
    told = decode(streams["policy"]["instruction"])
    assert told[:3] == ("open the drawer",) * 3
    assert told[3:] == ("close it",) * 2
    assert metadata["instruction"] == "open the drawer"
    assert metadata["instructions"] == ["open the drawer", "close it"]


def test_the_last_sentence_does_not_end_the_episode(tmp_path: Path) -> None:
    recording(tmp_path / "one.mcap", 1, [said(0, "open the drawer")])
    recording(tmp_path / "two.mcap", 1, [said(0, "open the drawer"), said(1, "close it")])
    lengths = []
    for name in ("one.mcap", "two.mcap"):
        with open_source(tmp_path / name, False) as source:
            episodes = MappedEpisodes(source, FieldMapConfig(resample_hz=10.0))
            ((streams, _),) = episodes.episodes(0, 1)
        lengths.append(len(streams["policy"]["action"]))
    assert lengths[0] == lengths[1]


def test_a_sentence_that_is_repeated_is_no_field(tmp_path: Path) -> None:
    recording(tmp_path / "d.mcap", 1, [said(0, "open the drawer"), said(2, "open the drawer")])
    with open_source(tmp_path / "d.mcap", False) as source:
        assert "instruction" not in source.schema.fields
        (episode,) = source.episodes(0, 1)
    assert episode.metadata["instruction"] == "open the drawer"


def test_a_later_recording_that_changes_gives_the_field_to_all(tmp_path: Path) -> None:
    recording(tmp_path / "d_0.mcap", 0, [said(0, "open the drawer")])
    recording(tmp_path / "d_1.mcap", 1, [said(0, "open the drawer"), said(1, "close it")])
    recording(tmp_path / "d_2.mcap", 2, [])
    with open_source(tmp_path, False) as source:
        told = [set(decode(e.arrays["instruction"])) for e in source.episodes(0, 3)]
    assert told == [{"open the drawer"}, {"open the drawer", "close it"}, {""}]


def test_a_sentence_that_is_no_sentence_is_refused(tmp_path: Path) -> None:
    recording(tmp_path / "d.mcap", 0, [said(0, "x" * 5000)])
    with (
        pytest.raises(HandoffError, match="/instruction has a sentence of 5000 bytes, the limit"),
        open_source(tmp_path / "d.mcap", False),
    ):
        pass
