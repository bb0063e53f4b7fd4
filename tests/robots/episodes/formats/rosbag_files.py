"""Three recordings of ROS: messages, an MCAP writer, and the writers of rosbags."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LENGTHS = (4, 6, 3)
START_NS = 1_700_000_000 * 10**9
MAGIC = b"\x89MCAP0\r\n"


class Sent(NamedTuple):
    """One message before it is encoded."""

    topic: str
    type_name: str
    log_ns: int
    message: Any


def typestore(ros1: bool = False) -> Any:
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS1_NOETIC if ros1 else Stores.ROS2_HUMBLE)


def values(seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "position": rng.normal(size=(length, 3)),
            "image": rng.integers(0, 256, (length, 6, 8, 3)).astype(np.uint8),
            "depth": rng.integers(0, 5000, (length, 6, 8)).astype(np.uint16),
            "pose": rng.normal(size=(length, 7)),
            "action": rng.normal(size=(length, 7)),
            "width": rng.normal(size=length).astype(np.float32),
        }
        for length in LENGTHS
    ]


def messages(
    given: dict[str, np.ndarray], shuffle_joints: bool = False, ros1: bool = False
) -> list[Sent]:
    """Messages of one recording; the pictures come at half the rate, 5 ms after the states."""
    types = typestore(ros1).types
    sent: list[Sent] = []

    def add(topic: str, name: str, log_ns: int, *fields: Any) -> None:
        sent.append(Sent(topic, name, log_ns, types[name](*fields)))

    for step, position in enumerate(given["position"]):
        log = START_NS + step * 10**8
        names = ["a", "b", "c"]
        order = [2, 0, 1] if shuffle_joints and step % 2 else [0, 1, 2]
        joints = (
            header(types, log - 2 * 10**6, "base"),
            [names[i] for i in order],
            position[order],
            np.zeros(0),
            np.zeros(0),
        )
        add("/joint_states", "sensor_msgs/msg/JointState", log, *joints)
        add("/pose", "geometry_msgs/msg/PoseStamped", log, *pose(types, log, given["pose"][step]))
        layout = types["std_msgs/msg/MultiArrayLayout"]([], 0)
        action = (layout, given["action"][step])
        add("/arm/command", "std_msgs/msg/Float64MultiArray", log, *action)
        add("/gripper", "std_msgs/msg/Float32", log, float(given["width"][step]))
        add("/instruction", "std_msgs/msg/String", log, "open the drawer")
        if step % 2 == 0:
            later = log + 5 * 10**6
            rgb, depth = given["image"][step], given["depth"][step]
            frame = header(types, later, "camera")
            bgr = np.ascontiguousarray(rgb[:, :, ::-1]).reshape(-1)
            picture = (frame, 6, 8, "bgr8", 0, 24, bgr)
            add("/camera/image", "sensor_msgs/msg/Image", later, *picture)
            raw = depth.view(np.uint8).reshape(-1)
            add("/camera/depth", "sensor_msgs/msg/Image", later, frame, 6, 8, "16UC1", 0, 16, raw)
    return sent


def header(types: Any, stamp_ns: int, frame: str) -> Any:
    stamp = types["builtin_interfaces/msg/Time"](stamp_ns // 10**9, stamp_ns % 10**9)
    kind = types["std_msgs/msg/Header"]
    # Headers of ROS 1 also have a number.
    number = {"seq": 7} if "seq" in kind.__dataclass_fields__ else {}
    return kind(stamp=stamp, frame_id=frame, **number)


def pose(types: Any, stamp_ns: int, given: np.ndarray) -> tuple[Any, Any]:
    """The parts of a PoseStamped from x y z and a quaternion w x y z."""
    w, x, y, z = given[3:]
    point = types["geometry_msgs/msg/Point"](*given[:3])
    turn = types["geometry_msgs/msg/Quaternion"](x, y, z, w)
    return header(types, stamp_ns, "base"), types["geometry_msgs/msg/Pose"](point, turn)


def write_rosbag2(path: Path, sent: Iterable[Sent], storage: str = "sqlite3") -> Path:
    """A rosbag2 folder, written by rosbags."""
    from rosbags.rosbag2 import StoragePlugin, Writer

    store = typestore()
    plugin = StoragePlugin.MCAP if storage == "mcap" else StoragePlugin.SQLITE3
    with Writer(path, version=9, storage_plugin=plugin) as writer:
        connections: dict[str, Any] = {}
        for topic, name, log_ns, message in sent:
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, name, typestore=store)
            data = store.serialize_cdr(message, name)
            writer.write(connections[topic], log_ns, data)
    return path


def write_ros1(
    path: Path, sent: Iterable[Sent], compression: str = "none", chunk_bytes: int = 2000
) -> Path:
    """A bag of ROS 1 in small chunks, written by rosbags."""
    from rosbags.rosbag1 import Writer

    store = typestore(ros1=True)
    writer = Writer(path)
    writer.chunk_threshold = chunk_bytes
    if compression != "none":
        writer.set_compression(Writer.CompressionFormat[compression.upper()])
    with writer:
        connections: dict[str, Any] = {}
        for topic, name, log_ns, message in sent:
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, name, typestore=store)
            writer.write(connections[topic], log_ns, store.serialize_ros1(message, name))
    return path


def write_mcap(
    path: Path, sent: Iterable[Sent], *, compression: str = "zstd", chunk_messages: int = 10
) -> Path:
    """An MCAP file with checksums, in chunks of few messages, as other recorders write them."""
    store = typestore()
    content = [MAGIC, encoded(1, string("ros2") + string("test"))]
    channels: dict[str, int] = {}
    chunk: list[bytes] = []
    for number, (topic, name, log_ns, message) in enumerate(sent):
        if topic not in channels:
            channels[topic] = len(channels) + 1
            text = store.generate_msgdef(name, ros_version=2)[0]
            chunk += [schema(channels[topic], name, "ros2msg", text.encode())]
            chunk += [channel(channels[topic], channels[topic], topic, "cdr")]
        data = bytes(store.serialize_cdr(message, name))
        head = struct.pack("<HIQQ", channels[topic], number, log_ns, log_ns)
        chunk.append(encoded(5, head + data))
        if number % chunk_messages == chunk_messages - 1:
            content.append(pack(b"".join(chunk), compression))
            chunk = []
    content.append(pack(b"".join(chunk), compression))
    content += [encoded(15, bytes(4)), encoded(2, bytes(20)), MAGIC]
    path.write_bytes(b"".join(content))
    return path


def pack(raw: bytes, compression: str, size: int | None = None) -> bytes:
    """A chunk of records."""
    from backports import zstd
    from lz4.frame import compress

    data = {"zstd": zstd.compress, "lz4": compress, "": bytes}[compression](raw)
    size = len(raw) if size is None else size
    head = struct.pack("<QQQI", 0, 0, size, zlib.crc32(raw))
    return encoded(6, head + string(compression) + struct.pack("<Q", len(data)) + data)


def schema(number: int, name: str, encoding: str, text: bytes) -> bytes:
    data = string(name) + string(encoding) + struct.pack("<I", len(text)) + text
    return encoded(3, struct.pack("<H", number) + data)


def channel(number: int, schema_number: int, topic: str, encoding: str) -> bytes:
    head = struct.pack("<HH", number, schema_number)
    return encoded(4, head + string(topic) + string(encoding) + bytes(4))


def encoded(operation: int, content: bytes) -> bytes:
    return struct.pack("<BQ", operation, len(content)) + content


def string(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()
