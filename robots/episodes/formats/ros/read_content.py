"""Reads the messages of a recording: numbers, pictures, words, and the episode's description."""

from __future__ import annotations

from robots.episodes.formats.ros import ros_messages
from robots.episodes.formats.ros.bags import Bag, BagMessage
from robots.episodes.formats.ros.content import Content, add_message
from robots.episodes.formats.ros.described_fields import is_text
from robots.episodes.formats.ros.description import EPISODE_TOPIC, parse_description
from robots.episodes.formats.ros.instructions import (
    WORDS,
    add_sentence,
    decoded_words,
    is_instruction,
)
from robots.episodes.formats.source import LARGEST_EPISODE
from robots.errors import HandoffError

_UNREAD_PACKAGES = (
    "action_msgs",
    "actionlib_msgs",
    "bond",
    "diagnostic_msgs",
    "dynamic_reconfigure",
    "lifecycle_msgs",
    "rcl_interfaces",
    "rosgraph_msgs",
    "tf",
    "tf2_msgs",
    "visualization_msgs",
)
_UNREAD_TYPES = ("sensor_msgs/msg/CameraInfo", "sensor_msgs/msg/PointCloud2")


def read_content(bag: Bag, *, images: bool, all_pictures: bool) -> Content:
    """All messages of a recording as arrays.

    Args:
        bag: the recording.
        images: whether pictures are read.
        all_pictures: whether all of them are decoded; otherwise the first of every topic.

    Raises:
        HandoffError: the recording is damaged, or larger than an episode may be.
    """
    content = Content()
    size = 0
    for message in bag.messages():
        topic, name = message.topic, message.type_name
        if topic in content.left_out:
            continue
        if name.partition("/")[0] in _UNREAD_PACKAGES or name in _UNREAD_TYPES:
            content.left_out[topic] = name
        elif not bag.types.is_defined(name):
            content.left_out[topic] = f"{name}, which the recording does not define"
        elif name == WORDS:
            size += _read_words(bag, content, message)
        elif name not in ros_messages.IMAGES:
            size += _read_numbers(bag, content, message)
        elif images:
            decode = all_pictures or topic not in content.topics
            size += _read_picture(bag, content, message, decode)
        if size > LARGEST_EPISODE:
            raise HandoffError(
                f"{bag.path}: decodes to more than {LARGEST_EPISODE / 1e9:.0f} GB, the limit of an episode. "
                "Split the recording."
            )
    return content


def _read_numbers(bag: Bag, content: Content, message: BagMessage) -> int:
    """Adds the arrays of a message, and returns their size [bytes]."""
    decoded = bag.types.decode(message.type_name, message.data, message.ros1)
    leaves = ros_messages.flatten(bag.types, message.type_name, decoded)
    topic = add_message(bag, content, message, decoded)
    if message.type_name == ros_messages.JOINTS:
        given = ros_messages.joint_order(decoded)
        topic.joints = topic.joints if topic.joints is not None else given
        ros_messages.by_joint(bag.path, leaves, given, topic.joints)
    for key, leaf in leaves.items():
        topic.leaves.setdefault(key, []).append(leaf)
    # An array of NumPy takes about 100 bytes beside its values.
    return sum(100 + leaf.value.nbytes for leaf in leaves.values())


def _read_picture(bag: Bag, content: Content, message: BagMessage, decode: bool) -> int:
    """Adds the picture of a message, and returns its size [bytes]."""
    if not decode:
        content.topics[message.topic].logs.append(message.log_ns)
        return 0
    decoded = bag.types.decode(message.type_name, message.data, message.ros1)
    leaf = ros_messages.picture(bag.path, message.topic, message.type_name, decoded)
    if leaf is None:
        encoding = getattr(decoded, "encoding", None) or decoded.format
        content.left_out[message.topic] = f"pictures encoded as {str(encoding)[:40]!r}"
        return 0
    topic = add_message(bag, content, message, decoded)
    topic.leaves.setdefault("", []).append(leaf)
    return leaf.value.nbytes


def _read_words(bag: Bag, content: Content, message: BagMessage) -> int:
    """Adds the words of a message, and returns the size of what is kept [bytes]."""
    topic = message.topic
    if topic == EPISODE_TOPIC:
        text = decoded_words(bag, message)
        # Two descriptions would be of two episodes.
        content.description = None if content.description else parse_description(text)
        if content.description is None:
            content.left_out[topic] = WORDS
        return 0
    described = content.description and content.description.topics.get(topic)
    if described and is_text(described.field.spec):
        size = described.field.spec.shape[0]
        return add_sentence(content.written, bag, message, longest=size, empty=True)
    if is_instruction(topic):
        return add_sentence(content.spoken, bag, message)
    content.left_out[topic] = WORDS
    return 0
