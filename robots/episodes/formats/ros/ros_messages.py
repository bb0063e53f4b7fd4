"""Flattens messages of ROS to arrays of numbers, by walking the fields of their types.

| in the message                        | field                                                   |
|---------------------------------------|---------------------------------------------------------|
| a number                              | `(1,)`, called as in the message                        |
| a type of numbers only, such as Point | one vector with the names of the numbers                |
| Quaternion                            | `(4,)` w, x, y, z; ROS stores x, y, z, w                |
| an array of numbers                   | `(length,)`                                             |
| an array of other types               | one array per field of the type, with a leading axis    |
| JointState                            | entries by the name of the joint, as in the first one   |
| Image, CompressedImage                | a picture, or depth                                     |
| words, headers, layouts               | nothing                                                 |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.formats.containers.pictures import as_rgb, decode_picture
from robots.episodes.formats.ros.ros_types import RosTypes
from robots.episodes.formats.source import check_size, explain_damage
from robots.errors import HandoffError

_SKIPPED = (
    "std_msgs/msg/Header",
    "std_msgs/msg/MultiArrayLayout",
    "builtin_interfaces/msg/Time",
)
_UNITS = {
    ("geometry_msgs/msg/PointStamped", "point"): "m",
    ("geometry_msgs/msg/Pose", "position"): "m",
    ("geometry_msgs/msg/Transform", "translation"): "m",
    ("geometry_msgs/msg/Twist", "linear"): "m/s",
    ("geometry_msgs/msg/Twist", "angular"): "rad/s",
    ("geometry_msgs/msg/Accel", "linear"): "m/s^2",
    ("geometry_msgs/msg/Accel", "angular"): "rad/s^2",
    ("geometry_msgs/msg/Wrench", "force"): "N",
    ("geometry_msgs/msg/Wrench", "torque"): "Nm",
    ("sensor_msgs/msg/Imu", "angular_velocity"): "rad/s",
    ("sensor_msgs/msg/Imu", "linear_acceleration"): "m/s^2",
}
"""Units of vectors by the type around them and their name there; by REP 103, ROS is in SI units."""
_ENCODINGS = {
    "rgb8": (np.uint8, 3),
    "bgr8": (np.uint8, 3),
    "rgba8": (np.uint8, 4),
    "bgra8": (np.uint8, 4),
    "mono8": (np.uint8, 1),
    "8UC1": (np.uint8, 1),
    "8UC3": (np.uint8, 3),
    "16UC1": (np.uint16, 1),
    "mono16": (np.uint16, 1),
    "32FC1": (np.float32, 1),
}
"""Number type and channels of pictures by the name of their encoding."""
_DEPTH_HEADER = 12
"""Size of the header before the PNG of a compressed depth picture [bytes]."""
IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
JOINTS = "sensor_msgs/msg/JointState"
_MOST_ITEMS = 4096
_BASE = 1
_NESTED = 2


class Leaf(NamedTuple):
    """One array of a message."""

    value: np.ndarray
    """`(entries,)`, or with a leading axis per item, or a picture."""
    names: tuple[str, ...] = ()
    """Names of the entries; empty if they have none."""
    unit: str = "1"
    """SI unit symbol."""


def flatten(types: RosTypes, name: str, message: Any) -> dict[str, Leaf]:
    """The arrays of a message by their path in it; "" is the path of a message that is one vector.

    Args:
        types: types of the recording.
        name: type of the message.
        message: the decoded message.

    Raises:
        HandoffError: a type is not defined.
    """
    found: dict[str, Leaf] = {}
    _walk(types, name, message, "", "1", found)
    return found


def joint_order(message: Any) -> list[str]:
    """Names of the joints of a JointState."""
    return [str(name) for name in message.name]


def by_joint(path: Path, leaves: dict[str, Leaf], given: list[str], wanted: list[str]) -> None:
    """Puts the entries of a JointState in the order of the first message.

    Raises:
        HandoffError: it has other joints, or not one entry per joint.
    """
    if sorted(given) != sorted(wanted) or len(set(wanted)) != len(wanted):
        raise HandoffError(
            f"{path}: a JointState has the joints {given!r:.120}, the first one of its topic has {wanted!r:.120}. Do "
            "two nodes publish to one topic?"
        )
    order = [given.index(name) for name in wanted]
    for key, leaf in list(leaves.items()):
        if leaf.value.shape != (len(given),):
            raise HandoffError(
                f"{path}: a JointState has {leaf.value.shape} entries of {key} for {len(given)} joints. Was it damaged?"
            )
        leaves[key] = Leaf(leaf.value[order], tuple(wanted), leaf.unit)


def picture(path: Path, topic: str, name: str, message: Any) -> Leaf | None:
    """The picture in an Image or CompressedImage: `(height, width, 3)` uint8 RGB, or depth
    `(height, width)` uint16 [mm] or float32 [m], where missing values are 0. None if its encoding
    is not read, such as that of a raw colour filter.

    Raises:
        HandoffError: it is damaged.
    """
    if name == IMAGES[1]:
        return _compressed(path, topic, message)
    encoding = str(message.encoding)
    if encoding not in _ENCODINGS:
        return None
    dtype, channels = _ENCODINGS[encoding]
    order = ">" if message.is_bigendian else "<"
    height = int(message.height)
    width = int(message.width)
    step = int(message.step)
    stored = np.dtype(dtype).newbyteorder(order)
    row = width * channels * stored.itemsize
    if not 0 < row <= step or height < 1 or len(message.data) != height * step:
        raise HandoffError(
            f"{path}: {topic} has a picture of {width} x {height} pixels in {len(message.data)} bytes, {step} per "
            "row. Was it damaged?"
        )
    rows = np.asarray(message.data, np.uint8).reshape(height, step)[:, :row]
    pixels = np.ascontiguousarray(rows).view(stored).reshape(height, width, channels)
    pixels = pixels.astype(dtype)
    if encoding.startswith("bgr"):
        pixels = pixels[:, :, [2, 1, 0]]
    if dtype is np.uint8:
        return Leaf(as_rgb(path, topic, pixels[:, :, 0] if channels == 1 else pixels), unit="u8")
    return _depth(pixels[:, :, 0])


def _compressed(path: Path, topic: str, message: Any) -> Leaf | None:
    content = np.asarray(message.data, np.uint8).tobytes()
    if "compressedDepth" in str(message.format):
        if "16UC1" not in str(message.format):
            return None
        content = content[_DEPTH_HEADER:]
    pixels = decode_picture(path, topic, content)
    if pixels.dtype == np.uint16:
        return _depth(pixels)
    return Leaf(as_rgb(path, topic, pixels), unit="u8")


def _depth(pixels: np.ndarray) -> Leaf:
    if pixels.dtype == np.uint16:
        return Leaf(pixels, unit="mm")
    # By REP 118, values that were not measured are not finite in floating depth.
    return Leaf(np.where(np.isfinite(pixels), pixels, np.float32(0.0)), unit="m")


def _walk(
    types: RosTypes, name: str, message: Any, prefix: str, unit: str, found: dict[str, Leaf]
) -> None:
    """Adds the arrays of one (nested) message."""
    if name in _SKIPPED:
        return
    if name == "geometry_msgs/msg/Quaternion":
        values = np.array([message.w, message.x, message.y, message.z])
        found[prefix] = Leaf(values, ("w", "x", "y", "z"))
        return
    if name == "builtin_interfaces/msg/Duration":
        found[prefix] = Leaf(np.array([message.sec + 1e-9 * message.nanosec]), (), "s")
        return
    fields = types.fields(name)
    scalars = [field for field, kind in fields if kind[0] == _BASE and _is_number(kind)]
    if len(scalars) == len(fields) and len(scalars) > 1:
        values = np.array([_attribute(message, field) for field in scalars])
        found[prefix] = Leaf(values, tuple(scalars), unit)
        return
    for field, kind in fields:
        path = f"{prefix}/{field}" if prefix else field
        value = _attribute(message, field)
        if kind[0] == _NESTED:
            _walk(types, kind[1], value, path, _UNITS.get((name, field), "1"), found)
        elif kind[0] == _BASE:
            if _is_number(kind):
                found[path] = Leaf(np.array([value], _dtype(kind)))
        elif kind[1][0][0] == _NESTED:
            _walk_items(types, kind[1][0][1], value, path, found)
        elif _is_number(kind[1][0]) and len(value):
            found[path] = Leaf(np.asarray(value))


def _walk_items(
    types: RosTypes, name: str, items: Any, prefix: str, found: dict[str, Leaf]
) -> None:
    """Adds the arrays of a list of messages, each with a leading axis; those of unequal lengths are
    left out."""
    if not 0 < len(items) <= _MOST_ITEMS:
        return
    parts: list[dict[str, Leaf]] = []
    for item in items:
        inner: dict[str, Leaf] = {}
        _walk(types, name, item, "", "1", inner)
        parts.append(inner)
    for key, leaf in parts[0].items():
        values = [part[key].value for part in parts if key in part]
        if len(values) == len(parts) and len({value.shape for value in values}) == 1:
            path = f"{prefix}/{key}" if key else prefix
            found[path] = Leaf(np.stack(values), leaf.names, leaf.unit)


def _attribute(message: Any, field: str) -> Any:
    """A field of a message; rosbags adds "_" to names that are words of Python."""
    return getattr(message, field) if hasattr(message, field) else getattr(message, f"{field}_")


def _is_number(kind: Any) -> bool:
    return kind[1][0] not in ("string", "wstring")


def _dtype(kind: Any) -> np.dtype:
    name = {"byte": "uint8", "char": "uint8", "octet": "uint8", "float128": "float64"}
    return np.dtype(name.get(kind[1][0], kind[1][0]))


def stacked(path: Path, topic: str, leaves: list[Leaf]) -> np.ndarray:
    """The values of one array in all messages, `(T, *shape)`.

    Raises:
        HandoffError: they have unequal shapes, or are too large together.
    """
    shape = leaves[0].value.shape
    check_size(path, topic, (len(leaves), *shape), leaves[0].value.itemsize)
    for number, leaf in enumerate(leaves):
        if leaf.value.shape != shape:
            raise HandoffError(
                f"{path}: {topic} has {leaf.value.shape} entries in message {number}, {shape} in the first one. Does "
                "its length change on purpose?"
            )
    with explain_damage(path, topic):
        return np.stack([leaf.value for leaf in leaves])
