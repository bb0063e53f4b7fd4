"""Holds what a recording of ROS has, topic by topic, and makes fields of its messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.formats.ros.bags import Bag, BagMessage
from robots.episodes.formats.ros.description import EpisodeDescription
from robots.episodes.formats.ros.instructions import Spoken
from robots.episodes.formats.ros.ros_messages import Leaf
from robots.episodes.formats.source import array_field, field_name
from robots.errors import HandoffError
from robots.spec import FieldSpec

_NEAR_NS = 60 * 10**9
"""Largest distance of a header stamp from the time of recording [ns]; stamps of a simulated clock
are further away."""


class TopicField(NamedTuple):
    """Field of the schema, and the place of its values in the messages."""

    topic: str
    key: str
    name: str


@dataclass
class Topic:
    """Messages of one topic of one recording."""

    type_name: str
    times: list[tuple[int, int | None]] = field(default_factory=list)
    """Time of recording and header stamp of every decoded message [ns]."""
    logs: list[int] = field(default_factory=list)
    """Time of recording of every message, also of pictures that are not decoded [ns]."""
    leaves: dict[str, list[Leaf]] = field(default_factory=dict)
    """Arrays of the messages by their path in them."""
    joints: list[str] | None = None
    """Order of the joints, of a JointState."""
    frame: str = ""
    """Frame of the first message."""


@dataclass
class Content:
    """What a recording holds."""

    topics: dict[str, Topic] = field(default_factory=dict)
    spoken: dict[str, list[Spoken]] = field(default_factory=dict)
    """Sentences of every topic of words that is named as an instruction."""
    written: dict[str, list[Spoken]] = field(default_factory=dict)
    """Sentences of every topic of words that the description names."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Reasons by topic."""
    description: EpisodeDescription | None = None
    """Handoff's description of the recording, if it has one."""

    @property
    def start_ns(self) -> int:
        """Time of recording of the first message with numbers or a picture [ns]."""
        return min((log for topic in self.topics.values() for log, _ in topic.times), default=0)


def add_message(bag: Bag, content: Content, message: BagMessage, decoded: Any) -> Topic:
    """The topic of a message, with its time added.

    Raises:
        HandoffError: the topic has messages of another type.
    """
    topic = content.topics.setdefault(message.topic, Topic(message.type_name))
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
    topic.logs.append(message.log_ns)
    return topic


def topic_fields(content: Content, others: Mapping[str, Collection[str]]) -> list[TopicField]:
    """The fields of a recording; arrays that are not in every message, or change their length, are
    left out.

    Args:
        content: the recording.
        others: names of the fields that topics become otherwise, by topic; these are passed over.

    Raises:
        HandoffError: two fields have one name, or there is none.
    """
    fields: list[TopicField] = []
    for topic, about in sorted(content.topics.items()):
        if topic in others:
            continue
        base = field_name(topic)
        if any(other.startswith(f"{topic}/") for other in content.topics):
            # A field cannot lie inside another one.
            base = f"{base}/message"
        for key, leaves in about.leaves.items():
            shapes = {leaf.value.shape for leaf in leaves}
            if len(shapes) > 1 or (len(leaves) != len(about.times)):
                content.left_out[f"{topic}/{key}"] = "its length changes"
                continue
            fields.append(TopicField(topic, key, field_name(f"{base}/{key}")))
    names = [entry.name for entry in fields] + [name for some in others.values() for name in some]
    double = sorted({name for name in names if names.count(name) > 1})
    if double or not names:
        raise HandoffError(
            f"the recording has {f'two topics of the name {double[0]}' if double else 'no array of one length'}. Was "
            "it damaged?"
        )
    return fields


def topic_spec(topic: Topic, entry: TopicField) -> FieldSpec:
    """The specification of a field, as its messages state it."""
    leaf = topic.leaves[entry.key][0]
    image = leaf.unit == "u8"
    about: dict[str, Any] = {} if image else {"unit": leaf.unit, "frame": topic.frame}
    if leaf.names and leaf.value.ndim == 1:
        about["names"] = (leaf.names,)
    return array_field(leaf.value[None], "observation", image=image, **about)


def capture_seconds(
    times: Sequence[tuple[int, int | None]], start_ns: int, *, zero: bool = False
) -> np.ndarray:
    """Capture times of a topic from the first message of the recording [s].

    Args:
        times: see `Topic.times`.
        start_ns: time of recording of the first message [ns].
        zero: whether a stamp of 0 is a time; otherwise nobody set it.
    """
    stamped = all(
        stamp is not None and (zero or stamp != 0) and abs(stamp - log) < _NEAR_NS
        for log, stamp in times
    )
    chosen = [stamp if stamped and stamp is not None else log for log, stamp in times]
    return np.array([1e-9 * (time - start_ns) for time in chosen])
