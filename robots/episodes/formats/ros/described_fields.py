"""Makes fields of a store from the topics that Handoff's export wrote, by their description.

| in the message                                | in the store                                   |
|-----------------------------------------------|------------------------------------------------|
| picture, depth                                | the same                                       |
| numbers, entries of `JointState`, `Point`     | the number type and the shape of the field     |
| quaternion, pose                              | one vector, in the field's order of entries    |
| words, sent when they change                  | a text field of every step                     |
| stamps                                        | the field of the capture times                 |

A topic whose messages do not have the numbers that the description states is read like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from robots.episodes.formats.ros.content import Content, Topic
from robots.episodes.formats.ros.description import (
    DescribedField,
    EpisodeDescription,
)
from robots.episodes.formats.ros.instructions import Spoken
from robots.episodes.formats.ros.ros_messages import Leaf
from robots.episodes.schema import is_picture
from robots.language.text import UNIT as TEXT
from robots.language.text import encode
from robots.spec import POSE, FieldSpec

LONGEST_TEXT = 2**16
"""Largest size of a text field [bytes]."""
_POLICY = "policy"
_CASTS = {("float64", "float32"), ("float32", "float16"), ("uint8", "bool")}
"""Number types of messages, and of the fields that have no message of their own type."""
_XYZW = (("x", "y", "z", "w"), ("qx", "qy", "qz", "qw"))


class OwnField(NamedTuple):
    """A field that a topic becomes."""

    name: str
    """Name in the store that is read: fields of other streams than that of the steps have the name
    of their stream before it."""
    spec: FieldSpec
    times: tuple[str, FieldSpec] | None = None
    """Name and specification of the field of its capture times; None without one."""

    @property
    def names(self) -> list[str]:
        """Names of the field and of its capture times."""
        return [self.name] if self.times is None else [self.name, self.times[0]]


def own_fields(description: EpisodeDescription | None) -> dict[str, OwnField]:
    """The described fields by their topic; empty if two of them would have one name, or one would
    lie inside the other. A topic that only shows a field a second time has none."""
    topics = {} if description is None else description.topics
    streams = list(dict.fromkeys(about.field.stream for about in topics.values()))
    steps = _POLICY if _POLICY in streams else next(iter(streams), "")

    def named(field: DescribedField) -> str:
        return field.name if field.stream == steps else f"{field.stream}/{field.name}"

    found: dict[str, OwnField] = {}
    shown = shown_again(description)
    for topic, about in topics.items():
        if topic not in shown:
            times = about.capture_times
            captured = None if times is None else (named(times), _with_role(times))
            found[topic] = OwnField(named(about.field), _with_role(about.field), captured)
    names = Counter(name for field in found.values() for name in field.names)
    inside = any(
        "/".join(parts[:length]) in names
        for parts in (name.split("/") for name in names)
        for length in range(1, len(parts))
    )
    return {} if inside or any(count > 1 for count in names.values()) else found


def shown_again(description: EpisodeDescription | None) -> set[str]:
    """Topics that only show, as a pose, what another one has as numbers."""
    topics = {} if description is None else description.topics
    return {
        topic
        for topic, about in topics.items()
        if topic.endswith("_pose")
        and about.field.spec.names == POSE
        and (numbers := topics.get(topic.removesuffix("_pose"))) is not None
        and numbers.field == about.field
    }


def fitting(content: Content) -> dict[str, OwnField]:
    """The described fields whose messages have the numbers or words that the description states.

    Args:
        content: the first recording.
    """
    fitting: dict[str, OwnField] = {}
    for topic, field in own_fields(content.description).items():
        about = content.topics.get(topic)
        if is_text(field.spec):
            if topic in content.written:
                fitting[topic] = field
        elif about is not None and _fits(field.spec, about):
            stamped = about.times[0][1] is not None
            fitting[topic] = field if stamped else field._replace(times=None)
    return fitting


def _fits(spec: FieldSpec, about: Topic) -> bool:
    """Whether every message has the same arrays, and the first one has those of a field."""
    shapes = [{leaf.value.shape for leaf in some} for some in about.leaves.values()]
    whole = all(len(some) == len(about.times) for some in about.leaves.values())
    first = {key: some[:1] for key, some in about.leaves.items()}
    return (
        whole
        and all(len(some) == 1 for some in shapes)
        and own_values(spec, about.type_name, first) is not None
    )


def own_values(
    spec: FieldSpec, type_name: str, leaves: Mapping[str, Sequence[Leaf]]
) -> np.ndarray | None:
    """`(T, *shape)` values of a field from the arrays of its messages; None if these have other
    shapes or number types than the field.

    Args:
        spec: the field.
        type_name: type of the messages.
        leaves: arrays of every message by their path in it, each in every message.
    """
    if not leaves or any(len({leaf.value.shape for leaf in some}) != 1 for some in leaves.values()):
        return None
    parts = [np.stack([leaf.value for leaf in some]) for some in leaves.values()]
    values = parts[0]
    if len(parts) > 1:
        if any(part.ndim != 2 or len(part) != len(values) for part in parts):
            return None
        values = np.concatenate(parts, axis=1)
    same = values.shape[1:] == tuple(spec.shape)
    flat = values.ndim == 2 and values.shape[1] == prod(spec.shape)
    given = values.dtype.name
    if not (same or flat) or not (given == spec.dtype or (given, spec.dtype) in _CASTS):
        return None
    if type_name.startswith("geometry_msgs/") and spec.names and spec.names[-1][-4:] in _XYZW:
        # Quaternions of messages are read with the scalar first.
        values = np.concatenate([values[:, :-4], values[:, -3:], values[:, -4:-3]], axis=1)
    return values.reshape(len(values), *spec.shape).astype(spec.dtype, copy=False)


def is_text(spec: FieldSpec) -> bool:
    """Whether a field is text of a bounded size."""
    sized = len(spec.shape) == 1 and 0 < spec.shape[0] <= LONGEST_TEXT
    return spec.unit == TEXT and spec.dtype == "uint8" and sized


def text_of_steps(written: Sequence[Spoken], steps_ns: Sequence[int], size: int) -> np.ndarray:
    """`(T, size)` text of every step: the newest sentence, or the first one before it.

    Args:
        written: at least one sentence, in the order of their times.
        steps_ns: `(T,)` times of the steps [ns].
        size: size of the text field [bytes].

    Raises:
        HandoffError: a sentence is longer.
    """
    times = np.array([entry.log_ns for entry in written])
    newest = np.searchsorted(times, np.array(steps_ns), side="right") - 1
    return encode([entry.sentence for entry in written], size)[np.maximum(newest, 0)]


def stamp_values(topic: Topic, spec: FieldSpec) -> np.ndarray:
    """`(T,)` stamps of a topic's messages as a field with capture times [s]."""
    # One division rounds once, so that times of whole microseconds come back as they were.
    return (np.array([stamp or 0 for _, stamp in topic.times]) / 1e9).astype(spec.dtype)


def own_specs(field: OwnField, *, steps: bool) -> list[tuple[str, FieldSpec]]:
    """Name and specification of a field, and of its capture times, if they are read; those of
    pictures are made anew where topics are resampled.

    Args:
        field: the field.
        steps: whether the steps of the recording are kept.
    """
    found = [(field.name, field.spec)]
    if field.times is not None and (steps or not is_picture(field.spec)):
        found.append(field.times)
    return found


def common_steps(content: Content, own: Mapping[str, OwnField]) -> list[int] | None:
    """`(T,)` times of recording at which all topics have a message [ns]; None if there are other
    messages, or topics that no description names.

    Args:
        content: a recording.
        own: the described fields, by topic.
    """
    shown = shown_again(content.description)
    logs = [about.logs for about in content.topics.values()]
    known = content.topics.keys() <= {*own, *shown}
    if not logs or not known or content.left_out or any(times != logs[0] for times in logs):
        return None
    return logs[0] if logs[0] == sorted(logs[0]) else None


def _with_role(field: DescribedField) -> FieldSpec:
    """The specification with its role; exports of older versions do not state it."""
    role = "action" if field.name == "action" else "observation"
    return field.spec if field.spec.role else replace(field.spec, role=role)
