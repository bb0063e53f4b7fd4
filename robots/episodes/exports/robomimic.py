"""Writes an episode store as an HDF5 file of robomimic or Isaac Lab.

The stream `policy` is written: observations to `data/demo_7/obs/NAME`, the action to `actions`,
reward and end to `rewards` and `dones`, other fields under their own names. The layout is that of
`robots.episodes.formats.robomimic`, which reads the file back. The file is written aside and
renamed when it is complete.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from robots.episodes.formats.robomimic import (
    ACTIONS,
    GYM,
    XYZW,
    quaternion_start,
    reordered,
)
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.language.text import INSTRUCTION
from robots.spec import FieldSpec
from robots.storage.durable import explain_write_errors, sync_path, temporary_beside

if TYPE_CHECKING:
    import h5py
    from typing_extensions import Buffer

Flavour = Literal["robomimic", "isaaclab"]
_STREAM = "policy"
_REWARDS = ("reward", "rewards", "next.reward")
_DONES = ("done", "dones", "next.done")
_WRITTEN = ("split", "success", "seed", INSTRUCTION, "initial_state", "demo", "source_episode")
"""Entries of the metadata that are written, or that a file implies."""


class _Target(NamedTuple):
    """Place of one field in an episode."""

    path: str
    """Name of the array with slashes."""
    quaternion: int | None
    """First entry of a quaternion that changes its order; None if there is none."""
    picture: bool


def write_robomimic(
    store: EpisodeStore,
    out: Path,
    *,
    flavour: Flavour = "robomimic",
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Writes the stream `policy` of all episodes.

    Args:
        store: the episodes.
        out: a file that does not exist; its name usually ends with `.hdf5`.
        flavour: `robomimic` also writes `next_obs`; `isaaclab` writes `format_version` 1, with
            quaternions x, y, z, w, and compresses every array.
        progress: called with the number of written episodes.

    Returns:
        `episodes`, `steps`, `fields` (names of the arrays of an episode), `assumed` and `left_out`
        (one phrase each).

    Raises:
        HandoffError: `out` exists, the store has no episode, no or several actions, two fields
            would have one name, or the disk is full.
    """
    import h5py

    if os.path.lexists(out):
        raise HandoffError(f"{out}: exists already. Choose another path, or delete it first.")
    export = _Export(store, flavour)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = temporary_beside(out)
    with explain_write_errors(out, "the file was not written"):
        try:
            with _KeptErrors(aside, "w+") as content:
                with h5py.File(content, "w") as file:
                    export.write(file, content.check, progress)
                content.check()
            sync_path(aside)
            os.rename(aside, out)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        sync_path(out.parent)
    return export.metrics()


