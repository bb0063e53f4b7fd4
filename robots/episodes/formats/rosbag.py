"""Reads recordings of ROS: MCAP files, rosbag2 folders or databases, and ROS 1 bags, one episode
each.

A path is one recording, or a folder of several. Every topic becomes fields by the table in
`robots.episodes.formats.ros.ros_messages`, called `TOPIC/FIELD`, each with the capture times
of its messages: their header stamps if all of them are within a minute of the time of recording,
otherwise that time. A recording does not say which topic is the action. Words of a topic such as
`/instruction` are the instruction of the episode, and the text field `instruction` of every step
where a recording of the data set changes them.

Recordings that Handoff exported describe themselves on the topic `/episode`: their fields have the
names, units and number types of the store, and where all topics have the same steps these are
given back as they were, with the rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.ros import ros_messages
from robots.episodes.formats.ros.bags import METADATA, RECORDINGS, Bag, find_bags
from robots.episodes.formats.ros.content import (
    Content,
    capture_seconds,
    topic_fields,
    topic_spec,
)
from robots.episodes.formats.ros.described_fields import (
    common_steps,
    fitting,
    is_text,
    own_fields,
    own_specs,
    own_values,
    shown_again,
    stamp_values,
    text_of_steps,
)
from robots.episodes.formats.ros.description import EPISODE_TOPIC
from robots.episodes.formats.ros.instructions import (
    Spoken,
    chosen,
    sampled,
    text_size,
)
from robots.episodes.formats.ros.mcap import MAGIC
from robots.episodes.formats.ros.read_content import read_content
from robots.episodes.formats.ros.ros1_bag import MAGIC as ROS1
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.episodes.metadata.episode_metadata import utc_time
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, text_field
from robots.spec import FieldSpec

_SQLITE = b"SQLite format 3\0"
_COMMANDS = ("action", "actions", "command", "target")
_WALL_NS = 10**18
"""Times of recording from this one on, in 2001, are wall times [ns]; others count from a beginning
of their own."""


def recognises(path: Path) -> bool:
    """Whether the path is an MCAP file, a database of rosbag2, a ROS 1 bag, or a folder with such
    recordings, by their first bytes and names."""
    if path.is_dir():
        inner = (file for file in path.iterdir() if file.suffix in RECORDINGS)
        return (
            (path / METADATA).is_file()
            or any(recognises(file) if file.is_file() else False for file in inner)
            or any((folder / METADATA).is_file() for folder in path.iterdir() if folder.is_dir())
        )
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(len(_SQLITE))
    return start.startswith((MAGIC, ROS1)) or (path.suffix == ".db3" and start == _SQLITE)


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[RosbagSource]:
    """Opens a recording, or a folder of them.

    Raises:
        HandoffError: there is none, it is damaged, or no topic of it is of ROS.
    """
    yield RosbagSource(path, images)


class RosbagSource:
    """Recordings of ROS, opened by `open_source`."""

    def __init__(self, path: Path, images: bool) -> None:
        """Makes the schema from the first recording, of which one picture per topic is decoded;
        where it has instructions, those of all recordings are read.

        Raises:
            HandoffError: see `open_source`.
        """
        self._bags = find_bags(path)
        self._images = images
        first = self._bags[0]
        content = read_content(first, images=images, all_pictures=False)
        about = content.description
        if not content.topics:
            if first.cut and not first.foreign:
                raise HandoffError(
                    f"{first.path}: was cut short before the first of its messages was complete."
                )
            found = "; ".join(f"{topic}: {what}" for topic, what in first.foreign.items())
            raise HandoffError(
                f"{first.path}: holds no topic that can be read as numbers or pictures of ROS"
                f"{f' (found {found[:300]})' if found else ''}. Is it a recording of another system, or empty?"
            )
        self._own = fitting(content)
        read = {topic: field.names for topic, field in self._own.items()}
        read |= {topic: [] for topic in shown_again(about)}
        self._fields = topic_fields(content, read)
        self._steps = not self._fields and common_steps(content, self._own) is not None
        self._specs = {
            name: spec
            for field in self._own.values()
            for name, spec in own_specs(field, steps=self._steps)
        }
        self._specs |= {
            entry.name: topic_spec(content.topics[entry.topic], entry) for entry in self._fields
        }
        spoken = content.spoken and about is None
        self._text_size = text_size(self._bags) if spoken else 0
        if self._text_size:
            self._specs[INSTRUCTION] = replace(text_field(self._text_size), role="observation")
        action = self._only_command()
        if action is not None and not any(spec.role == "action" for spec in self._specs.values()):
            self._specs[action] = replace(self._specs[action], role="action")
        self.schema = SourceSchema(
            form="MCAP, rosbag2 and ROS 1 bags",
            task=(about.task if about else "") or path.stem,
            rate_hz=about.rate_hz if about and self._steps else None,
            fields=self._specs,
            robot=about.robot if about else "",
            notes=tuple(_notes(first, content, self._specs, steps=self._steps)),
            own_times=not self._steps,
        )

    @property
    def num_episodes(self) -> int:
        """Number of recordings."""
        return len(self._bags)

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The recordings `[first, stop)`, with the capture times of every field.

        Raises:
            HandoffError: a recording is damaged, or lacks a topic of the first one.
        """
        for bag in self._bags[first:stop]:
            content = read_content(bag, images=self._images, all_pictures=True)
            self._check_described(bag, content)
            steps = common_steps(content, self._own) if self._steps else None
            arrays: dict[str, np.ndarray] = {}
            times: dict[str, np.ndarray] = {}
            self._add_own(bag, content, steps, arrays, times)
            self._add_topics(bag, content, arrays, times)
            self._add_words(content, steps, arrays, times)
            arrays = {name: arrays[name] for name in self._specs}
            yield SourceEpisode(arrays, self._metadata(bag, content), {} if steps else times)

    def _check_described(self, bag: Bag, content: Content) -> None:
        """Checks that a recording describes its topics as the first one does, if it describes them.

        Raises:
            HandoffError: it does not, or lacks a topic.
        """
        theirs = own_fields(content.description)
        for topic, field in self._own.items():
            if theirs and (topic not in theirs or theirs[topic].spec != field.spec):
                raise HandoffError(
                    f"{bag.path}: describes {topic} otherwise than the first recording, whose field {field.name} has "
                    f"{field.spec.dtype} {tuple(field.spec.shape)} [{field.spec.unit}]. Is it of another store?"
                )
            if topic not in (content.written if is_text(field.spec) else content.topics):
                raise _missing(bag, field.name)

    def _add_own(
        self,
        bag: Bag,
        content: Content,
        steps: list[int] | None,
        arrays: dict[str, np.ndarray],
        times: dict[str, np.ndarray],
    ) -> None:
        """Adds the described fields other than words."""
        for topic, field in self._own.items():
            if is_text(field.spec):
                continue
            about = content.topics[topic]
            values = own_values(field.spec, about.type_name, about.leaves)
            if values is None or len(values) != len(about.times):
                raise HandoffError(
                    f"{bag.path}: {field.name} has other numbers in {len(about.times)} messages than the first "
                    f"recording, expected {field.spec.dtype} {tuple(field.spec.shape)} in each."
                )
            seconds = capture_seconds(about.times, content.start_ns, zero=True)
            # Steps are in the order of recording; their pictures may be of equal capture times.
            order = np.arange(len(values)) if steps else np.argsort(seconds, kind="stable")
            arrays[field.name], times[field.name] = values[order], seconds[order]
            for name, spec in own_specs(field, steps=self._steps)[1:]:
                arrays[name] = stamp_values(about, spec)[order]
                times[name] = seconds[order]

    def _add_topics(
        self,
        bag: Bag,
        content: Content,
        arrays: dict[str, np.ndarray],
        times: dict[str, np.ndarray],
    ) -> None:
        """Adds the fields that nobody describes."""
        for entry in self._fields:
            topic = content.topics.get(entry.topic)
            if topic is None or entry.key not in topic.leaves:
                raise _missing(bag, entry.name)
            leaves = topic.leaves[entry.key]
            values = ros_messages.stacked(bag.path, entry.name, leaves)
            spec = self._specs[entry.name]
            if values.shape[1:] != tuple(spec.shape) or len(values) != len(topic.times):
                raise HandoffError(
                    f"{bag.path}: {entry.name} has the shape {values.shape} in {len(topic.times)} messages, "
                    f"expected {tuple(spec.shape)} per message as in the first recording."
                )
            seconds = capture_seconds(topic.times, content.start_ns)
            order = np.argsort(seconds, kind="stable")
            arrays[entry.name] = values[order].astype(spec.dtype, copy=False)
            times[entry.name] = seconds[order]

    def _add_words(
        self,
        content: Content,
        steps: list[int] | None,
        arrays: dict[str, np.ndarray],
        times: dict[str, np.ndarray],
    ) -> None:
        """Adds the text fields."""
        start = content.start_ns
        first = min((some[0] for some in times.values()), default=0.0)
        ends = first, max((some[-1] for some in times.values()), default=first)
        for topic, field in self._own.items():
            if is_text(field.spec):
                written = sorted(content.written[topic], key=lambda entry: entry.log_ns)
                name, size = field.name, field.spec.shape[0]
                if steps:
                    arrays[name] = text_of_steps(written, steps, size)
                else:
                    arrays[name], times[name] = sampled(written, start, ends, size)
        if self._text_size:
            heard = chosen(content.spoken) or [Spoken(start, "")]
            size = self._text_size
            arrays[INSTRUCTION], times[INSTRUCTION] = sampled(heard, start, ends, size)

    def _metadata(self, bag: Bag, content: Content) -> dict[str, Any]:
        """What a recording states about its episode."""
        metadata: dict[str, Any] = {"source_file": bag.path.name}
        if content.start_ns > _WALL_NS:
            metadata["began"] = utc_time(content.start_ns / 1e9)
        spoken = chosen(content.spoken)
        if content.description is not None:
            metadata |= content.description.metadata
        elif spoken:
            metadata[INSTRUCTION] = spoken[0].sentence
        if self._text_size:
            metadata["instructions"] = list(dict.fromkeys(entry.sentence for entry in spoken))
        if bag.cut:
            metadata["cut_short"] = True
        return metadata

    def _only_command(self) -> str | None:
        """Name of the field of the only topic that is named as a command, if it has one field."""
        commands = [entry for entry in self._fields if entry.topic.rpartition("/")[2] in _COMMANDS]
        return commands[0].name if len(commands) == 1 else None


