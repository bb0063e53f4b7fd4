"""Reads data sets of Minari, the format of the Farama Foundation's offline reinforcement learning.

| path                                     | content                                             |
|------------------------------------------|-----------------------------------------------------|
| `data/metadata.json`                     | `dataset_id`, `data_format`, `observation_space`    |
| `data/main_data.hdf5`                    | episodes                                            |
| `episode_7/observations`                 | (T + 1, ...), or groups for Dict (by key) and Tuple |
|                                          | spaces (`_index_0`, `_index_1`, ...)                |
| `episode_7/actions`                      | (T, ...), or groups                                 |
| `episode_7/rewards`, `terminations`,     | (T,)                                                |
| `truncations`                            |                                                     |
| `episode_7/infos`                        | groups of (T, ...) or (T + 1, ...)                  |

Pictures of at least 32 x 32 pixels are JPEG since Minari 0.5.4: rows of bytes. An episode has the
attributes `id`, `seed` and `total_steps`. Source: the code of Minari 0.5.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.containers.folder import check_inside, read_json
from robots.episodes.formats.containers.hdf5 import (
    Hdf5Group,
    add_source,
    open_hdf5,
    read_picture,
    read_steps,
)
from robots.episodes.formats.containers.hdf5_arrays import Hdf5Array
from robots.episodes.formats.source import (
    SourceEpisode,
    SourceSchema,
    StepFields,
    array_field,
    check_size,
    explain_damage,
    field_name,
)
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, encode, text_field
from robots.spec import FieldSpec, Role

_METADATA = Path("data") / "metadata.json"
_FILE = Path("data") / "main_data.hdf5"
_OUTCOMES = ("rewards", "terminations", "truncations")
_INSTRUCTIONS = ("mission", "instruction", "language_instruction")
_SUCCESSES = ("infos/success", "infos/is_success")
_LONGEST_TEXT = 512
"""Size of the field of an instruction that changes within episodes [bytes]."""


def recognises(path: Path) -> bool:
    """Whether the path is a folder with `data/metadata.json` that names a `data_format`."""
    try:
        file = path / _METADATA
        return file.is_file() and "data_format" in read_json(file)
    except (HandoffError, OSError):
        return False


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[MinariSource]:
    """Opens a data set, such as `~/.minari/datasets/D4RL/door/human-v2`.

    Raises:
        HandoffError: files are missing or damaged, or it is stored as Arrow.
    """
    check_inside(path, path / _METADATA)
    metadata = read_json(path / _METADATA)
    form = metadata.get("data_format")
    if form != "hdf5":
        raise HandoffError(
            f"{path}: is stored as {str(form)[:40]!r}; of Minari's storages, 'hdf5' is read. Write it again with "
            "data_format='hdf5', for example by minari.create_dataset_from_buffers."
        )
    if not (path / _FILE).is_file():
        raise HandoffError(f"{path}: lacks {_FILE}. Was the download cut short?")
    check_inside(path, path / _FILE)
    with open_hdf5(path / _FILE) as file:
        yield MinariSource(path, file, metadata, images)


class MinariSource:
    """A data set of Minari, opened by `open_source`."""

    def __init__(
        self, path: Path, file: Hdf5Group, metadata: Mapping[str, Any], images: bool
    ) -> None:
        """Makes the schema from the first episode.

        Raises:
            HandoffError: see `open_source`.
        """
        self._file = file
        self._images = images
        self._names = file.numbered("episode_")
        if not self._names:
            raise HandoffError(f"{path}: {_FILE} has no group episode_0. Is the data set empty?")
        self._space = _space(path, metadata)
        self._encoded: dict[str, str] = {}
        """Names of arrays with JPEG pictures by the names of their fields."""
        self._words: list[str] = []
        self._skipped: list[str] = []
        self._longer: set[str] = set()
        self._steps = StepFields(path)
        self._sources = self._find_fields(file.group(self._names[0]))
        total = metadata.get("total_episodes")
        if isinstance(total, int) and total != len(self._names):
            raise HandoffError(
                f"{path}: holds {len(self._names)} episodes, {_METADATA} says {total}. Was the copy incomplete?"
            )
        self.schema = SourceSchema(
            form="Minari (HDF5)",
            task=str(metadata.get("dataset_id") or path.name),
            rate_hz=None,
            fields=self._steps.fields,
            notes=tuple(self._notes()),
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self._names)

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`, in the order of their numbers.

        Raises:
            HandoffError: an episode is damaged or differs from the first one.
        """
        for number in range(first, stop):
            group = self._file.group(self._names[number])
            steps = _length(group)
            stated = group.attribute("total_steps")
            if isinstance(stated, int) and stated != steps:
                raise HandoffError(
                    f"{group.path}: {group.name} has {steps} rewards, total_steps says {stated}. Was the recording "
                    "interrupted?"
                )
            arrays = read_steps(group, self._sources, steps, self._longer)
            for name, source in self._encoded.items():
                arrays[name] = _decoded(group.array(source), steps, name in self._longer)
            metadata = self._metadata(group)
            words = self._instruction(group, steps, metadata)
            if INSTRUCTION in self._steps.fields:
                arrays[INSTRUCTION] = encode(words, _LONGEST_TEXT)
            self._steps.check(number, arrays)
            yield SourceEpisode({name: arrays[name] for name in self._steps.fields}, metadata)

    def _find_fields(self, group: Hdf5Group) -> dict[str, str]:
        """Names of the arrays by the names of their fields, which are added to the schema."""
        steps = _length(group)
        sources: dict[str, str] = {}
        found = group.arrays()
        for source, array in found.items():
            role = _role(source, found)
            jpeg = _is_jpeg(self._space, source, array)
            rows = (array.shape or (0,))[0]
            if array.is_text and source.startswith("observations"):
                self._words.append(source)
            elif not (array.is_numeric or jpeg) or (role == "other" and rows - steps not in (0, 1)):
                self._skipped.append(source)
            elif self._images or not (jpeg or array.is_picture):
                name = add_source(group.path, self._encoded if jpeg else sources, source)
                if source.startswith("observations") or (role == "other" and rows > steps):
                    self._longer.add(name)
                self._steps.fields[name] = _field(array, role, jpeg)
        episodes = map(self._file.group, self._names) if self._words else ()
        if any(len(set(self._instruction(each, _length(each), {}))) > 1 for each in episodes):
            self._steps.fields[INSTRUCTION] = text_field(_LONGEST_TEXT)
        return sources

    def _instruction(self, group: Hdf5Group, steps: int, metadata: dict[str, Any]) -> list[str]:
        """The instruction at every step, also in the metadata; empty if there is none."""
        source = next(
            (name for name in self._words if name.rpartition("/")[2] in _INSTRUCTIONS), None
        )
        found = None if source is None else group.find(source)
        if not isinstance(found, Hdf5Array):
            return []
        words = found.words()[:steps]
        if len(words) < steps:
            raise HandoffError(
                f"{group.path}: {found.name} has {len(words)} words, expected {steps}."
            )
        distinct = list(dict.fromkeys(words))
        metadata[INSTRUCTION] = distinct[0]
        if len(distinct) > 1:
            metadata["instructions"] = distinct
        return words

    def _metadata(self, group: Hdf5Group) -> dict[str, Any]:
        metadata = group.attributes()
        metadata.pop("total_steps", None)
        for name in _SUCCESSES:
            found = group.find(name)
            if isinstance(found, Hdf5Array) and found.is_numeric and found.shape:
                # Also the last row, of the state after the last action.
                metadata.setdefault("success", bool(np.any(found.rows())))
        return metadata

    def _notes(self) -> Iterator[str]:
        yield "Minari does not state the rate."
        yield (
            "The observation after the last action has no action and is left out, as are infos of that moment."
        )
        if not any(spec.role == "action" for spec in self._steps.fields.values()):
            yield "Actions have several arrays; join them by map.fields.action.source."
        if self._encoded:
            yield f"Pictures in {', '.join(self._encoded)} are JPEG, which has lost some detail."
        if any(field_name(name) in self._sources for name in _SUCCESSES):
            yield "An episode was successful if infos say so at any step."
        texts = [name for name in self._words if name.rpartition("/")[2] not in _INSTRUCTIONS]
        if self._skipped or texts:
            yield f"Left out are {', '.join([*self._skipped, *texts])} (no numbers of every step)."


