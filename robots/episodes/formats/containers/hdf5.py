"""Opens HDF5 files of strangers: only numbers and words that lie in the file itself, of a size that
the file can hold.

An HDF5 file can name other files (external links, external storage, virtual data sets), load
decompressors of the computer, and declare arrays of any size. All of this is refused here, before a
byte is decoded. Arrays of nested groups have flat names with slashes, such as `obs/joint_pos`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.episodes.formats.containers.folder import check_name
from robots.episodes.formats.containers.hdf5_arrays import Hdf5Array
from robots.episodes.formats.containers.hdf5_bytes import CheckedFile
from robots.episodes.formats.containers.pictures import decode_picture
from robots.episodes.formats.source import check_size, explain_damage, field_name
from robots.errors import HandoffError

if TYPE_CHECKING:
    import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MOST_OBJECTS = 10_000
"""Largest number of arrays and groups below one group."""
_DEEPEST = 16
_MOST_ENTRIES = 16
"""Largest number of entries of an attribute."""
_WORD_REFERENCE = 16
"""Stored size of a reference to a word: its length, an address and a number [bytes]."""
_MOST_LINKS = 10**6
"""Largest number of entries of one group; an entry is an episode or an array."""


def has_signature(path: Path) -> bool:
    """Whether the path is a file that begins like HDF5."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE


def peek(path: Path, *names: str) -> list[bool | None]:
    """What lies at the given names of a file that may be something else.

    Args:
        path: any file or folder.
        names: names with slashes.

    Returns:
        Per name True for a group, False for an array, None for neither.
    """
    try:
        if not has_signature(path):
            return [None] * len(names)
        with open_hdf5(path) as file:
            found = [file.find(name) for name in names]
            return [None if it is None else isinstance(it, Hdf5Group) for it in found]
    except (HandoffError, OSError):
        return [None] * len(names)


def first_member(path: Path, group: str, pattern: str) -> str | None:
    """The first name inside a group of a file that may be something else which matches a pattern;
    None if there is none."""
    try:
        if not has_signature(path):
            return None
        with open_hdf5(path) as file:
            found = file.find(group) if group else file
            names = found.names() if isinstance(found, Hdf5Group) else []
            return next((name for name in names if re.fullmatch(pattern, name)), None)
    except (HandoffError, OSError):
        return None


@contextmanager
def open_hdf5(path: Path) -> Iterator[Hdf5Group]:
    """Opens a file for reading.

    Yields:
        Its root group.

    Raises:
        HandoffError: it is no HDF5 file, or damaged.
    """
    import h5py

    with explain_damage(path, "the file"):
        if not has_signature(path):
            raise HandoffError(f"{path}: is no HDF5 file. Was it damaged or only half downloaded?")
        content = CheckedFile(path)
    with content:
        with explain_damage(path, "the file"):
            file = h5py.File(content, "r")
        try:
            yield Hdf5Group(path, "", file)
        finally:
            with explain_damage(path, "the file"):
                file.close()