class _Export:
    """One store on its way into a file."""

    def __init__(self, store: EpisodeStore, flavour: Flavour) -> None:
        """Plans the names of the arrays.

        Raises:
            HandoffError: see `write_robomimic`.
        """
        if store.num_episodes == 0:
            raise HandoffError(f"{store.path}: has no episode, expected at least 1.")
        self._store = store
        self._isaac = flavour == "isaaclab"
        self._rate = store.schema.stream(_STREAM).rate_hz
        fields = store.schema.stream(_STREAM).fields
        action = _action(store.path, fields)
        paths = {name: _path(name, spec, name == action) for name, spec in fields.items()}
        _check_paths(store.path, paths)
        self._targets = {
            name: _Target(path, self._quaternion(path, fields[name]), fields[name].unit == "u8")
            for name, path in paths.items()
        }
        self._lacking = [name for name in ("rewards", "dones") if name not in paths.values()]

    def write(self, file: h5py.File, check: Callable[[], None], progress: Progress) -> None:
        """Writes all episodes and the masks; `check` raises what went wrong in writing."""
        if self._isaac:
            file.attrs["format_version"] = 1
        data = file.create_group("data")
        data.attrs["total"] = int(self._store.ends(_STREAM)[-1])
        data.attrs["env_args"] = json.dumps(self._env_args())
        number = self._store.num_episodes
        masks: dict[str, list[str]] = {}
        for episode in range(number):
            metadata = self._store.metadata(episode)
            demo = data.create_group(f"demo_{episode}")
            self._write_episode(demo, self._store.read(episode, _STREAM))
            self._write_metadata(demo, metadata)
            split = metadata.get("split") or []
            for name in [split] if isinstance(split, str) else split:
                masks.setdefault(str(name), []).append(f"demo_{episode}")
            check()
            progress(episode + 1, number, "exporting")
        for name, demos in masks.items():
            file.create_dataset(f"mask/{name}", data=np.array(demos, dtype="S"))

    def metrics(self) -> dict[str, Any]:
        """What was written, assumed and left out."""
        assumed = []
        if "rewards" in self._lacking:
            assumed.append("rewards are 0, because the store has none")
        if "dones" in self._lacking:
            assumed.append("dones are set at the last step of every episode")
        if not self._isaac:
            assumed.append("next_obs of the last step repeats its observation")
        turned = [name for name, target in self._targets.items() if target.quaternion is not None]
        if turned:
            assumed.append(f"quaternions became x, y, z, w in {', '.join(turned)}")
        written = [target.path for target in self._targets.values()]
        return {
            "episodes": self._store.num_episodes,
            "steps": int(self._store.ends(_STREAM)[-1]),
            "fields": sorted([*written, *self._lacking]),
            "assumed": assumed,
            "left_out": self._left_out(),
        }

    def _left_out(self) -> list[str]:
        left_out = ["units and names of entries"]
        others = sorted(self._store.schema.streams.keys() - {_STREAM})
        if others:
            left_out.append(f"the streams {', '.join(others)}")
        episodes = range(self._store.num_episodes)
        keys = {key for episode in episodes for key in self._store.metadata(episode)}
        unwritten = sorted(keys - {*_WRITTEN})
        if unwritten:
            left_out.append(f"the metadata {', '.join(unwritten)}")
        return left_out

    def _env_args(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"env_name": self._store.schema.name, "type": GYM}
        if self._isaac:
            return {**arguments, "sim_args": {"dt": 1.0 / self._rate, "decimation": 1}}
        robot = self._store.schema.robot
        robots = {"robots": [robot]} if robot else {}
        return {**arguments, "env_kwargs": {"control_freq": self._rate, **robots}}

    def _quaternion(self, path: str, spec: FieldSpec) -> int | None:
        start = quaternion_start(path, spec.shape) if len(spec.shape) == 1 else None
        stored = spec.names[-1][-4:] if spec.names else ()
        as_written = stored == XYZW[0] or path == ACTIONS or not self._isaac
        return None if as_written else start

    def _write_episode(self, demo: h5py.Group, arrays: Mapping[str, np.ndarray]) -> None:
        length = len(next(iter(arrays.values())))
        demo.attrs["num_samples"] = length
        for name, target in self._targets.items():
            array = arrays[name]
            if target.path in ("rewards", "dones"):
                # Losses of robomimic expect (T,), and `1 - dones`.
                array = array.reshape(length)
                array = array.astype(np.int64) if array.dtype == np.bool_ else array
            if target.quaternion is not None:
                array = reordered(array, target.quaternion, (1, 2, 3, 0))
            self._write_array(demo, target.path, array, target.picture)
            if target.path.startswith("obs/") and not self._isaac:
                following = np.concatenate([array[1:], array[-1:]])
                self._write_array(demo, f"next_{target.path}", following, target.picture)
        if "rewards" in self._lacking:
            self._write_array(demo, "rewards", np.zeros(length, np.float32), False)
        if "dones" in self._lacking:
            dones = np.zeros(length, np.int64)
            dones[-1] = 1
            self._write_array(demo, "dones", dones, False)

    def _write_array(self, demo: h5py.Group, path: str, array: np.ndarray, picture: bool) -> None:
        if picture:
            # Training reads single steps, so that every picture is a chunk of its own.
            chunks = (1, *array.shape[1:])
            demo.create_dataset(
                path, data=array, chunks=chunks, compression="gzip", compression_opts=1
            )
        else:
            demo.create_dataset(path, data=array, compression="gzip" if self._isaac else None)

    def _write_metadata(self, demo: h5py.Group, metadata: Mapping[str, Any]) -> None:
        if isinstance(metadata.get("success"), bool):
            demo.attrs["success"] = metadata["success"]
        seed = metadata.get("seed")
        if isinstance(seed, int) and abs(seed) < 2**63:
            demo.attrs["seed"] = seed
        if isinstance(metadata.get(INSTRUCTION), str):
            demo.attrs["ep_meta"] = json.dumps({"lang": metadata[INSTRUCTION]})
        initial = metadata.get("initial_state")
        if isinstance(initial, dict) and self._isaac:
            for name, values in initial.items():
                array = np.asarray(values, np.float32)
                start = quaternion_start(name, array.shape[1:])
                if start is not None:
                    array = reordered(array, start, (1, 2, 3, 0))
                self._write_array(demo, f"initial_state/{name}", array, False)


