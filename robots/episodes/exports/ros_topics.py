"""Chooses the ROS 2 message type of every field of an episode, and makes its messages.

| field                                         | message                                         |
|-----------------------------------------------|-------------------------------------------------|
| RGB picture                                   | `sensor_msgs/CompressedImage`, PNG without loss |
| depth                                         | `sensor_msgs/Image`, 16UC1 or 32FC1             |
| text                                          | `std_msgs/String`, at every change              |
| observed vector with names in rad, rad/s, Nm  | `sensor_msgs/JointState`                        |
| observed x, y, z in m                         | `geometry_msgs/PointStamped`                    |
| observed quaternion                           | `geometry_msgs/QuaternionStamped`               |
| observed x, y, z with a quaternion            | `geometry_msgs/PoseStamped`                     |
| observed x, y, z with a rotation vector       | the numbers, and a `PoseStamped` at NAME_pose   |
| one number                                    | `std_msgs/Float32`, `Int64`, `Bool` and so on   |
| other numbers                                 | `std_msgs/Float32MultiArray` and so on          |

Numbers keep their type. `JointState` and `geometry_msgs` have float64 alone, which holds every
float32 exactly. `std_msgs` has no float16, which becomes float32, and no array of booleans, which
becomes uint8. Labels of the layout of an array are the names of its entries, with commas between
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.demonstrations import field_role
from robots.episodes.exports.png import encode_png
from robots.episodes.exports.viewer_fields import field_kind
from robots.errors import HandoffError
from robots.language.text import decode
from robots.spec import POSE, WXYZ, XYZ, FieldSpec

STRING = "std_msgs/msg/String"
_JOINTS = {"rad": "position", "rad/s": "velocity", "Nm": "effort"}
"""Entries of a JointState by their unit."""
_XYZW = ("x", "y", "z", "w")
_POSE_WXYZ = ("x", "y", "z", "qw", "qx", "qy", "qz")
_POSE_XYZW = ("x", "y", "z", "qx", "qy", "qz", "qw")
_WHOLE = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_ARRAYS = {
    **{name: name for name in _WHOLE},
    "bool": "uint8",
    "float16": "float32",
    "float32": "float32",
    "float64": "float64",
}
"""Number types of arrays by those of the fields."""

Message = Callable[[np.ndarray, int], Any]
"""Makes a message of one sample and the time of its stamp [ns]."""


class RosTopic(NamedTuple):
    """A topic with the messages of one field."""

    name: str
    """Name with the leading slash."""
    type_name: str
    """Type of the messages."""
    message: Message
    """Makes a message of a sample."""
    changes: bool = False
    """Whether only samples are sent that differ from the one before."""

    @property
    def stamped(self) -> bool:
        """Whether the messages have a header with a time; those of `std_msgs` have none."""
        return not self.type_name.startswith("std_msgs/")


def topic_name(field: str) -> str:
    """A field's name as that of a topic: letters, digits and "_" in parts that do not begin with a
    digit."""
    parts = [re.sub(r"\W", "_", part, flags=re.ASCII) for part in field.split("/")]
    return "".join(f"/_{part}" if part[0].isdigit() else f"/{part}" for part in parts)


def field_topics(types: Any, field: str, spec: FieldSpec) -> list[RosTopic]:
    """The topics of a field.

    Args:
        types: message classes by name, of rosbags.
        field: name of the field, with that of its stream if it is not `policy`.
        spec: the field.

    Raises:
        HandoffError: no message has its number type.
    """
    name = topic_name(field)
    match field_kind(spec):
        case "picture":
            return [RosTopic(name, "sensor_msgs/msg/CompressedImage", _png_picture(types, spec))]
        case "depth":
            return [RosTopic(name, "sensor_msgs/msg/Image", _depth(types, spec))]
        case "text":
            return [RosTopic(name, STRING, lambda row, _: string(types, _words(row)), True)]
    if len(spec.shape) == 1 and spec.dtype in ("float32", "float64"):
        observed = field_role(field.rpartition("/")[2], spec) == "observation"
        chosen = _vector(types, name, spec) if observed else None
        if chosen is not None:
            return [chosen]
        if observed and spec.names == POSE:
            pose = RosTopic(f"{name}_pose", "geometry_msgs/msg/PoseStamped", _turned(types, spec))
            return [_numbers(types, name, spec), pose]
    return [_numbers(types, name, spec)]


def string(types: Any, text: str) -> Any:
    """A message with a text."""
    return types[STRING](text)


def _words(row: np.ndarray) -> str:
    return decode(row[None])[0]


def _vector(types: Any, name: str, spec: FieldSpec) -> RosTopic | None:
    """The topic of a vector with a meaning that ROS has a message for, otherwise None."""
    names = spec.names[-1] if spec.names else ()
    if len(names) != spec.shape[0]:
        return None
    if spec.unit in _JOINTS:
        return RosTopic(name, "sensor_msgs/msg/JointState", _joints(types, spec))
    if spec.names == XYZ and spec.unit == "m":
        return RosTopic(name, "geometry_msgs/msg/PointStamped", _point(types, spec))
    if spec.names == WXYZ or names == _XYZW:
        order = [0, 1, 2, 3] if spec.names == WXYZ else [3, 0, 1, 2]
        return RosTopic(name, "geometry_msgs/msg/QuaternionStamped", _turn(types, spec, order))
    if names in (_POSE_WXYZ, _POSE_XYZW):
        order = [3, 4, 5, 6] if names == _POSE_WXYZ else [6, 3, 4, 5]
        return RosTopic(name, "geometry_msgs/msg/PoseStamped", _pose(types, spec, order))
    return None


def _numbers(types: Any, name: str, spec: FieldSpec) -> RosTopic:
    """The topic of numbers without a further meaning."""
    if spec.dtype not in _ARRAYS:
        raise HandoffError(
            f"{name}: numbers are {spec.dtype}, which no message of ROS has; the largest is float64."
        )
    if prod(spec.shape) == 1:
        dtype = "bool" if spec.dtype == "bool" else _ARRAYS[spec.dtype]
        scalar = types[f"std_msgs/msg/{_camel(dtype)}"]
        about = f"std_msgs/msg/{_camel(dtype)}"
        return RosTopic(name, about, lambda sample, _: scalar(sample.reshape(-1)[0].item()))
    dtype = _ARRAYS[spec.dtype]
    about = f"std_msgs/msg/{_camel(dtype)}MultiArray"
    array, layout = types[about], _layout(types, spec)

    def message(sample: np.ndarray, time_ns: int) -> Any:
        return array(layout, np.ascontiguousarray(sample).reshape(-1).astype(dtype))

    return RosTopic(name, about, message)


def _camel(dtype: str) -> str:
    """Name of a number type in `std_msgs`, such as UInt8."""
    return dtype.replace("u", "U", 1).replace("int", "Int").replace("f", "F", 1).replace("b", "B")


def _layout(types: Any, spec: FieldSpec) -> Any:
    dimension = types["std_msgs/msg/MultiArrayDimension"]
    dimensions = []
    for axis, size in enumerate(spec.shape):
        names = spec.names[axis] if axis < len(spec.names) else ()
        dimensions.append(dimension(",".join(names), size, prod(spec.shape[axis:])))
    return types["std_msgs/msg/MultiArrayLayout"](dimensions, 0)


def _header(types: Any, spec: FieldSpec, time_ns: int) -> Any:
    stamp = types["builtin_interfaces/msg/Time"](time_ns // 10**9, time_ns % 10**9)
    return types["std_msgs/msg/Header"](stamp, spec.frame)


def _png_picture(types: Any, spec: FieldSpec) -> Message:
    def message(sample: np.ndarray, time_ns: int) -> Any:
        content = np.frombuffer(encode_png(sample), np.uint8)
        header = _header(types, spec, time_ns)
        return types["sensor_msgs/msg/CompressedImage"](header, "png", content)

    return message


def _depth(types: Any, spec: FieldSpec) -> Message:
    height, width = spec.shape
    stored = np.dtype(spec.dtype).newbyteorder("<")
    encoding = "16UC1" if spec.dtype == "uint16" else "32FC1"

    def message(sample: np.ndarray, time_ns: int) -> Any:
        content = np.ascontiguousarray(sample, stored).view(np.uint8).reshape(-1)
        header = _header(types, spec, time_ns)
        step = width * stored.itemsize
        return types["sensor_msgs/msg/Image"](header, height, width, encoding, 0, step, content)

    return message


def _joints(types: Any, spec: FieldSpec) -> Message:
    names = list(spec.names[-1])
    empty = np.zeros(0)
    entry = _JOINTS[spec.unit]

    def message(sample: np.ndarray, time_ns: int) -> Any:
        parts = dict.fromkeys(_JOINTS.values(), empty)
        parts[entry] = sample.astype(np.float64)
        header = _header(types, spec, time_ns)
        return types["sensor_msgs/msg/JointState"](header=header, name=names, **parts)

    return message


def _point(types: Any, spec: FieldSpec) -> Message:
    def message(sample: np.ndarray, time_ns: int) -> Any:
        point = types["geometry_msgs/msg/Point"](*sample.tolist())
        return types["geometry_msgs/msg/PointStamped"](_header(types, spec, time_ns), point)

    return message


def _turn(types: Any, spec: FieldSpec, order: list[int]) -> Message:
    """Quaternions, whose w, x, y, z are at the places `order`."""

    def message(sample: np.ndarray, time_ns: int) -> Any:
        w, x, y, z = sample[order].tolist()
        quaternion = types["geometry_msgs/msg/Quaternion"](x, y, z, w)
        header = _header(types, spec, time_ns)
        return types["geometry_msgs/msg/QuaternionStamped"](header, quaternion)

    return message


def _pose(types: Any, spec: FieldSpec, order: list[int]) -> Message:
    """Positions followed by quaternions, whose w, x, y, z are at the places `order`."""

    def message(sample: np.ndarray, time_ns: int) -> Any:
        point = types["geometry_msgs/msg/Point"](*sample[:3].tolist())
        w, x, y, z = sample[order].tolist()
        quaternion = types["geometry_msgs/msg/Quaternion"](x, y, z, w)
        pose = types["geometry_msgs/msg/Pose"](point, quaternion)
        return types["geometry_msgs/msg/PoseStamped"](_header(types, spec, time_ns), pose)

    return message


def _turned(types: Any, spec: FieldSpec) -> Message:
    """Positions followed by rotation vectors, which become quaternions."""
    from robots.control.rotations import convert_rotation

    inner = _pose(types, spec, [3, 4, 5, 6])

    def message(sample: np.ndarray, time_ns: int) -> Any:
        turn = convert_rotation(sample[None, 3:], "rotation_vector", "quaternion_wxyz")[0]
        return inner(np.concatenate([sample[:3].astype(np.float64), turn]), time_ns)

    return message
