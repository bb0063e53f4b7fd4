"""Reads HDF5 files of robomimic, and those of Isaac Lab, which have the same layout.

| path                          | content                                                      |
|-------------------------------|--------------------------------------------------------------|
| `data`                        | attributes `env_args` (JSON: name, type and arguments of the |
|                               | environment) and `total`                                     |
| `data/demo_7`                 | an episode; attributes `num_samples`, `success`, `seed`      |
| `data/demo_7/actions`         | (T, A)                                                       |
| `data/demo_7/obs/NAME`        | (T, ...), pictures uint8 (T, height, width, 3)               |
| `data/demo_7/rewards`, `dones`| (T,)                                                         |
| `mask/NAME`                   | names of the episodes of a subset, such as `train`           |

Isaac Lab nests its groups, may state `sim_args.dt` and `sim_args.decimation`, and has the attribute
`format_version` of the file: 1 means quaternions x, y, z, w, a missing one w, x, y, z. Here they
become w, x, y, z. Source: the code of robomimic 0.3, LIBERO and Isaac Lab 2 and 3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from robots.episodes.formats.containers.hdf5 import (
    Hdf5Group,
    add_source,
    first_member,
    open_hdf5,
    read_steps,
)
from robots.episodes.formats.containers.hdf5_arrays import Hdf5Array
from robots.episodes.formats.source import (
    SourceEpisode,
    SourceSchema,
    StepFields,
    array_field,
    explain_damage,
)
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION
from robots.spec import WXYZ, FieldSpec, Role

ACTIONS = "actions"
OUTCOMES = ("rewards", "dones", "success", "terminated", "truncated", "discount")
GYM = 2
"""Type of the environment in `env_args` for Gym, which Isaac Lab writes too."""
XYZW = (("x", "y", "z", "w"),)
XYZ_WXYZ = (("x", "y", "z", "qw", "qx", "qy", "qz"),)
"""Names of the entries of a position followed by a quaternion."""
_LEFT_OUT = ("next_obs", "initial_state")
_MOST_INITIAL = 4096
"""Largest number of entries of an array of the initial state."""


def recognises(path: Path) -> bool:
    """Whether the path is an HDF5 file with a group such as `data/demo_0`."""
    return first_member(path, "data", r"demo_[0-9]+") is not None


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[RobomimicSource]:
    """Opens a file of robomimic or Isaac Lab.

    Raises:
        HandoffError: it is damaged, leaves out what an episode needs, or names other files.
    """
    with open_hdf5(path) as file:
        yield RobomimicSource(path, file, images)


def quaternion_start(name: str, shape: tuple[int, ...]) -> int | None:
    """First entry of the quaternion in a field of Isaac Lab: 3 in a pose (..., 7), 0 in a
    quaternion (..., 4); None for other fields.

    Args:
        name: name of the field.
        shape: shape of one step.
    """
    last = name.rpartition("/")[2].lower()
    if shape[-1:] == (7,) and re.search(r"pose(_[wb])?$", last):
        return 3
    if shape[-1:] == (4,) and re.search(r"(quat|orientation)(_[wb])?$", last):
        return 0
    return None


def reordered(array: np.ndarray, start: int, order: tuple[int, ...]) -> np.ndarray:
    """A copy of `(T, ..., start + 4)` with the entries of its quaternion in another order."""
    columns = [*range(start), *(start + entry for entry in order)]
    return np.ascontiguousarray(array[..., columns])


class RobomimicSource:
    """A file of robomimic or Isaac Lab, opened by `open_source`."""

    def __init__(self, path: Path, file: Hdf5Group, images: bool) -> None:
        """Makes the schema from the first episode.

        Raises:
            HandoffError: see `open_source`.
        """
        self._data = file.group("data")
        self._demos = self._data.numbered("demo_")
        if not self._demos:
            raise HandoffError(f"{path}: data has no group demo_0, demo_1, ... Is it another file?")
        self._images = images
        self._env_args = _json(self._data, "env_args")
        self._version = file.attribute("format_version")
        stated = self._env_args.get("type") == GYM and "env_kwargs" not in self._env_args
        self._isaac = self._version is not None or stated
        self._xyzw = isinstance(self._version, int) and self._version >= 1
        self._splits, self._unknown = _read_masks(file, set(self._demos))
        self._skipped: dict[str, str] = {}
        self._converted: list[str] = []
        self._steps = StepFields(path)
        self._sources = self._find_fields(self._data.group(self._demos[0]))
        self.schema = SourceSchema(
            form=f"Isaac Lab (HDF5, version {self._version or 0})"
            if self._isaac
            else "robomimic (HDF5)",
            task=str(self._env_args.get("env_name") or path.stem),
            rate_hz=self._rate(),
            fields=self._steps.fields,
            robot=self._robot(),
            notes=tuple(self._notes()),
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self._demos)

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`, in the order of the numbers in their names.

        Raises:
            HandoffError: an episode is damaged or differs from the first one.
        """
        for number in range(first, stop):
            demo = self._data.group(self._demos[number])
            actions = demo.array(ACTIONS)
            length = actions.shape[0] if actions.shape else 0
            stated = demo.attribute("num_samples")
            if stated is not None and stated != length:
                raise HandoffError(
                    f"{demo.path}: {actions.name} has {length} rows, num_samples says {stated}. Was the recording "
                    "interrupted?"
                )
            arrays = read_steps(demo, self._sources, length)
            self._steps.check(number, arrays)
            for name in self._converted:
                start = quaternion_start(name, arrays[name].shape[1:])
                arrays[name] = reordered(arrays[name], start or 0, (3, 0, 1, 2))
            yield SourceEpisode(arrays, self._metadata(demo, self._demos[number], arrays))

    def _find_fields(self, demo: Hdf5Group) -> dict[str, str]:
        """Names of the arrays by the names of their fields, which are added to the schema."""
        found = demo.arrays(skip=_LEFT_OUT)
        length = demo.array(ACTIONS).shape[:1]
        sources: dict[str, str] = {}
        for source, array in found.items():
            role = _role(source)
            if role == "other" and array.shape[:1] != length:
                self._skipped[source] = "has no row per step"
            elif not array.is_numeric:
                self._skipped[source] = "holds no numbers"
            elif self._images or not array.is_picture:
                name = add_source(demo.path, sources, source)
                self._steps.fields[name] = self._field(name, array, role)
        return sources

    def _field(self, name: str, array: Hdf5Array, role: Role) -> FieldSpec:
        example = np.empty((0, *array.shape[1:]), array.dtype)
        if array.is_picture:
            return array_field(example, role, image=role == "observation")
        start = quaternion_start(name, example.shape[1:])
        if start is None or example.ndim != 2 or role == "action":
            return array_field(example, role)
        if not self._isaac:
            robosuite = start == 0 and self._env_args.get("type") == 1
            return array_field(example, role, names=XYZW if robosuite else ())
        if self._xyzw:
            self._converted.append(name)
        if start == 0:
            return array_field(example, role, names=WXYZ)
        return array_field(example, role, names=XYZ_WXYZ, unit="m, m, m, 1, 1, 1, 1")

    def _rate(self) -> float | None:
        """Steps per second where `env_args` states them."""
        arguments = self._env_args.get("env_kwargs")
        if isinstance(arguments, Mapping) and _positive(arguments.get("control_freq")):
            return float(arguments["control_freq"])
        simulation = self._env_args.get("sim_args")
        if isinstance(simulation, Mapping):
            step, count = simulation.get("dt"), simulation.get("decimation")
            if _positive(step) and _positive(count) and float(step) * float(count) > 1e-9:
                # Without the last digits, in which 1 / (1 / 49) differs from 49.
                return float(f"{1.0 / (float(step) * float(count)):.9g}")
        return None

    def _robot(self) -> str:
        arguments = self._env_args.get("env_kwargs")
        robots = arguments.get("robots") if isinstance(arguments, Mapping) else None
        names = [robots] if isinstance(robots, str) else robots
        return ", ".join(map(str, names)) if isinstance(names, list) else ""

    def _metadata(
        self, demo: Hdf5Group, name: str, arrays: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        metadata: dict[str, Any] = {"demo": name}
        if name in self._splits:
            metadata["split"] = self._splits[name]
        for key in ("seed", "success"):
            value = demo.attribute(key)
            if value is not None:
                metadata[key] = bool(value) if key == "success" else value
        if "success" not in metadata and self._sparse and "rewards" in arrays:
            metadata["success"] = bool((arrays["rewards"] > 0).any())
        words = _json(demo, "ep_meta").get("lang") or self._problem
        if isinstance(words, str) and words:
            metadata[INSTRUCTION] = words
        initial = demo.find("initial_state")
        if isinstance(initial, Hdf5Group):
            metadata["initial_state"] = self._initial_state(initial)
        return metadata

    def _initial_state(self, group: Hdf5Group) -> dict[str, Any]:
        """Arrays of the state before the first step as nested lists."""
        state: dict[str, Any] = {}
        for name, array in group.arrays().items():
            size = int(np.prod(array.shape, dtype=np.float64))
            if array.is_numeric and array.shape and size <= _MOST_INITIAL:
                values = array.rows()
                start = quaternion_start(name, values.shape[1:])
                if self._xyzw and start is not None:
                    values = reordered(values, start, (3, 0, 1, 2))
                if np.isfinite(values).all():
                    state[name] = values.tolist()
        return state

    @property
    def _sparse(self) -> bool:
        """Whether the file states that rewards are those of success alone."""
        arguments = self._env_args.get("env_kwargs")
        return isinstance(arguments, Mapping) and arguments.get("reward_shaping") is False

    @property
    def _problem(self) -> str | None:
        """Instruction of all episodes, as LIBERO states it."""
        words = _json(self._data, "problem_info").get("language_instruction")
        words = "".join(map(str, words)) if isinstance(words, list) else words
        return words.strip('"') if isinstance(words, str) else None

    def _notes(self) -> Iterator[str]:
        if self.rate is None:
            yield "The file does not state the rate."
        if isinstance(self._data.group(self._demos[0]).find("next_obs"), Hdf5Group):
            yield "next_obs is left out: it is obs one step later."
        if isinstance(self._data.group(self._demos[0]).find("initial_state"), Hdf5Group):
            yield "initial_state, which has no row per step, is in the metadata of the episodes."
        if self._skipped:
            parts = ", ".join(f"{name} ({why})" for name, why in sorted(self._skipped.items()))
            yield f"Left out are {parts}."
        if self._converted:
            yield (
                f"Quaternions were converted from x, y, z, w to w, x, y, z in {', '.join(self._converted)}; actions "
                "are as stored."
            )
        elif self._isaac:
            yield "Quaternions are w, x, y, z, as in files of Isaac Lab without format_version."
        elif any(spec.names == XYZW for spec in self._steps.fields.values()):
            yield "Quaternions are x, y, z, w, as robosuite records them."
        if self._sparse:
            yield (
                "An episode without the attribute success was successful if it has a reward above 0, because "
                "env_args says reward_shaping: false."
            )
        if self._unknown:
            yield f"Masks name {self._unknown} episode(s) that the file does not have."

    @property
    def rate(self) -> float | None:
        """Steps per second; None if the file does not state it."""
        return self._rate()


def _read_masks(file: Hdf5Group, demos: set[str]) -> tuple[dict[str, list[str]], int]:
    """Names of the subsets of every episode, and the number of episodes that do not exist."""
    splits: dict[str, list[str]] = {}
    unknown: set[str] = set()
    group = file.find("mask")
    if isinstance(group, Hdf5Group):
        for name, array in group.arrays().items():
            for demo in array.words() if array.is_text else ():
                if demo in demos:
                    splits.setdefault(demo, []).append(name)
                else:
                    unknown.add(demo)
    return splits, len(unknown)


def _json(group: Hdf5Group, name: str) -> dict[str, Any]:
    """The JSON object in an attribute; empty if it is missing.

    Raises:
        HandoffError: it is no JSON.
    """
    text = group.attribute(name)
    if not isinstance(text, str) or not text:
        return {}
    with explain_damage(group.path, f"the attribute {name} of {group.name or '/'}"):
        content = json.loads(text)
    return content if isinstance(content, dict) else {}


def _role(source: str) -> Role:
    top = source.partition("/")[0]
    if source == ACTIONS:
        return "action"
    if source in OUTCOMES:
        return "outcome"
    # Isaac Lab Mimic's notes for generating data, which no policy sees.
    privileged = source.startswith("obs/datagen_info/")
    return "observation" if top == "obs" and not privileged else "other"


def _positive(value: Any) -> TypeGuard[float]:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and isfinite(value) and value > 0
