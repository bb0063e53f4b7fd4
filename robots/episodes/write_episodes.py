"""Makes an episode store from NumPy arrays in one call.

    def episodes():
        for run in my_runs:
            yield {"position": run.q, "camera": run.pictures, "action": run.targets}

    units = {"position": "rad"}
    write_episodes(Path("mine.zarr"), episodes(), task="pour", rate_hz=30.0, units=units)

`ingest` takes the store as the data of a pipeline.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.source import array_field
from robots.episodes.metadata.labels import LABELS, check_labels
from robots.episodes.schema import EpisodeSchema, StreamSpec, check_metadata
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError, suggest
from robots.language.text import INSTRUCTION
from robots.spec import FieldSpec, Role, check_unit

_STREAM = "policy"
_ACTION = "action"
_OUTCOMES = ("reward", "success", "done", "terminated", "truncated")


def write_episodes(
    path: Path,
    episodes: Iterable[Mapping[str, np.ndarray]],
    *,
    task: str,
    rate_hz: float,
    units: Mapping[str, str] | None = None,
    action: str = _ACTION,
    instructions: Sequence[str] | None = None,
    metadata: Sequence[Mapping[str, Any]] | None = None,
    robot: str = "",
) -> EpisodeStore:
    """Writes episodes to a new store at `path`; after an error there is none.

    Args:
        path: folder of the store, which does not exist.
        episodes: arrays `(T, *shape)` by name, one mapping per episode; T is common to the arrays
            of an episode. uint8 `(T, height, width, 3)` are pictures in RGB, and no other array has
            three axes or more behind T. The arrays `reward`,
            `success`, `done`, `terminated` and `truncated` are the outcome, all others but the
            action are observations.
        task: name of the task, such as `pour`.
        rate_hz: steps per second.
        units: SI unit symbols by the name of the array, such as rad; arrays without an entry have
            the unit "1".
        action: name of the array with the actions, which is called `action` in the store.
        instructions: instruction of every episode.
        metadata: further JSON values of every episode, such as `success` or `seed`.
        robot: name of Handoff's robot with which the episodes were recorded, such as `fr3`.

    Returns:
        The store, opened for reading.

    Raises:
        HandoffError: `path` exists, there is no episode, an episode differs from the first one in
            names, shapes or types, has values that are not finite, pictures of another type or
            order of the axes, or labels of another type; a unit that is not SI.
    """
    remaining = iter(episodes)
    first = next(remaining, None)
    if first is None:
        raise HandoffError(f"{path}: no episode was given. Is the iterable used up?")
    for name, unit in (units or {}).items():
        check_unit(f"units: {name}", unit)
    with _numbered(0):
        fields = _fields(_arrays(first, action), units or {}, action)
    schema = EpisodeSchema(
        name=task,
        streams={_STREAM: StreamSpec(rate_hz=rate_hz, fields=fields)},
        robot=robot,
    )
    with EpisodeStore.create(path, schema) as store:
        try:
            with store.writer() as writer:
                for number, arrays in enumerate(chain((first,), remaining)):
                    with _numbered(number):
                        streams = {_STREAM: _arrays(arrays, action)}
                        writer.append(streams, _metadata(number, instructions, metadata))
            _check_lengths(store.num_episodes, instructions, metadata)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    return EpisodeStore.open(path, "r")


@contextmanager
def _numbered(episode: int) -> Iterator[None]:
    """Puts the number of an episode before the message of an error."""
    try:
        yield
    except HandoffError as error:
        raise HandoffError(f"episode {episode}: {error}") from error


def _arrays(given: Mapping[str, np.ndarray], action: str) -> dict[str, np.ndarray]:
    """The arrays of one episode, with the action called `action`."""
    arrays: dict[str, np.ndarray] = {}
    for name, values in given.items():
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            hint = " Give words by instructions= or metadata=." if array.dtype.kind in "USO" else ""
            raise HandoffError(f"'{name}' has dtype {array.dtype}, expected numbers.{hint}")
        if array.ndim == 0:
            raise HandoffError(
                f"'{name}' is the single number {array}, expected one value per step (T, ...). Give "
                "values of whole episodes by metadata=."
            )
        arrays[name] = array
    if action not in arrays:
        raise HandoffError(
            f"no array is called '{action}'. Set action= to the name of the action; "
            f"{suggest(action, sorted(arrays), 'the episode has')}"
        )
    if action != _ACTION and _ACTION in arrays:
        raise HandoffError(
            f"both '{action}' and '{_ACTION}' are given, and '{action}' would be called "
            f"'{_ACTION}' in the store. Rename or leave out '{_ACTION}'."
        )
    return {_ACTION if name == action else name: array for name, array in arrays.items()}


def _fields(
    arrays: Mapping[str, np.ndarray], units: Mapping[str, str], action: str
) -> dict[str, FieldSpec]:
    units = {_ACTION if name == action else name: unit for name, unit in units.items()}
    for name in units:
        if name not in arrays:
            raise HandoffError(
                f"units: no array is called '{name}'; {suggest(name, sorted(arrays), 'there are')}"
            )
    fields = {}
    for name, array in arrays.items():
        image = array.ndim == 4 and array.shape[3] == 3 and array.dtype == np.uint8
        if array.ndim > 3 and not image:
            raise HandoffError(_no_picture(name, array))
        role: Role = "observation"
        if name == _ACTION:
            role = "action"
        elif name.rpartition("/")[2] in _OUTCOMES:
            role = "outcome"
        about = {"unit": units[name]} if name in units else {}
        fields[name] = array_field(array, role, image=image, **about)
    return fields


def _no_picture(name: str, array: np.ndarray) -> str:
    """The error about an array with three axes or more per step that is no RGB picture."""
    hints = []
    colours = array.shape[-1] if array.ndim == 4 else 0
    if array.ndim > 4:
        hints.append("give every camera an array of its own")
    elif colours != 3 and array.shape[1] == 3:
        hints.append("put the colours last: np.moveaxis(x, 1, -1)")
    elif colours == 4:
        hints.append("leave out the fourth channel: x[..., :3]")
    elif colours == 1:
        hints.append(
            "give depth without the last axis, x[..., 0], or repeat grey: np.repeat(x, 3, axis=-1)"
        )
    elif colours != 3:
        hints.append("flatten the axes of what is no picture: x.reshape(len(x), -1)")
    if array.dtype != np.uint8 and (array.ndim > 4 or colours in (3, 4) or array.shape[1] == 3):
        factor = "x * 255" if array.dtype.kind == "f" and array.max(initial=0) <= 1 else "x"
        hints.append(f"convert colours to uint8: ({factor}).astype(np.uint8)")
    shown = ", ".join(("T", *map(str, array.shape[1:])))
    return (
        f"'{name}' has the shape ({shown}) and dtype {array.dtype}, three axes or more per step; expected of a picture "
        f"is (T, height, width, 3) of uint8 in RGB. To make it one, {', and '.join(hints)}."
    )


def _check_lengths(
    episodes: int,
    instructions: Sequence[str] | None,
    metadata: Sequence[Mapping[str, Any]] | None,
) -> None:
    for name, given in (("instructions", instructions), ("metadata", metadata)):
        if given is not None and len(given) != episodes:
            raise HandoffError(
                f"{name}: {len(given)} entries for {episodes} episodes, expected one each."
            )


def _metadata(
    episode: int,
    instructions: Sequence[str] | None,
    metadata: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """Metadata of one episode."""
    for name, given in (("instructions", instructions), ("metadata", metadata)):
        if given is not None and (isinstance(given, str) or episode >= len(given)):
            raise HandoffError(
                f"{name}: has no entry for it, expected a sequence with one per episode."
            )
    about = dict(metadata[episode]) if metadata is not None else {}
    if instructions is not None:
        about[INSTRUCTION] = instructions[episode]
    about = check_metadata(about)
    check_labels({key: value for key, value in about.items() if key in LABELS}, (), new=True)
    return about
