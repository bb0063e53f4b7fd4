"""A store of correction episodes for the tests of reviews."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec

LENGTHS = (30, 40, 35, 6, 45)
"""Steps of the episodes; the fourth is far shorter than the median."""
METADATA: tuple[dict[str, Any], ...] = (
    {"success": True, "labelled_by": "task", "true_success": True, "operator": "ada"},
    {"success": True, "labelled_by": "ada", "true_success": False, "operator": "ada"},
    {"discard_reason": "unlabelled", "operator": "eve", "note": "camera was covered"},
    {"success": False, "labelled_by": None, "ended_by": "fault", "fault": "arm: joint_reflex."},
    {"success": False, "labelled_by": "eve", "instruction": "fold <b>it</b>"},
)
PEOPLE = [{"name": "ada", "device": "keyboard"}]
CORRECTED = 1
"""Episode in which a person took over twice."""
HEIGHT, WIDTH = 48, 64


def brightness(episode: int, step: int) -> int:
    """Grey value of the whole picture of the camera `front`."""
    return (40 * episode + 3 * step) % 256


def make_store(path: Path) -> Path:
    """Writes the store."""
    number = FieldSpec(shape=(), dtype="int32")
    fields = {
        "q": FieldSpec(shape=(7,), unit="rad", role="observation"),
        "image_front": FieldSpec(shape=(HEIGHT, WIDTH, 3), dtype="uint8", unit="u8"),
        "image_wrist": FieldSpec(shape=(HEIGHT, WIDTH, 3), dtype="uint8", unit="u8"),
        "gripper": FieldSpec(shape=(1,), unit="m", role="observation"),
        "action": FieldSpec(shape=(4,), names=(("x", "y", "z", "grip"),), role="action"),
        "action_policy": FieldSpec(shape=(4,), role="action"),
        "intervention": FieldSpec(shape=(), dtype="uint8"),
        "person": FieldSpec(shape=(), dtype="int16"),
        "segment": number,
        "reward": FieldSpec(shape=(), role="outcome"),
        "success": FieldSpec(shape=(), dtype="int8", role="outcome"),
    }
    streams = {
        "policy": StreamSpec(rate_hz=20.0, fields=fields),
        "final": StreamSpec(rate_hz=20.0, fields={"q": fields["q"]}),
    }
    with EpisodeStore.create(path, EpisodeSchema(name="pick_cube", streams=streams)) as store:
        for episode, steps in enumerate(LENGTHS):
            append_episode(store, episode, steps, METADATA[episode])
    return path


def append_episode(store: EpisodeStore, episode: int, steps: int, metadata: dict[str, Any]) -> None:
    """Appends one episode."""
    time = np.arange(steps, dtype=np.float32)[:, None] / 20.0
    phases = np.arange(7, dtype=np.float32) + episode
    acted = np.zeros(steps, np.uint8)
    segment = np.full(steps, -1, np.int32)
    if episode == CORRECTED:
        acted[10:16] = 1
        acted[25:30] = 1
        segment[10:16] = 0
        segment[25:30] = 1
    action = np.sin(time + phases[:4])
    front = np.zeros((steps, HEIGHT, WIDTH, 3), np.uint8)
    front[:] = np.array([brightness(episode, step) for step in range(steps)]).reshape(-1, 1, 1, 1)
    success = np.zeros(steps, np.int8)
    success[-1] = 1 if metadata.get("success") else -1
    policy = {
        "q": np.sin(time + phases),
        "image_front": front,
        "image_wrist": 255 - front,
        "gripper": 0.04 + 0.03 * np.cos(time),
        "action": action,
        "action_policy": action - 0.2 * acted[:, None],
        "intervention": acted,
        "person": np.where(acted > 0, 0, -1).astype(np.int16),
        "segment": segment,
        "reward": time[:, 0],
        "success": success,
    }
    final = {"q": np.sin(time[-1:] + 0.05 + phases)}
    streams = {"policy": policy, "final": final}
    store.append(streams, {**metadata, "people": PEOPLE, "seed": episode})