def _length(group: Hdf5Group) -> int:
    shape = group.array("rewards").shape
    return shape[0] if shape else 0


def _space(path: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Description of the observation space; empty if the data set has none."""
    text = metadata.get("observation_space")
    if not isinstance(text, str):
        return {}
    with explain_damage(path / _METADATA, "observation_space"):
        space = json.loads(text)
    return space if isinstance(space, dict) else {}


def _is_jpeg(space: Mapping[str, Any], source: str, array: Hdf5Array) -> bool:
    """Whether an array of observations holds encoded pictures: rows of bytes in a space of
    pictures."""
    top, *parts = source.split("/")
    if top != "observations":
        return False
    inner: Any = space
    for part in parts:
        inside = inner.get("subspaces") if isinstance(inner, dict) else None
        key = part.removeprefix("_index_")
        if isinstance(inside, list):
            inner = inside[int(key)] if key.isdecimal() and int(key) < len(inside) else None
        else:
            inner = inside.get(part) if isinstance(inside, dict) else None
    shape = inner.get("shape") if isinstance(inner, dict) else None
    encoded = array.is_bytes or (array.dtype == np.uint8 and len(array.shape) == 2)
    return encoded and isinstance(shape, list) and len(shape) in (2, 3)


def _field(array: Hdf5Array, role: Role, jpeg: bool) -> FieldSpec:
    if not jpeg:
        image = array.is_picture and role == "observation"
        return array_field(np.empty((0, *array.shape[1:]), array.dtype), role, image=image)
    content = next(array.byte_rows(0, 1), None)
    if content is None:
        raise HandoffError(f"{array.path}: {array.name} holds no picture. Was it cut short?")
    picture = read_picture(array, content)
    return array_field(picture[None][:0], role, image=picture.shape[2:] == (3,))


def _decoded(array: Hdf5Array, steps: int, longer: bool) -> np.ndarray:
    """The pictures of the first `steps` rows."""
    if array.shape[:1] != (steps + longer,):
        raise HandoffError(
            f"{array.path}: {array.name} has {array.shape[0]} pictures, expected {steps + longer}. Was the recording "
            "interrupted?"
        )
    pictures: list[np.ndarray] = []
    for content in array.byte_rows(0, steps):
        picture = read_picture(array, content)
        if not pictures:
            check_size(array.path, array.name, (steps, *picture.shape), picture.itemsize)
        elif (picture.shape, picture.dtype) != (pictures[0].shape, pictures[0].dtype):
            raise HandoffError(
                f"{array.path}: a picture of {array.name} has the shape {picture.shape}, expected {pictures[0].shape}."
            )
        pictures.append(picture)
    return np.stack(pictures) if pictures else np.empty((0,), np.uint8)


def _role(source: str, found: Mapping[str, Hdf5Array]) -> Role:
    top = source.partition("/")[0]
    if top == "actions":
        one = sum(name.partition("/")[0] == "actions" for name in found) == 1
        return "action" if one else "other"
    if source in _OUTCOMES:
        return "outcome"
    return "observation" if top == "observations" else "other"
