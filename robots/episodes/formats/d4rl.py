"""Reads HDF5 files of D4RL: flat arrays of all steps, cut into episodes where one ends.

| path                     | content                                                          |
|--------------------------|------------------------------------------------------------------|
| `observations`,`actions` | (N, ...)                                                         |
| `rewards`, `terminals`   | (N,); `terminals` is set where the task ended an episode         |
| `timeouts`               | (N,), optional; set where the time limit ended it                |
| `infos/NAME`             | (N, ...), such as the state of the simulator                     |
| `next_observations`      | (N, ...), optional                                               |

Source: Fu et al., D4RL: Datasets for Deep Data-Driven Reinforcement Learning, 2020, and its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from robots.episodes.formats.containers.hdf5 import Hdf5Group, add_source, open_hdf5, peek
from robots.episodes.formats.containers.hdf5_arrays import Hdf5Array
from robots.episodes.formats.source import (
    SourceEpisode,
    SourceSchema,
    StepFields,
    array_field,
    check_size,
)
from robots.errors import HandoffError
from robots.spec import Role

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_ENDS = ("terminals", "timeouts")
_LEFT_OUT = ("next_observations", "metadata")
MOST_STEPS = 2**30
"""Largest number of steps of a data set."""


def recognises(path: Path) -> bool:
    """Whether the path is an HDF5 file with the four arrays of D4RL right inside."""
    return peek(path, *_REQUIRED) == [False] * len(_REQUIRED)


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[D4rlSource]:
    """Opens a file of D4RL.

    Raises:
        HandoffError: it is damaged, an array is missing or has another length, or it names other
            files.
    """
    with open_hdf5(path) as file:
        yield D4rlSource(path, file, images)


class D4rlSource:
    """A file of D4RL, opened by `open_source`."""

    def __init__(self, path: Path, file: Hdf5Group, images: bool) -> None:
        """Finds the ends of the episodes, and checks the lengths of all arrays.

        Raises:
            HandoffError: see `open_source`.
        """
        self._path = path
        self._arrays: dict[str, Hdf5Array] = {}
        self._steps = StepFields(path)
        self._skipped: list[str] = []
        found = file.arrays(skip=_LEFT_OUT)
        missing = [name for name in _REQUIRED if name not in found]
        if missing:
            raise HandoffError(
                f"{path}: lacks {missing}, which D4RL's files have. Is it another file?"
            )
        total = (found["actions"].shape or (0,))[0]
        sources: dict[str, str] = {}
        for source, array in found.items():
            role = _role(source)
            if role == "other" and (array.shape[:1] != (total,) or not array.is_numeric):
                self._skipped.append(source)
                continue
            if array.shape[:1] != (total,):
                raise HandoffError(
                    f"{path}: {source} has the shape {array.shape}, expected {total} rows as actions. Was it cut short?"
                )
            if not images and array.is_picture:
                continue
            name = add_source(path, sources, source)
            self._arrays[name] = array
            example = np.empty((0, *array.shape[1:]), array.dtype)
            image = array.is_picture and role == "observation"
            self._steps.fields[name] = array_field(example, role, image=image)
        if not 0 < total <= MOST_STEPS:
            raise HandoffError(f"{path}: has {total} steps, expected 1 to {MOST_STEPS}.")
        self._ends, self._open = self._find_ends(total)
        self.schema = SourceSchema(
            form="D4RL (HDF5)",
            task=path.stem,
            rate_hz=None,
            fields=self._steps.fields,
            notes=tuple(self._notes(file)),
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self._ends)

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`.

        Raises:
            HandoffError: rows are damaged or too large.
        """
        for number in range(first, stop):
            start = int(self._ends[number - 1]) if number else 0
            end = int(self._ends[number])
            size = sum(
                float(np.prod(array.shape[1:], dtype=np.float64)) * array.dtype.itemsize
                for array in self._arrays.values()
            )
            check_size(self._path, f"episode {number} as a whole", (end - start,), int(size) + 1)
            arrays = {name: array.rows(start, end) for name, array in self._arrays.items()}
            self._steps.check(number, arrays)
            open_end = self._open and number == len(self._ends) - 1
            yield SourceEpisode(arrays, {"complete": not open_end})

    def _find_ends(self, total: int) -> tuple[np.ndarray, bool]:
        """Exclusive ends of the episodes, and whether the last one ends with the file alone."""
        ended = np.zeros(total, bool)
        for name in _ENDS:
            if name in self._arrays:
                array = self._arrays[name]
                if array.shape not in ((total,), (total, 1)):
                    raise HandoffError(
                        f"{self._path}: {name} has the shape {array.shape}, expected ({total},). Was it damaged?"
                    )
                ended |= array.rows().reshape(total) != 0
        ends = np.flatnonzero(ended) + 1
        left = not ended[-1]
        return (np.append(ends, total) if left else ends), bool(left)

    def _notes(self, file: Hdf5Group) -> Iterator[str]:
        yield "D4RL does not state the rate."
        if "timeouts" not in self._arrays:
            yield "There are no timeouts, so episodes that a time limit ended are joined with the next one."
        if self._open:
            yield (
                "The last episode is kept though the file ends before it; its metadata say complete: false."
            )
        if file.find("next_observations") is not None:
            yield "next_observations is left out: it is observations one step later."
        if file.find("metadata") is not None:
            yield "metadata, about the policy that acted, is left out."
        if self._skipped:
            yield f"Left out are {', '.join(self._skipped)} (no numbers of every step)."


def _role(source: str) -> Role:
    if source == "actions":
        return "action"
    if source in ("rewards", *_ENDS):
        return "outcome"
    return "observation" if source.partition("/")[0] == "observations" else "other"
