"""Runs the frozen trunk of the learner's image encoder with ONNX Runtime, once per picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation


class OnnxTrunk:
    """Maps observations (N, ...) to the feature maps (N, C, h, w) float16 of their pictures, on one
    thread.

    Args:
        path: file that `policies.export.trunk` wrote.
        pictures: fields of the observation, (height, width, 3) uint8 RGB each.
        blind: whether the trunk gets black pictures, as a control.

    Raises:
        HandoffError: there is no such file.
    """

    def __init__(self, path: Path, pictures: Sequence[str], *, blind: bool = False) -> None:
        import onnxruntime

        if not path.is_file():
            raise HandoffError(f"trunk: {path} does not exist. Was it removed?")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._pictures = tuple(pictures)
        self._blind = blind
        _, height, width, _ = self._session.get_inputs()[0].shape
        empty = np.zeros((1, height, width, 3), np.uint8)
        shape = self._map(empty).shape[1:]
        self.maps: tuple[tuple[str, int, int, int], ...] = tuple(
            (name, *shape) for name in self._pictures
        )
        """(field, channels, rows, columns) of every map."""

    def __call__(self, observation: Observation) -> dict[str, np.ndarray]:
        """The maps of every field; see the class."""
        return {name: self._map(observation[name]) for name in self._pictures}

    def _map(self, picture: np.ndarray) -> np.ndarray:
        pixels = np.zeros_like(picture) if self._blind else np.ascontiguousarray(picture)
        return np.asarray(self._session.run(["map"], {"picture": pixels})[0])
