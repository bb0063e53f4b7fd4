"""Describes episodes: streams of different rates, whose named fields have units and frames."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from robots.config import Hertz, config
from robots.episodes.segments.video_codec import VideoConfig
from robots.episodes.segments.video_copy import CodedFrames
from robots.errors import HandoffError
from robots.spec import FieldSpec, check_fields, is_immutable

Streams = Mapping[str, Mapping[str, np.ndarray | CodedFrames]]
"""One episode: `{stream: {field: (T, *field shape)}}`; T is common to the fields of a stream. A
camera that is kept as video may be given by its coded frames."""
CheckedStreams = dict[str, dict[str, np.ndarray | CodedFrames]]
"""One episode that matches its schema."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""Name of a stream, and of every part of a field's name between slashes."""


@config
class StreamSpec:
    """Fields sampled together."""

    rate_hz: Hertz
    """Samples per second of robot time."""
    fields: dict[str, FieldSpec]
    """Fields of one sample by name."""


@config
class EpisodeSchema:
    """Streams of every episode of a store."""

    name: str
    """Name of the task, e.g. `push_t`."""
    streams: dict[str, StreamSpec]
    """Streams by name; `policy` is the stream at which policies observe and act."""
    robot: str = ""
    """Name of the robot (`robots.franka.find_robot`) with which all episodes were recorded;
    empty if there was none, and in stores written before the field existed."""
    videos: dict[str, VideoConfig] = dataclasses.field(default_factory=dict)
    """Codec of the cameras that are kept as video, by `stream/field`; the others are arrays without
    loss."""

    @property
    def exact(self) -> EpisodeSchema:
        """The schema of a copy: without the videos whose codec loses something, as each copy would
        lose more."""
        kept = {name: codec for name, codec in self.videos.items() if codec.kind == "ffv1"}
        return replace(self, videos=kept)

    def stream(self, name: str) -> StreamSpec:
        """The stream called `name`.

        Raises:
            HandoffError: there is none; the message lists all streams.
        """
        if name not in self.streams:
            raise HandoffError(
                f"{self.name}: no stream '{name}'; the schema has {sorted(self.streams)}."
            )
        return self.streams[name]


def check_schema(schema: EpisodeSchema) -> None:
    """Checks that every name is a valid folder name, every dtype numeric and every rate positive.

    Raises:
        HandoffError: a stream or field does not meet these conditions.
    """
    if not schema.streams:
        raise HandoffError(f"{schema.name}: schema without a stream, expected at least one.")
    for stream, spec in schema.streams.items():
        if not spec.rate_hz > 0:
            raise HandoffError(
                f"{schema.name}/{stream}: rate is {spec.rate_hz} Hz, expected more than 0."
            )
        if not spec.fields:
            raise HandoffError(
                f"{schema.name}/{stream}: stream without a field, expected at least one."
            )
        parts = [part for name in spec.fields for part in name.split("/")]
        for name in (stream, *parts):
            if not _NAME.fullmatch(name):
                raise HandoffError(
                    f"{schema.name}: '{name}' cannot name an array; use letters, digits, '_', '-', '.', and '/' "
                    "between the parts of a field's name."
                )
        for name, field in spec.fields.items():
            _check_dtype(f"{schema.name}/{stream}/{name}", field.dtype)
            inside = next((other for other in spec.fields if other.startswith(f"{name}/")), None)
            if inside is not None:
                raise HandoffError(
                    f"{schema.name}/{stream}: fields '{name}' and '{inside}', of which one would lie inside the other. "
                    "Rename one of them."
                )
    _check_videos(schema)


def with_videos(schema: EpisodeSchema, codec: VideoConfig | None) -> EpisodeSchema:
    """The schema with all its RGB pictures kept as video; None leaves it as it is."""
    if codec is None:
        return schema
    pictures = {
        f"{stream}/{name}": codec
        for stream, spec in schema.streams.items()
        for name, field in spec.fields.items()
        if field.unit == "u8" and is_picture(field)
    }
    return replace(schema, videos=pictures)


def is_picture(field: FieldSpec) -> bool:
    """Whether samples are RGB pictures `(height, width, 3)` of uint8."""
    return len(field.shape) == 3 and field.shape[2] == 3 and field.dtype == "uint8"


def _check_videos(schema: EpisodeSchema) -> None:
    """Checks that what is kept as video is a camera."""
    for name, codec in schema.videos.items():
        stream, _, key = name.partition("/")
        spec = schema.streams.get(stream)
        field = None if spec is None else spec.fields.get(key)
        if field is None:
            raise HandoffError(f"{schema.name}: videos name '{name}', which is no field.")
        depth = codec.kind == "ffv1" and len(field.shape) == 2 and field.dtype == "uint16"
        if not (is_picture(field) or depth):
            raise HandoffError(
                f"{schema.name}: '{name}' has {field.dtype} of the shape {field.shape}; a video holds RGB pictures of "
                "uint8, and with the codec ffv1 also depth (height, width) of uint16."
            )


