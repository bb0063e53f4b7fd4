"""Describes the features of LeRobot data sets by the entries of `meta/info.json`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple, get_args

import numpy as np

from robots.control.actions import ActionInterface
from robots.episodes.formats.lerobot_files.lerobot_video import DepthCode
from robots.episodes.formats.source import LARGEST_EPISODE
from robots.errors import HandoffError
from robots.spec import FieldSpec, Role

INFO = "meta/info.json"
CAPTURED = "capture_time_of"
"""Entry of `info` that Handoff writes: the feature of the pictures that were captured then."""
MOST_AXES = 5
_NUMBERS = frozenset(
    (
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    )
)


class Feature(NamedTuple):
    """One entry of `features` in `meta/info.json`."""

    name: str
    """Name, such as `observation.images.cam_high`."""
    dtype: str
    """A number type of NumPy, video, image, string or language."""
    shape: tuple[int, ...]
    """Shape of one frame's value."""
    names: object
    """Names of the entries, or of the axes, in one of several forms."""
    info: Mapping[str, Any]
    """What else is stated, such as the codec of a video."""

    @property
    def is_number(self) -> bool:
        """Whether it is an array of numbers in the parquet files."""
        return self.dtype in _NUMBERS


def parse_feature(name: str, entry: Mapping[str, Any]) -> Feature:
    """One feature by its entry.

    Raises:
        KeyError, TypeError, ValueError: the entry is damaged.
    """
    dtype, shape = entry["dtype"], tuple(whole_number(size) for size in entry["shape"])
    info = entry.get("info") or entry.get("video_info") or {}
    if len(shape) > MOST_AXES or not all(size > 0 for size in shape):
        raise ValueError(f"{name} has the shape {shape}")
    if float(prod(shape)) * 8 > LARGEST_EPISODE:
        raise ValueError(f"{name} has the shape {shape}, more than an episode may have")
    if not isinstance(info, Mapping) or not isinstance(dtype, str):
        raise ValueError(f"{name} is {entry!r:.80}")
    return Feature(name, dtype, shape or (1,), entry.get("names"), info)


def entry_names(feature: Feature) -> tuple[tuple[str, ...], ...]:
    """Names of the entries along each axis: from a list, a list of lists, a dictionary of lists, or
    one of indices by name; empty if there are none that fit the shape."""
    stated, shape = feature.names, feature.shape
    names: list[Any] = stated if isinstance(stated, list) else []
    if isinstance(stated, Mapping):
        numbered = all(isinstance(value, int | float) for value in stated.values())
        names = sorted(stated, key=stated.__getitem__) if numbered else list(stated.values())
    if not names:
        return ()
    if all(isinstance(name, str) for name in names):
        axes = [names]
    elif all(isinstance(part, list) for part in names):
        axes = names if len(shape) > 1 else [[name for part in names for name in part]]
    else:
        return ()
    if [len(axis) for axis in axes] != list(shape):
        return ()
    return tuple(tuple(str(name)[:200] for name in axis) for axis in axes)


def picture_shape(feature: Feature) -> tuple[int, int]:
    """Height and width of a picture, whose shape may have the channels first or last.

    Raises:
        HandoffError: the shape is no picture's.
    """
    shape = feature.shape
    names = feature.names if isinstance(feature.names, list) else []
    first = str(names[0]).startswith("channel") if names else len(shape) == 3 and shape[0] in (1, 3)
    if len(shape) == 2:
        return shape[0], shape[1]
    if len(shape) != 3 or not 0 < shape[0 if first else 2] <= 4:
        raise HandoffError(
            f"{INFO}: {feature.name} has the shape {shape}, expected a picture (height, width, channels)."
        )
    return (shape[1], shape[2]) if first else (shape[0], shape[1])


def number_field(feature: Feature, role: Role) -> FieldSpec:
    """Field of an array of numbers, with the unit, the frame and the meaning to a controller that
    `info` may state."""
    about = {key: str(feature.info.get(key) or "")[:500] for key in ("unit", "frame", "about")}
    interface = feature.info.get("interface")
    return FieldSpec(
        shape=feature.shape,
        dtype=feature.dtype,
        unit=about["unit"] or "1",
        frame=about["frame"],
        about=about["about"],
        names=entry_names(feature),
        interface=str(interface) if interface in get_args(ActionInterface) else "",
        role=role,
    )


def is_depth(feature: Feature) -> bool:
    """Whether a picture or video holds distances."""
    return bool(feature.info.get("is_depth_map") or feature.info.get("video.is_depth_map"))


def depth_code(feature: Feature) -> DepthCode | None:
    """The code of a depth map; None if the data set does not state it."""
    info = feature.info
    millimetres = info.get("depth_unit") == "mm"
    if feature.dtype == "image":
        stated = info.get("depth_unit") in ("m", "mm")
        return DepthCode(0.0, 0.0, 0.0, False, millimetres) if stated else None
    limits = [info.get(f"video.{key}") for key in ("depth_min", "depth_max", "shift")]
    logarithmic = info.get("video.use_log")
    least, most, shift = (float(v) if isinstance(v, int | float) else np.nan for v in limits)
    valid = isinstance(logarithmic, bool) and 0 <= least < most < 1e6
    if not valid or (logarithmic and not 0 < least + shift < 1e6):
        return None
    return DepthCode(least, most, shift, bool(logarithmic), millimetres)


def whole_number(value: object) -> int:
    """A whole number of a metadata file.

    Raises:
        ValueError: it is another value, negative, or above 2^53.
    """
    number = int(value) if isinstance(value, int | float) else None
    if number is None or number != value or not 0 <= number <= 2**53:
        raise ValueError(f"{value!r:.40} where a whole number is expected")
    return number
