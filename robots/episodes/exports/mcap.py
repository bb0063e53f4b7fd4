"""Writes episodes as MCAP files with messages of ROS 2, one per episode, for Foxglove, rosbag2 and
`robots.episodes.formats.rosbag`.

Every field becomes a topic of its name by the table in `robots.episodes.exports.ros_topics`; those
of other streams than `policy` have the name of their stream before it. `/instruction` has the
instruction, and `/episode` a JSON object with task, robot, metadata, and what the types of messages
have no place for: units, frames, roles, names and number types of the fields. A file has the
chunks, compressed by zstd, and the metadata of rosbag2.

Times count from the beginning of the episode. Every message is recorded at the time of its step:
that which a stream states (`step_time`), otherwise step k at k / rate. The stamp in the header of a
picture, or of another field with capture times, is its capture time, to the nanosecond and not
below 0, since ROS has no negative times; the field of these times is no topic of its own then.

The reader (`robots.episodes.formats.ros.described_fields`) gives back fields, steps and metadata of
the store, without a map where all streams have the same steps.
"""

from __future__ import annotations

import heapq
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.demonstrations import field_role
from robots.episodes.exports.ros_topics import STRING, RosTopic, field_topics, string
from robots.episodes.exports.viewer_fields import (
    CAPTURE_TIMES,
    LATEST,
    field_kind,
    field_prefix,
    stream_length,
    stream_name,
    stream_seconds,
)
from robots.episodes.metadata.capture_times import capture_times
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.language.text import INSTRUCTION
from robots.spec import FieldSpec
from robots.storage.durable import whole_folder

EPISODE_TOPIC = "/episode"
_PICTURES = 64
_SAMPLES = 4096
"""Samples of a stream with and without pictures that are in memory at a time."""


class _Sent(NamedTuple):
    """An encoded message; sorted by its time."""

    time_ns: int
    topic: RosTopic
    data: bytes


def write_mcap(
    store: EpisodeStore, out: Path, *, progress: Progress = no_progress
) -> dict[str, Any]:
    """Writes all streams of all episodes, `episode_000000.mcap` and so on.

    Args:
        store: the episodes.
        out: folder of the files; it must not exist.
        progress: called with the number of written episodes.

    Returns:
        `episodes`, `messages`, `topics`, the name of each with its type, and `notes`, what is
        changed or read by Handoff alone.

    Raises:
        HandoffError: `out` exists, the store has no episode, two fields would have one topic, no
            message has the number type of a field, or the disk is full.
        ModuleNotFoundError: rosbags is not installed.
    """
    if store.num_episodes == 0:
        raise HandoffError(f"{store.path}: has no episode, expected at least 1.")
    export = _Export(store)
    messages = 0
    with whole_folder(out, "the recordings were not written") as aside:
        for episode in range(store.num_episodes):
            messages += export.write(episode, aside)
            progress(episode + 1, store.num_episodes, "exporting")
    return {
        "episodes": store.num_episodes,
        "messages": messages,
        "topics": export.topics(),
        "notes": list(export.notes()),
    }


