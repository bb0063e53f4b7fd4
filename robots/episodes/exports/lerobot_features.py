"""Names and describes the fields of a store as the features of a LeRobot data set.

| field                        | feature                                         |
|------------------------------|-------------------------------------------------|
| pictures                     | `observation.images.NAME`, a video or pictures  |
| other observations           | `observation.NAME`                              |
| the action                   | `action`                                        |
| rewards, ends, success       | `next.NAME`                                     |
| the text field `instruction` | the task of each frame                          |
| other text fields            | as above, of the type string                    |
| other fields                 | `NAME`                                          |

A name that has its prefix keeps it. Features have no slashes, which become dots, and no shape (),
which becomes (1,). The `info` of a field with capture times names the feature of the pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from robots.episodes.demonstrations import field_role
from robots.episodes.exports.mp4 import VideoCodec
from robots.episodes.formats.lerobot_files.lerobot_features import CAPTURED
from robots.episodes.formats.lerobot_files.lerobot_metadata import INDEX_COLUMNS
from robots.episodes.metadata.capture_times import capture_times
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION
from robots.language.text import UNIT as TEXT
from robots.spec import FieldSpec

ACTION = "action"
_IMAGES = "observation.images."
_OBSERVATION = "observation."
_OUTCOME = "next."


class ExportedField(NamedTuple):
    """A field of the store and its feature."""

    field: str
    """Name in the store."""
    feature: str
    """Name in the data set."""
    spec: FieldSpec

    @property
    def is_picture(self) -> bool:
        """Whether it is a camera's picture."""
        return self.spec.unit == "u8"

    @property
    def is_text(self) -> bool:
        """Whether it is a text field."""
        return self.spec.unit == TEXT

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the feature."""
        return (1,) if self.is_text else tuple(self.spec.shape) or (1,)


def exported_fields(fields: Mapping[str, FieldSpec]) -> list[ExportedField]:
    """The fields of a stream with their features, in the same order; the text field `instruction`
    is left out, since it becomes the tasks.

    Raises:
        HandoffError: two features would have the same name, or a picture is no RGB.
    """
    actions = [name for name, spec in fields.items() if field_role(name, spec) == "action"]
    action = ACTION if ACTION in actions else next(iter(actions), None)
    exported: list[ExportedField] = []
    owners: dict[str, str] = {}
    for name, spec in fields.items():
        if name == INSTRUCTION and spec.unit == TEXT:
            continue
        feature = ACTION if name == action else _feature_name(name, spec)
        if feature in owners:
            raise HandoffError(
                f"lerobot: the fields '{owners[feature]}' and '{name}' would both become {feature}. Rename one."
            )
        owners[feature] = name
        exported.append(ExportedField(name, feature, spec))
        if exported[-1].is_picture and (len(spec.shape) != 3 or spec.shape[2] != 3):
            raise HandoffError(
                f"lerobot: the picture '{name}' has the shape {spec.shape}, expected (height, width, 3)."
            )
    return exported


def feature_entries(
    exported: list[ExportedField], codecs: Mapping[str, VideoCodec], version: str, rate: int
) -> dict[str, dict[str, Any]]:
    """The entries `features` of `meta/info.json`.

    Args:
        exported: fields and features.
        codecs: codec of each camera that becomes a video, by feature.
        version: version of the format.
        rate: frames per second.
    """
    entries: dict[str, dict[str, Any]] = {}
    captured = _captured(exported)
    for field in exported:
        shape: list[int] = list(field.shape)
        if field.is_picture:
            names: object = ["height", "width", "channels"]
            codec = codecs.get(field.feature)
            entry = {"dtype": "image" if codec is None else "video", "shape": shape, "names": names}
            if codec is not None:
                entry["info"] = _video_info(codec, shape, version, rate)
        elif field.is_text:
            entry = {"dtype": "string", "shape": shape, "names": None}
        else:
            entry = {"dtype": field.spec.dtype, "shape": shape, "names": _names(field.spec)}
            stated = {
                key: getattr(field.spec, key) for key in ("unit", "frame", "about", "interface")
            }
            info = {key: value for key, value in stated.items() if value not in ("", "1")}
            if field.field in captured:
                info[CAPTURED] = captured[field.field]
            if info:
                entry["info"] = info
        entries[field.feature] = entry
    for name in INDEX_COLUMNS:
        dtype = "float32" if name == "timestamp" else "int64"
        entries[name] = {"dtype": dtype, "shape": [1], "names": None}
    return entries


def _captured(exported: list[ExportedField]) -> dict[str, str]:
    """Features of the pictures by the fields with their capture times."""
    pictures = {field.field: field.feature for field in exported if field.is_picture}
    times = capture_times({field.field: field.spec for field in exported})
    return {time: pictures[name] for name, time in times.items() if name in pictures}


def _feature_name(name: str, spec: FieldSpec) -> str:
    dotted = name.replace("/", ".")
    role = field_role(name, spec)
    if role == "observation":
        prefix = _IMAGES if spec.unit == "u8" else _OBSERVATION
        return dotted if dotted.startswith(_OBSERVATION) else f"{prefix}{dotted}"
    if role == "outcome":
        return dotted if dotted.startswith(_OUTCOME) else f"{_OUTCOME}{dotted}"
    taken = dotted in (*INDEX_COLUMNS, ACTION, "task") or dotted.startswith(
        (_OBSERVATION, _OUTCOME)
    )
    return f"other.{dotted}" if taken else dotted


def _names(spec: FieldSpec) -> object:
    """Names of a vector's entries as a list, those of several axes by axis."""
    names = [list(axis) for axis in spec.names]
    if not names or [len(axis) for axis in names] != list(spec.shape):
        return None
    return names[0] if len(names) == 1 else {f"axis_{i}": axis for i, axis in enumerate(names)}


def _video_info(codec: VideoCodec, shape: list[int], version: str, rate: int) -> dict[str, Any]:
    depth = "is_depth_map" if version == "v3.0" else "video.is_depth_map"
    return {
        "video.height": shape[0],
        "video.width": shape[1],
        "video.codec": codec.name,
        "video.pix_fmt": codec.pixel_format,
        "video.fps": rate,
        "video.channels": 3,
        "has_audio": False,
        depth: False,
    }
