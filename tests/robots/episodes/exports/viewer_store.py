"""A store with every kind of field, of two streams of different rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.language.text import encode, text_field
from robots.spec import POSE, WXYZ, XYZ, FieldSpec

LENGTHS = (5, 3)
RATE_HZ = 20.0
JOINTS = (("j1", "j2"),)
FIELDS = {
    "q": FieldSpec(shape=(2,), unit="rad", names=JOINTS, frame="base", role="observation"),
    "tip": FieldSpec(shape=(3,), unit="m", names=XYZ, frame="base", role="observation"),
    "turn": FieldSpec(shape=(4,), names=WXYZ, dtype="float64", role="observation"),
    "grasp_pose": FieldSpec(shape=(6,), unit="m, rad", names=POSE, role="observation"),
    "cameras/front": FieldSpec(shape=(6, 8, 3), dtype="uint8", unit="u8", role="observation"),
    "depth": FieldSpec(shape=(6, 8), dtype="uint16", unit="mm", role="observation"),
    "matrix": FieldSpec(shape=(2, 3), dtype="float64", role="observation"),
    "instruction": text_field(16),
    "action": FieldSpec(shape=(2,), unit="rad", names=JOINTS, role="action"),
    "action_policy": FieldSpec(shape=(2,), unit="rad", names=JOINTS, role="other"),
    "success": FieldSpec(shape=(), dtype="int8", role="outcome"),
    "done": FieldSpec(shape=(), dtype="bool", role="outcome"),
}
ROBOT = {"tau": FieldSpec(shape=(2,), dtype="float64", unit="Nm")}
SENTENCES = ("open", "open", "close", "close", "close")


def arrays(episode: int) -> dict[str, dict[str, np.ndarray]]:
    """Streams of one episode."""
    rng = np.random.default_rng(episode)
    length = LENGTHS[episode]
    policy: dict[str, np.ndarray] = {}
    for name, spec in FIELDS.items():
        shape = (length, *spec.shape)
        if spec.dtype.startswith("float"):
            policy[name] = rng.normal(size=shape).astype(spec.dtype)
        else:
            policy[name] = rng.integers(0, 100, shape).astype(spec.dtype)
    policy["turn"] /= np.linalg.norm(policy["turn"], axis=1, keepdims=True)
    policy["instruction"] = encode(SENTENCES[:length], 16)
    policy["success"] = np.zeros(length, np.int8)
    policy["success"][-1] = 1
    policy["done"] = policy["success"].astype(bool)
    return {"policy": policy, "robot": {"tau": rng.normal(size=(4 * length, 2))}}


def make_store(path: Path, **further: FieldSpec) -> EpisodeStore:
    """The store with two episodes, with fields of zeros that are further ones."""
    streams = {
        "policy": StreamSpec(rate_hz=RATE_HZ, fields={**FIELDS, **further}),
        "robot": StreamSpec(rate_hz=4 * RATE_HZ, fields=ROBOT),
    }
    schema = EpisodeSchema(name="drawer", streams=streams, robot="fr3")
    with EpisodeStore.create(path, schema) as store:
        for episode, length in enumerate(LENGTHS):
            given = arrays(episode)
            zeros = {k: np.zeros((length, *f.shape), f.dtype) for k, f in further.items()}
            given["policy"].update(zeros)
            store.append(given, {"seed": episode, "success": True})
    return EpisodeStore.open(path)
