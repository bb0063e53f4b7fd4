"""Reads replay buffers of diffusion_policy (any task but push-T) and of UMI.

Both are Zarr v2 groups, a folder or a zip: `data/NAME` with N rows of all episodes one after
another, and `meta/episode_ends` (E,), cumulative and exclusive. UMI stores `camera0_rgb` as one
JPEG XL per picture, and the poses and gripper widths of its robots (`robot0_eef_pos`,
`robot0_eef_rot_axis_angle`, `robot0_gripper_width`); it has no action: the pose at the next step
is the target. Sources: Chi et al., Diffusion Policy, RSS 2023, and Chi et al., Universal
Manipulation Interface, RSS 2024, with their repositories.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.containers.replay_arrays import ReplayArray, open_arrays
from robots.episodes.formats.pusht import find_replay_buffer, is_pusht
from robots.episodes.formats.source import (
    SourceEpisode,
    SourceSchema,
    array_field,
    check_size,
    explain_damage,
    field_name,
)
from robots.errors import HandoffError
from robots.spec import FieldSpec

ENDS = "meta/episode_ends"
SMALL = 2**26
"""Size up to which an array is read whole [bytes]; its chunks often hold many episodes."""
MOST_KEPT = 2**29
"""Largest size of all arrays that are kept in memory [bytes]."""
_OUTCOMES = ("reward", "rewards", "done", "dones", "terminal", "terminals", "success")
_ACTIONS = ("action", "actions")
_UMI_PARTS = {
    "eef_pos": (("x", "y", "z"), "m"),
    "eef_rot_axis_angle": (("rx", "ry", "rz"), "rad"),
    "gripper_width": (("width",), "m"),
}
"""Parts of a robot's state in UMI, with names and unit, in the order of the action."""
_UMI_POSE = re.compile(r"robot\d+_demo_(start|end)_pose")


def recognises(path: Path) -> bool:
    """Whether the folder or zip holds a replay buffer that is not push-T's."""
    if not (path.is_dir() or zipfile.is_zipfile(path)):
        return False
    with explain_damage(path, "content"):
        return find_replay_buffer(path) is not None and not is_pusht(path)


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[ReplayBufferSource]:
    """Opens a replay buffer, a folder or a zip.

    Raises:
        HandoffError: it is none, or damaged, or reading it could run code.
    """
    with explain_damage(path, "content"):
        prefix = find_replay_buffer(path)
    if prefix is None:
        raise HandoffError(f"{path}: holds no {ENDS}, so it is no replay buffer.")
    with open_arrays(path, prefix, skip_encoded=not images) as arrays:
        yield ReplayBufferSource(path, arrays, images)


