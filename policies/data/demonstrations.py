"""Reads demonstrations into flat observation and action vectors of every recorded step.

Several stores are concatenated; every episode is read once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from policies.card import PolicyCard
from policies.chunk_policy_config import EncodedPolicyConfig
from policies.data.frames import Frames, FrameSource, FrameStorage, FrameWriter
from policies.data.streamed_frames import EpisodeReader, StoredEpisodes, StreamedFrames
from policies.networks.images.image_size import encoded_sizes
from policies.policy_config import PolicyConfig
from robots.episodes.demonstrations import field_role
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, UNIT, decode, task_sentence
from robots.spec import FieldSpec
from robots.storage.location import PARALLEL_REQUESTS, Bucket
from robots.storage.read_ahead import read_ahead

_PARALLEL_EPISODES = 4
"""Episodes with pictures that are read at the same time from a bucket; each may have gigabytes."""


class DemonstrationArrays(NamedTuple):
    """M recorded steps of E episodes; O and A entries."""

    observation_MO: np.ndarray
    action_MA: np.ndarray
    ends_E: np.ndarray
    card: PolicyCard
    """Card of a policy trained on the demonstrations; its task is that of the first store."""
    store_E: np.ndarray
    """Index of the store of each episode, in ascending order."""
    sensors: Mapping[str, FrameSource] = {}
    """Per camera (M, height, width, 3) uint8, per point cloud (M, points, entries) float32."""
    instruction_M: tuple[str, ...] = ()
    """Instruction of every step; empty unless the policy is language-conditioned."""
    executed_MA: np.ndarray | None = None
    """Actions of which decided ones are shown; None for those of `action_MA`."""


class DemonstrationEpisode(NamedTuple):
    """One episode of T steps, float32."""

    observation_TO: np.ndarray
    action_TA: np.ndarray
    points: Mapping[str, np.ndarray]
    """Per point cloud (T, points, entries)."""
    executed_TA: np.ndarray | None = None
    """See `DemonstrationArrays.executed_MA`."""


EpisodeCallback = Callable[[int, DemonstrationEpisode], None]
"""Called with the number and content of every episode while reading."""


class OpenStore(NamedTuple):
    """A store with checked schema; its data are not in memory yet."""

    name: str
    """Name of the store in error messages."""
    episodes: EpisodeStore
    card: PolicyCard


def read_demonstrations(demos: Path, model: PolicyConfig) -> DemonstrationArrays:
    """Reads the fields that `model` names from `demos/store.zarr` into memory, vectors as float32.

    Raises:
        HandoffError: see `open_store` and `read_stores`.
    """
    return read_stores([open_store(str(demos), demos / "store.zarr", model)])


def open_store(name: str, path: Path, model: PolicyConfig) -> OpenStore:
    """Opens the store at `path` and checks its schema; `name` identifies it in error messages.

    Raises:
        HandoffError: no store, a missing stream or field, a vector listed as an image or the
            reverse, images smaller than their crop, or no episode.
    """
    store = EpisodeStore.open(path)
    stream = store.schema.stream(model.stream)
    model = with_recorded_fields(name, model, stream.fields)
    named = (*_fields(model), *estimated_fields(model))
    specs = {field: _spec(name, model, stream.fields, field) for field in named}
    encoded_sizes(model, {field: specs[field].shape for field in model.image_fields})
    if not store.num_episodes:
        raise HandoffError(f"{name}: 0 episodes, expected at least 1. Was nothing recorded?")
    card = PolicyCard(
        task=store.schema.name,
        rate_hz=stream.rate_hz,
        observation={field: specs[field] for field in model.observation_fields},
        sensors={field: specs[field] for field in model.sensor_fields},
        estimated={field: specs[field] for field in estimated_fields(model)},
        action=specs[model.action_field],
        model=model,
        robot=store.schema.robot,
    )
    return OpenStore(name, store, card)


def with_recorded_fields(
    store: str, model: PolicyConfig, recorded: Mapping[str, FieldSpec]
) -> PolicyConfig:
    """The configuration with the names of recorded fields in place of patterns: `*` in
    `observation_fields` stands for every vector that is observed and not estimated, in
    `image_fields` for every picture, and `name.*` for those whose names begin like this.

    Args:
        store: name of the store in error messages.
        model: policy; without a pattern it is returned as it is.
        recorded: fields of the store, in whose order a pattern lists them.

    Raises:
        HandoffError: no field has a name of this form, or the policy is left without a field.
    """
    if not any("*" in name for name in (*model.observation_fields, *model.image_fields)):
        return model
    observed = {
        name: spec
        for name, spec in recorded.items()
        if field_role(name, spec) == "observation" and spec.unit != UNIT
    }
    pictures = [name for name, spec in observed.items() if spec.unit == "u8"]
    others = {*pictures, *model.point_fields, *estimated_fields(model)}
    vectors = [name for name in observed if name not in others]
    resolved = replace(
        model,
        observation_fields=_expanded(store, model.observation_fields, vectors),
        image_fields=_expanded(store, model.image_fields, pictures),
    )
    if not (resolved.observation_fields or resolved.sensor_fields):
        raise HandoffError(
            f"{store}: no field is observed; the stream '{model.stream}' has {sorted(recorded)}."
        )
    return resolved


def _expanded(store: str, names: tuple[str, ...], recorded: Sequence[str]) -> tuple[str, ...]:
    expanded: list[str] = []
    for name in names:
        matching = [field for field in recorded if fnmatchcase(field, name)]
        if "*" not in name:
            matching = [name]
        elif not matching and name != "*":
            raise HandoffError(
                f"{store}: no observed field is called '{name}'; it has {sorted(recorded)}."
            )
        expanded += [field for field in matching if field not in expanded]
    return tuple(expanded)


def check_agreement(first: OpenStore, other: OpenStore) -> None:
    """Checks that two stores have the same rate, and the same shape, unit and frame of every field
    of the policy.

    Raises:
        HandoffError: the stores differ; the message names the store and the field.
    """
    if other.card.rate_hz != first.card.rate_hz:
        raise HandoffError(
            f"{other.name}: {other.card.rate_hz:g} Hz, expected {first.card.rate_hz:g} Hz as in {first.name}."
        )
    expected_specs, actual_specs = (_specs(store.card) for store in (first, other))
    for name, spec in expected_specs.items():
        for attribute, actual, expected_value in (
            ("shape", tuple(actual_specs[name].shape), tuple(spec.shape)),
            ("unit", actual_specs[name].unit, spec.unit),
            ("frame", actual_specs[name].frame, spec.frame),
        ):
            if actual != expected_value:
                raise HandoffError(
                    f"{other.name}: field '{name}' has {attribute} {actual!r}, expected {expected_value!r} as in "
                    f"{first.name}. Was it recorded on another robot?"
                )


def recorded_robot(stores: Sequence[OpenStore]) -> str:
    """Name of the robot that the stores were recorded with; empty where no store states it.

    Raises:
        HandoffError: stores of different robots.
    """
    stated = [store for store in stores if store.card.robot]
    for store in stated:
        if store.card.robot != stated[0].card.robot:
            raise HandoffError(
                f"{store.name}: was recorded with the robot '{store.card.robot}', expected '{stated[0].card.robot}' "
                f"as in {stated[0].name}. A policy learns the joints and limits of one robot."
            )
    return stated[0].card.robot if stated else ""


def read_stores(
    stores: Sequence[OpenStore],
    storage: FrameStorage | None = None,
    callback: EpisodeCallback | None = None,
    *,
    streamed: bool = False,
) -> DemonstrationArrays:
    """Reads stores with the same schema, episode by episode, one store after another.

    Args:
        stores: at least one.
        storage: storage of images and point clouds; memory by default.
        callback: called with every episode while reading.
        streamed: whether images and point clouds stay in the stores, and are read when a batch
            needs them; nothing of them is then kept in `storage`.

    Raises:
        HandoffError: stores of different robots, a value that is not finite, damaged files, or an
            instruction that is not a sentence.
    """
    # Allocate arrays for all stores.
    storage = FrameStorage() if storage is None else storage
    card = replace(stores[0].card, robot=recorded_robot(stores))
    model = card.model
    lengths = [np.diff(store.episodes.ends(model.stream), prepend=0) for store in stores]
    ends_E = np.cumsum(np.concatenate(lengths))
    observation_MO = np.empty((int(ends_E[-1]), card.observation_size), np.float32)
    action_MA = np.empty((int(ends_E[-1]), card.action_size), np.float32)
    executed_MA = None if model.decided_field is None else np.empty_like(action_MA)
    kept = [] if streamed else list(card.sensors)
    sensor_parts: dict[str, list[Tensor]] = {name: [] for name in kept}
    # Read every episode once.
    number = 0
    for store, length in zip(stores, lengths, strict=True):
        writers = {name: _writer(store, name, int(length.sum()), storage) for name in sensor_parts}
        fields = [
            name
            for name in _fields(model)
            if name not in model.image_fields or not (streamed or writers[name].complete)
        ]
        for index, values in enumerate(_episodes_in_order(store, fields)):
            episode = _episode(f"{store.name}: episode {index}", card, values)
            rows = slice(int(ends_E[number]) - int(length[index]), int(ends_E[number]))
            observation_MO[rows], action_MA[rows] = episode.observation_TO, episode.action_TA
            if executed_MA is not None:
                executed_MA[rows] = episode.executed_TA
            for name in writers.keys() & values.keys():
                writers[name].append(values[name])
            if callback is not None:
                callback(number, episode)
            number += 1
        for name, writer in writers.items():
            sensor_parts[name].append(writer.finish())
    return DemonstrationArrays(
        observation_MO,
        action_MA,
        ends_E,
        card,
        np.repeat(np.arange(len(stores)), [len(length) for length in lengths]),
        _streamed(stores, lengths, card)
        if streamed
        else {name: Frames(part) for name, part in sensor_parts.items()},
        tuple(line for store in stores for line in _instructions(store))
        if model.language_conditioned
        else (),
        executed_MA,
    )


def read_vectors(stores: Sequence[OpenStore], fields: tuple[str, ...]) -> np.ndarray:
    """Vectors that the policy does not observe: (M, G) float32, the `fields` of every recorded step
    flattened and concatenated.

    Raises:
        HandoffError: a value that is not finite.
    """
    rows: list[np.ndarray] = []
    for store in stores:
        for number, values in enumerate(_episodes_in_order(store, list(fields))):
            for field in fields:
                _check_finite(f"{store.name}: episode {number}", field, values[field])
            rows.append(np.concatenate([_flat(values[field]) for field in fields], axis=1))
    return np.concatenate(rows)


def _episodes_in_order(store: OpenStore, fields: list[str]) -> Iterator[dict[str, np.ndarray]]:
    """The fields of every episode."""
    episodes, stream = store.episodes, store.card.model.stream
    pictures = any(name in store.card.sensors for name in fields)
    most = _PARALLEL_EPISODES if pictures else PARALLEL_REQUESTS
    parallel = min(episodes.parallel_reads, most)

    def read(number: int) -> dict[str, np.ndarray]:
        return episodes.read(number, stream, fields)

    return read_ahead(read, range(episodes.num_episodes), parallel)


def _streamed(
    stores: Sequence[OpenStore], lengths: Sequence[np.ndarray], card: PolicyCard
) -> dict[str, FrameSource]:
    """The frames of every sensor, which stay in the stores."""
    episodes = EpisodeReader(
        [
            StoredEpisodes(str(store.episodes.location), card.model.stream, tuple(length.tolist()))
            for store, length in zip(stores, lengths, strict=True)
        ]
    )
    return {
        name: StreamedFrames(episodes, name, tuple(spec.shape), _frame_dtype(card, name))
        for name, spec in card.sensors.items()
    }


def _instructions(store: OpenStore) -> list[str]:
    """Instruction of every step of all episodes: from the recorded field where it changes within
    the episode, else from the episode's metadata, else from the recorded field, else the policy's
    default instruction, else the name of the task. A step whose recorded instruction is empty has
    that of the episode."""
    default = store.card.model.default_instruction
    fallback = task_sentence(store.card.task) if default is None else default
    stream, recorded = (
        store.card.model.stream,
        store.episodes.schema.stream(store.card.model.stream).fields,
    )
    per_step = INSTRUCTION in recorded and recorded[INSTRUCTION].unit == UNIT

    lengths = np.diff(store.episodes.ends(stream), prepend=0).tolist()
    recorded_words = (
        (decode(values[INSTRUCTION]) for values in _episodes_in_order(store, [INSTRUCTION]))
        if per_step
        else (() for _ in lengths)
    )
    lines: list[str] = []
    for number, (length, words) in enumerate(zip(lengths, recorded_words, strict=True)):
        stated = {word: word for word in words if word}
        line: Any = store.episodes.metadata(number).get(
            INSTRUCTION, next(iter(stated), "" if words else fallback)
        )
        if not isinstance(line, str) or not line.strip():
            raise HandoffError(
                f"{store.name}: instruction of episode {number} is {line!r}, expected a sentence."
            )
        changes = len(stated) > 1
        # One string per sentence, however many steps have it.
        lines += [stated.get(word, line) for word in words] if changes else [line] * length
    return lines


def _episode(name: str, card: PolicyCard, values: Mapping[str, np.ndarray]) -> DemonstrationEpisode:
    for field, column in values.items():
        if column.dtype.kind == "f":
            _check_finite(name, field, column)
    length = len(values[card.model.action_field])
    columns = [_flat(values[field]) for field in card.observation]
    observation_TO = (
        np.concatenate(columns, axis=1) if columns else np.zeros((length, 0), np.float32)
    )
    points = {field: values[field].astype(np.float32) for field in card.model.point_fields}
    action_TA, decided = _flat(values[card.model.action_field]), card.model.decided_field
    executed_TA = None if decided is None else _flat(values[decided])
    if executed_TA is not None and executed_TA.shape != action_TA.shape:
        raise HandoffError(
            f"{name}: {decided} has {executed_TA.shape[1]} entries, {card.model.action_field} {action_TA.shape[1]}. "
            "Is policy.prefix_field the field of the executed actions?"
        )
    return DemonstrationEpisode(observation_TO, action_TA, points, executed_TA)


def _writer(store: OpenStore, name: str, steps: int, storage: FrameStorage) -> FrameWriter:
    shape, dtype = tuple(store.card.sensors[name].shape), _frame_dtype(store.card, name)
    place = store.episodes.location
    path = str(place) if isinstance(place, Bucket) else store.episodes.path.resolve()
    # Stores are append-only, so the index, which lists every segment with its size, identifies the
    # content.
    index = hashlib.sha256(place.read("index.json")).hexdigest()
    content = f"{path} {index} {store.card.model.stream}/{name}"
    return storage.reserve(content, steps, (shape, dtype))


def _frame_dtype(card: PolicyCard, name: str) -> np.dtype:
    """Images as they were recorded, points as float32."""
    return np.dtype(card.sensors[name].dtype if name in card.model.image_fields else np.float32)


def _fields(model: PolicyConfig) -> tuple[str, ...]:
    decided = () if model.decided_field is None else (model.decided_field,)
    return (*model.observation_fields, *model.sensor_fields, model.action_field, *decided)


def estimated_fields(model: PolicyConfig) -> tuple[str, ...]:
    """Recorded vectors that a policy of this configuration estimates; empty for families that
    estimate none."""
    return model.estimated_fields if isinstance(model, EncodedPolicyConfig) else ()


def _specs(card: PolicyCard) -> dict[str, FieldSpec]:
    vectors = {**card.observation, **card.sensors, **card.estimated}
    return {**vectors, card.model.action_field: card.action}


def _spec(store: str, model: PolicyConfig, fields: Mapping[str, FieldSpec], name: str) -> FieldSpec:
    """Spec of the field; raises unless the field is an image exactly if it is listed under
    `image_fields`."""
    if name not in fields:
        raise HandoffError(
            f"{store}: stream '{model.stream}' has no field '{name}'; it has {sorted(fields)}."
        )
    image = fields[name].unit == "u8"
    if image and name not in model.image_fields:
        raise HandoffError(f"{store}: field '{name}' is an image. List it under image_fields.")
    if not image and name in model.image_fields:
        raise HandoffError(
            f"{store}: field '{name}' of image_fields is not an image but has shape {fields[name].shape}."
        )
    if name in model.point_fields and len(fields[name].shape) != 2:
        raise HandoffError(
            f"{store}: field '{name}' of point_fields has shape {fields[name].shape}, expected (points, D)."
        )
    return fields[name]


def _flat(column: np.ndarray) -> np.ndarray:
    return column.reshape(len(column), -1).astype(np.float32)


def _check_finite(name: str, field: str, column: np.ndarray) -> None:
    rows = np.flatnonzero(~np.isfinite(column.reshape(len(column), -1)).all(axis=1))
    if len(rows):
        raise HandoffError(
            f"{name}: field '{field}' is not finite at step {rows[0]} ({len(rows)} such steps). Was a sensor lost?"
        )
