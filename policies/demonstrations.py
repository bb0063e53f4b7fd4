"""Demonstrations as the policy sees them: flat observation and action vectors of every recorded step."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from policies.config import DiffusionPolicyConfig, PolicyCard
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError


class Demonstrations(NamedTuple):
    """M recorded steps of E episodes; O and A entries."""

    observation_MO: np.ndarray
    action_MA: np.ndarray
    ends_E: np.ndarray
    card: PolicyCard
    """What a policy learned from them has to say of itself."""


def read_demonstrations(demos: Path, model: DiffusionPolicyConfig) -> Demonstrations:
    """Reads the fields that `model` names from `demos/store.zarr`, as float32.

    Raises:
        HandoffError: no store, a missing stream or field, an image among the fields, no episode, or a value that is
            not finite.
    """
    store = EpisodeStore.open(demos / "store.zarr")
    stream = store.schema.stream(model.stream)
    specs = {}
    for name in (*model.observation_fields, model.action_field):
        if name not in stream.fields:
            known = sorted(stream.fields)
            raise HandoffError(f"{demos}: stream '{model.stream}' has no field '{name}'; it has {known}.")
        if stream.fields[name].unit == "u8":
            raise HandoffError(f"{demos}: field '{name}' is an image; this policy takes vectors only.")
        specs[name] = stream.fields[name]
    if not store.num_episodes:
        raise HandoffError(f"{demos}: 0 episodes, expected at least 1. Was nothing recorded?")
    action_spec = specs.pop(model.action_field)
    card = PolicyCard(
        task=store.schema.name, rate_hz=stream.rate_hz, observation=specs, action=action_spec, model=model
    )
    columns = {name: store.column(model.stream, name) for name in (*specs, model.action_field)}
    for name, column in columns.items():
        _check_finite(f"{demos}: field '{name}'", column)
    flat = {name: column.reshape(len(column), -1).astype(np.float32) for name, column in columns.items()}
    observation_MO = np.concatenate([flat[name] for name in specs], axis=1)
    return Demonstrations(observation_MO, flat[model.action_field], store.ends(model.stream), card)


def _check_finite(name: str, column: np.ndarray) -> None:
    rows = np.flatnonzero(~np.isfinite(column.reshape(len(column), -1)).all(axis=1))
    if len(rows):
        raise HandoffError(f"{name} is not finite at step {rows[0]} ({len(rows)} such steps). Was a sensor lost?")
