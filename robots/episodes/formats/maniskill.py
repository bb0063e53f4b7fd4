"""Reads trajectories of ManiSkill: an HDF5 file and the JSON file of the same name beside it.

| path                                  | content                                                |
|---------------------------------------|--------------------------------------------------------|
| `NAME.json`                           | `env_info` and `episodes`: `episode_id`,               |
|                                       | `episode_seed`, `control_mode`, `elapsed_steps`,       |
|                                       | `success`                                              |
| `traj_7/actions`                      | (T, A), or a group with one array per robot            |
| `traj_7/obs`                          | (T + 1, ...), one array or nested groups;              |
|                                       | `sensor_data/CAMERA/rgb` uint8, `depth` integer [mm]   |
| `traj_7/terminated`, `truncated`,     | (T,)                                                   |
| `success`, `fail`, `rewards`          |                                                        |
| `traj_7/env_states`                   | (T + 1, ...), states of the simulator                  |

Source: the code of ManiSkill 3.0 (`RecordEpisode`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.containers.folder import check_inside, read_json
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
from robots.spec import FieldSpec, Role

_ACTIONS = "actions"
_CAMERA = ("rgb", "depth", "position", "segmentation", "normal", "albedo")
"""Textures of ManiSkill's cameras; only colour is a picture of 8 bits."""
_OUTCOMES = ("terminated", "truncated", "success", "fail", "rewards")


def recognises(path: Path) -> bool:
    """Whether the path is an HDF5 file with a group such as `traj_0`."""
    return first_member(path, "", r"traj_[0-9]+") is not None


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[ManiSkillSource]:
    """Opens a file of trajectories; the JSON file beside it is read, too.

    Raises:
        HandoffError: one of them is missing or damaged, or they do not belong together.
    """
    sidecar = path.with_suffix(".json")
    if not sidecar.is_file():
        raise HandoffError(f"{path}: lacks {sidecar.name} beside it. Was only one file copied?")
    check_inside(path.parent, sidecar)
    with open_hdf5(path) as file:
        yield ManiSkillSource(path, file, read_json(sidecar), images)


