"""Recorded play: its arrays, its held-out episodes, and its steps as a world model receives them.

Shape suffixes as in `policies.world_model.model`; M recorded steps, E episodes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.world_model.config import WorldModelConfig
from policies.world_model.model import WorldModel
from robots.episodes.corrections import FINAL
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec


class Play(NamedTuple):
    """M recorded steps of E episodes."""

    obs_MO: np.ndarray
    action_MA: np.ndarray
    ends_E: np.ndarray
    success_M: np.ndarray
    """Success label of every step, bool; it refers to the state after the action."""
    observation: dict[str, FieldSpec]
    action: FieldSpec
    task: str
    rate_hz: float

    @property
    def starts_E(self) -> np.ndarray:
        """First step of every episode."""
        return np.concatenate([[0], self.ends_E[:-1]])

    def steps_of(self, episode: int, before_end: int = 0) -> np.ndarray:
        """Indices of the steps of an episode, without the last `before_end`."""
        return np.arange(int(self.starts_E[episode]), int(self.ends_E[episode]) - before_end)

    def digest(self) -> str:
        """Digest (hex sha256) of the data."""
        digest = hashlib.sha256(repr((self.task, self.rate_hz, self.observation)).encode())
        for values in (self.obs_MO, self.action_MA, self.ends_E, self.success_M):
            digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()


def read_play(path: Path, config: WorldModelConfig) -> Play:
    """Reads the store at `path`.

    Raises:
        HandoffError: no store, fields that are missing or images, no success label, an episode
            shorter than a sequence, or a value that is not finite.
    """
    # Check the schema.
    store = EpisodeStore.open(path)
    stream = store.schema.stream(config.stream)
    label = config.success.classifier.label_field
    names = (*config.fields, config.action_field, label)
    missing = [name for name in names if name not in stream.fields]
    if missing or not config.fields:
        raise HandoffError(
            f"world model: fields {list(config.fields)}; {missing} of fields, action and label are missing in "
            f"{path}; stream '{config.stream}' has {sorted(stream.fields)}."
        )
    if images := [name for name in config.fields if stream.fields[name].unit == "u8"]:
        raise HandoffError(
            f"world model: {images} are images, expected vectors: it imagines vectors, not pictures. Leave them out; "
            "policies that are fine-tuned in imagination observe vectors, too."
        )
    # Check the lengths of the episodes.
    ends = store.ends(config.stream)
    shortest = int(np.diff(ends, prepend=0).min()) if len(ends) else 0
    if shortest < config.sequence:
        raise HandoffError(
            f"world model: {len(ends)} episodes, the shortest of {shortest} steps, expected at least one "
            f"and none shorter than a sequence of {config.sequence}."
        )
    # Read the data.
    columns = {name: store.column(config.stream, name).reshape(ends[-1], -1) for name in names}
    if broken := [name for name, values in columns.items() if not np.isfinite(values).all()]:
        raise HandoffError(f"{path}: fields {broken} are not finite everywhere. Was a sensor lost?")
    play = Play(
        obs_MO=np.concatenate([columns[name] for name in config.fields], axis=1).astype(np.float32),
        action_MA=columns[config.action_field].astype(np.float32),
        ends_E=ends,
        success_M=columns[label][:, 0] > 0.5,
        observation={name: stream.fields[name] for name in config.fields},
        action=stream.fields[config.action_field],
        task=store.schema.name,
        rate_hz=stream.rate_hz,
    )
    return _with_final_states(play, store, config)


def _with_final_states(play: Play, store: EpisodeStore, config: WorldModelConfig) -> Play:
    """Play whose episodes end with the observation after their last action, where the store has it
    in the stream `final`, as those of demonstrations and corrections have.

    Such episodes end with success, which would otherwise have no observation. The added step
    repeats the last action, so that the range of actions stays; nothing reads it.
    """
    if FINAL not in store.schema.streams or not (
        set(config.fields) <= store.schema.stream(FINAL).fields.keys()
    ):
        return play
    finals = store.ends(FINAL)
    columns = [store.column(FINAL, name).reshape(finals[-1], -1) for name in config.fields]
    final_EO = np.concatenate(columns, axis=1)[finals - 1].astype(np.float32)
    if not np.isfinite(final_EO).all():
        raise HandoffError(
            f"world model: observations of the stream '{FINAL}' are not finite. Was a sensor lost?"
        )
    ends_E = play.ends_E
    return play._replace(
        obs_MO=np.insert(play.obs_MO, ends_E, final_EO, axis=0),
        action_MA=np.insert(play.action_MA, ends_E, play.action_MA[ends_E - 1], axis=0),
        success_M=np.insert(play.success_M, ends_E, play.success_M[ends_E - 1]),
        ends_E=ends_E + np.arange(1, len(ends_E) + 1),
    )


def split_play(data: Play, config: WorldModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the training episodes and of the held-out episodes."""
    count = len(data.ends_E)
    held_out = max(1, round(config.held_out * count))
    if held_out >= count:
        raise HandoffError(
            f"world model: {count} episodes of which {held_out} are held out, expected at least one for training."
        )
    order = np.random.default_rng(config.training.seed).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def normalised(model: WorldModel, data: Play, steps: np.ndarray) -> tuple[Tensor, Tensor]:
    """Normalised observations and actions of recorded steps, on the model's device."""
    observation, action = (
        torch.from_numpy(data.obs_MO[steps]),
        torch.from_numpy(data.action_MA[steps]),
    )
    device = model.change.device
    if device.type != "cpu":
        observation, action = observation.to(device), action.to(device)
    return model.normalize_observation(observation), model.normalize_action(action)
