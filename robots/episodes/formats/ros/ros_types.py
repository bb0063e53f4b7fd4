"""Decodes messages of ROS by the definitions of their types, which recordings carry.

The package rosbags parses definitions and makes code from them that decodes messages; names and
values are checked by its grammar. Here sizes are checked before it makes code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from robots.errors import HandoffError

LARGEST_DEFINITION = 2**20
"""Largest size of the definition of a type with all types in it [bytes]."""
MOST_TYPES = 1000
"""Largest number of types in a recording."""
MOST_ENTRIES = 10_000
"""Largest number of nested fields of a type; arrays of numbers count as one."""
LARGEST_ARRAY = 2**24
"""Largest fixed length of an array of numbers."""
_NAME = re.compile(r"[A-Za-z]\w*(/[A-Za-z]\w*)+", re.ASCII)
_SEPARATOR = "=" * 80 + "\n"
_DEEPEST = 24
_BASE = 1
_NESTED = 2
_ARRAY = 3
"""Kinds of fields of rosbags (`Nodetype`): a number or words, a message, an array of a fixed
length; the fourth is a sequence."""


@cache
def _humble() -> Any:
    """The types of ROS 2 Humble: recordings of older versions carry no definitions."""
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS2_HUMBLE)


class RosTypes:
    """Types of the recordings of a data set.

    Args:
        path: the data set, for messages.
    """

    def __init__(self, path: Path) -> None:
        from rosbags.typesys import Stores, get_typestore

        self._path = path
        self._own = get_typestore(Stores.EMPTY)
        self._defined: dict[str, str] = {}
        self._checked: set[str] = set()

    def define(self, name: str, encoding: str, text: str) -> str:
        """Adds the definition of a type, and returns its name as the fields of others spell it.

        Args:
            name: name of the type, such as `sensor_msgs/msg/JointState`.
            encoding: `ros2msg`, `ros2idl` or `ros1msg`.
            text: the definition, with those of all types in it.

        Raises:
            HandoffError: it is damaged, too large, or contradicts an earlier one.
        """
        from rosbags.typesys import get_types_from_idl, get_types_from_msg
        from rosbags.typesys.msg import normalize_msgtype

        if not _NAME.fullmatch(name):
            raise HandoffError(
                f"{self._path}: a type is called {name!r:.60}, expected a name such as sensor_msgs/msg/JointState. "
                "Was it damaged?"
            )
        if self._defined.get(name) == text:
            return normalize_msgtype(name)
        if len(text) > LARGEST_DEFINITION or len(self._defined) >= MOST_TYPES:
            raise HandoffError(
                f"{self._path}: the definition of {name} has {len(text)} characters, and {len(self._defined)} types "
                f"came before it; the limits are {LARGEST_DEFINITION} and {MOST_TYPES}. Was it made for this purpose?"
            )
        self._defined[name] = text
        with self._explained(f"the definition of {name}"):
            if "idl" in encoding:
                parts = text.split(_SEPARATOR) if text.startswith(f"{_SEPARATOR}IDL: ") else [text]
                types: dict[str, Any] = {}
                for part in filter(None, parts):
                    types.update(
                        get_types_from_idl(part.partition("\n")[2] if len(parts) > 1 else part)
                    )
            else:
                types = dict(get_types_from_msg(text, name))
            self._own.register(types)
        return normalize_msgtype(name)

    def is_defined(self, name: str) -> bool:
        """Whether the recording defines a type, or ROS 2 Humble has it."""
        return name in self._store(name).fielddefs

    def fields(self, name: str) -> list[tuple[str, Any]]:
        """Names and kinds of the fields of a type.

        Raises:
            HandoffError: there is no such type, or it is too large.
        """
        store = self._store(name)
        if name not in self._checked:
            self._count(store.fielddefs, name, 0)
            self._checked.add(name)
        return list(store.fielddefs[name][1])

    def decode(self, name: str, data: bytes, ros1: bool) -> Any:
        """The message as an object with the fields of its type.

        Raises:
            HandoffError: it does not have the type.
        """
        self.fields(name)
        with self._explained(f"a message of the type {name}"):
            store = self._store(name)
            return store.deserialize_ros1(data, name) if ros1 else store.deserialize_cdr(data, name)

    def _store(self, name: str) -> Any:
        return self._own if name in self._own.fielddefs else _humble()

    def _count(self, definitions: Any, name: str, depth: int) -> int:
        """Number of nested fields of a type."""
        if depth > _DEEPEST or name not in definitions:
            raise HandoffError(
                f"{self._path}: the type {name[:60]} is not defined, or nested more than {_DEEPEST} deep. "
                "Was it damaged?"
            )
        total = 0
        for _, kind in definitions[name][1]:
            length = 1
            if kind[0] not in (_BASE, _NESTED):
                fixed = kind[0] == _ARRAY
                kind, length = kind[1][0], kind[1][1] if fixed else 1
            if not 0 < length <= LARGEST_ARRAY:
                raise HandoffError(
                    f"{self._path}: the type {name} has an array of the length {length}, the limit is "
                    f"{LARGEST_ARRAY}. Was it damaged?"
                )
            if kind[0] == _NESTED:
                total += length * self._count(definitions, kind[1], depth + 1)
            else:
                total += length if kind[1][0] in ("string", "wstring") else 1
            if total > MOST_ENTRIES:
                raise HandoffError(
                    f"{self._path}: the type {name} has more than {MOST_ENTRIES} nested fields. Was it made for this "
                    "purpose?"
                )
        return max(total, 1)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turns any error of rosbags into one line: it runs code that it makes from definitions, so
        that a damaged one ends in errors of every class."""
        try:
            yield
        except HandoffError:
            raise
        except Exception as error:
            lines = str(error).splitlines()
            reason = lines[0][:120] if lines else type(error).__name__
            raise HandoffError(
                f"{self._path}: {what} cannot be read ({reason}). Was the file damaged?"
            ) from error