def check_episode(schema: EpisodeSchema, streams: Streams) -> CheckedStreams:
    """A checked copy of one episode, with every field in the dtype of its spec.

    Raises:
        HandoffError: a missing or unknown stream or field, a wrong shape, a non-finite value,
            fields of unequal length, an empty stream, or a value that the declared dtype cannot
            represent.
    """
    missing, unknown = (
        sorted(schema.streams.keys() - streams.keys()),
        sorted(streams.keys() - schema.streams.keys()),
    )
    if missing or unknown:
        raise HandoffError(
            f"{schema.name}: streams missing {missing}, unknown {unknown}; has {sorted(schema.streams)}."
        )
    checked = {stream: _check_stream(schema, stream, streams[stream]) for stream in schema.streams}
    for stream, fields in checked.items():
        if not len(next(iter(fields.values()))):
            raise HandoffError(
                f"{stream}: 0 samples, expected at least 1. Was the episode stopped before it began?"
            )
    return checked


def _check_stream(
    schema: EpisodeSchema, stream: str, values: Mapping[str, np.ndarray | CodedFrames]
) -> dict[str, np.ndarray | CodedFrames]:
    """A checked copy of the arrays of one stream, and its coded frames as they are."""
    spec = schema.streams[stream]
    coded = {name: value for name, value in values.items() if isinstance(value, CodedFrames)}
    arrays = {name: value for name, value in values.items() if not isinstance(value, CodedFrames)}
    for name, frames in coded.items():
        field = spec.fields.get(name)
        if field is None or f"{stream}/{name}" not in schema.videos:
            raise HandoffError(f"{stream}/{name}: is not kept as video, expected an array.")
        if frames.video.shape[1:] != tuple(field.shape) or frames.video.dtype != field.dtype:
            raise HandoffError(
                f"{stream}/{name}: frames have the shape {frames.video.shape[1:]} of {frames.video.dtype}, expected "
                f"{field.shape} of {field.dtype}."
            )
    rest = {name: field for name, field in spec.fields.items() if name not in coded}
    checked = check_samples(stream, replace(spec, fields=rest), arrays) if rest or arrays else {}
    both: dict[str, np.ndarray | CodedFrames] = {**coded, **checked}
    lengths = {name: len(value) for name, value in both.items()}
    if len(set(lengths.values())) > 1:
        raise HandoffError(
            f"{stream}: fields of unequal length {lengths}. Was a sample dropped while recording?"
        )
    return {name: both[name] for name in spec.fields}


def check_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an episode's metadata, converted to JSON and back.

    Raises:
        HandoffError: a value is not JSON (an array, NaN, an object).
    """
    try:
        return json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise HandoffError(
            f"episode metadata: {error}. Only JSON values can be stored; convert arrays first."
        ) from None


def check_samples(
    stream: str, spec: StreamSpec, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """A checked copy of samples of one stream, with every field in the dtype of its spec. Arrays of
    integers that are read-only are not copied.

    Args:
        stream: name of the stream.
        spec: its fields.
        arrays: `{field: (T, *field shape)}`.

    Raises:
        HandoffError: a missing or unknown field, a wrong shape, a non-finite value, fields of
            unequal length, or a value that the declared dtype cannot represent.
    """
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    try:
        check_fields(spec.fields, arrays)
    except HandoffError as error:
        raise HandoffError(f"{stream}/{error}") from None
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise HandoffError(
            f"{stream}: fields of unequal length {lengths}. Was a sample dropped while recording?"
        )
    return {
        name: _cast(f"{stream}/{name}", field, arrays[name]) for name, field in spec.fields.items()
    }


def _cast(name: str, field: FieldSpec, array: np.ndarray) -> np.ndarray:
    dtype = np.dtype(field.dtype)
    if array.dtype == dtype and dtype.kind != "f" and array.flags.c_contiguous:
        return array if is_immutable(array) else array.copy()
    with np.errstate(over="ignore"):
        cast = np.array(array, dtype=dtype, order="C")
    if array.dtype == dtype and dtype.kind != "f":
        return cast
    exact_kind = np.issubdtype(dtype, np.integer)
    if not (np.array_equal(cast, array) if exact_kind else np.isfinite(cast).all()):
        raise HandoffError(
            f"{name}: values from {array.min()} to {array.max()} do not fit {dtype}."
        )
    return cast


def _check_dtype(name: str, text: str) -> None:
    try:
        kind = np.dtype(text).kind
    except TypeError:
        raise HandoffError(
            f"{name}: unknown dtype '{text}', expected a NumPy name such as 'float32'."
        ) from None
    if kind not in "biuf":
        raise HandoffError(f"{name}: dtype '{text}' is not bool, integer or floating.")
