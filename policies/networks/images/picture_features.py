"""Features of pictures by a frozen EfficientNet-Lite0, as further entries of the observation
vector: learners over vectors then see through cameras.

The feature maps of a picture are averaged in a grid of cells, so that a feature keeps its place.
Nothing is trained: every picture is encoded once, when it is observed or read.

Shape suffixes: N rows, B batch, T observed steps, C channels, P places of a map, G cells, F
features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from policies.data.frames import FrameSource
from policies.networks.config import PictureFeaturesConfig
from policies.networks.images.efficientnet_lite import (
    EfficientNetLite0,
    pretrained_trunk,
    pretrained_weights,
)
from policies.networks.images.image_encoder import cropped_images
from policies.networks.images.image_size import encoded_size
from policies.networks.images.onnx_function import onnx_function
from robots.errors import HandoffError
from robots.spec import FieldSpec

_PASS = 64
"""Pictures of one pass."""
_DEVICE_PASS = 256
"""Pictures of one pass on a device, where a pass costs launches of kernels."""


class PictureFeatures(nn.Module):
    """Features of the pictures of several cameras, with random weights until they are loaded.

    Args:
        config: options of the trunk and the cells.
        cameras: shape (height, width, 3) of a picture, by camera, in the order of the features.

    Raises:
        HandoffError: more cells than a map has places, or a crop larger than the pictures.
    """

    def __init__(
        self, config: PictureFeaturesConfig, cameras: Mapping[str, tuple[int, ...]]
    ) -> None:
        super().__init__()
        self.trunk = EfficientNetLite0(config.stride).requires_grad_(False)
        self.sizes = {name: encoded_size(config, shape, name) for name, shape in cameras.items()}
        """Part of the pictures that the trunk sees, by camera."""
        cells = config.cells[0] * config.cells[1]
        self.size = len(cameras) * cells * self.trunk.channels
        """F, features of all cameras."""
        for number, (name, size) in enumerate(self.sizes.items()):
            places = self.trunk.map_shape(size.crop)[1:]
            if places[0] < config.cells[0] or places[1] < config.cells[1]:
                raise HandoffError(
                    f"image_features: {config.cells[0]} x {config.cells[1]} cells of the pictures of '{name}', whose "
                    f"feature maps have {places[0]} x {places[1]} places. Set fewer cells, or a smaller stride."
                )
            self.register_buffer(f"cells_{number}", _cells(places, config.cells), persistent=False)

    def load_pretrained(self) -> None:
        """Sets the weights of ImageNet."""
        self.trunk.load(pretrained_weights())

    def forward(self, pictures: Mapping[str, Tensor]) -> Tensor:
        """Features (B, T, F) of pictures (B, T, height, width, 3) uint8 by camera."""
        return self.of_maps(pictures, lambda _, image_NCHW: self.trunk(image_NCHW))

    def of_maps(
        self, pictures: Mapping[str, Tensor], trunk: Callable[[str, Tensor], Tensor]
    ) -> Tensor:
        """See `forward`, with another implementation of the trunk.

        Args:
            pictures: see `forward`.
            trunk: from a camera and its images (N, 3, H, W) in [0, 1] to feature maps.
        """
        parts = []
        for number, (name, size) in enumerate(self.sizes.items()):
            part_NHWC = cropped_images(pictures[name], size.resized, size.crop)
            map_NCHW = trunk(name, part_NHWC.permute(0, 3, 1, 2).float() / 255.0)
            cell_NCG = map_NCHW.flatten(2) @ self.get_buffer(f"cells_{number}")
            parts.append(cell_NCG.flatten(1).unflatten(0, pictures[name].shape[:2]))
        return torch.cat(parts, dim=-1)


class PictureEncoder:
    """The features with weights of ImageNet, as a function of arrays, by ONNX Runtime.

    Args:
        config: options of the trunk and the cells.
        cameras: names of the cameras.
        spec: fields of the observation.

    Raises:
        HandoffError: a camera that the observation does not have, or see `PictureFeatures`.
    """

    def __init__(
        self, config: PictureFeaturesConfig, cameras: Sequence[str], spec: Mapping[str, FieldSpec]
    ) -> None:
        self.config = config
        self.specs = _camera_specs(cameras, spec)
        """Pictures of every camera."""
        # Without its weights: the functions below have them.
        self._features = PictureFeatures(config, _shapes(self.specs)).eval()
        self._trunks = {
            size: _pretrained_function(config.stride, size)
            for size in {size.crop for size in self._features.sizes.values()}
        }

    @property
    def size(self) -> int:
        """F, features of all cameras."""
        return self._features.size

    @torch.no_grad()
    def __call__(self, pictures: Mapping[str, np.ndarray]) -> np.ndarray:
        """(N, F) float32 features of pictures (N, height, width, 3) uint8 by camera; other fields
        are not read."""
        tensors = {
            name: torch.from_numpy(np.ascontiguousarray(pictures[name]))[:, None]
            for name in self.specs
        }
        rows = torch.arange(len(next(iter(tensors.values())))).split(_PASS)
        parts = [self._pass({name: one[part] for name, one in tensors.items()}) for part in rows]
        return np.concatenate(parts) if parts else np.zeros((0, self.size), np.float32)

    def of_frames(self, frames: Mapping[str, FrameSource]) -> np.ndarray:
        """(M, F) float32 features of every recorded step, read one pass after another."""
        steps = len(next(iter(frames.values())))
        parts = [
            self({name: each.steps(rows).numpy() for name, each in frames.items()})
            for rows in torch.arange(steps).split(_PASS)
        ]
        return np.concatenate(parts)

    def _pass(self, pictures: Mapping[str, Tensor]) -> np.ndarray:
        def trunk(name: str, image_NCHW: Tensor) -> Tensor:
            return self._trunks[self._features.sizes[name].crop](image_NCHW)

        return self._features.of_maps(pictures, trunk)[:, 0].numpy()


class DevicePictureEncoder:
    """The features with weights of ImageNet, as a function of tensors that stay on their device.

    Args:
        config: options of the trunk and the cells.
        cameras: names of the cameras.
        spec: fields of the observation.
        device: device of the pictures.

    Raises:
        HandoffError: a camera that the observation does not have, or see `PictureFeatures`.
    """

    def __init__(
        self,
        config: PictureFeaturesConfig,
        cameras: Sequence[str],
        spec: Mapping[str, FieldSpec],
        device: torch.device,
    ) -> None:
        self.specs = _camera_specs(cameras, spec)
        """Pictures of every camera."""
        self._features = PictureFeatures(config, _shapes(self.specs)).eval()
        self._features.load_pretrained()
        self._features.to(device)

    @property
    def size(self) -> int:
        """F, features of all cameras."""
        return self._features.size

    @torch.no_grad()
    def __call__(self, pictures: Mapping[str, Tensor]) -> Tensor:
        """(N, F) float32 features of pictures (N, height, width, 3) uint8 by camera; other fields
        are not read."""
        passes = [pictures[name][:, None].split(_DEVICE_PASS) for name in self.specs]
        parts = [
            self._features(dict(zip(self.specs, part, strict=True)))[:, 0]
            for part in zip(*passes, strict=True)
        ]
        return torch.cat(parts)


def _camera_specs(cameras: Sequence[str], spec: Mapping[str, FieldSpec]) -> dict[str, FieldSpec]:
    available = [name for name, one in spec.items() if one.unit == "u8"]
    missing = [name for name in cameras if name not in available]
    if missing:
        raise HandoffError(
            f"image_fields: no pictures of the cameras {missing}; available are {available}. Does the protocol, "
            "or the recording, have cameras?"
        )
    return {name: spec[name] for name in cameras}


def _shapes(cameras: Mapping[str, FieldSpec]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in cameras.items()}


@lru_cache(maxsize=8)
def _pretrained_function(stride: int, size: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """The trunk for images of `size` [px], whose translation takes seconds."""
    return onnx_function(pretrained_trunk(stride), torch.zeros(2, 3, *size))


def _cells(places: tuple[int, int], cells: tuple[int, int]) -> Tensor:
    """(P, G) weights of the mean over the places of every cell; cells that do not divide the places
    overlap by one, as in adaptive average pooling."""
    height, width = (_means(*pair) for pair in zip(places, cells, strict=True))
    return torch.kron(height, width).T.contiguous()


def _means(places: int, cells: int) -> Tensor:
    weights = torch.zeros(cells, places)
    for cell in range(cells):
        begin, end = cell * places // cells, -(-(cell + 1) * places // cells)
        weights[cell, begin:end] = 1.0 / (end - begin)
    return weights
