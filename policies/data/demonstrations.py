"""Demonstrations as the policy sees them: flat observation and action vectors of every recorded
step.

Several stores are read one after another as if they were one; every episode is read from its store
once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from policies.card import PolicyCard
from policies.data.frames import Frames, FrameSpace, FrameWriter
from policies.policy_config import PolicyConfig
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, UNIT, decode
from robots.spec import FieldSpec


class DemonstrationArrays(NamedTuple):
    """M recorded steps of E episodes; O and A entries."""

    observation_MO: np.ndarray
    action_MA: np.ndarray
    ends_E: np.ndarray
    card: PolicyCard
    """What a policy learned from them has to say of itself; the task is that of the first store."""
    store_E: np.ndarray
    """Number of the store that each episode is from; they stand in order."""
    sensors: Mapping[str, Frames] = {}
    """Per camera (M, height, width, 3) uint8, per point cloud (M, points, entries) float32."""
    instruction_E: tuple[str, ...] = ()
    """What was to be done in every episode; empty unless the policy reads it."""


class DemonstrationEpisode(NamedTuple):
    """One episode of T steps as it is read, float32."""

    observation_TO: np.ndarray
    action_TA: np.ndarray
    points: Mapping[str, np.ndarray]
    """Per point cloud (T, points, entries)."""


Seen = Callable[[int, DemonstrationEpisode], None]
"""Is shown every episode, with its number, while it is read."""


class OpenStore(NamedTuple):
    """A store that has what a policy reads; none of it is in memory yet."""

    name: str
    """For errors."""
    episodes: EpisodeStore
    card: PolicyCard


def read_demonstrations(demos: Path, model: PolicyConfig) -> DemonstrationArrays:
    """Reads the fields that `model` names from `demos/store.zarr` into memory, vectors as float32.

    Raises:
        HandoffError: see `open_store` and `read_stores`.
    """
    return read_stores([open_store(str(demos), demos / "store.zarr", model)])


def open_store(name: str, path: Path, model: PolicyConfig) -> OpenStore:
    """Opens the store at `path` and checks its schema; `name` stands for it in errors.

    Raises:
        HandoffError: no store, a missing stream or field, a vector among the images or the other
            way round, or no episode.
    """
    store = EpisodeStore.open(path)
    stream = store.schema.stream(model.stream)
    specs = {field: _spec(name, model, stream.fields, field) for field in _fields(model)}
    if not store.num_episodes:
        raise HandoffError(f"{name}: 0 episodes, expected at least 1. Was nothing recorded?")
    card = PolicyCard(
        task=store.schema.name,
        rate_hz=stream.rate_hz,
        observation={field: specs[field] for field in model.observation_fields},
        sensors={field: specs[field] for field in model.sensor_fields},
        action=specs[model.action_field],
        model=model,
        robot=store.schema.robot,
    )
    return OpenStore(name, store, card)


def check_agreement(first: OpenStore, other: OpenStore) -> None:
    """Checks that a policy may learn from both: rate, and shape, unit and frame of every field that
    it reads.

    Raises:
        HandoffError: names the store and the field.
    """
    if other.card.rate_hz != first.card.rate_hz:
        raise HandoffError(
            f"{other.name}: {other.card.rate_hz:g} Hz, expected {first.card.rate_hz:g} Hz as in {first.name}."
        )
    expected, found = (_specs(store.card) for store in (first, other))
    for name, spec in expected.items():
        for what, own, theirs in (
            ("shape", tuple(found[name].shape), tuple(spec.shape)),
            ("unit", found[name].unit, spec.unit),
            ("frame", found[name].frame, spec.frame),
        ):
            if own != theirs:
                raise HandoffError(
                    f"{other.name}: field '{name}' has {what} {own!r}, expected {theirs!r} as in {first.name}. "
                    "Was it recorded on another robot?"
                )


def recorded_robot(stores: Sequence[OpenStore]) -> str:
    """Name of the robot that the stores were recorded with; empty where none of them states it.

    Raises:
        HandoffError: two stores state different robots.
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
    stores: Sequence[OpenStore], space: FrameSpace | None = None, seen: Seen | None = None
) -> DemonstrationArrays:
    """Reads stores that agree, episode by episode, one store after another.

    Args:
        stores: at least one.
        space: where pictures and point clouds go; memory by default.
        seen: is shown every episode while it is read.

    Raises:
        HandoffError: stores of different robots, a value that is not finite, damaged files, or an
            instruction that is not a sentence.
    """
    space = FrameSpace() if space is None else space
    card = replace(stores[0].card, robot=recorded_robot(stores))
    model = card.model
    lengths = [np.diff(store.episodes.ends(model.stream), prepend=0) for store in stores]
    ends_E = np.cumsum(np.concatenate(lengths))
    observation_MO = np.empty((int(ends_E[-1]), card.observation_size), np.float32)
    action_MA = np.empty((int(ends_E[-1]), card.action_size), np.float32)
    parts: dict[str, list[Tensor]] = {name: [] for name in card.sensors}
    number = 0
    for store, length in zip(stores, lengths, strict=True):
        writers = {name: _writer(store, name, int(length.sum()), space) for name in parts}
        for own in range(store.episodes.num_episodes):
            fields = [
                name
                for name in _fields(model)
                if name not in model.image_fields or not writers[name].complete
            ]
            values = store.episodes.read(own, model.stream, fields)
            episode = _episode(f"{store.name}: episode {own}", card, values)
            rows = slice(int(ends_E[number]) - int(length[own]), int(ends_E[number]))
            observation_MO[rows], action_MA[rows] = episode.observation_TO, episode.action_TA
            for name in writers.keys() & values.keys():
                writers[name].append(values[name])
            if seen is not None:
                seen(number, episode)
            number += 1
        for name, writer in writers.items():
            parts[name].append(writer.finish())
    return DemonstrationArrays(
        observation_MO,
        action_MA,
        ends_E,
        card,
        np.repeat(np.arange(len(stores)), [len(length) for length in lengths]),
        {name: Frames(part) for name, part in parts.items()},
        tuple(line for store in stores for line in _instructions(store))
        if model.reads_language
        else (),
    )


