"""A three-episode RLDS data set in the layout of TensorFlow Datasets."""

from __future__ import annotations

import gzip
import json
import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from PIL import Image

from robots.episodes.formats.containers.tfrecords import _example_class, _masked

LENGTHS = (4, 6, 3)
INSTRUCTIONS = ("open the drawer", "close the drawer", "pick the cup")


def episodes(seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "state": rng.normal(size=(length, 7)).astype(np.float32),
            "image": rng.integers(0, 256, (length, 12, 16, 3)).astype(np.uint8),
            "depth": rng.integers(0, 5000, (length, 12, 16, 1)).astype(np.uint16),
            "action": rng.normal(size=(length, 7)).astype(np.float32),
            "joint_velocity": rng.normal(size=(length, 7)).astype(np.float32),
            "reward": np.eye(length, dtype=np.float32)[-1],
            "is_last": np.arange(length) == length - 1,
            "language_embedding": rng.normal(size=(length, 8)).astype(np.float32),
        }
        for length in LENGTHS
    ]


def tensor(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    return {"tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype}}


def image(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    return {"image": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype}}


def group(**features: Any) -> dict[str, Any]:
    return {"featuresDict": {"features": features}}


STEPS = {
    "observation": group(
        state=tensor((7,), "float32"),
        image=image((12, 16, 3), "uint8"),
        depth=image((12, 16, 1), "uint16"),
    ),
    "action": tensor((7,), "float32"),
    "action_dict": group(joint_velocity=tensor((7,), "float32")),
    "reward": tensor((), "float32"),
    "is_last": tensor((), "bool"),
    "language_embedding": tensor((8,), "float32"),
    "language_instruction": {"text": {}},
    "ragged": {"sequence": {"feature": tensor((), "float32")}},
}


def write_rlds(
    path: Path,
    values: list[dict[str, np.ndarray]],
    *,
    shards: int = 2,
    compressed: bool = False,
    steps: dict[str, Any] | None = None,
    words: list[list[str]] | None = None,
) -> Path:
    path.mkdir(parents=True)
    features = group(
        steps={"sequence": {"feature": group(**(steps or STEPS))}},
        episode_metadata=group(file_path={"text": {}}, episode_id=tensor((), "int32")),
    )
    (path / "features.json").write_text(json.dumps(features))
    parts = np.array_split(np.arange(len(values)), shards)
    info = {
        "name": "drawers",
        "splits": [{"name": "train", "shardLengths": [str(len(part)) for part in parts]}],
    }
    (path / "dataset_info.json").write_text(json.dumps(info))
    for number, part in enumerate(parts):
        records = b"".join(record(example(values[i], i, words[i] if words else None)) for i in part)
        name = f"drawers-train.tfrecord-{number:05d}-of-{shards:05d}"
        (path / name).write_bytes(gzip.compress(records, mtime=0) if compressed else records)
    return path


def record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return b"".join(
        (
            length,
            struct.pack("<I", _masked(crc32c(length))),
            payload,
            struct.pack("<I", _masked(crc32c(payload))),
        )
    )


def example(values: dict[str, np.ndarray], number: int, words: list[str] | None) -> bytes:
    message = _example_class()()
    feature = message.features.feature
    for name in ("state", "image", "depth"):
        if name in values:
            add(feature[f"steps/observation/{name}"], name, values[name])
    for name in ("action", "reward", "is_last", "language_embedding"):
        add(feature[f"steps/{name}"], name, values[name])
    for name in ("world_vector", "gripper"):
        if name in values:
            add(feature[f"steps/action/{name}"], name, values[name])
    if "action_part" in values:
        add(feature["steps/action/action"], "", values["action_part"])
    add(feature["steps/action_dict/joint_velocity"], "", values["joint_velocity"])
    spoken = words or [INSTRUCTIONS[number]] * len(values["action"])
    feature["steps/language_instruction"].bytes_list.value.extend(w.encode() for w in spoken)
    feature["episode_metadata/file_path"].bytes_list.value.append(
        f"/data/{'success' if number != 1 else 'failure'}/{number}".encode()
    )
    feature["episode_metadata/episode_id"].int64_list.value.append(10 + number)
    return message.SerializeToString(deterministic=True)


def add(feature: Any, name: str, values: np.ndarray) -> None:
    if name in ("image", "depth"):
        feature.bytes_list.value.extend(png(np.squeeze(picture)) for picture in values)
    elif values.dtype.kind == "f":
        feature.float_list.value.extend(values.reshape(-1).tolist())
    else:
        feature.int64_list.value.extend(values.reshape(-1).astype(int).tolist())


def png(picture: np.ndarray) -> bytes:
    file = BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()
