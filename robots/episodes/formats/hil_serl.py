"""Reads the pickles of hil-serl: demonstrations and buffers of transitions.

A file is a list of mappings with `observations`, `actions`, `next_observations`, `rewards`,
`masks`, `dones` and `infos`; an episode ends where `dones` is set. Observations are a mapping of
pictures `(1, height, width, 3)` and a state `(1, D)`, whose first axis is the history. Source: Luo
et al., Precise and Dexterous Robotic Manipulation via Human-in-the-Loop Reinforcement Learning,
2024, and its repository. Pickles can run code; those that need more than NumPy's arrays are
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.containers.folder import check_name, data_files
from robots.episodes.formats.containers.pickles import read_pickle
from robots.episodes.formats.source import (
    SourceEpisode,
    SourceSchema,
    StepFields,
    array_field,
    check_size,
    field_name,
)
from robots.errors import HandoffError
from robots.spec import Role

_PATTERNS = ("*.pkl", "*.pickle")
_OUTCOMES = ("rewards", "masks", "dones")
_REQUIRED = ("observations", "actions", "rewards", "dones")
_MOST_ARRAYS = 256
"""Largest number of arrays of an observation."""
_DEEPEST = 8
_STARTS = (b"\x80", b"(", b"]", b"c")
"""First bytes of pickles: the protocol, or a list in protocol 0."""

_Transition = Mapping[str, Any]


def recognises(path: Path) -> bool:
    """Whether the path is a pickle, or a folder with pickles, by their names and first bytes."""
    if path.is_dir():
        files = [file for pattern in _PATTERNS for file in path.glob(pattern)]
        return bool(files) and recognises(min(files))
    if path.suffix not in (".pkl", ".pickle") or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(1) in _STARTS


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[HilSerlSource]:
    """Opens a pickle, or all pickles of a folder in the order of the numbers in their names.

    Raises:
        HandoffError: a pickle is damaged, needs more than arrays, or holds no transitions.
    """
    files = data_files(path, *_PATTERNS) if path.is_dir() else [path]
    if not files:
        raise HandoffError(f"{path}: holds no pickle (*.pkl). Is it another folder?")
    yield HilSerlSource(path, files, images)


class HilSerlSource:
    """Pickles of hil-serl, opened by `open_source`."""

    def __init__(self, path: Path, files: list[Path], images: bool) -> None:
        """Reads every file once to find the ends of its episodes; a pickle has no index.

        Raises:
            HandoffError: see `open_source`.
        """
        self._images = images
        self._steps = StepFields(path)
        self._history = 1
        self._read: tuple[Path, list[_Transition]] | None = None
        self._places: list[tuple[Path, int, int]] = []
        """File, first transition and end of every episode."""
        open_ends = 0
        for file in files:
            ends = _ends(self._transitions(file))
            starts = [0, *ends[:-1]]
            self._places += [(file, start, end) for start, end in zip(starts, ends, strict=True)]
            open_ends += not bool(np.any(self._transitions(file)[-1]["dones"]))
        arrays, _ = self._episode(0)
        for name, array in arrays.items():
            image = array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] == 3
            self._steps.fields[name] = array_field(array, _role(name), image=image)
        self.schema = SourceSchema(
            form="pickles of hil-serl",
            task=path.stem,
            rate_hz=None,
            fields=self._steps.fields,
            notes=tuple(self._notes(open_ends)),
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes in all files."""
        return len(self._places)

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`; one file is in memory at a time.

        Raises:
            HandoffError: transitions differ in names or shapes.
        """
        for episode in range(first, stop):
            arrays, metadata = self._episode(episode)
            self._steps.check(episode, arrays)
            yield SourceEpisode(arrays, metadata)

    def _episode(self, episode: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        file, start, end = self._places[episode]
        transitions = self._transitions(file)[start:end]
        rows = [self._row(file, start + i, part) for i, part in enumerate(transitions)]
        arrays: dict[str, np.ndarray] = {}
        for name in rows[0]:
            values = [row.get(name) for row in rows]
            shapes = {None if value is None else value.shape for value in values}
            if len(shapes) > 1:
                raise HandoffError(
                    f"{file}: {name} of episode {episode} has the shapes {sorted(map(str, shapes))}, expected one. "
                    "Was it recorded with two set-ups?"
                )
            # Transitions may share one array in the pickle, and here each gets its own.
            check_size(file, name, (len(rows), *rows[0][name].shape), rows[0][name].itemsize)
            arrays[name] = np.stack([value for value in values if value is not None])
        metadata: dict[str, Any] = {"source_file": file.name}
        infos = transitions[-1].get("infos")
        stated = infos.get("succeed") if isinstance(infos, Mapping) else None
        if isinstance(stated, (bool, np.bool_, int)):
            metadata["success"] = bool(stated)
        else:
            metadata["success"] = bool(np.max(arrays["rewards"][-1]) > 0)
        return arrays, metadata

    def _transitions(self, file: Path) -> list[_Transition]:
        if self._read is None or self._read[0] != file:
            # The file before is let go first, so that only one is in memory.
            self._read = None
            self._read = (file, _checked(file, read_pickle(file)))
        return self._read[1]

    def _row(self, file: Path, number: int, transition: _Transition) -> dict[str, np.ndarray]:
        """The arrays of one transition by the name of their field."""
        row: dict[str, np.ndarray] = {}
        _flatten(file, "observations", transition["observations"], row)
        row = {name: self._newest(value) for name, value in row.items()}
        if not self._images:
            row = {name: value for name, value in row.items() if not _is_picture(value)}
        for name in ("actions", *(name for name in _OUTCOMES if name in transition)):
            value = _number_array(transition[name])
            if value is None:
                raise HandoffError(
                    f"{file}: {name} of transition {number} is {type(transition[name]).__name__}, expected numbers."
                )
            row[name] = value
        return row

    def _newest(self, value: np.ndarray) -> np.ndarray:
        """An observation without its history axis: pictures have 3 axes then, and states 1."""
        if value.ndim in (2, 4) and len(value):
            self._history = max(self._history, len(value))
            return value[-1]
        return value

    def _notes(self, open_ends: int) -> Iterator[str]:
        yield "hil-serl does not state the rate; its robots run at 10 Hz unless configured otherwise."
        yield (
            "The success of an episode is infos['succeed'] where it is stated, otherwise a last reward above 0."
        )
        yield "next_observations and infos are left out."
        if self._history > 1:
            yield f"Of the history of {self._history} observations, the newest is kept."
        if open_ends:
            yield f"At the end of {open_ends} file(s), an episode ends without being done."


def _checked(file: Path, content: Any) -> list[_Transition]:
    """The transitions in a pickle, without the parts that are not read."""
    if not isinstance(content, list) or not content:
        raise HandoffError(
            f"{file}: holds {type(content).__name__}, expected a list of transitions. Was it written by hil-serl?"
        )
    transitions: list[_Transition] = []
    for number, transition in enumerate(content):
        missing = (
            [name for name in _REQUIRED if name not in transition]
            if isinstance(transition, dict)
            else list(_REQUIRED)
        )
        if missing:
            raise HandoffError(
                f"{file}: transition {number} lacks {missing}, expected a mapping with {', '.join(_REQUIRED)}. Was "
                "it written by hil-serl?"
            )
        transition.pop("next_observations", None)
        transitions.append(transition)
    return transitions


def _ends(transitions: list[_Transition]) -> list[int]:
    """Ends of the episodes: after every transition that is done, and after the last one."""
    ends = [
        number
        for number, transition in enumerate(transitions, start=1)
        if np.any(_number_array(transition["dones"]))
    ]
    return ends if ends and ends[-1] == len(transitions) else [*ends, len(transitions)]


def _flatten(
    file: Path, name: str, value: Any, found: dict[str, np.ndarray], depth: int = 0
) -> None:
    """Adds the arrays of a nested observation by their names."""
    if depth > _DEEPEST or len(found) > _MOST_ARRAYS:
        raise HandoffError(
            f"{file}: {name[:60]} has more than {_MOST_ARRAYS} arrays or {_DEEPEST} levels. Was it made for this "
            "purpose?"
        )
    if isinstance(value, Mapping):
        if len(value) > _MOST_ARRAYS:
            raise HandoffError(
                f"{file}: {name[:60]} has {len(value)} entries, the limit is {_MOST_ARRAYS}."
            )
        for key, inner in value.items():
            check_name(file, str(key))
            _flatten(file, f"{name}/{key}", inner, found, depth + 1)
        return
    array = _number_array(value)
    if array is None:
        raise HandoffError(
            f"{file}: {name[:60]} is {type(value).__name__}, expected an array of numbers."
        )
    found[field_name(name)] = array


def _number_array(value: Any) -> np.ndarray | None:
    """An array of numbers, or None for anything else."""
    if isinstance(value, (list, tuple)):
        plain = all(isinstance(n, (bool, int, float, np.generic)) for n in value)
        if not plain or len(value) > 10**6:
            return None
    elif not isinstance(value, (np.ndarray, np.generic, bool, int, float)):
        return None
    array = np.asarray(value)
    return array if array.dtype.kind in "biuf" else None


def _is_picture(value: np.ndarray) -> bool:
    return value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3


def _role(name: str) -> Role:
    if name == "actions":
        return "action"
    return "outcome" if name in _OUTCOMES else "observation"
