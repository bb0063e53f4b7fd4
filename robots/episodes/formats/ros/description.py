"""Reads the description that Handoff's export writes on the topic `/episode` of a recording: task,
robot, rate, metadata, and the fields of the store with their topics.

Anybody can write such a message, so size, depth, types and names are checked. A message that is
something else is no description, and no error: other systems may have a topic of this name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple, get_args

from robots.config import validate
from robots.control.actions import ActionInterface
from robots.errors import HandoffError
from robots.spec import FieldSpec

EPISODE_TOPIC = "/episode"
LARGEST = 2**22
"""Largest size of the JSON text [characters]; one of 30 fields has about 10,000."""
MOST_TOPICS = 1000
"""Largest number of topics of a description."""
_KEYS = {"task", "robot", "episode", "rate_hz", "metadata", "fields"}
_DEEPEST = 8
"""Largest depth of lists and tables in the metadata."""
_LONGEST_WORDS = 2**16
_LONGEST_NAME = 200
_LONGEST_PHRASE = 500
_LARGEST_RATE_HZ = 10_000.0
_NUMBERS = {
    "bool",
    "float16",
    "float32",
    "float64",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


class DescribedField(NamedTuple):
    """A field of the store."""

    stream: str
    name: str
    """Name in its stream."""
    spec: FieldSpec


class DescribedTopic(NamedTuple):
    """What the messages of a topic are in the store."""

    field: DescribedField
    capture_times: DescribedField | None
    """Field with the times of the stamps; None if the field has no capture times."""


class EpisodeDescription(NamedTuple):
    """One description."""

    task: str
    robot: str
    """Name of the robot; empty if there was none."""
    rate_hz: float
    """Rate of the stream of the steps."""
    metadata: dict[str, Any]
    """Entries of the episode that are JSON of a bounded size."""
    refused: tuple[str, ...]
    """Names of the other entries."""
    topics: Mapping[str, DescribedTopic]
    """By the name of the topic."""


def parse_description(text: str) -> EpisodeDescription | None:
    """The description in a text; None if it is something else.

    Args:
        text: content of the message.
    """
    if len(text) > LARGEST:
        return None
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(about, dict) or set(about) != _KEYS:
        return None
    try:
        return _description(about)
    except (HandoffError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _description(about: Mapping[str, Any]) -> EpisodeDescription:
    """The checked description.

    Raises:
        ValueError: an entry is missing, of another type, or outside its limits.
    """
    rate = about["rate_hz"]
    metadata = about["metadata"]
    fields = about["fields"]
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise ValueError("rate_hz is no number")
    if not 0.0 < rate <= _LARGEST_RATE_HZ:
        raise ValueError(f"rate_hz is {rate}")
    if not isinstance(metadata, dict) or not isinstance(fields, dict) or len(fields) > MOST_TOPICS:
        raise ValueError("metadata or fields")
    kept = {key: value for key, value in metadata.items() if _is_entry(key, value)}
    topics = {topic: _topic(entry) for topic, entry in fields.items()}
    return EpisodeDescription(
        task=_words(about["task"], _LONGEST_NAME),
        robot=_words(about["robot"], _LONGEST_NAME),
        rate_hz=float(rate),
        metadata=kept,
        refused=tuple(repr(key)[:40] for key in metadata if key not in kept),
        topics=topics,
    )


def _topic(entry: object) -> DescribedTopic:
    """What the entry of one topic states.

    Raises:
        HandoffError: a key or value that no field has.
        ValueError: a name or words that no field has.
    """
    if not isinstance(entry, dict):
        raise ValueError("a field is no table")
    times = entry.get("capture_times")
    field = _field({key: value for key, value in entry.items() if key != "capture_times"})
    captured = None if times is None else _field(dict(times))
    if captured is not None and (
        captured.stream != field.stream or captured.spec.unit != "s" or captured.spec.shape != ()
    ):
        raise ValueError(f"{captured.name} has no capture times")
    return DescribedTopic(field, captured)


def _field(given: dict[str, Any]) -> DescribedField:
    path = given.pop("field")
    stream, slash, name = _words(path, _LONGEST_NAME).partition("/")
    if not (slash and _NAME.fullmatch(stream) and _NAME.fullmatch(name)):
        raise ValueError(f"{path!r:.60} is no name of a field")
    spec = validate(FieldSpec, given)
    if spec.dtype not in _NUMBERS:
        raise ValueError(f"{path!r:.60} has the numbers {spec.dtype!r:.20}")
    for phrase in (spec.unit, spec.frame):
        _words(phrase, _LONGEST_PHRASE)
    for entry in (entry for axis in spec.names for entry in axis):
        _words(entry, _LONGEST_NAME)
    about = "".join(letter if letter.isprintable() else " " for letter in spec.about)
    # Some stores name the entries of the last axis alone.
    axes = tuple(len(axis) for axis in spec.names)
    named = axes in (tuple(spec.shape), tuple(spec.shape)[-1:])
    known = spec.interface in get_args(ActionInterface)
    spec = replace(
        spec,
        about=about[:_LONGEST_PHRASE],
        names=spec.names if named else (),
        interface=spec.interface if known else "",
    )
    return DescribedField(stream, name, spec)


def _words(value: object, longest: int) -> str:
    """Words that may be printed.

    Raises:
        ValueError: they are something else, or too long.
    """
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        raise ValueError(f"{value!r:.60} is no phrase of at most {longest} characters")
    return value


def _is_entry(key: str, value: object) -> bool:
    """Whether an entry of the metadata is JSON of a bounded size under a printable name."""
    return 0 < len(key) <= _LONGEST_NAME and key.isprintable() and _is_plain(value, _DEEPEST)


def _is_plain(value: object, depth: int) -> bool:
    if isinstance(value, str):
        # Halves of surrogate pairs are no UTF-8.
        return len(value) <= _LONGEST_WORDS and not re.search("[\ud800-\udfff]", value)
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, int):
        return abs(value) < 2**63
    if isinstance(value, float):
        return isfinite(value)
    if depth == 0:
        return False
    if isinstance(value, list):
        return all(_is_plain(entry, depth - 1) for entry in value)
    return isinstance(value, dict) and all(
        _is_plain(key, 0) and _is_plain(entry, depth - 1) for key, entry in value.items()
    )
