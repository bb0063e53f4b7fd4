"""Runs an exported success classifier with ONNX Runtime on one thread."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.success import SUCCESS_KEY, SuccessContract


class OnnxSuccess:
    """Maps observations (N, ...) to probabilities of success (N,); fields that the classifier was
    not trained on are ignored.

    Args:
        path: path of an ONNX file with its `SuccessContract`.

    Raises:
        HandoffError: no such file, not ONNX, or no contract in it.
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime
        from onnxruntime.capi import (
            onnxruntime_pybind11_state as failures,  # pyright: ignore[reportAttributeAccessIssue]
        )

        if not path.is_file():
            raise HandoffError(f"success classifier: {path} does not exist. Was it exported?")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except (
            failures.InvalidProtobuf,
            failures.Fail,
            failures.InvalidGraph,
            failures.InvalidArgument,
        ) as error:
            raise HandoffError(
                f"{path}: not an ONNX file ({str(error)[:200]}). Was it cut short by a copy?"
            ) from None
        metadata = self._session.get_modelmeta().custom_metadata_map
        if SUCCESS_KEY not in metadata:
            raise HandoffError(f"{path}: contains no success contract. Is it a policy?")
        self.contract = SuccessContract.from_json(metadata[SUCCESS_KEY])

    def __call__(self, observation: Observation) -> np.ndarray:
        """(N,) probabilities of success for observations (N, ...).

        Raises:
            HandoffError: a field is missing.
        """
        specs = self.contract.observation
        missing = [name for name in specs if name not in observation]
        if missing:
            raise HandoffError(
                f"success classifier: fields {missing} are not observed, only {sorted(observation)}."
            )
        tensors = {
            name: np.ascontiguousarray(
                observation[name], np.uint8 if spec.unit == "u8" else np.float32
            )
            for name, spec in specs.items()
        }
        return np.asarray(self._session.run(["probability"], tensors)[0])
