"""Runs an exported policy with ONNX Runtime on one thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robots.contract import CONTRACT_KEY, PREFIX_INPUT, Contract
from robots.control.training_pictures import PICTURES_KEY, from_json
from robots.control.training_range import RangeCheck
from robots.errors import HandoffError, SafetyError
from robots.interfaces import PolicyInput
from robots.language.tokenizer import (
    TOKEN_INPUTS,
    TOKENIZER_FILE,
    TOKENIZER_KEY,
    SentenceTokenizer,
    TokenizerSpec,
)
from robots.spec import FieldSpec
from robots.storage.onnx_file import DIGEST_KEY, onnx_digest


class OnnxPolicy:
    """A `robots.interfaces.MultimodalPolicy` in an ONNX file with its `Contract`.

    It has one intra-op thread: the networks are small, and the other cores are for the robot's
    1 kHz loop. Observations far outside the range of the training data are refused, by the rule of
    `robots.control.training_range`.

    Args:
        path: path of the ONNX file.
        allow_changed: whether a file that was changed after its export, such as a quantised one, is
            accepted; `changed` then says so, and `name` differs from the exported policy's.

    Raises:
        HandoffError: no such file, not ONNX, no contract in it, a changed file, inputs or output
            that differ from the contract, or a tokenizer that is missing or another policy's.
    """

    def __init__(self, path: Path, *, allow_changed: bool = False) -> None:
        self.path = path
        data = _read(path)
        self._session = _open(path, data)
        self.digest = onnx_digest(data)
        """Digest (hex sha256) of graph, weights and metadata, see `onnx_digest`."""
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.contract = _read_contract(metadata, path)
        self.changed = metadata.get(DIGEST_KEY) != self.digest
        """Whether the file differs from the exported one."""
        if self.changed and not allow_changed:
            raise HandoffError(
                f"policy: {path} was changed after its export: it states the digest "
                f"{metadata.get(DIGEST_KEY, 'none')[:12]}, its content has {self.digest[:12]}. Was it quantised or "
                "optimised by another tool? Export it with the option you need, such as precision: float16; only "
                "`handoff evaluate` runs changed files, and reports them as such."
            )
        _check_graph(self._session, self.contract, path)
        self.training_pictures = from_json(metadata.get(PICTURES_KEY, "{}"))
        """Statistics of the training pictures by sensor; empty without cameras, or if the policy
        was exported by an older version."""
        self.tokenizer = _read_tokenizer(metadata, path) if self.contract.instruction else None
        size = int(np.prod(self.contract.action.shape))
        self._observation_shape = (self.contract.n_obs_steps, self.contract.observation_size)
        self._action_shape = (self.contract.horizon, size)
        self._prefix_shape = (self.contract.prefix, size + 1)
        self._check_range = RangeCheck(self.contract.observation, self.contract.training_range)
        self._sensors = {
            name: _Sensor(name, spec, self.contract) for name, spec in self.contract.sensors.items()
        }

    @property
    def name(self) -> str:
        """Digest of the exported policy, or `changed-` and the file's digest for a changed file."""
        return f"changed-{self.digest}" if self.changed else self.contract.policy

    def __call__(self, observation: np.ndarray | PolicyInput, noise: np.ndarray) -> np.ndarray:
        """Predicts one chunk per row.

        Args:
            observation: `(B, n_obs_steps, O)` float32 in the contract's units, newest last, with
                sensors if the contract has them, and with instructions for a language-conditioned
                policy; without any, it follows its default instruction.
            noise: `(B, horizon, A)` float32, standard normal.

        Returns:
            `(B, horizon, A)` float32 in the contract's units.

        Raises:
            HandoffError: an input of the wrong shape, a missing input, an input that the policy
                does not take, or instructions that cannot be tokenized, see
                `SentenceTokenizer.tokens`.
            SafetyError: a non-finite input or output, or an observation far outside the training
                data.
        """
        inputs = observation if isinstance(observation, PolicyInput) else PolicyInput(observation)
        self._check_inputs(inputs)
        observation = _checked("observation", inputs.vector, self._observation_shape)
        self._check_range(observation)
        noise = _checked("noise", noise, self._action_shape)
        if len(noise) != len(observation):
            raise HandoffError(
                f"policy: {len(observation)} observations but {len(noise)} noise rows."
            )
        tensors = {"observation": observation, "noise": noise}
        tensors |= {
            name: sensor.checked(inputs.sensors[name], len(noise))
            for name, sensor in self._sensors.items()
        }
        if self.contract.prefix:
            given = np.zeros((len(noise), *self._prefix_shape), np.float32)
            given = given if inputs.prefix is None else inputs.prefix
            tensors[PREFIX_INPUT] = _checked(PREFIX_INPUT, given, self._prefix_shape)
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
        """Refuses inputs that the graph does not have, and missing sensors."""
        missing = sorted(self._sensors.keys() - inputs.sensors.keys())
        if missing:
            raise HandoffError(
                f"policy {self.path.name}: needs {', '.join(missing)}, which the observation lacks; it has "
                f"{sorted(inputs.sensors)}."
            )
        surplus = sorted(inputs.sensors.keys() - self._sensors.keys())
        surplus += ["a goal"] if inputs.goal is not None else []
        surplus += ["a prefix"] if inputs.prefix is not None and not self.contract.prefix else []
        surplus += ["an instruction"] if inputs.instructions and self.tokenizer is None else []
        if surplus:
            raise HandoffError(
                f"policy {self.path.name}: received {', '.join(surplus)}, which it does not take."
            )