class ManiSkillSource:
    """Trajectories of ManiSkill, opened by `open_source`."""

    def __init__(
        self, path: Path, file: Hdf5Group, content: Mapping[str, Any], images: bool
    ) -> None:
        """Makes the schema from the first episode.

        Raises:
            HandoffError: see `open_source`.
        """
        self._path = path
        self._file = file
        self._images = images
        self._info = _mapping(content.get("env_info"))
        self._episodes = _entries(path, content, file)
        self._unlisted = len(file.numbered("traj_")) - len(self._episodes)
        self._skipped: list[str] = []
        self._longer: set[str] = set()
        self._steps = StepFields(path)
        self._sources = self._find_fields(self._group(0))
        self.schema = SourceSchema(
            form="ManiSkill (HDF5)",
            task=str(self._info.get("env_id") or path.stem.partition(".")[0]),
            rate_hz=self._rate(),
            fields=self._steps.fields,
            robot=str(_mapping(self._info.get("env_kwargs")).get("robot_uids") or ""),
            notes=tuple(self._notes()),
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes that the JSON file lists."""
        return len(self._episodes)

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`, in the order of the JSON file.

        Raises:
            HandoffError: an episode is damaged, differs from the first one, or has another length
                than the JSON file says.
        """
        for number in range(first, stop):
            group = self._group(number)
            steps = self._length(group)
            stated = self._episodes[number].get("elapsed_steps")
            if isinstance(stated, int) and stated != steps:
                raise HandoffError(
                    f"{self._path}: {group.name} has {steps} actions, its JSON file says {stated} steps. Do the two "
                    "files belong together?"
                )
            arrays = read_steps(group, self._sources, steps, self._longer)
            self._steps.check(number, arrays)
            yield SourceEpisode(arrays, self._metadata(number, group))

    def _group(self, number: int) -> Hdf5Group:
        return self._file.group(f"traj_{self._episodes[number]['episode_id']}")

    def _length(self, group: Hdf5Group) -> int:
        """Number of actions of an episode."""
        found = group.find(_ACTIONS)
        if isinstance(found, Hdf5Group):
            found = next(iter(found.arrays().values()), None)
        if not isinstance(found, Hdf5Array) or not found.shape:
            raise HandoffError(f"{self._path}: {group.name} has no actions. Was it cut short?")
        return found.shape[0]

    def _find_fields(self, group: Hdf5Group) -> dict[str, str]:
        """Names of the arrays by the names of their fields, which are added to the schema."""
        steps = self._length(group)
        sources: dict[str, str] = {}
        found = group.arrays()
        for source, array in found.items():
            role = _role(source, found)
            longer = source.partition("/")[0] in ("obs", "env_states")
            if not array.is_numeric or (role == "other" and array.shape[:1] != (steps + longer,)):
                self._skipped.append(source)
            elif self._images or not (array.is_picture or _is_camera(source, array)):
                name = add_source(self._path, sources, source)
                self._longer |= {name} if longer else set()
                self._steps.fields[name] = _field(source, array, role)
        return sources

    def _metadata(self, number: int, group: Hdf5Group) -> dict[str, Any]:
        entry = self._episodes[number]
        metadata: dict[str, Any] = {"episode_id": entry["episode_id"]}
        for key, name in (
            ("episode_seed", "seed"),
            ("control_mode", "control_mode"),
            ("elapsed_steps", "elapsed_steps"),
        ):
            value = entry.get(key)
            if isinstance(value, (int, str)):
                metadata[name] = value
        success = entry.get("success")
        if success is None and isinstance(found := group.find("success"), Hdf5Array):
            success = bool(found.rows()[-1:].any())
        if isinstance(success, (bool, int)):
            metadata["success"] = bool(success)
        return metadata

    def _rate(self) -> float | None:
        """Steps per second where the arguments of the environment state them."""
        arguments = _mapping(self._info.get("env_kwargs"))
        rate = _mapping(arguments.get("sim_config")).get(
            "control_freq", arguments.get("control_freq")
        )
        known = isinstance(rate, (int, float)) and isfinite(rate) and rate > 0
        return float(rate) if known and rate is not None else None

    def _notes(self) -> Iterator[str]:
        if self._rate() is None:
            yield "The files do not state the rate; ManiSkill's robots run at 20 Hz by default."
        if self._longer:
            yield "The observation after the last action has no action and is left out."
        if not any(name.partition("/")[0] == "obs" for name in self._sources):
            yield (
                "There are no observations, as in ManiSkill's downloads; replay the file with ManiSkill "
                "(mani_skill.trajectory.replay_trajectory -o state)."
            )
        if not any(spec.role == "action" for spec in self._steps.fields.values()):
            yield "Every robot has actions of its own; join them by map.fields.action.source."
        if self._skipped:
            yield f"Left out are {', '.join(sorted(self._skipped))} (no numbers of every step)."
        modes = sorted({str(entry.get("control_mode")) for entry in self._episodes})
        yield f"Actions have the control mode {', '.join(modes)}."
        if self._unlisted:
            yield f"{self._unlisted} trajectories are not in the JSON file and are left out."


def _entries(path: Path, content: Mapping[str, Any], file: Hdf5Group) -> list[Mapping[str, Any]]:
    """The episodes of the JSON file, all of which have a group."""
    entries = content.get("episodes")
    if not isinstance(entries, list) or not entries:
        raise HandoffError(f"{path.with_suffix('.json')}: lists no episodes. Was it damaged?")
    groups = set(file.numbered("traj_"))
    with explain_damage(path.with_suffix(".json"), "the list of episodes"):
        missing = [e["episode_id"] for e in entries if f"traj_{e['episode_id']}" not in groups]
    if missing:
        raise HandoffError(
            f"{path}: lacks traj_{missing[0]}, which its JSON file lists. Do the two files belong together?"
        )
    return entries


def _field(source: str, array: Hdf5Array, role: Role) -> FieldSpec:
    example = np.empty((0, *array.shape[1:]), array.dtype)
    if array.is_picture:
        return array_field(example, role, image=role == "observation")
    if _is_camera(source, array) and "depth" in source:
        return array_field(example, role, unit="mm" if array.dtype.kind in "iu" else "m")
    return array_field(example, role)


def _role(source: str, found: Mapping[str, Hdf5Array]) -> Role:
    if source == _ACTIONS:
        return "action"
    if source.startswith(f"{_ACTIONS}/"):
        one = sum(name.startswith(f"{_ACTIONS}/") for name in found) == 1
        return "action" if one else "other"
    if source in _OUTCOMES:
        return "outcome"
    return "observation" if source.partition("/")[0] == "obs" else "other"


def _is_camera(source: str, array: Hdf5Array) -> bool:
    """Whether it holds another picture of a camera, (T, height, width, channels)."""
    return len(array.shape) == 4 and source.rpartition("/")[2].lower() in _CAMERA


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
