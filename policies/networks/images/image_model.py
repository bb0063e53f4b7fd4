"""Reads the description of a pretrained image model in a local folder: its configuration, and how
pictures are scaled for it. Imports no torch.

A folder of transformers has `config.json` with a `model_type` and `preprocessor_config.json`; one
of timm has `config.json` with an `architecture` and the scaling in its `pretrained_cfg`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any, Literal

from robots.errors import HandoffError

FOLDER = "image_encoder"
"""Folder, next to a policy's weights, with the files that describe its image model."""
WEIGHTS = "model.safetensors"
_CONFIG = "config.json"
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_LARGEST = 8192
"""Largest edge of a model's input [px]."""


@dataclass(frozen=True)
class ImageModel:
    """Files of a pretrained image model other than its weights, and the input that it takes."""

    folder: Path
    """Where the files were read."""
    files: Mapping[str, bytes]
    """Contents of the files by name."""
    library: Literal["transformers", "timm"]
    """Library that builds the model."""
    config: Mapping[str, Any]
    """Content of `config.json`."""
    size: tuple[int, int]
    """Height and width of its input [px]."""
    mean: tuple[float, ...]
    """Per-channel mean of images in [0, 1]."""
    std: tuple[float, ...]
    """Per-channel standard deviation of images in [0, 1]."""


def read_image_model(folder: Path) -> ImageModel:
    """The description of the model in a folder.

    Raises:
        HandoffError: no such folder, a file that is missing or damaged, or a scaling of pictures
            that is not supported.
    """
    if not folder.is_dir():
        raise HandoffError(
            f"image_encoder: '{folder}' is not a folder. Models are not downloaded from a hub: set the folder that "
            "contains config.json."
        )
    files = {_CONFIG: _read(folder / _CONFIG)}
    config = _parsed(folder / _CONFIG, files[_CONFIG])
    if "model_type" not in config and "architecture" in config:
        scaling = config.get("pretrained_cfg")
        if not isinstance(scaling, dict):
            raise HandoffError(
                f"{folder / _CONFIG}: no pretrained_cfg, so it does not say how pictures are scaled."
            )
        size: Any = scaling.get("input_size", ())[1:]
        mean: Any = scaling.get("mean")
        std: Any = scaling.get("std")
        _check_input(folder, size, mean, std)
        return ImageModel(folder, files, "timm", config, tuple(size), tuple(mean), tuple(std))
    name = next((name for name in _PROCESSORS if (folder / name).is_file()), _PROCESSORS[0])
    files[name] = _read(folder / name)
    values = _parsed(folder / name, files[name])
    processor = values.get("image_processor", values)
    _check_range(folder / name, processor)
    normal = processor.get("do_normalize", True)
    mean = processor.get("image_mean") if normal else (0.0, 0.0, 0.0)
    std = processor.get("image_std") if normal else (1.0, 1.0, 1.0)
    size = _size(processor)
    _check_input(folder, size, mean, std)
    return ImageModel(folder, files, "transformers", config, size, tuple(mean), tuple(std))


def _size(processor: Mapping[str, Any]) -> Any:
    """Height and width that a processor of transformers gives to pictures."""
    size = processor.get("crop_size" if processor.get("do_center_crop") else "size")
    if isinstance(size, dict):
        edge = size.get("shortest_edge")
        return size.get("height", edge), size.get("width", edge)
    return size, size


def _check_range(file: Path, processor: Mapping[str, Any]) -> None:
    """Refuses models whose input is not scaled from [0, 1]."""
    factor = processor.get("rescale_factor", 1.0 / 255.0)
    if not processor.get("do_rescale", True) or not isclose(factor, 1.0 / 255.0, rel_tol=1e-4):
        raise HandoffError(
            f"{file}: pictures are rescaled by {factor if processor.get('do_rescale', True) else 1}, expected 1/255. "
            "Models over another range are not supported."
        )


def _check_input(folder: Path, size: Any, mean: Any, std: Any) -> None:
    """Refuses a size, mean or deviation that is missing or out of range."""
    sized = len(size) == 2 and all(isinstance(edge, int) and 1 <= edge <= _LARGEST for edge in size)
    scaled = all(
        isinstance(values, list | tuple)
        and len(values) == 3
        and all(isinstance(value, int | float) for value in values)
        for values in (mean, std)
    )
    if not sized or not scaled or min(std) <= 0.0:
        raise HandoffError(
            f"{folder}: the input has the size {size}, mean {mean} and deviation {std}; expected height and width "
            f"[px], and three numbers each, the deviations above 0. Does the folder have its {_PROCESSORS[0]}, or "
            "timm's pretrained_cfg?"
        )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise HandoffError(
            f"{file.parent}: no {file.name}, so the image encoder is incomplete. Was it copied incompletely?"
        ) from None


def _parsed(file: Path, data: bytes) -> dict[str, Any]:
    try:
        values = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HandoffError(
            f"{file}: not JSON ({error}). Was the file cut short by a copy?"
        ) from None
    if not isinstance(values, dict):
        raise HandoffError(f"{file}: a JSON {type(values).__name__}, expected an object.")
    return values
