"""Walks the `features.json` of TensorFlow Datasets: names, shapes, types and encodings of the
features of a record, which the record itself does not state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from robots.episodes.formats.containers.folder import check_name
from robots.episodes.formats.source import check_size
from robots.errors import HandoffError

_DEEPEST = 8
"""Largest depth of nested features; the published data sets have 4."""
_NUMBERS = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
)


@dataclass(frozen=True)
class TfdsFeature:
    """One feature of a step or of an episode."""

    path: str
    """Name in the record, such as `steps/observation/state`."""
    kind: Literal["number", "encoded", "image", "text"]
    """Storage in the record: a list of numbers, bytes of an array, an encoded picture, or text."""
    shape: tuple[int, ...] = ()
    """Shape per step; -1 for a length that is not stated."""
    dtype: str = ""
    """NumPy name of the number type."""
    encoding: str = "none"
    """Compression of the bytes of an array: `bytes` or `zlib`."""

    @property
    def is_picture(self) -> bool:
        """Whether it is a picture in colour (height, width, 3 or 4)."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[2] in (3, 4)


@dataclass
class FeatureTree:
    """Features of the steps and of the episodes of a data set."""

    steps: dict[str, TfdsFeature]
    """Features of a step by their path below `steps`."""
    episode: dict[str, TfdsFeature]
    """Features of an episode by their path."""
    left_out: list[str]
    """Paths of the features that cannot be read, each with the reason."""


def read_features(path: Path, content: Mapping[str, Any]) -> FeatureTree:
    """The features in a `features.json`.

    Args:
        path: the file, for messages.
        content: its content.

    Raises:
        HandoffError: it describes no episodes of steps.
    """
    tree = FeatureTree({}, {}, [])
    try:
        top = content["featuresDict"]["features"]
        steps = top["steps"]["sequence"]["feature"]["featuresDict"]["features"]
        for name, node in steps.items():
            _walk(path, f"steps/{name}", node, tree.steps, tree.left_out)
        for name, node in top.items():
            if name != "steps":
                _walk(path, name, node, tree.episode, tree.left_out)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise HandoffError(
            f"{path}: describes no episodes with steps ({type(error).__name__}: {error}), expected those of RLDS. Is "
            "it a data set of another kind, or damaged?"
        ) from None
    tree.steps = {name.removeprefix("steps/"): feature for name, feature in tree.steps.items()}
    if not tree.steps:
        raise HandoffError(f"{path}: describes no feature of a step. Was it damaged?")
    return tree


def _walk(
    path: Path,
    name: str,
    node: Mapping[str, Any],
    found: dict[str, TfdsFeature],
    left_out: list[str],
    depth: int = 0,
) -> None:
    """Adds the features below one node."""
    check_name(path, name)
    if depth > _DEEPEST:
        raise HandoffError(
            f"{path}: {name[:60]} is nested more than {_DEEPEST} deep. Was it damaged?"
        )
    if "featuresDict" in node:
        for inner, child in node["featuresDict"]["features"].items():
            _walk(path, f"{name}/{inner}", child, found, left_out, depth + 1)
    elif "sequence" in node:
        left_out.append(f"{name} (a sequence of its own)")
    elif "text" in node:
        found[name] = TfdsFeature(name, "text")
    elif "image" in node:
        shape = _shape(path, name, node["image"])
        feature = TfdsFeature(name, "image", shape, node["image"].get("dtype") or "uint8")
        _add(feature, found, left_out, unknown_lengths=True)
    elif "tensor" in node or "classLabel" in node:
        about = node.get("tensor") or {"dtype": "int64"}
        encoding = about.get("encoding") or "none"
        if about.get("dtype") == "string":
            found[name] = TfdsFeature(name, "text", _shape(path, name, about))
            return
        kind: Literal["number", "encoded"] = "number" if encoding == "none" else "encoded"
        feature = TfdsFeature(
            name, kind, _shape(path, name, about), about.get("dtype", ""), encoding
        )
        _add(feature, found, left_out, unknown_lengths=False)
    else:
        left_out.append(f"{name} ({str(node.get('pythonClassName', '?')).rpartition('.')[2]})")


def _add(
    feature: TfdsFeature,
    found: dict[str, TfdsFeature],
    left_out: list[str],
    *,
    unknown_lengths: bool,
) -> None:
    if feature.dtype not in _NUMBERS:
        left_out.append(f"{feature.path} ({feature.dtype or 'no type'})")
    elif feature.encoding not in ("none", "bytes", "zlib"):
        left_out.append(f"{feature.path} (encoded by {feature.encoding})")
    elif any(size < 1 for size in feature.shape) and not unknown_lengths:
        left_out.append(f"{feature.path} (of the shape {feature.shape})")
    else:
        found[feature.path] = feature


def _shape(path: Path, name: str, about: Mapping[str, Any]) -> tuple[int, ...]:
    dimensions = (about.get("shape") or {}).get("dimensions") or []
    shape = tuple(int(size) for size in dimensions)
    if len(shape) > 8 or any(size < -1 for size in shape):
        raise HandoffError(
            f"{path}: {name} has the shape {shape!r:.80}, expected lengths. Was it damaged?"
        )
    check_size(path, name, tuple(abs(size) for size in shape), 1)
    return shape


def numbers(path: Path, feature: TfdsFeature, message: Any) -> np.ndarray:
    """The values of a feature that is a list of numbers, `(T, *shape)`.

    Args:
        path: the file, for messages.
        feature: the feature, of the kind `number`.
        message: `tf.train.TfdsFeature`.

    Raises:
        HandoffError: they are no multiple of the shape, or do not fit the number type.
    """
    kind = message.WhichOneof("kind")
    if kind == "float_list":
        values = np.array(message.float_list.value, np.float32)
    elif kind == "int64_list":
        values = np.array(message.int64_list.value, np.int64)
    else:
        raise HandoffError(
            f"{path}: {feature.path} holds {kind or 'nothing'}, expected numbers by features.json. Was it damaged?"
        )
    size = prod(feature.shape)
    if len(values) % size:
        raise HandoffError(
            f"{path}: {feature.path} has {len(values)} numbers, expected a multiple of {size}, the size of one step. "
            "Do features.json and the records belong together?"
        )
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(feature.dtype)
    if cast.dtype.kind in "biu" and not np.array_equal(cast, values):
        raise HandoffError(
            f"{path}: {feature.path} has values from {values.min()} to {values.max()}, which do not fit "
            f"{feature.dtype} of features.json. Do they belong together?"
        )
    return cast.reshape(-1, *feature.shape)


def byte_strings(path: Path, feature: TfdsFeature, message: Any) -> list[bytes]:
    """The values of a feature that is a list of byte strings.

    Raises:
        HandoffError: it is none.
    """
    if message.WhichOneof("kind") != "bytes_list":
        raise HandoffError(
            f"{path}: {feature.path} holds {message.WhichOneof('kind') or 'nothing'}, expected bytes by "
            "features.json. Was it damaged?"
        )
    return list(message.bytes_list.value)
