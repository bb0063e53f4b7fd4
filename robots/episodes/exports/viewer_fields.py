"""Sorts the fields of an episode into what viewers show, with the times of their samples and the
steps at which something happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import prod
from typing import Literal

import numpy as np

from robots.episodes.corrections import FINAL
from robots.episodes.schema import StreamSpec, is_picture
from robots.episodes.store import EpisodeStore
from robots.language.text import UNIT as TEXT
from robots.spec import FieldSpec

STREAM = "policy"
PROPOSED = ("action_policy", "action_proposed")
"""Fields of the action that the policy proposed; `action` is the one that was executed."""
EVENT_FIELDS = ("intervention", "segment", "reason")
"""Fields beside those of the outcome whose changes are events."""
CAPTURE_TIMES = ("step_time", "time")
"""Fields of the exact time of a sample since the episode began [s], where a store has them."""
SMALLEST_DEPTH = 16
"""Smallest sides of floating numbers in metres that are depth rather than a matrix [pixels]."""
LATEST = 2.0**31
"""End of the times that ROS can state [s]; they begin at 0."""

FieldKind = Literal["picture", "depth", "text", "numbers"]
ReadField = Callable[[str], np.ndarray]
"""Returns all samples of a field by its name, `(T, *shape)`."""


def field_kind(spec: FieldSpec) -> FieldKind:
    """What a field is to a viewer: an RGB picture `(height, width, 3)` uint8, depth
    `(height, width)` uint16 or floating [m], text, or numbers."""
    if spec.unit == TEXT:
        return "text"
    if spec.unit == "u8" and is_picture(spec):
        return "picture"
    whole = spec.dtype == "uint16"
    metres = spec.dtype == "float32" and spec.unit == "m" and min(spec.shape) >= SMALLEST_DEPTH
    if len(spec.shape) == 2 and (whole or metres):
        return "depth"
    return "numbers"


def stream_name(store: EpisodeStore) -> str:
    """The stream whose fields keep their names: `policy`, or the first one."""
    streams = store.schema.streams
    return STREAM if STREAM in streams else next(iter(streams))


def field_prefix(store: EpisodeStore, stream: str) -> str:
    """What stands before the names of a stream's fields, as fields of several streams may have one
    name: nothing for that of `stream_name`."""
    return "" if stream == stream_name(store) else f"{stream}/"


def stream_seconds(store: EpisodeStore, episode: int, stream: str) -> np.ndarray:
    """`(T,)` time of every sample of a stream since the episode began [s], ascending: capture times
    where the stream has them, otherwise step k at k / rate. The last observation of an episode with
    corrections comes a step after the last one of its policy."""
    spec = store.schema.stream(stream)

    def read(name: str) -> np.ndarray:
        return store.read(episode, stream, [name])[name]

    if stream == FINAL and stream != stream_name(store):
        policy = stream_seconds(store, episode, stream_name(store))
        rate = store.schema.stream(stream_name(store)).rate_hz
        return policy[-1] + (1.0 + np.arange(stream_length(store, episode, stream))) / rate
    return sample_seconds(spec, read, stream_length(store, episode, stream))


def stream_length(store: EpisodeStore, episode: int, stream: str) -> int:
    """Number of samples of one episode in a stream."""
    ends = store.ends(stream)
    return int(ends[episode] - (ends[episode - 1] if episode else 0))


def sample_seconds(stream: StreamSpec, read: ReadField, length: int) -> np.ndarray:
    """`(T,)` time of every one of `length` samples [s], see `stream_seconds`."""
    for name in CAPTURE_TIMES:
        spec = stream.fields.get(name)
        if spec is not None and spec.unit == "s" and prod(spec.shape) == 1:
            times = read(name).reshape(-1).astype(np.float64)
            if times[0] >= 0.0 and times[-1] < LATEST and (np.diff(times) >= 0.0).all():
                return times
    return np.arange(length) / stream.rate_hz


def text_changes(sentences: tuple[str, ...]) -> list[int]:
    """Indices of the sentences that differ from the one before, with the first one."""
    return [i for i, text in enumerate(sentences) if i == 0 or text != sentences[i - 1]]


def entry_names(spec: FieldSpec) -> list[str]:
    """A name for every entry of a flattened sample: those of the specification, otherwise its
    index along the axis; those of several axes are joined by a comma."""
    axes = []
    for axis, size in enumerate(spec.shape):
        given = spec.names[axis] if axis < len(spec.names) else ()
        axes.append(given if len(given) == size else tuple(map(str, range(size))))
    return [",".join(entry) for entry in product(*axes)] if axes else [""]


def flag_changes(fields: Mapping[str, FieldSpec], read: ReadField) -> list[tuple[int, str]]:
    """Samples at which a flag of the outcome, or the part of a person, changes, in their order,
    each with a phrase such as `success becomes 1`."""
    found = []
    for name, spec in fields.items():
        whole = np.dtype(spec.dtype).kind in "biu" and prod(spec.shape) == 1
        if not whole or not (spec.role == "outcome" or name in EVENT_FIELDS):
            continue
        values = read(name).reshape(-1).astype(np.int64)
        if values[0]:
            found.append((0, f"{name} is {values[0]}"))
        found += [
            (int(sample), f"{name} becomes {values[sample]}")
            for sample in np.flatnonzero(np.diff(values)) + 1
        ]
    return sorted(found)