class _Sensor:
    """Checks one camera or point cloud of a contract."""

    def __init__(self, name: str, spec: FieldSpec, contract: Contract) -> None:
        self._name = name
        self._shape = (contract.n_obs_steps, *spec.shape)
        self._image = spec.unit == "u8"
        self._dtype = np.dtype(np.uint8 if self._image else np.float32)
        # Every point of a cloud has the range of the whole cloud.
        point = replace(spec, shape=spec.shape[-1:], names=spec.names[-1:])
        self._check_range = RangeCheck({name: point}, contract.training_range)

    def checked(self, array: np.ndarray, rows: int) -> np.ndarray:
        """(rows, n_obs_steps, ...) contiguous, in the number type of the graph's input."""
        name = self._name
        if array.shape != (rows, *self._shape):
            raise HandoffError(
                f"policy: {name} has shape {array.shape}, expected {(rows, *self._shape)}. Was it resized, or are "
                "its axes in another order?"
            )
        if self._image and array.dtype != np.uint8:
            raise HandoffError(
                f"policy: {name} is {array.dtype}, expected uint8 from 0 to 255. Were the pictures scaled?"
            )
        if not self._image and not np.isfinite(array).all():
            raise SafetyError(f"policy: {name} is not finite everywhere. Was a sensor lost?")
        if not self._image:
            self._check_range(array)
        return np.ascontiguousarray(array, self._dtype)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise HandoffError(f"policy: {path} does not exist. Has the policy been exported?")
    return path.read_bytes()


def _open(path: Path, data: bytes) -> Any:
    import onnxruntime
    from onnxruntime.capi import (
        onnxruntime_pybind11_state as failures,  # pyright: ignore[reportAttributeAccessIssue]
    )

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        # The bytes that the digest is of, not the file again, which may be replaced meanwhile.
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except (
        failures.InvalidProtobuf,
        failures.InvalidGraph,
        failures.InvalidArgument,
        failures.Fail,
        failures.NotImplemented,
    ) as error:
        reason = str(error).splitlines()[0]
        raise HandoffError(
            f"policy: {path} cannot be loaded ({reason}). Is the file truncated?"
        ) from None


def _read_contract(metadata: Mapping[str, str], path: Path) -> Contract:
    if CONTRACT_KEY not in metadata:
        raise HandoffError(
            f"policy: {path} contains no contract (metadata '{CONTRACT_KEY}'; it has {sorted(metadata)}). "
            "Was it exported by another tool?"
        )
    return Contract.from_json(metadata[CONTRACT_KEY])


def _read_tokenizer(metadata: Mapping[str, str], path: Path) -> SentenceTokenizer:
    if TOKENIZER_KEY not in metadata:
        raise HandoffError(
            f"policy: {path} is language-conditioned but names no tokenizer (metadata '{TOKENIZER_KEY}'). Export the "
            "policy again."
        )
    return SentenceTokenizer(
        path.with_name(TOKENIZER_FILE), TokenizerSpec.from_json(metadata[TOKENIZER_KEY])
    )


def _check_graph(session: Any, contract: Contract, path: Path) -> None:
    size = int(np.prod(contract.action.shape))
    chunk = (contract.horizon, size)
    expected: dict[str, tuple[int, ...]] = {
        "observation": (contract.n_obs_steps, contract.observation_size),
        "noise": chunk,
        "action": chunk,
        **({PREFIX_INPUT: (contract.prefix, size + 1)} if contract.prefix else {}),
        **{name: (contract.n_obs_steps, *spec.shape) for name, spec in contract.sensors.items()},
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
        if len(inner) != len(shape) or (len(fixed) == len(shape) and inner != shape):
            raise HandoffError(
                f"policy: {path}: '{name}' is (batch, {', '.join(map(str, inner))}), its contract says "
                f"(batch, {', '.join(map(str, shape))}). Export the policy again."
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