class _Export:
    """One store on its way into files."""

    def __init__(self, store: EpisodeStore) -> None:
        """Plans the topics.

        Raises:
            HandoffError: see `write_mcap`.
        """
        from rosbags.typesys import Stores, get_typestore

        self._store = store
        self._typestore = get_typestore(Stores.ROS2_HUMBLE)
        types = self._typestore.types
        self._plan: dict[str, dict[str, list[RosTopic]]] = {}
        self._captured: dict[str, dict[str, str]] = {}
        self._changed: dict[str, int] = {}
        """Number of capture times that no stamp can state, by `stream/field`."""
        for stream, spec in store.schema.streams.items():
            prefix = field_prefix(store, stream)
            self._plan[stream] = {
                name: field_topics(types, f"{prefix}{name}", field)
                for name, field in spec.fields.items()
            }
            self._captured[stream] = {
                source: name
                for source, name in capture_times(spec.fields).items()
                if self._plan[stream][source][0].stamped and name not in CAPTURE_TIMES
            }
            for name in self._captured[stream].values():
                del self._plan[stream][name]
        self._about = RosTopic(EPISODE_TOPIC, STRING, lambda sample, _: None)
        self._instruction = RosTopic(f"/{INSTRUCTION}", STRING, lambda sample, _: None)
        self._check_names()

    def topics(self) -> dict[str, str]:
        """Types of the messages by topic."""
        planned = [
            topic for fields in self._plan.values() for some in fields.values() for topic in some
        ]
        return {topic.name: topic.type_name.rpartition("/")[2] for topic in (self._about, *planned)}

    def write(self, episode: int, folder: Path) -> int:
        """Writes the file of one episode, and returns the number of its messages."""
        from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

        # A bag is a folder whose only recording becomes the file of the episode.
        bag = folder / f"episode_{episode:06d}"
        writer = Writer(bag, version=9, storage_plugin=StoragePlugin.MCAP)
        writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
        number = 0
        with writer:
            connections: dict[str, Any] = {}
            for sent in self._messages(episode):
                name = sent.topic.name
                if name not in connections:
                    connections[name] = writer.add_connection(
                        name, sent.topic.type_name, typestore=self._typestore
                    )
                writer.write(connections[name], sent.time_ns, sent.data)
                number += 1
        (bag / f"{bag.name}.mcap").rename(folder / f"{bag.name}.mcap")
        shutil.rmtree(bag)
        return number

    def _check_names(self) -> None:
        """Checks that no two fields have one topic."""
        taken = {EPISODE_TOPIC: "the metadata of the episode"}
        for stream, fields in self._plan.items():
            for field, topics in fields.items():
                for topic in topics:
                    if topic.name in taken:
                        raise HandoffError(
                            f"{self._store.path}: {stream}/{field} would be the topic {topic.name}, as "
                            f"{taken[topic.name]} is. Rename one of them."
                        )
                    taken[topic.name] = f"{stream}/{field}"
        self._spoken = self._instruction.name in taken

    def _messages(self, episode: int) -> Iterator[_Sent]:
        """The messages of an episode in the order of their times."""
        metadata = self._store.metadata(episode)
        types = self._typestore.types
        yield self._encoded(0, self._about, string(types, self._description(episode, metadata)))
        sentence = metadata.get(INSTRUCTION)
        if isinstance(sentence, str) and not self._spoken:
            yield self._encoded(0, self._instruction, string(types, sentence))
        streams = (self._stream(episode, stream) for stream in self._plan)
        yield from heapq.merge(*streams, key=lambda sent: sent.time_ns)

    def _stream(self, episode: int, stream: str) -> Iterator[_Sent]:
        """The messages of one stream."""
        length = stream_length(self._store, episode, stream)
        times = np.round(stream_seconds(self._store, episode, stream) * 1e9).astype(np.int64)
        fields = self._store.schema.stream(stream).fields
        pictures = any(field_kind(spec) in ("picture", "depth") for spec in fields.values())
        window = _PICTURES if pictures else _SAMPLES
        before: dict[str, bytes] = {}
        for start in range(0, length, window):
            arrays = self._store.read(episode, stream, steps=slice(start, start + window))
            stamps = {
                source: self._stamps(f"{stream}/{name}", arrays[name])
                for source, name in self._captured[stream].items()
            }
            for row in range(min(window, length - start)):
                time_ns = int(times[start + row])
                for field, topics in self._plan[stream].items():
                    sample = arrays[field][row]
                    stamp_ns = int(stamps[field][row]) if field in stamps else time_ns
                    for topic in topics:
                        if topic.changes:
                            repeated = before.get(field) == sample.tobytes()
                            before[field] = sample.tobytes()
                            if repeated:
                                continue
                        yield self._encoded(time_ns, topic, topic.message(sample, stamp_ns))

    def _stamps(self, name: str, seconds: np.ndarray) -> np.ndarray:
        """`(N,)` capture times as those of stamps [ns]."""
        given = seconds.astype(np.float64)
        # Float64 does not have the last nanosecond before the end.
        kept = np.clip(given, 0.0, LATEST - 1e-6)
        self._changed[name] = self._changed.get(name, 0) + int((kept != given).sum())
        return np.round(kept * 1e9).astype(np.int64)

    def _encoded(self, time_ns: int, topic: RosTopic, message: Any) -> _Sent:
        data = self._typestore.serialize_cdr(message, topic.type_name)
        return _Sent(time_ns, topic, bytes(data))

    def _description(self, episode: int, metadata: Mapping[str, Any]) -> str:
        """JSON about an episode."""
        schema = self._store.schema
        fields: dict[str, dict[str, Any]] = {}
        for stream, planned in self._plan.items():
            specs = schema.stream(stream).fields
            for field, topics in planned.items():
                about = _described(stream, field, specs)
                if field in self._captured[stream]:
                    times = self._captured[stream][field]
                    about["capture_times"] = _described(stream, times, specs)
                fields |= {topic.name: about for topic in topics}
        about = {
            "task": schema.name,
            "robot": schema.robot,
            "episode": episode,
            "rate_hz": schema.stream(stream_name(self._store)).rate_hz,
            "metadata": metadata,
            "fields": fields,
        }
        return json.dumps(about)

    def notes(self) -> Iterator[str]:
        """What the recordings change, or hold where only Handoff reads it, one sentence each."""
        yield (
            f"metadata, units, roles, names and number types are JSON on {EPISODE_TOPIC}, which only Handoff reads"
        )
        schema = self._store.schema
        steps = stream_name(self._store)
        others = [name for name in schema.streams if name != steps]
        if others:
            yield (
                f"the streams {', '.join(others)} have samples of their own, so an import needs resample_hz; it makes "
                "one stream"
            )
        for stream, sources in self._captured.items():
            for source, name in sources.items():
                changed = self._changed.get(f"{stream}/{name}", 0)
                lost = f"; {changed} that ROS has no time for became 0 or 2^31 s" if changed else ""
                yield f"{name}: no topic, but the stamps of {source}, to the nanosecond{lost}"
        flat = [
            name
            for stream, planned in self._plan.items()
            for name in planned
            if field_kind(spec := schema.stream(stream).fields[name]) == "numbers"
            and len(spec.shape) > 1
        ]
        if flat:
            yield f"{', '.join(flat)}: arrays of several axes, flat in their messages"


def _described(stream: str, field: str, specs: Mapping[str, FieldSpec]) -> dict[str, Any]:
    """Entries of the description of a field."""
    spec = replace(specs[field], role=field_role(field, specs[field]))
    return {"field": f"{stream}/{field}", **asdict(spec)}
