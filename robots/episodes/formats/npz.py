"""Reads episodes from NumPy archives (`.npz`).

| layout                       | content                                                         |
|------------------------------|-----------------------------------------------------------------|
| one `.npz`                   | arrays of N rows of all episodes one after another, and         |
|                              | `episode_ends` or `meta/episode_ends` (E,), exclusive           |
| a folder of `NAME_12.npz`    | one episode per file, in the order of the numbers in the names  |
| `dataset.json` beside either | `rate_hz`, `task`, `units` by name, `robot`, `instruction`; all |
|                              | are optional                                                    |

`action` or `actions` is the action, uint8 `(T, height, width, 3)` are pictures. Single numbers and
words are metadata of the episode.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.containers.folder import data_files, read_json
from robots.episodes.formats.containers.npz_members import NpzMember, read_members
from robots.episodes.formats.source import (
    SourceEpisode,
    SourceSchema,
    StepFields,
    array_field,
    check_size,
    field_name,
)
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, encode, text_field
from robots.spec import FieldSpec, Role

_ABOUT = "dataset.json"
_LONGEST_TEXT = 512
"""Size of the field of an instruction that changes within episodes [bytes]."""
_ENDS = ("episode_ends", "meta/episode_ends")
_ACTIONS = ("action", "actions")
_OUTCOMES = (
    "reward",
    "rewards",
    "done",
    "dones",
    "success",
    "terminated",
    "terminals",
    "truncated",
    "discount",
)
_TIMES = ("timestamp", "timestamps", "frame_index", "episode_index", "index")
_KEYS = {"rate_hz": (int, float), "task": str, "units": dict, "robot": str, "instruction": str}


def recognises(path: Path) -> bool:
    """Whether the path is an `.npz` with ends of episodes, or a folder of `.npz` files."""
    if path.is_dir():
        return any(True for _ in path.glob("*.npz"))
    if path.suffix != ".npz" or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(f"{name}.npy" in archive.namelist() for name in _ENDS)


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[NpzSource]:
    """Opens an `.npz`, or a folder of them.

    Raises:
        HandoffError: an archive is damaged, holds objects, or lacks the ends of its episodes.
    """
    about = _read_about(path / _ABOUT if path.is_dir() else path.with_name(_ABOUT))
    with ExitStack() as stack:
        if path.is_dir():
            yield NpzSource(path, _Folder(path), about, images)
        else:
            yield NpzSource(path, _Archive(path, stack), about, images)


class NpzSource:
    """Episodes in NumPy archives, opened by `open_source`."""

    def __init__(
        self, path: Path, content: _Folder | _Archive, about: Mapping[str, Any], images: bool
    ) -> None:
        """Makes the schema from the first episode.

        Raises:
            HandoffError: see `open_source`.
        """
        self._path = path
        self._content = content
        self._images = images
        self._about = about
        self._steps = StepFields(path)
        fields = self._steps.fields
        self._instruction_changes = False
        spoken = (self._split(words)[1] for words in content.words())
        self._instruction_changes = any("instructions" in metadata for metadata in spoken)
        arrays, _ = self._split(next(content.episodes(0, 1)))
        for name, array in arrays.items():
            fields[name] = _field(name, array, about.get("units", {}))
        if self._instruction_changes:
            fields[INSTRUCTION] = text_field(_LONGEST_TEXT)
        if not fields:
            raise HandoffError(f"{path}: the first episode has no array (T, ...). Is it data?")
        unknown = sorted(about.get("units", {}).keys() - fields.keys())
        if unknown:
            raise HandoffError(
                f"{path}: {_ABOUT} has units of {unknown}, which are no arrays; there are {sorted(fields)}."
            )
        notes = []
        if "rate_hz" not in about:
            notes.append(f"No {_ABOUT} states the rate (rate_hz).")
        if not any(spec.role == "action" for spec in fields.values()):
            notes.append("No array is called action or actions, so no field is the action.")
        self.schema = SourceSchema(
            form="NumPy archives (npz)",
            task=about.get("task", path.stem),
            rate_hz=None if "rate_hz" not in about else float(about["rate_hz"]),
            fields=fields,
            robot=about.get("robot", ""),
            notes=tuple(notes),
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return self._content.num_episodes

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`.

        Raises:
            HandoffError: damaged files, or an episode that differs from the first one.
        """
        for episode, content in enumerate(self._content.episodes(first, stop), start=first):
            arrays, metadata = self._split(content)
            self._steps.check(episode, arrays)
            yield SourceEpisode({name: arrays[name] for name in self._steps.fields}, metadata)

    def _split(
        self, content: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Fields and metadata of one episode."""
        arrays: dict[str, np.ndarray] = {}
        metadata: dict[str, Any] = {}
        if "instruction" in self._about:
            metadata[INSTRUCTION] = self._about["instruction"]
        for key, array in content.items():
            last = key.rpartition("/")[2]
            if array.ndim == 0 or array.dtype.kind in "US":
                words = [_json_value(self._path, key, word) for word in array.reshape(-1)]
                name = INSTRUCTION if last in ("language_instruction", "instructions") else last
                metadata[name] = next((word for word in words if word != ""), "")
                if name == INSTRUCTION and len(set(words) - {""}) > 1:
                    metadata["instructions"] = list(dict.fromkeys(filter(None, words)))
                if name == INSTRUCTION and self._instruction_changes:
                    arrays[INSTRUCTION] = encode([str(word) for word in words], _LONGEST_TEXT)
            elif last in _TIMES:
                if (np.diff(array.astype(np.float64), axis=0) < 0).any():
                    raise HandoffError(
                        f"{self._path}: {key} falls within an episode, expected rising values. Are rows mixed up?"
                    )
            elif self._images or not _is_picture(array):
                arrays[field_name(key)] = array
        if isinstance(metadata.get("success"), (int, float)):
            metadata["success"] = bool(metadata["success"])
        return arrays, metadata


class _Folder:
    """One episode per file of a folder.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self._files = data_files(path, "*.npz")
        if not self._files:
            raise HandoffError(f"{path}: holds no .npz file. Is it another folder?")

    @property
    def num_episodes(self) -> int:
        """Number of files."""
        return len(self._files)

    def episodes(self, first: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """The arrays of the files `[first, stop)`."""
        for file in self._files[first:stop]:
            with ExitStack() as stack:
                yield {
                    name: member.rows(0, None) for name, member in read_members(file, stack).items()
                }

    def words(self) -> Iterator[dict[str, np.ndarray]]:
        """The arrays of words of every file."""
        for file in self._files:
            with ExitStack() as stack:
                yield {
                    name: member.rows(0, None)
                    for name, member in read_members(file, stack).items()
                    if member.dtype.kind in "US"
                }


class _Archive:
    """All episodes one after another in one file.

    Args:
        path: the file.
        stack: closes the file.
    """

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._members = read_members(path, stack)
        key = next((name for name in _ENDS if name in self._members), None)
        if key is None:
            raise HandoffError(
                f"{path}: has no array episode_ends, the ends of its episodes (E,); it has {sorted(self._members)}."
            )
        self._ends = _checked_ends(path, key, self._members.pop(key))
        frames, count = int(self._ends[-1]), len(self._ends)
        for name, member in self._members.items():
            words = member.dtype.kind in "US" or (frames != count and member.shape == (count,))
            if member.shape and member.shape[0] != (count if words else frames):
                raise HandoffError(
                    f"{path}: {name} has the shape {member.shape}, expected {frames} rows, the last entry of {key}, "
                    f"or one value for each of {count} episodes. Was the recording interrupted?"
                )

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self._ends)

    def words(self) -> Iterator[dict[str, np.ndarray]]:
        """Nothing: an archive of several episodes has one sentence for each."""
        yield from ()

    def episodes(self, first: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """The arrays of the episodes `[first, stop)`; values of whole episodes have no axis."""
        starts = [0, *self._ends[:-1].tolist()]
        frames = int(self._ends[-1])
        for episode in range(first, stop):
            start, end = starts[episode], int(self._ends[episode])
            arrays = {}
            for name, member in self._members.items():
                if not member.shape:
                    arrays[name] = member.rows(0, None)
                elif member.dtype.kind in "US" or member.shape[0] != frames:
                    arrays[name] = member.rows(episode, episode + 1)[0]
                else:
                    arrays[name] = member.rows(start, end)
            yield {name: np.asarray(array) for name, array in arrays.items()}


def _checked_ends(path: Path, key: str, member: NpzMember) -> np.ndarray:
    if len(member.shape) != 1 or member.shape[0] == 0 or member.dtype.kind not in "iu":
        raise HandoffError(
            f"{path}: {key} is {member.dtype}{member.shape}, expected integers (E,)."
        )
    ends = member.rows(0, None).astype(np.int64)
    if (np.diff(ends, prepend=0) <= 0).any():
        episode = int(np.argmax(np.diff(ends, prepend=0) <= 0))
        raise HandoffError(
            f"{path}: {key}[{episode}] is {ends[episode]}, expected rising numbers above 0. Are they lengths instead "
            "of ends?"
        )
    check_size(path, key, (int(np.diff(ends, prepend=0).max()),), 1)
    return ends


def _field(name: str, array: np.ndarray, units: Mapping[str, str]) -> FieldSpec:
    role: Role = "observation"
    if name in _ACTIONS:
        role = "action"
    elif name.rpartition("/")[2] in _OUTCOMES:
        role = "outcome"
    about = {"unit": units[name]} if name in units else {}
    return array_field(array, role, image=_is_picture(array), **about)


def _is_picture(array: np.ndarray) -> bool:
    return array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] == 3


def _json_value(path: Path, key: str, value: Any) -> Any:
    """A single value as JSON."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and not np.isfinite(plain):
        raise HandoffError(f"{path}: {key} is {plain}, expected a finite number.")
    return plain


def _read_about(file: Path) -> dict[str, Any]:
    """The optional description of a data set."""
    if not file.is_file():
        return {}
    about = read_json(file)
    for key, value in about.items():
        expected: Any = _KEYS.get(key)
        if expected is None:
            raise HandoffError(
                f"{file}: unknown entry '{key[:40]}', expected some of {', '.join(_KEYS)}."
            )
        if not isinstance(value, expected) or isinstance(value, bool):
            raise HandoffError(f"{file}: {key} is {value!r:.40}, which has the wrong type.")
    rate = about.get("rate_hz", 1.0)
    if not 0 < rate < 10**5:
        raise HandoffError(f"{file}: rate_hz is {rate}, expected steps per second above 0.")
    if not all(isinstance(unit, str) for unit in about.get("units", {}).values()):
        raise HandoffError(f"{file}: units are {about['units']!r:.60}, expected words by name.")
    return about
