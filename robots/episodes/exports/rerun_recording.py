"""Writes episodes as recordings of the viewer Rerun (`.rrd`), one per episode.

| field or content             | in the recording                                                |
|------------------------------|-----------------------------------------------------------------|
| RGB picture                  | `EncodedImage`, PNG without loss                                |
| depth                        | `DepthImage`                                                    |
| text, also the instruction   | `TextDocument` at every change                                  |
| up to 128 numbers            | `Scalars` (float64) with the names of the entries               |
| more numbers                 | `Tensor`                                                        |
| events                       | `TextLog` at `episode/events`                                   |
| metadata                     | JSON as a `TextDocument` at `episode/metadata`                  |

The timelines are `time` [s] since the episode began, and `step`, that of the stream `policy`:
samples of other streams have the step in whose period they were taken. A blueprint shows what the
policy proposed and what was executed in one view.

Writing opens no connection. Rerun traces the calls of its library if a variable of the environment
asks for it; this is turned off here. The viewer itself, which Handoff never starts, reports its use
to Rerun unless `rerun analytics disable` was given.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.episodes.exports.png import encode_png
from robots.episodes.exports.rerun_blueprint import blueprint
from robots.episodes.exports.viewer_fields import (
    PROPOSED,
    entry_names,
    field_kind,
    field_prefix,
    flag_changes,
    stream_length,
    stream_name,
    stream_seconds,
    text_changes,
)
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.language.text import INSTRUCTION, decode
from robots.spec import FieldSpec
from robots.storage.durable import (
    explain_write_errors,
    sync_path,
    temporary_beside,
    whole_folder,
)

if TYPE_CHECKING:
    from rerun import RecordingStream, TimeColumn

EVENTS = "episode/events"
METADATA = "episode/metadata"
MOST_SERIES = 128
"""Largest number of entries of a field that are drawn as curves."""
_PICTURES = 64
"""Pictures that are in memory at a time."""
_FLUSH_SECONDS = 600.0
"""Longest time that writing one window of pictures may take [s]."""
_TRACING = "TELEMETRY_ENABLED"


@dataclass(frozen=True)
class _Samples:
    """Fields that were sampled together."""

    prefix: str
    """Text before the names of the fields."""
    fields: Mapping[str, FieldSpec]
    length: int
    steps: np.ndarray | None
    """`(T,)` step of the policy; None if there is none."""
    seconds: np.ndarray | None
    """`(T,)` time since the episode began [s]; None if it is not known."""
    read: Callable[[str, slice], np.ndarray]
    """Returns samples of a field, `(N, *shape)`."""


def write_rerun(
    store: EpisodeStore, out: Path, *, progress: Progress = no_progress
) -> dict[str, Any]:
    """Writes all streams of all episodes, `episode_000000.rrd` and so on.

    Args:
        store: the episodes.
        out: folder of the recordings; it must not exist.
        progress: called with the number of written episodes.

    Returns:
        `episodes` and `steps`.

    Raises:
        HandoffError: `out` exists, the store has no episode, Rerun is turned off by the
            environment, or the disk is full.
        ModuleNotFoundError: rerun-sdk is not installed.
    """
    _rerun()
    number = store.num_episodes
    if number == 0:
        raise HandoffError(f"{store.path}: has no episode, expected at least 1.")
    with whole_folder(out, "the recordings were not written") as aside:
        for episode in range(number):
            file = aside / f"episode_{episode:06d}.rrd"
            samples = _of_store(store, episode)
            _write(file, store.schema.name, episode, samples, store.metadata(episode))
            progress(episode + 1, number, "exporting")
    return {"episodes": number, "steps": int(store.ends(stream_name(store))[-1])}


def write_rerun_episode(
    schema: SourceSchema, number: int, episode: SourceEpisode, out: Path
) -> Path:
    """Writes one episode of a data set of any format; a recording at `out` is replaced.

    Args:
        schema: fields of the data set.
        number: number of the episode.
        episode: its arrays, `(T, ...)` each.
        out: file of the recording.

    Returns:
        `out`.

    Raises:
        HandoffError: Rerun is turned off by the environment, or the disk is full.
        ModuleNotFoundError: rerun-sdk is not installed.
    """
    _rerun()
    aside = temporary_beside(out)
    with explain_write_errors(out, "the recording was not written"):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(aside, schema.task, number, _of_source(schema, episode), episode.metadata)
            sync_path(aside)
            os.replace(aside, out)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        sync_path(out.parent)
    return out


def _rerun() -> Any:
    """The module `rerun`, imported without its tracing."""
    before = os.environ.get(_TRACING)
    os.environ[_TRACING] = "false"
    try:
        import rerun
    finally:
        if before is None:
            del os.environ[_TRACING]
        else:
            os.environ[_TRACING] = before
    return rerun


def _of_store(store: EpisodeStore, episode: int) -> list[_Samples]:
    """All streams of an episode, that of the policy first."""
    first = stream_name(store)
    moments = stream_seconds(store, episode, first)
    found = []
    for stream in sorted(store.schema.streams, key=lambda name: name != first):
        length = stream_length(store, episode, stream)
        seconds = stream_seconds(store, episode, stream)
        steps = np.arange(length)
        if stream != first:
            steps = np.searchsorted(moments, seconds + 1e-9, side="right") - 1

        def read(name: str, window: slice, stream: str = stream) -> np.ndarray:
            return store.read(episode, stream, [name], window)[name]

        fields = store.schema.stream(stream).fields
        prefix = field_prefix(store, stream)
        found.append(_Samples(prefix, fields, length, np.maximum(steps, 0), seconds, read))
    return found


def _of_source(schema: SourceSchema, episode: SourceEpisode) -> list[_Samples]:
    """All fields of an episode, each one for itself if they have times of their own."""

    def read(name: str, window: slice) -> np.ndarray:
        return episode.arrays[name][window]

    fields = {name: schema.fields[name] for name in episode.arrays}
    if episode.times:
        return [
            _Samples("", {name: spec}, len(episode.arrays[name]), None, episode.times[name], read)
            for name, spec in fields.items()
        ]
    length = len(next(iter(episode.arrays.values())))
    steps = np.arange(length)
    seconds = None if schema.rate_hz is None else steps / schema.rate_hz
    return [_Samples("", fields, length, steps, seconds, read)]


def _write(
    file: Path, task: str, number: int, samples: list[_Samples], metadata: Mapping[str, Any]
) -> None:
    """Writes the file of one episode.

    Raises:
        HandoffError: Rerun is turned off by the environment.
        OSError: it could not be written completely.
    """
    rr = _rerun()
    recording = rr.RecordingStream(f"handoff {task}", send_properties=False)
    if not recording.is_enabled():
        raise HandoffError(
            "RERUN=off is set in the environment, so that Rerun would write nothing. Unset it."
        )
    with _checked(file, recording):
        recording.save(file)
        recording.send_recording_name(f"{task}, episode {number}")
        fields = {
            f"{part.prefix}{name}": spec for part in samples for name, spec in part.fields.items()
        }
        recording.send_blueprint(blueprint(fields, EVENTS, METADATA))
        text = json.dumps(metadata, indent=1)
        recording.log(METADATA, rr.TextDocument(text), static=True, strict=True)
        sentence = metadata.get(INSTRUCTION)
        if isinstance(sentence, str) and INSTRUCTION not in fields:
            recording.log(INSTRUCTION, rr.TextDocument(sentence), static=True, strict=True)
        for part in samples:
            for name, spec in part.fields.items():
                _write_field(recording, part, name, spec)
            _write_events(recording, part)


@contextmanager
def _checked(file: Path, recording: RecordingStream) -> Iterator[None]:
    """Context in which a thread of Rerun writes a file, and errors of the disk are looked for.

    Raises:
        OSError: the file is not complete.
    """
    from rerun.chunk import RrdReader

    try:
        yield
        recording.flush(timeout_sec=_FLUSH_SECONDS)
        recording.disconnect()
        # The manifest is written last, and reading it verifies its checksum.
        RrdReader(file).store()
    except RuntimeError as error:
        recording.disconnect()
        lines = str(error).replace(str(file), "the recording").splitlines()
        raise OSError(lines[0] if lines else repr(error)) from error


def _times(samples: _Samples, rows: slice | list[int]) -> list[TimeColumn]:
    """The timelines of some samples."""
    rr = _rerun()
    columns = []
    if samples.steps is not None:
        columns.append(rr.TimeColumn("step", sequence=samples.steps[rows]))
    if samples.seconds is not None:
        columns.append(rr.TimeColumn("time", duration=samples.seconds[rows]))
    return columns


def _write_field(recording: RecordingStream, samples: _Samples, name: str, spec: FieldSpec) -> None:
    """Writes all samples of one field."""
    rr = _rerun()
    path = rr.new_entity_path(f"{samples.prefix}{name}".split("/"))
    kind = field_kind(spec)
    if kind in ("picture", "depth"):
        for start in range(0, samples.length, _PICTURES):
            window = slice(start, min(start + _PICTURES, samples.length))
            pictures = samples.read(name, window)
            columns = _pictures(pictures) if kind == "picture" else _depth(pictures, spec)
            recording.send_columns(path, _times(samples, window), columns, strict=True)
            recording.flush(timeout_sec=_FLUSH_SECONDS)
        return
    values = samples.read(name, slice(0, samples.length))
    if kind == "text":
        sentences = decode(values)
        rows = text_changes(sentences)
        columns = rr.TextDocument.columns(text=[sentences[row] for row in rows])
        recording.send_columns(path, _times(samples, rows), columns, strict=True)
        return
    entries = prod(spec.shape)
    if not 0 < entries <= MOST_SERIES:
        _write_tensors(recording, samples, path, values)
        return
    proposed = " (proposed)" if name in PROPOSED else ""
    names = [f"{entry or name}{proposed}" for entry in entry_names(spec)]
    recording.log(path, rr.SeriesLines(names=names), static=True, strict=True)
    scalars = values.reshape(len(values), entries).astype(np.float64)
    times = _times(samples, slice(0, samples.length))
    recording.send_columns(path, times, rr.Scalars.columns(scalars=scalars), strict=True)


def _write_tensors(
    recording: RecordingStream, samples: _Samples, path: str, values: np.ndarray
) -> None:
    """Writes samples as tensors, which Rerun takes one by one."""
    rr = _rerun()
    recording.set_log_time_enabled(False)
    for row, sample in enumerate(values):
        if samples.steps is not None:
            recording.set_time("step", sequence=int(samples.steps[row]))
        if samples.seconds is not None:
            recording.set_time("time", duration=float(samples.seconds[row]))
        recording.log(path, rr.Tensor(sample), strict=True)
    recording.reset_time()


def _pictures(pictures: np.ndarray) -> Any:
    rr = _rerun()
    encoded = [encode_png(picture) for picture in pictures]
    return rr.EncodedImage.columns(blob=encoded, media_type=["image/png"] * len(encoded))


def _depth(pictures: np.ndarray, spec: FieldSpec) -> Any:
    from rerun.encodings import ChannelDatatype, ImageFormat

    rr = _rerun()
    height, width = spec.shape
    channel = ChannelDatatype.U16 if spec.dtype == "uint16" else ChannelDatatype.F32
    about = ImageFormat(width=width, height=height, channel_datatype=channel)
    number = len(pictures)
    return rr.DepthImage.columns(
        buffer=[np.ascontiguousarray(picture).tobytes() for picture in pictures],
        format=[about] * number,
        meter=[1.0 if spec.unit == "m" else 1000.0] * number,
    )


def _write_events(recording: RecordingStream, samples: _Samples) -> None:
    """Writes the changes of the flags."""
    rr = _rerun()
    everything = slice(0, samples.length)
    found = flag_changes(samples.fields, lambda name: samples.read(name, everything))
    if found:
        texts = [f"{samples.prefix}{what}" for _, what in found]
        times = _times(samples, [sample for sample, _ in found])
        recording.send_columns(EVENTS, times, rr.TextLog.columns(text=texts), strict=True)
