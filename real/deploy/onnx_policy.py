"""Runs an exported policy with ONNX Runtime on one thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from robots.contract import CONTRACT_KEY, Contract
from robots.errors import HandoffError, SafetyError
from robots.interfaces import PolicyInput
from robots.language.tokenizer import (
    TOKEN_INPUTS,
    TOKENIZER_FILE,
    TOKENIZER_KEY,
    SentenceTokenizer,
    TokenizerSpec,
)


class OnnxPolicy:
    """A `robots.interfaces.Policy` in an ONNX file with its `Contract`; a language-conditioned
    policy takes instructions as well.

    It has one intra-op thread: the networks are small, and the other cores are for the robot's
    1 kHz loop.

    Args:
        path: path of the ONNX file.

    Raises:
        HandoffError: no such file, not ONNX, no contract in it, inputs or output that differ from
            the contract, or a tokenizer that is missing or another policy's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._session = _open(path)
        self.contract = _read_contract(self._session, path)
        _check_graph(self._session, self.contract, path)
        self.tokenizer = _read_tokenizer(self._session, path) if self.contract.instruction else None
        size = int(np.prod(self.contract.action.shape))
        self._observation_shape = (self.contract.n_obs_steps, self.contract.observation_size)
        self._action_shape = (self.contract.horizon, size)

    def __call__(self, observation: np.ndarray | PolicyInput, noise: np.ndarray) -> np.ndarray:
        """Predicts one chunk per row.

        Args:
            observation: `(B, n_obs_steps, O)` float32 in the contract's units, newest last, with
                instructions for a language-conditioned policy; without any, it follows its default
                instruction.
            noise: `(B, horizon, A)` float32, standard normal.

        Returns:
            `(B, horizon, A)` float32 in the contract's units.

        Raises:
            HandoffError: an input of the wrong shape, an input that the policy does not take, or
                instructions that cannot be tokenized, see `SentenceTokenizer.tokens`.
            SafetyError: a non-finite input or output.
        """
        inputs = observation if isinstance(observation, PolicyInput) else PolicyInput(observation)
        self._check_inputs(inputs)
        observation = _checked("observation", inputs.vector, self._observation_shape)
        noise = _checked("noise", noise, self._action_shape)
        if len(noise) != len(observation):
            raise HandoffError(
                f"policy: {len(observation)} observations but {len(noise)} noise rows."
            )
        tensors = {"observation": observation, "noise": noise}
        if self.tokenizer is not None:
            tokens = self.tokenizer.tokens(inputs.instructions, len(noise))
            tensors |= dict(zip(TOKEN_INPUTS, tokens, strict=True))
        (action,) = self._session.run(["action"], tensors)
        if action.shape != noise.shape:
            raise HandoffError(
                f"policy {self.path.name}: action has shape {action.shape}, expected {noise.shape}."
            )
        if not np.isfinite(action).all():
            row, step, entry = (int(i) for i in np.argwhere(~np.isfinite(action))[0])
            raise SafetyError(
                f"policy {self.path.name}: action[{row}, {step}, {entry}] is {action[row, step, entry]}, "
                "expected finite. Is the observation far outside the training data?"
            )
        return action

    def _check_inputs(self, inputs: PolicyInput) -> None:
        """Refuses inputs that the graph does not have."""
        surplus = [*inputs.sensors, *(["a goal"] if inputs.goal is not None else [])]
        surplus += ["an instruction"] if inputs.instructions and self.tokenizer is None else []
        if surplus:
            raise HandoffError(
                f"policy {self.path.name}: received {', '.join(surplus)}, which it does not take."
            )


def _open(path: Path) -> Any:
    import onnxruntime
    from onnxruntime.capi import (
        onnxruntime_pybind11_state as failures,  # pyright: ignore[reportAttributeAccessIssue]
    )

    if not path.is_file():
        raise HandoffError(f"policy: {path} does not exist. Has the policy been exported?")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except (
        failures.InvalidProtobuf,
        failures.InvalidGraph,
        failures.Fail,
        failures.NotImplemented,
    ) as error:
        reason = str(error).splitlines()[0]
        raise HandoffError(
            f"policy: {path} cannot be loaded ({reason}). Is the file truncated?"
        ) from None


def _read_contract(session: Any, path: Path) -> Contract:
    metadata = session.get_modelmeta().custom_metadata_map
    if CONTRACT_KEY not in metadata:
        raise HandoffError(
            f"policy: {path} contains no contract (metadata '{CONTRACT_KEY}'; it has {sorted(metadata)}). "
            "Was it exported by another tool?"
        )
    return Contract.from_json(metadata[CONTRACT_KEY])


def _read_tokenizer(session: Any, path: Path) -> SentenceTokenizer:
    metadata = session.get_modelmeta().custom_metadata_map
    if TOKENIZER_KEY not in metadata:
        raise HandoffError(
            f"policy: {path} is language-conditioned but names no tokenizer (metadata '{TOKENIZER_KEY}'). Export the "
            "policy again."
        )
    return SentenceTokenizer(
        path.with_name(TOKENIZER_FILE), TokenizerSpec.from_json(metadata[TOKENIZER_KEY])
    )


def _check_graph(session: Any, contract: Contract, path: Path) -> None:
    if contract.sensors:
        raise HandoffError(
            f"policy: {path} needs {', '.join(contract.sensors)}; the controller provides no sensors, only vectors. "
            "Run it with ONNX Runtime itself, or serve the policy it was exported from."
        )
    size = int(np.prod(contract.action.shape))
    chunk = (contract.horizon, size)
    expected = {
        "observation": (contract.n_obs_steps, contract.observation_size),
        "noise": chunk,
        "action": chunk,
    }
    shapes = {node.name: node.shape for node in (*session.get_inputs(), *session.get_outputs())}
    names = {*expected, *(TOKEN_INPUTS if contract.instruction else ())}
    if shapes.keys() != names:
        raise HandoffError(
            f"policy: {path} has tensors {sorted(shapes)}, expected {sorted(names)}."
        )
    for name, shape in expected.items():
        inner = tuple(shapes[name][1:])
        fixed = [size for size in inner if isinstance(size, int)]
        if len(inner) != 2 or (len(fixed) == 2 and inner != shape):
            raise HandoffError(
                f"policy: {path}: '{name}' is (batch, {', '.join(map(str, inner))}), its contract says "
                f"(batch, {shape[0]}, {shape[1]}). Export the policy again."
            )


def _checked(name: str, array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    array = np.ascontiguousarray(array, dtype=np.float32)
    if array.ndim != 3 or array.shape[1:] != shape:
        raise HandoffError(
            f"policy: {name} has shape {array.shape}, expected (batch, {shape[0]}, {shape[1]})."
        )
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise SafetyError(
            f"policy: {name} at index {where} is {array[where]}, expected finite. Was a sensor lost?"
        )
    return array
