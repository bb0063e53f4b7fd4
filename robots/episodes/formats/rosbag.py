"""Reads recordings of ROS: MCAP files, rosbag2 folders or databases, and ROS 1 bags, one episode
each.

A path is one recording, or a folder of several. Every topic becomes fields by the table in
`robots.episodes.formats.ros.ros_messages`, called `TOPIC/FIELD`, each with the capture times
of its messages: their header stamps if all of them are within a minute of the time of recording,
otherwise that time. A recording does not say which topic is the action. Words of a topic such as
`/instruction` are the instruction of the episode, and the text field `instruction` of every step
where a recording of the data set changes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.formats.ros import ros_messages
from robots.episodes.formats.ros.bags import METADATA, RECORDINGS, Bag, BagMessage, find_bags
from robots.episodes.formats.ros.instructions import (
    WORDS,
    Spoken,
    add_sentence,
    chosen,
    is_instruction,
    sampled,
    text_size,
)
from robots.episodes.formats.ros.mcap import MAGIC
from robots.episodes.formats.ros.ros1_bag import MAGIC as ROS1
from robots.episodes.formats.ros.ros_messages import Leaf
from robots.episodes.formats.source import (
    LARGEST_EPISODE,
    SourceEpisode,
    SourceSchema,
    array_field,
    field_name,
)
from robots.episodes.metadata.episode_metadata import utc_time
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, text_field
from robots.spec import FieldSpec

_SQLITE = b"SQLite format 3\0"
_COMMANDS = ("action", "actions", "command", "target")
_UNREAD_PACKAGES = (
    "action_msgs",
    "actionlib_msgs",
    "bond",
    "diagnostic_msgs",
    "dynamic_reconfigure",
    "lifecycle_msgs",
    "rcl_interfaces",
    "rosgraph_msgs",
    "tf",
    "tf2_msgs",
    "visualization_msgs",
)
_UNREAD_TYPES = ("sensor_msgs/msg/CameraInfo", "sensor_msgs/msg/PointCloud2")
_NEAR_NS = 60 * 10**9
"""Largest distance of a header stamp from the time of recording [ns]; stamps of a simulated clock
are further away."""

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


class _Field(NamedTuple):
    """Field of the schema, and the place of its values in the messages."""

    topic: str
    key: str
    name: str


@dataclass
class _Topic:
    """Messages of one topic of one recording."""

    type_name: str
    times: list[tuple[int, int | None]] = field(default_factory=list)
    """Time of recording and header stamp of every message [ns]."""
    leaves: dict[str, list[Leaf]] = field(default_factory=dict)
    """Arrays of the messages by their path in them."""
    joints: list[str] | None = None
    """Order of the joints, of a JointState."""
    frame: str = ""
    """Frame of the first message."""


@dataclass
class _Content:
    """What a recording holds."""

    topics: dict[str, _Topic] = field(default_factory=dict)
    spoken: dict[str, list[Spoken]] = field(default_factory=dict)
    """Sentences of every topic of words that is named as an instruction."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Reasons by topic."""


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
        content = self._read(first, all_pictures=False)
        if not content.topics:
            found = "; ".join(f"{topic}: {what}" for topic, what in first.foreign.items())
            raise HandoffError(
                f"{first.path}: holds no topic that can be read as numbers or pictures of ROS"
                f"{f' (found {found[:300]})' if found else ''}. Is it a recording of another system, or empty?"
            )
        self._fields = _fields(content)
        self._specs = {
            entry.name: _spec(content.topics[entry.topic], entry) for entry in self._fields
        }
        self._text_size = text_size(self._bags) if content.spoken else 0
        if self._text_size:
            self._specs[INSTRUCTION] = replace(text_field(self._text_size), role="observation")
        action = self._only_command()
        if action is not None:
            self._specs[action] = replace(self._specs[action], role="action")
        self.schema = SourceSchema(
            form="MCAP, rosbag2 and ROS 1 bags",
            task=path.stem,
            rate_hz=None,
            fields=self._specs,
            notes=tuple(_notes(first, content, action)),
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
            content = self._read(bag, all_pictures=True)
            start = min(
                (log for topic in content.topics.values() for log, _ in topic.times), default=0
            )
            arrays: dict[str, np.ndarray] = {}
            times: dict[str, np.ndarray] = {}
            for entry in self._fields:
                topic = content.topics.get(entry.topic)
                if topic is None or entry.key not in topic.leaves:
                    raise HandoffError(
                        f"{bag.path}: has no {entry.name}, which the first recording has. Was a node not running?"
                    )
                leaves = topic.leaves[entry.key]
                values = ros_messages.stacked(bag.path, entry.name, leaves)
                spec = self._specs[entry.name]
                if values.shape[1:] != tuple(spec.shape) or len(values) != len(topic.times):
                    raise HandoffError(
                        f"{bag.path}: {entry.name} has the shape {values.shape} in {len(topic.times)} messages, "
                        f"expected {tuple(spec.shape)} per message as in the first recording."
                    )
                seconds = _seconds(topic.times, start)
                order = np.argsort(seconds, kind="stable")
                arrays[entry.name] = values[order].astype(spec.dtype, copy=False)
                times[entry.name] = seconds[order]
            metadata: dict[str, Any] = {"source_file": bag.path.name}
            if start > _WALL_NS:
                metadata["began"] = utc_time(start / 1e9)
            if spoken := chosen(content.spoken):
                metadata[INSTRUCTION] = spoken[0].sentence
            if self._text_size:
                ends = min(t[0] for t in times.values()), max(t[-1] for t in times.values())
                heard = spoken or [Spoken(start, "")]
                arrays[INSTRUCTION], times[INSTRUCTION] = sampled(
                    heard, start, ends, self._text_size
                )
                metadata["instructions"] = list(dict.fromkeys(entry.sentence for entry in spoken))
            if bag.cut:
                metadata["cut_short"] = True
            yield SourceEpisode(arrays, metadata, times)

    def _read(self, bag: Bag, all_pictures: bool) -> _Content:
        """All messages of a recording as arrays."""
        content = _Content()
        size = 0
        for message in bag.messages():
            topic, name = message.topic, message.type_name
            if topic in content.left_out:
                continue
            if name.partition("/")[0] in _UNREAD_PACKAGES or name in _UNREAD_TYPES:
                content.left_out[topic] = name
            elif not bag.types.is_defined(name):
                content.left_out[topic] = f"{name}, which the recording does not define"
            elif name == WORDS and is_instruction(topic):
                add_sentence(content.spoken, bag, message)
            elif name == WORDS:
                content.left_out[topic] = WORDS
            elif name not in ros_messages.IMAGES:
                size += self._read_numbers(bag, content, message)
            elif self._images:
                decode = all_pictures or topic not in content.topics
                size += self._read_picture(bag, content, message, decode)
            if size > LARGEST_EPISODE:
                raise HandoffError(
                    f"{bag.path}: decodes to more than {LARGEST_EPISODE / 1e9:.0f} GB, the limit of an episode. "
                    "Split the recording."
                )
        return content

    def _read_numbers(self, bag: Bag, content: _Content, message: BagMessage) -> int:
        """Adds the arrays of a message, and returns their size [bytes]."""
        decoded = bag.types.decode(message.type_name, message.data, message.ros1)
        leaves = ros_messages.flatten(bag.types, message.type_name, decoded)
        topic = _topic(bag, content, message, decoded)
        if message.type_name == ros_messages.JOINTS:
            given = ros_messages.joint_order(decoded)
            topic.joints = topic.joints if topic.joints is not None else given
            ros_messages.by_joint(bag.path, leaves, given, topic.joints)
        for key, leaf in leaves.items():
            topic.leaves.setdefault(key, []).append(leaf)
        # An array of NumPy takes about 100 bytes beside its values.
        return sum(100 + leaf.value.nbytes for leaf in leaves.values())

    def _read_picture(self, bag: Bag, content: _Content, message: BagMessage, decode: bool) -> int:
        """Adds the picture of a message, and returns its size [bytes]."""
        if not decode:
            return 0
        decoded = bag.types.decode(message.type_name, message.data, message.ros1)
        leaf = ros_messages.picture(bag.path, message.topic, message.type_name, decoded)
        if leaf is None:
            encoding = getattr(decoded, "encoding", None) or decoded.format
            content.left_out[message.topic] = f"pictures encoded as {str(encoding)[:40]!r}"
            return 0
        topic = _topic(bag, content, message, decoded)
        topic.leaves.setdefault("", []).append(leaf)
        return leaf.value.nbytes

    def _only_command(self) -> str | None:
        """Name of the field of the only topic that is named as a command, if it has one field."""
        commands = [entry for entry in self._fields if entry.topic.rpartition("/")[2] in _COMMANDS]
        return commands[0].name if len(commands) == 1 else None


def _topic(bag: Bag, content: _Content, message: BagMessage, decoded: Any) -> _Topic:
    """The topic of a message, with its time added."""
    topic = content.topics.setdefault(message.topic, _Topic(message.type_name))
    if topic.type_name != message.type_name:
        raise HandoffError(
            f"{bag.path}: {message.topic} has the types {topic.type_name} and {message.type_name}, expected one."
        )
    header = getattr(decoded, "header", None)
    stamp = getattr(header, "stamp", None)
    if not topic.times:
        frame = str(getattr(header, "frame_id", ""))[:60]
        topic.frame = frame if frame.isprintable() else ""
    nanoseconds = None if stamp is None else int(stamp.sec) * 10**9 + int(stamp.nanosec)
    topic.times.append((message.log_ns, nanoseconds))
    return topic


def _fields(content: _Content) -> list[_Field]:
    """The fields of a recording; arrays that are not in every message, or change their length, are
    left out."""
    fields: list[_Field] = []
    for topic, about in sorted(content.topics.items()):
        base = field_name(topic)
        if any(other.startswith(f"{topic}/") for other in content.topics):
            # A field cannot lie inside another one.
            base = f"{base}/message"
        for key, leaves in about.leaves.items():
            shapes = {leaf.value.shape for leaf in leaves}
            if len(shapes) > 1 or (len(leaves) != len(about.times)):
                content.left_out[f"{topic}/{key}"] = "its length changes"
                continue
            fields.append(_Field(topic, key, field_name(f"{base}/{key}")))
    names = [entry.name for entry in fields]
    double = sorted({name for name in names if names.count(name) > 1})
    if double or not names:
        raise HandoffError(
            f"the recording has {f'two topics of the name {double[0]}' if double else 'no array of one length'}. Was "
            "it damaged?"
        )
    return fields


def _spec(topic: _Topic, entry: _Field) -> FieldSpec:
    leaf = topic.leaves[entry.key][0]
    image = leaf.unit == "u8"
    about: dict[str, Any] = {} if image else {"unit": leaf.unit, "frame": topic.frame}
    if leaf.names and leaf.value.ndim == 1:
        about["names"] = (leaf.names,)
    return array_field(leaf.value[None], "observation", image=image, **about)


def _seconds(times: list[tuple[int, int | None]], start_ns: int) -> np.ndarray:
    """Capture times of a topic from the first message of the recording [s]."""
    stamped = all(
        stamp is not None and stamp != 0 and abs(stamp - log) < _NEAR_NS for log, stamp in times
    )
    chosen = [stamp if stamped and stamp is not None else log for log, stamp in times]
    return np.array([1e-9 * (time - start_ns) for time in chosen])


def _notes(bag: Bag, content: _Content, action: str | None) -> Iterator[str]:
    yield (
        "Topics have capture times of their own, so the map has to state resample_hz, the rate of the store."
    )
    if action is None:
        yield (
            "A recording does not state which topic is the action; name it in the map by fields: "
            "{action: {source: TOPIC}}."
        )
    else:
        yield f"The action is taken to be {action}, by the name of its topic."
    left_out = [f"{topic} ({why})" for topic, why in sorted(content.left_out.items())]
    left_out += [f"{topic} ({what})" for topic, what in sorted(bag.foreign.items())]
    if left_out:
        yield f"Left out are {', '.join(left_out)}."
    if bag.cut:
        yield f"{bag.path.name} was cut short; its complete messages are read."