def _missing(bag: Bag, name: str) -> HandoffError:
    cause = "Was a node not running?"
    if bag.cut:
        cause = "It was cut short before a message of it was complete."
    return HandoffError(f"{bag.path}: has no {name}, which the first recording has. {cause}")


def _notes(
    bag: Bag, content: Content, specs: Mapping[str, FieldSpec], *, steps: bool
) -> Iterator[str]:
    described = content.description
    if described is not None:
        yield f"Handoff exported it: fields and metadata are those of the store, by {EPISODE_TOPIC}."
    if not steps:
        yield (
            "Topics have capture times of their own, so the map has to state resample_hz, the rate of the store."
        )
    if described is not None and described.refused:
        yield f"Metadata that cannot be stored are left out: {', '.join(described.refused)[:300]}."
    actions = [name for name, spec in specs.items() if spec.role == "action"]
    if not actions:
        yield (
            "A recording does not state which topic is the action; name it in the map by fields: "
            "{action: {source: TOPIC}}."
        )
    elif described is None:
        yield f"The action is taken to be {actions[0]}, by the name of its topic."
    left_out = [f"{topic} ({why})" for topic, why in sorted(content.left_out.items())]
    left_out += [f"{topic} ({what})" for topic, what in sorted(bag.foreign.items())]
    if left_out:
        yield f"Left out are {', '.join(left_out)}."
    if bag.cut:
        yield f"{bag.path.name} was cut short; its complete messages are read."
