"""Finds the recordings of ROS below a path, and reads their messages in the order of the files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from robots.episodes.formats.containers.folder import (
    check_inside,
    check_name,
    data_files,
    number_order,
)
from robots.episodes.formats.ros.mcap import McapChannel, McapReader
from robots.episodes.formats.ros.ros1_bag import MAGIC as ROS1
from robots.episodes.formats.ros.ros1_bag import Ros1Connection, Ros1Reader
from robots.episodes.formats.ros.ros_types import RosTypes
from robots.episodes.formats.source import LARGEST_EPISODE, explain_damage
from robots.errors import HandoffError

METADATA = "metadata.yaml"
STORAGE = (".mcap", ".db3")
"""Endings of the parts of a recording of ROS 2."""
RECORDINGS = (*STORAGE, ".bag")
"""Endings of files that are a recording or a part of one."""
LARGEST_METADATA = 2**22
"""Largest size of the metadata of a bag [bytes]."""
_LARGEST_MESSAGE = 2**28
_SMALLEST_ROW = 8
"""Smallest size of a message in a database [bytes]."""
_ROS1 = "ros1"


class BagMessage(NamedTuple):
    """One message of a recording."""

    topic: str
    type_name: str
    log_ns: int
    """Time at which it was recorded [ns]."""
    data: bytes
    ros1: bool
    """Whether it is encoded as in ROS 1."""


@dataclass
class Bag:
    """One recording: a file, or a folder with the parts of one."""

    path: Path
    """The file or folder."""
    files: list[Path]
    """Parts in the order of recording."""
    types: RosTypes
    """Types that the recordings of the data set define."""
    foreign: dict[str, str] = field(default_factory=dict)
    """Encodings of the topics that are not of ROS, by topic."""
    cut: bool = False
    """Whether a part ends before its end mark."""

    def messages(self) -> Iterator[BagMessage]:
        """All messages of ROS.

        Raises:
            HandoffError: a file is damaged.
        """
        for file in self.files:
            if file.suffix == ".mcap":
                yield from self._mcap(file)
            elif file.suffix == ".bag" or starts_with(file, ROS1):
                yield from self._ros1(file)
            else:
                yield from self._database(file)

    def _mcap(self, file: Path) -> Iterator[BagMessage]:
        reader = McapReader(file)
        names: dict[McapChannel, str | None] = {}
        for message in reader.messages():
            channel = message.channel
            if channel not in names:
                names[channel] = self._type_name(channel)
            name = names[channel]
            if name is not None:
                ros1 = channel.encoding == _ROS1
                yield BagMessage(channel.topic, name, message.log_ns, message.data, ros1)
        self.cut |= reader.cut

    def _ros1(self, file: Path) -> Iterator[BagMessage]:
        reader = Ros1Reader(file)
        names: dict[Ros1Connection, str] = {}
        for message in reader.messages():
            connection = message.connection
            if connection not in names:
                names[connection] = self.types.define(
                    connection.type_name, "ros1msg", connection.definition
                )
            name = names[connection]
            yield BagMessage(connection.topic, name, message.log_ns, message.data, ros1=True)
        self.cut |= reader.cut

    def _type_name(self, channel: McapChannel) -> str | None:
        """Name of a channel's type, or None if it is not of ROS."""
        schema = channel.schema
        encoding = "none" if schema is None else schema.encoding
        known = encoding in ("ros2msg", "ros2idl", "omgidl", "ros1msg")
        if schema is None or not known or channel.encoding not in ("cdr", _ROS1):
            name = "no type" if schema is None else schema.name
            self.foreign[channel.topic] = f"{channel.encoding} with {encoding} ({name})"[:120]
            return None
        text = schema.text.decode(errors="replace")
        return self.types.define(schema.name, encoding, text)

    def _database(self, file: Path) -> Iterator[BagMessage]:
        """The messages of a part in SQLite, which may not hold views: they can run for ever."""
        most = file.stat().st_size // _SMALLEST_ROW
        total = 0
        try:
            with closing(_connect(file)) as connection:
                topics = self._topics(file, connection)
                rows = connection.execute("SELECT topic_id, timestamp, data FROM messages")
                for number, (topic, log_ns, data) in enumerate(rows):
                    total += len(data) if isinstance(data, bytes) else 0
                    valid = topic in topics and type(log_ns) is int and isinstance(data, bytes)
                    if not valid or number > most or total > LARGEST_EPISODE:
                        raise HandoffError(
                            f"{file}: message {number} has no topic, time or content, or is more than the file can "
                            "hold. Was it damaged?"
                        )
                    yield BagMessage(*topics[topic], log_ns, data, ros1=False)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise HandoffError(
                f"{file}: cannot be read as a database of rosbag2 ({reason}). Was the file damaged or cut short?"
            ) from None

    def _topics(self, file: Path, connection: sqlite3.Connection) -> dict[int, tuple[str, str]]:
        """Name and type of every topic by its number."""
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        if not {"topics", "messages"} <= tables:
            raise HandoffError(
                f"{file}: has the tables {sorted(map(str, tables))!r:.120}, expected topics and messages of rosbag2."
            )
        if "message_definitions" in tables:
            query = (
                "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
            )
            for name, encoding, text in connection.execute(query):
                if encoding in ("ros2msg", "ros2idl") and text:
                    self.types.define(str(name), str(encoding), str(text))
        query = "SELECT id, name, type, serialization_format FROM topics"
        topics: dict[int, tuple[str, str]] = {}
        for number, name, kind, encoding in connection.execute(query):
            if encoding != "cdr":
                raise HandoffError(
                    f"{file}: the topic {name!r:.60} is serialized as {encoding!r:.40}, expected cdr."
                )
            check_name(file, f"{name} {kind}")
            topics[number] = (str(name), str(kind))
        return topics