def _instructions(store: OpenStore) -> list[str]:
    """Per episode what its metadata say, else what was recorded with it, else what the policy says
    for itself, else the name of the task."""
    own = store.card.model.own_instruction
    otherwise = store.card.task.replace("_", " ") if own is None else own
    stream, recorded = (
        store.card.model.stream,
        store.episodes.schema.stream(store.card.model.stream).fields,
    )
    spoken = INSTRUCTION in recorded and recorded[INSTRUCTION].unit == UNIT

    def told(number: int) -> str:
        said, line = store.episodes.metadata(number), otherwise
        if INSTRUCTION in said:
            line = said[INSTRUCTION]
        elif spoken:
            # Of words that were recorded step by step, an episode is about those that it began
            # with.
            line = decode(store.episodes.read(number, stream, [INSTRUCTION])[INSTRUCTION][:1])[0]
        if not isinstance(line, str) or not line.strip():
            raise HandoffError(
                f"{store.name}: instruction of episode {number} is {line!r}, expected a sentence."
            )
        return line

    return [told(number) for number in range(store.episodes.num_episodes)]


def _episode(name: str, card: PolicyCard, values: Mapping[str, np.ndarray]) -> DemonstrationEpisode:
    for field, column in values.items():
        if column.dtype.kind == "f":
            _check_finite(name, field, column)
    length = len(values[card.model.action_field])
    seen = [_flat(values[field]) for field in card.observation]
    observation_TO = np.concatenate(seen, axis=1) if seen else np.zeros((length, 0), np.float32)
    points = {field: values[field].astype(np.float32) for field in card.model.point_fields}
    return DemonstrationEpisode(observation_TO, _flat(values[card.model.action_field]), points)


def _writer(store: OpenStore, name: str, steps: int, space: FrameSpace) -> FrameWriter:
    spec = store.card.sensors[name]
    dtype = np.dtype(spec.dtype if name in store.card.model.image_fields else np.float32)
    path = store.episodes.path.resolve()
    # A store only ever grows, and its index tells every segment with its size.
    index = hashlib.sha256((path / "index.json").read_bytes()).hexdigest()
    content = f"{path} {index} {store.card.model.stream}/{name}"
    return space.reserve(content, steps, (tuple(spec.shape), dtype))


def _fields(model: PolicyConfig) -> tuple[str, ...]:
    return (*model.observation_fields, *model.sensor_fields, model.action_field)


def _specs(card: PolicyCard) -> dict[str, FieldSpec]:
    return {**card.observation, **card.sensors, card.model.action_field: card.action}


def _spec(place: str, model: PolicyConfig, fields: Mapping[str, FieldSpec], name: str) -> FieldSpec:
    """The spec of the field, which is an image exactly if it is listed as one."""
    if name not in fields:
        raise HandoffError(
            f"{place}: stream '{model.stream}' has no field '{name}'; it has {sorted(fields)}."
        )
    image = fields[name].unit == "u8"
    if image and name not in model.image_fields:
        raise HandoffError(f"{place}: field '{name}' is an image. List it under image_fields.")
    if not image and name in model.image_fields:
        raise HandoffError(
            f"{place}: field '{name}' of image_fields is no image but {fields[name].shape} numbers."
        )
    if name in model.point_fields and len(fields[name].shape) != 2:
        raise HandoffError(
            f"{place}: field '{name}' of point_fields has shape {fields[name].shape}, not (points, D)."
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
