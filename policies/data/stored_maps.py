"""Computes the feature maps of recorded pictures by a frozen trunk once, and keeps them in place of
the pictures.

An update of the read-out then needs neither the trunk nor the pictures. Maps are kept as float16,
whose error is a thousandth of the maps' own scale.

Shape suffixes: M recorded steps, B batch, T observed steps, C channels, H rows, W columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from policies.data.frames import Frames, FrameSource, FrameStorage
from policies.networks.images.onnx_function import onnx_function
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import ChunkPolicy
from robots.interfaces import Progress, no_progress

_PASS = 64
"""Steps of one pass."""
_DIGESTED = 1000
"""Pictures of a camera by which its content is told."""


def with_stored_maps(
    policy: ChunkPolicy,
    sensors: Mapping[str, FrameSource],
    storage: FrameStorage,
    progress: Progress = no_progress,
) -> Mapping[str, FrameSource]:
    """The sensors with feature maps (M, C, H, W) float16 in place of the pictures of encoders with
    a frozen trunk; other sensors, and all of other policies, as they are.

    Args:
        policy: policy with its pretrained trunk.
        sensors: frames of every recorded step, by camera and point cloud.
        storage: where the maps are kept; complete maps of an earlier attempt are found there.
        progress: called after every pass.
    """
    trunks = FrozenTrunks(policy)
    kept = dict(sensors)
    for name, encoder in trunks.encoders.items():
        frames, trunk = sensors[name], encoder.trunk
        assert trunk is not None
        shape = trunk.map_shape(encoder.sizes[name].crop)
        content = f"{trunk.identity()} {encoder.sizes[name]} {_digest(frames)}"
        writer = storage.reserve(content, len(frames), (shape, np.dtype(np.float16)))
        for rows_B in () if writer.complete else torch.arange(len(frames)).split(_PASS):
            map_BTCHW = trunks(name, frames.steps(rows_B[:, None]))
            writer.append(map_BTCHW[:, 0].half().cpu().numpy())
            progress(int(rows_B[-1]) + 1, len(frames), f"feature maps of {name}")
        kept[name] = Frames([writer.finish()])
    return kept


class FrozenTrunks:
    """The frozen trunks of a policy's cameras: in ONNX Runtime on the CPU, where that is several
    times as fast, otherwise on the policy's device.

    Args:
        policy: policy with its pretrained trunk, in its final place.
    """

    def __init__(self, policy: ChunkPolicy) -> None:
        self.encoders = {
            name: encoder
            for encoder in policy.modules()
            if isinstance(encoder, ObservationEncoder) and encoder.trunk is not None
            for name in encoder.images
        }
        """Encoder with a frozen trunk by camera."""
        self._device = policy.device
        self._functions: dict[tuple[int, int], Callable[[Tensor], Tensor]] = {}

    @torch.no_grad()
    def __call__(self, name: str, frame_BTX: Tensor) -> Tensor:
        """Feature maps (B, T, C, H, W) float32 of a camera's pictures; the frames of other sensors
        as they are.

        Args:
            name: the camera.
            frame_BTX: pictures (B, T, height, width, 3) uint8.
        """
        encoder = self.encoders.get(name)
        if encoder is None:
            return frame_BTX
        if self._device.type != "cpu":
            return encoder.maps(name, frame_BTX.to(self._device))
        trunk, size = encoder.trunk, encoder.sizes[name].crop
        assert trunk is not None
        if size not in self._functions:
            self._functions[size] = onnx_function(trunk, torch.zeros(2, 3, *size))
        return self._functions[size](encoder.trunk_input(name, frame_BTX)).unflatten(
            0, frame_BTX.shape[:2]
        )


def _digest(frames: FrameSource) -> str:
    """Digest of up to a thousand evenly spread pictures, and of their number."""
    digest = hashlib.sha256(f"{len(frames)} {frames.step_shape}".encode())
    rows = torch.linspace(0, len(frames) - 1, min(len(frames), _DIGESTED)).long()
    for part in rows.split(_PASS):
        digest.update(frames.steps(part).numpy().data)
    return digest.hexdigest()