def starts_with(file: Path, magic: bytes) -> bool:
    """Whether the first bytes of a file are `magic`."""
    with explain_damage(file, "the file"), file.open("rb") as content:
        return content.read(len(magic)) == magic


def find_bags(path: Path) -> list[Bag]:
    """The recordings at a path: a file, the folder of one recording, or a folder of several files
    or folders, in the order of the numbers in their names.

    Raises:
        HandoffError: there is none, or it is compressed as a whole.
    """
    types = RosTypes(path)
    if path.is_file():
        return [Bag(path, [path], types)]
    if (path / METADATA).is_file():
        return [_folder_bag(path, types)]
    with explain_damage(path, "the folder"):
        folders = [inner for inner in path.iterdir() if (inner / METADATA).is_file()]
    for folder in folders:
        check_inside(path, folder)
    files = data_files(path, *(f"*{end}" for end in RECORDINGS))
    bags = [Bag(file, [file], types) for file in files]
    bags += [_folder_bag(folder, types) for folder in folders]
    if not bags:
        raise HandoffError(
            f"{path}: holds no MCAP file, no rosbag2 folder and no ROS 1 bag. Is it another one?"
        )
    return sorted(bags, key=lambda bag: number_order(bag.path))


def _folder_bag(folder: Path, types: RosTypes) -> Bag:
    """The recording in a folder with metadata."""
    import yaml

    check_inside(folder, folder / METADATA)
    with explain_damage(folder, METADATA):
        if (folder / METADATA).stat().st_size > LARGEST_METADATA:
            raise HandoffError(f"{folder}: {METADATA} has more than {LARGEST_METADATA} bytes.")
        try:
            content: Any = yaml.safe_load((folder / METADATA).read_text())
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from None
        about = content["rosbag2_bagfile_information"]
        compression = str(about.get("compression_mode") or "none").lower()
        named = [Path(str(name)).name for name in about["relative_file_paths"]]
    if compression != "none":
        raise HandoffError(
            f"{folder}: is compressed by rosbag2 (compression_mode {compression!r:.20}). Run: ros2 bag convert, or "
            "record MCAP, which compresses its own chunks."
        )
    files = data_files(folder, *(f"*{end}" for end in STORAGE))
    missing = sorted(set(named) - {file.name for file in files})
    if missing or not files:
        raise HandoffError(
            f"{folder}: {METADATA} names {missing or 'no files'}, which are missing. Was the copy incomplete?"
        )
    return Bag(folder, [file for file in files if file.name in named], types)


def _connect(file: Path) -> sqlite3.Connection:
    """Opens a database for reading, after checking that reading it only reads tables."""
    connection = sqlite3.connect(f"file:{quote(str(file.resolve()))}?mode=ro&immutable=1", uri=True)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_MESSAGE)
        for kind, name, text in connection.execute("SELECT type, name, sql FROM sqlite_master"):
            words = str(text).lower()
            if kind not in ("table", "index") or "generated" in words or "virtual" in words:
                raise HandoffError(
                    f"{file}: holds the {kind} {name!r:.60}, expected plain tables. Was it made for this purpose?"
                )
    except BaseException:
        connection.close()
        raise
    return connection