class Hdf5Group:
    """A group of a file.

    Args:
        path: the file.
        name: name of the group, for messages; empty for the root.
        group: the group.
    """

    def __init__(self, path: Path, name: str, group: h5py.Group) -> None:
        self.path = path
        self.name = name
        self._group = group

    def names(self) -> list[str]:
        """Names of all entries, sorted by name unless the file keeps their order.

        Raises:
            HandoffError: a name cannot be printed, or there are too many.
        """
        with explain_damage(self.path, self.name or "the root group"):
            if len(self._group) > _MOST_LINKS:
                raise HandoffError(
                    f"{self.path}: {self.name or '/'} has {len(self._group)} entries, the limit is {_MOST_LINKS}. Was "
                    "it made for this purpose?"
                )
            # Names that are no UTF-8 come as bytes.
            stored: list[str | bytes] = list(self._group)
        names = [
            name if isinstance(name, str) else name.decode(errors="surrogateescape")
            for name in stored
        ]
        for name in names:
            check_name(self.path, name)
        return names

    def find(self, name: str) -> Hdf5Group | Hdf5Array | None:
        """The group or array at a name with slashes; None if there is neither.

        Raises:
            HandoffError: it is a link that leaves the file, or damaged.
        """
        found: Hdf5Group | Hdf5Array | None = self
        for part in filter(None, name.split("/")):
            if not isinstance(found, Hdf5Group):
                return None
            found = found._member(part, 0)
        return found

    def group(self, name: str) -> Hdf5Group:
        """The group at a name.

        Raises:
            HandoffError: there is none.
        """
        found = self.find(name)
        if not isinstance(found, Hdf5Group):
            raise HandoffError(f"{self.path}: has no group {self._below(name)}. Was it cut short?")
        return found

    def array(self, name: str) -> Hdf5Array:
        """The array at a name.

        Raises:
            HandoffError: there is none.
        """
        found = self.find(name)
        if not isinstance(found, Hdf5Array):
            raise HandoffError(f"{self.path}: has no array {self._below(name)}. Was it cut short?")
        return found

    def numbered(self, prefix: str) -> list[str]:
        """Names of the entries that are the prefix followed by a number, sorted by the number."""
        found = [
            (int(match[1]), name)
            for name in self.names()
            if (match := re.fullmatch(rf"{re.escape(prefix)}([0-9]{{1,9}})", name))
        ]
        return [name for _, name in sorted(found)]

    def arrays(self, skip: Collection[str] = ()) -> dict[str, Hdf5Array]:
        """All arrays in this group and the groups below, by their name with slashes.

        Args:
            skip: names right in this group that are not opened.

        Raises:
            HandoffError: a link leaves the file, or there are too many arrays or levels.
        """
        found: dict[str, Hdf5Array] = {}
        pending: list[tuple[str, Hdf5Group]] = [("", self)]
        objects = 0
        while pending:
            prefix, group = pending.pop(0)
            for name in group.names():
                if prefix == "" and name in skip:
                    continue
                objects += 1
                full = f"{prefix}{name}"
                if objects > _MOST_OBJECTS or full.count("/") > _DEEPEST:
                    raise HandoffError(
                        f"{self.path}: {self.name or '/'} has more than {_MOST_OBJECTS} arrays or {_DEEPEST} levels. "
                        "Do its groups contain themselves?"
                    )
                member = group._member(name, 0)
                if isinstance(member, Hdf5Group):
                    pending.append((f"{full}/", member))
                elif member is not None:
                    found[full] = member
        return dict(sorted(found.items())) if not self._keeps_order() else found

    def attribute(self, name: str) -> Any:
        """A number, a truth value or words of this group, or a list of up to 16; None if it is
        missing, or something else.

        Raises:
            HandoffError: it is damaged.
        """
        with explain_damage(self.path, f"the attribute {name} of {self.name or '/'}"):
            attributes = self._group.attrs
            if name not in attributes:
                return None
            stored = attributes.get_id(name)
            if not _is_readable(stored):
                return None
            value = attributes[name]
        return _plain(value)

    def attributes(self) -> dict[str, Any]:
        """All attributes that `attribute` can read, by name.

        Raises:
            HandoffError: one is damaged.
        """
        with explain_damage(self.path, f"the attributes of {self.name or '/'}"):
            names = [name for name in self._group.attrs if isinstance(name, str)]
        values = {name: self.attribute(name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def _below(self, name: str) -> str:
        return f"{self.name}/{name}" if self.name else name

    def _keeps_order(self) -> bool:
        return bool(self._group.id.get_create_plist().get_link_creation_order())

    def _member(self, name: str, hops: int) -> Hdf5Group | Hdf5Array | None:
        """The entry called `name`; soft links are followed inside the file."""
        import h5py
        from h5py import h5l, h5o  # pyright: ignore[reportAttributeAccessIssue]

        full = self._below(name)
        with explain_damage(self.path, full):
            key = name.encode("utf-8", "surrogateescape")
            links = self._group.id.links
            if not links.exists(key):
                return None
            kind = links.get_info(key).type
            if kind == h5l.TYPE_SOFT:
                return self._followed(full, links.get_val(key).decode(), hops + 1)
            if kind != h5l.TYPE_HARD:
                target = links.get_val(key)[0].decode(errors="replace")
                raise HandoffError(
                    f"{self.path}: {full} is a link to the file {target[:80]!r}, outside the data set. Copy the data "
                    "into one file if you trust it."
                )
            found = h5o.open(self._group.id, key)
            if isinstance(found, h5py.h5g.GroupID):
                return Hdf5Group(self.path, full, h5py.Group(found))
            if isinstance(found, h5py.h5d.DatasetID):
                return Hdf5Array(self.path, full, h5py.Dataset(found))
        return None

    def _followed(self, name: str, target: str, hops: int) -> Hdf5Group | Hdf5Array | None:
        """The object at the target of a soft link."""
        if hops > _DEEPEST:
            raise HandoffError(f"{self.path}: {name} is a chain of more than {_DEEPEST} links.")
        start = Hdf5Group(self.path, "", self._group.file) if target[:1] == "/" else self
        found: Hdf5Group | Hdf5Array | None = start
        for part in filter(lambda part: part not in ("", "."), target.split("/")):
            if not isinstance(found, Hdf5Group):
                return None
            found = found._member(part, hops)
        return found


def add_source(path: Path, sources: dict[str, str], source: str) -> str:
    """Adds the array `source` to the arrays by the name of their field, and returns that name.

    Raises:
        HandoffError: two arrays would have one name.
    """
    name = field_name(source)
    if name in sources:
        raise HandoffError(
            f"{path}: {source} and {sources[name]} would both be the field {name}. Rename one of them."
        )
    sources[name] = source
    return name


def read_steps(
    group: Hdf5Group, sources: Mapping[str, str], steps: int, longer: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """The first `steps` rows of the arrays of one episode.

    Args:
        group: the episode.
        sources: names of the arrays inside the group by the names of their fields.
        steps: number of steps.
        longer: names of the fields with one more row, the observation after the last action.

    Raises:
        HandoffError: an array is missing, has another length, or all are too large together.
    """
    arrays = {name: group.find(source) for name, source in sources.items()}
    found = {name: array for name, array in arrays.items() if isinstance(array, Hdf5Array)}
    for name, array in found.items():
        expected = steps + (name in longer)
        if array.shape[:1] != (expected,):
            raise HandoffError(
                f"{group.path}: {array.name} has the shape {array.shape}, expected {expected} rows. Was the recording "
                "interrupted?"
            )
    size = sum(prod(array.shape) * array.dtype.itemsize for array in found.values())
    check_size(group.path, f"{group.name or '/'} as a whole", (size,), 1)
    return {name: array.rows(0, steps) for name, array in found.items()}


def _is_readable(attribute: h5py.h5a.AttrID) -> bool:
    """Whether an attribute holds few numbers or words, in as many bytes as these take.

    The library (HDF5 2.0) reads beyond the end of others, as of words of a byte each.
    """
    import h5py

    dtype, shape = attribute.dtype, attribute.shape
    words = dtype.kind == "O" and h5py.check_string_dtype(dtype) is not None
    if shape is None or prod(shape) > _MOST_ENTRIES or not (words or dtype.kind in "biufS"):
        return False
    size = _WORD_REFERENCE if words else dtype.itemsize
    return attribute.get_storage_size() == size * prod(shape)


def read_picture(array: Hdf5Array, content: bytes) -> np.ndarray:
    """Decodes one picture of an array of encoded pictures, see `decode_picture`.

    Raises:
        HandoffError: it is damaged or too large.
    """
    return decode_picture(array.path, array.name, content)


def _plain(value: Any) -> Any:
    """An attribute as a JSON value; None for what is none."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return [_plain(entry) for entry in value.reshape(-1).tolist()]
    if isinstance(value, str):
        value = value.encode(errors="surrogateescape")
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    finite = isinstance(value, (bool, int)) or (isinstance(value, float) and isfinite(value))
    return value if finite else None
