"""Reads RLDS data sets as TensorFlow Datasets stores them (Bridge, DROID, Open X-Embodiment).

| file                                   | content                                               |
|----------------------------------------|-------------------------------------------------------|
| `dataset_info.json`                    | name, splits, number of records per shard             |
| `features.json`                        | names, shapes and types of the features               |
| `NAME-SPLIT.tfrecord-00000-of-00001`   | one `tf.train.Example` per episode, maybe in a gzip   |

A record has one list per feature: `steps/action` with T times 7 numbers, `steps/observation/image`
with T encoded pictures. Source: Ramos et al., RLDS, 2021, and the code of TensorFlow Datasets.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.formats.containers.folder import data_files, read_json
from robots.episodes.formats.containers.pictures import as_rgb, decode_picture
from robots.episodes.formats.containers.tfds_features import (
    TfdsFeature,
    byte_strings,
    numbers,
    read_features,
)
from robots.episodes.formats.containers.tfrecords import (
    parse_example,
    read_byte_lists,
    read_records,
    record_offsets,
)
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
from robots.spec import Role

_SHARDS = ("*.tfrecord", "*.tfrecord-*", "*.tfrecord.gz")
_SHARD = re.compile(r"(?P<set>.+?)-(?P<split>[^-.]+)\.tfrecord(-(?P<index>\d+)-of-(?P<count>\d+))?")
_OUTCOMES = ("reward", "discount", "is_first", "is_last", "is_terminal")
_TEXT_SIZES = (64, 8192)
"""Smallest and largest size of the field of an instruction that changes within episodes [bytes]."""


class _Shard(NamedTuple):
    """One file of records."""

    path: Path
    split: str
    offsets: list[int]


def recognises(path: Path) -> bool:
    """Whether the folder has a `features.json` and tfrecord files."""
    return (
        path.is_dir()
        and (path / "features.json").is_file()
        and any(True for pattern in _SHARDS for _ in path.glob(pattern))
    )


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[RldsSource]:
    """Opens a folder of one version of a data set, such as `bridge_dataset/1.0.0`.

    Raises:
        HandoffError: files are missing, damaged, or do not belong together.
    """
    yield RldsSource(path, images)


class RldsSource:
    """An RLDS data set, opened by `open_source`."""

    def __init__(self, path: Path, images: bool) -> None:
        """Reads the metadata, finds the records of all shards, and decodes the first episode.

        Raises:
            HandoffError: see `open_source`.
        """
        self._path = path
        self._tree = read_features(path / "features.json", read_json(path / "features.json"))
        info = read_json(path / "dataset_info.json")
        self._shards, notes = _find_shards(path, info)
        self._images = images
        self._main_action = _main_action(self._tree.steps)
        self._names = _field_names(self._tree.steps, self._main_action)
        self._steps = StepFields(path)
        if self.num_episodes == 0:
            raise HandoffError(f"{path}: the shards hold no episode. Was the download cut short?")
        self._text_size = self._find_text_size()
        self._set_fields(next(self._decoded(0, 1))[0])
        self.schema = SourceSchema(
            form="RLDS (TFDS tfrecords)",
            task=str(info.get("name") or path.name),
            rate_hz=None,
            fields=self._steps.fields,
            notes=(*notes, *self._notes()),
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes in all shards."""
        return sum(len(shard.offsets) for shard in self._shards)

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`, in the order of the splits and shards.

        Raises:
            HandoffError: a record is damaged or lacks a feature.
        """
        for episode, (arrays, metadata) in enumerate(self._decoded(first, stop), start=first):
            self._steps.check(episode, arrays)
            yield SourceEpisode(arrays, metadata)

    def _find_text_size(self) -> int:
        """Size of the field with the instruction of every step [bytes]; 0 if no episode changes its
        instruction."""
        spoken = (name for name, feature in self._tree.steps.items() if _is_instruction(feature))
        name = next(spoken, None)
        if name is None:
            return 0
        shortest, most = _TEXT_SIZES
        changes, longest = False, shortest
        for shard in self._shards:
            for words in read_byte_lists(shard.path, shard.offsets, self._tree.steps[name].path):
                distinct = set(words) - {b""}
                changes |= len(distinct) > 1
                longest = max([longest, *map(len, distinct)])
        return min(longest, most) if changes else 0

    def _decoded(
        self, first: int, stop: int
    ) -> Iterator[tuple[dict[str, np.ndarray], dict[str, Any]]]:
        """Arrays and metadata of the episodes `[first, stop)`."""
        start = 0
        for shard in self._shards:
            count = len(shard.offsets)
            low, high = max(first - start, 0), min(stop - start, count)
            records = read_records(shard.path, shard.offsets, low, high)
            for record, payload in enumerate(records, start=low):
                features = parse_example(shard.path, record, payload)
                where = Path(f"{shard.path}: record {record}")
                metadata = self._metadata(where, features)
                arrays = self._arrays(where, features, metadata)
                yield arrays, {"split": shard.split, **metadata}
            start += count

    def _arrays(
        self, where: Path, features: Mapping[str, Any], metadata: dict[str, Any]
    ) -> dict[str, np.ndarray]:
        """The fields of one episode; words become metadata, or a field if they change."""
        arrays: dict[str, np.ndarray] = {}
        for name, feature in self._tree.steps.items():
            if feature.kind == "text":
                words = _words(where, feature, _present(where, feature, features))
                if not _is_instruction(feature):
                    metadata[self._names[name]] = next(filter(None, words), "")
                    continue
                distinct = list(dict.fromkeys(filter(None, words)))
                if distinct and metadata.setdefault(INSTRUCTION, distinct[0]) != distinct[0]:
                    metadata[self._names[name]] = distinct[0]
                if len(distinct) > 1:
                    metadata.setdefault("instructions", distinct)
                if self._text_size and INSTRUCTION not in arrays:
                    arrays[INSTRUCTION] = encode(words, self._text_size)
            elif self._images or not (feature.kind == "image" or feature.is_picture):
                message = _present(where, feature, features)
                arrays[self._names[name]] = _values(where, feature, message)
        return arrays

    def _metadata(self, where: Path, features: Mapping[str, Any]) -> dict[str, Any]:
        """Numbers and words of an episode that are no arrays."""
        metadata: dict[str, Any] = {}
        for name, feature in self._tree.episode.items():
            key = name.removeprefix("episode_metadata/")
            if name not in features or feature.kind in ("image", "encoded") or feature.shape:
                continue
            if feature.kind == "text":
                words = _words(where, feature, features[name])
                metadata[key] = words[0] if words else ""
            else:
                values = numbers(where, feature, features[name])
                if values.size == 1 and np.isfinite(values).all():
                    metadata[key] = values.reshape(-1)[0].item()
        if metadata.get("language_instruction"):
            metadata[INSTRUCTION] = metadata["language_instruction"]
        # DROID states the outcome of an episode by the folder of its raw data only.
        outcome = re.search(r"/(success|failure)/", str(metadata.get("file_path", "")))
        if outcome:
            metadata["success"] = outcome.group(1) == "success"
        return metadata

    def _set_fields(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, feature in self._tree.steps.items():
            field = self._names[name]
            if field not in arrays or feature.kind == "text":
                continue
            array = arrays[field]
            image = feature.is_picture
            about = {"unit": "mm"} if _is_depth(name, feature) else {}
            role = self._role(name)
            self._steps.fields[field] = array_field(array, role, image=image, **about)
        if self._text_size:
            self._steps.fields[INSTRUCTION] = text_field(self._text_size)
        if not self._steps.fields:
            raise HandoffError(f"{self._path}: no feature can be read without pictures.")

    def _role(self, name: str) -> Role:
        top, _, rest = name.partition("/")
        if name == self._main_action:
            return "action"
        if top in _OUTCOMES:
            return "outcome"
        embedded = rest.rpartition("/")[2].endswith("embedding")
        return "observation" if top == "observation" and not embedded else "other"

    def _notes(self) -> Iterator[str]:
        yield "RLDS does not state the rate."
        if self._tree.left_out:
            yield f"Left out are {', '.join(self._tree.left_out)}."
        if self._main_action is None:
            parts = [self._names[n] for n in self._tree.steps if n.partition("/")[0] == "action"]
            yield f"No feature is the one action; join some of {parts} by map.fields.action.source."
        elif "is_last" in self._tree.steps:
            yield (
                "Every step is kept; by RLDS, the action of a step with is_last is not valid, and some writers pad it."
            )
        if any(_is_depth(n, feature) for n, feature in self._tree.steps.items()):
            yield "Depth is taken to be in mm, which RLDS does not state."


def _find_shards(path: Path, info: Mapping[str, Any]) -> tuple[list[_Shard], list[str]]:
    """All shards, in the order of the splits in `dataset_info.json`, and notes about missing
    ones."""
    stated: dict[str, list[int]] = {}
    with explain_damage(path, "dataset_info.json"):
        for split in info.get("splits") or ():
            stated[str(split["name"])] = [int(length) for length in split.get("shardLengths") or ()]
    order = list(stated)
    found: list[tuple[int, str, int, Path]] = []
    counts: dict[str, int] = {}
    for file in data_files(path, *_SHARDS):
        match = _SHARD.match(file.name)
        split = match["split"] if match else ""
        index = int(match["index"] or 0) if match else 0
        counts[split] = int(match["count"] or 1) if match else 1
        found.append((order.index(split) if split in order else len(order), split, index, file))
    shards = []
    for _, split, index, file in sorted(found):
        offsets = record_offsets(file)
        lengths = stated.get(split, [])
        if index < len(lengths) and lengths[index] != len(offsets):
            raise HandoffError(
                f"{file}: holds {len(offsets)} episodes, dataset_info.json says {lengths[index]}. Was it cut short, "
                "or replaced?"
            )
        shards.append(_Shard(file, split, offsets))
    notes = []
    for split, count in counts.items():
        present = sum(shard.split == split for shard in shards)
        if present < count:
            notes.append(f"Of the split '{split}', {present} of {count} shards are present.")
    return shards, notes


def _main_action(features: Mapping[str, TfdsFeature]) -> str | None:
    """Path of the one action: `action`, `action/action`, or the only entry of `action`."""
    parts = [name for name in features if name.partition("/")[0] == "action"]
    named = [name for name in parts if name in ("action", "action/action")]
    if named or len(parts) == 1:
        return (named or parts)[0]
    return None


def _field_names(features: Mapping[str, TfdsFeature], main: str | None) -> dict[str, str]:
    """Names of the fields by the path of the feature."""
    names = {name: field_name(name) for name in features}
    if main == "action/action":
        # The action will be called `action`, and no field can lie inside another one.
        parts = [name for name in names if name.startswith("action/") and name != main]
        names |= {name: field_name(f"action_parts/{name[7:]}") for name in parts}
    return names


def _is_instruction(feature: TfdsFeature) -> bool:
    return feature.kind == "text" and "instruction" in feature.path.lower()


def _is_depth(name: str, feature: TfdsFeature) -> bool:
    return "depth" in name.lower() and feature.dtype == "uint16"


def _present(where: Path, feature: TfdsFeature, features: Mapping[str, Any]) -> Any:
    if feature.path not in features:
        raise HandoffError(
            f"{where} lacks {feature.path}, which features.json has. Do they belong together?"
        )
    return features[feature.path]


def _values(where: Path, feature: TfdsFeature, message: Any) -> np.ndarray:
    """`(T, *shape)` of a feature that is no text."""
    if feature.kind == "number":
        values = numbers(where, feature, message)
        return np.ascontiguousarray(values[..., :3]) if feature.is_picture else values
    strings = byte_strings(where, feature, message)
    if not strings:
        raise HandoffError(f"{where}: {feature.path} is empty. Was the episode cut short?")
    if feature.kind == "encoded":
        return np.stack([_unpacked(where, feature, content) for content in strings])
    first = _picture(where, feature, strings[0])
    check_size(where, feature.path, (len(strings), *first.shape), first.itemsize)
    pictures = np.empty((len(strings), *first.shape), first.dtype)
    for step, content in enumerate(strings):
        picture = first if step == 0 else _picture(where, feature, content)
        if picture.shape != first.shape:
            raise HandoffError(
                f"{where}: {feature.path} of step {step} has the shape {picture.shape}, expected {first.shape} as in "
                "step 0."
            )
        pictures[step] = picture
    return pictures


def _picture(where: Path, feature: TfdsFeature, content: bytes) -> np.ndarray:
    picture = decode_picture(where, feature.path, content)
    if feature.is_picture:
        picture = as_rgb(where, feature.path, picture)
    elif feature.dtype == "float32" and picture.ndim == 3 and picture.shape[2] == 4:
        # TFDS stores the four bytes of a float as the four channels of a PNG.
        picture = np.ascontiguousarray(picture).view(np.float32)
    elif picture.ndim == 2:
        picture = picture[:, :, None]
    stated = (*feature.shape[:2], 3) if feature.is_picture else feature.shape
    fits = len(stated) == picture.ndim and all(
        size in (-1, length) for size, length in zip(stated, picture.shape, strict=True)
    )
    if not fits or picture.dtype != np.dtype(feature.dtype):
        raise HandoffError(
            f"{where}: a picture of {feature.path} is {picture.dtype}{picture.shape}, features.json says "
            f"{feature.dtype}{stated}. Do they belong together?"
        )
    return picture


def _unpacked(where: Path, feature: TfdsFeature, content: bytes) -> np.ndarray:
    """An array that is stored as its bytes."""
    dtype = np.dtype(feature.dtype)
    size = int(np.prod(feature.shape, dtype=np.int64)) * dtype.itemsize
    with explain_damage(where, feature.path):
        if feature.encoding == "zlib":
            content = zlib.decompressobj().decompress(content, size + 1)
        if len(content) != size:
            raise HandoffError(
                f"{where}: {feature.path} has {len(content)} bytes per step, expected {size}. Was it damaged?"
            )
        return np.frombuffer(content, dtype).reshape(feature.shape)


def _words(where: Path, feature: TfdsFeature, message: Any) -> list[str]:
    with explain_damage(where, feature.path):
        return [text.decode().replace("\0", "") for text in byte_strings(where, feature, message)]