class ReplayBufferSource:
    """A replay buffer, opened by `open_source`."""

    def __init__(self, path: Path, arrays: Mapping[str, ReplayArray], images: bool) -> None:
        """Checks the arrays against the ends of the episodes.

        Raises:
            HandoffError: an array has another length, or there is none.
        """
        self._path = path
        self._ends = _read_ends(path, arrays)
        self._arrays: dict[str, ReplayArray] = {}
        self._pictures: set[str] = set()
        self._whole: dict[str, np.ndarray] = {}
        self._robots = _umi_robots(arrays)
        fields: dict[str, FieldSpec] = {}
        for key, array in arrays.items():
            if not key.startswith("data/"):
                continue
            name = field_name(key.removeprefix("data/"))
            self._check(key, array)
            picture = _is_picture(array)
            if picture and not images:
                continue
            self._arrays[name] = array
            self._pictures |= {name} if picture else set()
            fields[name] = self._field(name, array, picture)
        if not fields:
            raise HandoffError(
                f"{path}: no array below data/ can be read. Was the copy incomplete?"
            )
        if self._robots:
            fields["action"] = _umi_action(self._robots)
        self.schema = SourceSchema(
            form="UMI (Zarr)" if self._robots else "replay buffer of diffusion_policy (Zarr)",
            task=path.name.removesuffix(".zip").removesuffix(".zarr"),
            rate_hz=None,
            fields=fields,
            notes=tuple(self._notes(fields)),
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self._ends)

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`.

        Raises:
            HandoffError: a chunk cannot be decoded, or a picture has values that are no whole
                numbers in 0..255.
        """
        starts = [0, *self._ends[:-1].tolist()]
        for episode in range(first, stop):
            start, end = starts[episode], int(self._ends[episode])
            arrays = {name: self._rows(name, start, end) for name in self._arrays}
            if self._robots:
                parts = [arrays[f"{robot}_{part}"] for robot in self._robots for part in _UMI_PARTS]
                state = np.concatenate(parts, axis=1)
                arrays["action"] = np.concatenate([state[1:], state[-1:]])
            yield SourceEpisode(arrays, {})

    def _rows(self, name: str, start: int, end: int) -> np.ndarray:
        array = self._arrays[name]
        size = array.dtype.itemsize * prod(array.shape)
        kept = sum(whole.nbytes for whole in self._whole.values())
        if name not in self._whole and size <= SMALL and kept + size <= MOST_KEPT:
            self._whole[name] = array.rows(0, array.shape[0])
        whole = self._whole.get(name)
        rows = array.rows(start, end) if whole is None else whole[start:end]
        if name in self._pictures and rows.dtype != np.uint8:
            return _as_uint8(self._path, array.name, rows, start)
        # Native byte order, which the type of the field states.
        return np.array(rows, dtype=rows.dtype.newbyteorder("="))

    def _check(self, key: str, array: ReplayArray) -> None:
        frames = int(self._ends[-1])
        if array.shape[0] != frames:
            raise HandoffError(
                f"{self._path}: {key} has {array.shape[0]} rows, expected {frames}, the last entry of {ENDS}. Was "
                "the recording interrupted?"
            )
        longest = int(np.diff(self._ends, prepend=0).max())
        check_size(self._path, key, (longest, *array.shape[1:]), array.dtype.itemsize)

    def _field(self, name: str, array: ReplayArray, picture: bool) -> FieldSpec:
        dtype = np.dtype(np.uint8) if picture else array.dtype.newbyteorder("=")
        example = np.empty((0, *array.shape[1:]), dtype)
        if name in _ACTIONS and not self._robots:
            return array_field(example, "action")
        if name.rpartition("/")[2] in _OUTCOMES:
            return array_field(example, "outcome")
        if self._robots and _UMI_POSE.fullmatch(name):
            names = ("x", "y", "z", "rx", "ry", "rz")
            named = (names,) if example.shape[1:] == (6,) else ()
            return array_field(example, "other", unit="m, m, m, rad, rad, rad", names=named)
        part = _UMI_PARTS.get(name.partition("_")[2]) if self._robots else None
        if part is not None:
            return array_field(example, "observation", unit=part[1], names=(part[0],))
        return array_field(example, "observation", image=picture)

    def _notes(self, fields: Mapping[str, FieldSpec]) -> Iterator[str]:
        if self._robots:
            yield (
                "UMI does not state the rate; its cameras record 59.94 frames per second (60 Hz), every one of them "
                "a step."
            )
            yield (
                "UMI has no actions: the action of a step is the pose and the gripper width of the next one, and the "
                "last step repeats its own."
            )
        else:
            yield "The format does not state the rate."
            if not any(spec.role == "action" for spec in fields.values()):
                yield "No array is called data/action, so no field is the action."


def _read_ends(path: Path, arrays: Mapping[str, ReplayArray]) -> np.ndarray:
    array = arrays.get(ENDS)
    if array is None or array.shape[0] > SMALL:
        raise HandoffError(f"{path}: {ENDS} is missing or too long. Was it damaged?")
    if len(array.shape) != 1 or array.shape[0] == 0 or array.dtype.kind not in "iu":
        raise HandoffError(
            f"{path}: {ENDS} is {array.dtype}{array.shape}, expected integers (E,). Was it damaged?"
        )
    ends = array.rows(0, array.shape[0]).astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    if (lengths <= 0).any():
        episode = int(np.argmax(lengths <= 0))
        raise HandoffError(
            f"{path}: {ENDS}[{episode}] is {ends[episode]}, expected more than {ends[episode] - lengths[episode]}. "
            "Ends must increase; was the file damaged?"
        )
    return ends


def _umi_robots(arrays: Mapping[str, ReplayArray]) -> list[str]:
    """Names of the robots whose state makes the action of UMI; empty for other data."""
    if any(f"data/{name}" in arrays for name in _ACTIONS):
        return []
    robots = sorted(
        match[1] for key in arrays if (match := re.fullmatch(r"data/(robot\d+)_eef_pos", key))
    )
    for robot in robots:
        for part, (names, _) in _UMI_PARTS.items():
            array = arrays.get(f"data/{robot}_{part}")
            if array is None or array.shape[1:] != (len(names),):
                found = "missing" if array is None else f"of the shape {array.shape[1:]}"
                raise HandoffError(
                    f"{next(iter(arrays.values())).path}: data/{robot}_{part} is {found}, expected ({len(names)},) "
                    "as in UMI."
                )
    return robots


def _umi_action(robots: list[str]) -> FieldSpec:
    names = [name for _ in robots for part, _ in _UMI_PARTS.values() for name in part]
    if len(robots) > 1:
        names = [f"{robots[i // 7]}.{name}" for i, name in enumerate(names)]
    return FieldSpec(
        shape=(len(names),),
        unit=", ".join(["m, m, m, rad, rad, rad, m"] * len(robots)),
        about="pose and gripper width of the next step",
        names=(tuple(names),),
        role="action",
    )


def _is_picture(array: ReplayArray) -> bool:
    """Whether the rows are pictures (height, width, 3): by type, or by whole numbers up to 255 in
    the first one."""
    if len(array.shape) != 4 or array.shape[3] != 3 or min(array.shape) < 1:
        return False
    if array.dtype == np.uint8:
        return True
    first = array.rows(0, 1)
    with np.errstate(invalid="ignore"):
        whole = bool(((first >= 0) & (first <= 255) & (first == np.floor(first))).all())
    return whole and bool((first > 1).any())


def _as_uint8(path: Path, key: str, rows: np.ndarray, start: int) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        pictures = rows.astype(np.uint8)
    wrong = pictures != rows
    if wrong.any():
        where: Any = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = [start + where[0], *where[1:]]
        raise HandoffError(
            f"{path}: {key}{place} is {rows[where]}, expected a whole number from 0 to 255 as in the first picture. "
            "Was it damaged?"
        )
    return pictures
