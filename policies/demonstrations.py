"""Demonstrations as the policy sees them: flat observation and action vectors of every recorded step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from policies.config import PolicyCard
from policies.policy_config import PolicyConfig
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec


class Demonstrations(NamedTuple):
    """M recorded steps of E episodes; O and A entries."""

    observation_MO: np.ndarray
    action_MA: np.ndarray
    ends_E: np.ndarray
    card: PolicyCard
    """What a policy learned from them has to say of itself."""
    sensors: Mapping[str, np.ndarray] = {}
    """Per camera (M, height, width, 3) uint8, per point cloud (M, points, entries) float32."""
    instruction_E: tuple[str, ...] = ()
    """What was to be done in every episode; empty unless the policy reads it."""


def read_demonstrations(demos: Path, model: PolicyConfig) -> Demonstrations:
    """Reads the fields that `model` names from `demos/store.zarr`, vectors as float32.

    Raises:
        HandoffError: no store, a missing stream or field, a vector among the images or the other way round, no episode,
            or a value that is not finite.
    """
    store = EpisodeStore.open(demos / "store.zarr")
    stream = store.schema.stream(model.stream)
    specs = {name: _spec(demos, model, stream.fields, name) for name in _fields(model)}
    if not store.num_episodes:
        raise HandoffError(f"{demos}: 0 episodes, expected at least 1. Was nothing recorded?")
    columns = {name: store.column(model.stream, name) for name in specs}
    for name, column in columns.items():
        if column.dtype.kind == "f":
            _check_finite(f"{demos}: field '{name}'", column)
    seen = {name: specs[name] for name in model.observation_fields}
    sensors = {name: specs[name] for name in (*model.image_fields, *model.point_fields)}
    card = PolicyCard(
        task=store.schema.name,
        rate_hz=stream.rate_hz,
        observation=seen,
        sensors=sensors,
        action=specs[model.action_field],
        model=model,
    )
    ends_E = store.ends(model.stream)
    parts = [_flat(columns[name]) for name in seen]
    observation_MO = np.concatenate(parts, axis=1) if parts else np.zeros((int(ends_E[-1]), 0), np.float32)
    frames = {name: columns[name] for name in model.image_fields}
    frames |= {name: columns[name].astype(np.float32) for name in model.point_fields}
    return Demonstrations(observation_MO, _flat(columns[model.action_field]), ends_E, card, frames)


def _fields(model: PolicyConfig) -> tuple[str, ...]:
    return (*model.observation_fields, *model.image_fields, *model.point_fields, model.action_field)


def _spec(demos: Path, model: PolicyConfig, fields: Mapping[str, FieldSpec], name: str) -> FieldSpec:
    """The spec of the field, which is an image exactly if it is listed as one."""
    if name not in fields:
        raise HandoffError(f"{demos}: stream '{model.stream}' has no field '{name}'; it has {sorted(fields)}.")
    image = fields[name].unit == "u8"
    if image and name not in model.image_fields:
        raise HandoffError(f"{demos}: field '{name}' is an image. List it under image_fields.")
    if not image and name in model.image_fields:
        raise HandoffError(f"{demos}: field '{name}' of image_fields is no image but {fields[name].shape} numbers.")
    if name in model.point_fields and len(fields[name].shape) != 2:
        raise HandoffError(f"{demos}: field '{name}' of point_fields has shape {fields[name].shape}, not (points, D).")
    return fields[name]


def _flat(column: np.ndarray) -> np.ndarray:
    return column.reshape(len(column), -1).astype(np.float32)


def _check_finite(name: str, column: np.ndarray) -> None:
    rows = np.flatnonzero(~np.isfinite(column.reshape(len(column), -1)).all(axis=1))
    if len(rows):
        raise HandoffError(f"{name} is not finite at step {rows[0]} ({len(rows)} such steps). Was a sensor lost?")