def _action(path: Path, fields: Mapping[str, FieldSpec]) -> str:
    """Name of the one action.

    Raises:
        HandoffError: there is none, or there are several.
    """
    if "action" in fields:
        return "action"
    named = [name for name, spec in fields.items() if spec.role == "action"]
    if len(named) != 1:
        raise HandoffError(
            f"{path}: has the actions {named}, expected exactly one. Call one of them 'action' by rename: in a "
            f"map: handoff episodes import {path} OUT --map FILE"
        )
    return named[0]


def _path(name: str, spec: FieldSpec, action: bool) -> str:
    """Name of the array of a field inside an episode."""
    last = name.rpartition("/")[2]
    single = int(np.prod(spec.shape)) == 1
    if action:
        return ACTIONS
    if last in _REWARDS and single and spec.role in ("", "outcome"):
        return "rewards"
    if last in _DONES and single and spec.role in ("", "outcome"):
        return "dones"
    if spec.role in ("", "observation"):
        return f"obs/{name.removeprefix('obs/')}"
    return name


def _check_paths(store: Path, paths: Mapping[str, str]) -> None:
    """Checks that no two fields have one place, and none lies inside another one."""
    taken: dict[str, str] = {}
    for name, path in paths.items():
        inside = next((p for p in taken if f"{path}/".startswith(f"{p}/")), None) or next(
            (p for p in taken if f"{p}/".startswith(f"{path}/")), None
        )
        reserved = path == "obs" or path.partition("/")[0] in ("next_obs", "initial_state")
        if inside is not None or reserved:
            other = f"'{taken[inside]}'" if inside is not None else "a group of robomimic"
            raise HandoffError(
                f"{store}: the field '{name}' would be called {path} in the file, as {other} is. Rename one of them."
            )
        taken[path] = name


class _KeptErrors(io.FileIO):
    """A file that reports errors of writing at the end instead of at once.

    The library (HDF5 2.0) crashes the process at its exit if it cannot write while it closes a
    file.
    """

    error: OSError | None = None
    """The first error."""

    def write(self, data: Buffer, /) -> int:
        """Writes all bytes, or keeps the error and drops them."""
        view = memoryview(data).cast("B")
        place = self.tell()
        try:
            done = 0
            while self.error is None and done < len(view):
                done += super().write(view[done:]) or 0
        except OSError as error:
            self.error = error
        self.seek(place + len(view))
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Sets the size, or keeps the error."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0

    def check(self) -> None:
        """Checks that every byte was written.

        Raises:
            OSError: the first error, if there was one.
        """
        if self.error is not None:
            raise self.error
