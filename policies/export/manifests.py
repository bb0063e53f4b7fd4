"""Describes an exported policy in the formats of two other runtimes, from its contract.

- `leapp.yaml`, LEAPP 1.3 (NVIDIA; read by `leapp.InferenceManager` and Isaac ROS Deploy).
- `manifest.json`, policy_package 1.0 (Intel's Physical AI Studio; read by
  `physicalai.inference.InferenceModel`, whose `select_action` executes a chunk from its first
  action on). It is written only for policies that this executes correctly: those of one
  observation step, whose first action belongs to the newest observation, without temporal
  ensembling.

Both files follow the loaders of leapp 0.7.2 and physicalai 0.3.0. Neither format can state a rule
for noise, tokens or refused observations; both files refer to the contract for them.
"""

from __future__ import annotations

import hashlib
import json
from itertools import product
from typing import TYPE_CHECKING, Any

import yaml

from robots.config import to_plain
from robots.contract import CONTRACT_KEY, ONNX_FILE, PREFIX_INPUT, Contract
from robots.spec import FieldSpec

if TYPE_CHECKING:
    import onnx

    from robots.language.tokenizer import TokenizerSpec

LEAPP_FILE = "leapp.yaml"
LEAPP_VERSION = "1.3"
STUDIO_FILE = "manifest.json"
NODE = "policy"
"""Name of the only node in `leapp.yaml`."""
TIME_AXIS = "__temporal_axis__"
"""Name by which LEAPP marks an axis of time steps."""
KINDS = {
    "pd_target": "target/body/position",
    "joint_target": "target/joint/position",
}
"""LEAPP's kinds of actions, by action interface; it has none for steps of a target."""


def foreign_manifests(
    contract: Contract, model: onnx.ModelProto, graph: bytes, tokenizer: TokenizerSpec | None
) -> dict[str, bytes]:
    """Contents of the files by name.

    Args:
        contract: contract of the policy.
        model: its graph.
        graph: content of `policy.onnx`.
        tokenizer: tokenizer of a language-conditioned policy.
    """
    files = {LEAPP_FILE: _leapp(contract, model, graph, tokenizer)}
    if contract.n_obs_steps == 1 and contract.ensemble is None:
        files[STUDIO_FILE] = _studio(contract)
    return files


def entry_names(name: str, spec: FieldSpec) -> list[str]:
    """One name per entry of the flattened field, such as `keypoints.point0.x`."""
    named = len(spec.names) == len(spec.shape)
    axes = spec.names if named else tuple(tuple(map(str, range(n))) for n in spec.shape)
    return [".".join((name, *index)) for index in product(*axes)]


def _leapp(
    contract: Contract, model: onnx.ModelProto, graph: bytes, tokenizer: TokenizerSpec | None
) -> bytes:
    vector = [
        entry for name, spec in contract.observation.items() for entry in entry_names(name, spec)
    ]
    actions = entry_names("action", contract.action)
    chunk = [1, contract.horizon, len(actions)]
    time: dict[str, Any] = {"temporal_period_ms": 1000.0 / contract.rate_hz}
    known: dict[str, dict[str, Any]] = {
        "observation": {
            "dtype": "float32",
            "shape": [1, contract.n_obs_steps, len(vector)],
            "element_names": [None, TIME_AXIS, vector],
            "units": {name: spec.unit for name, spec in contract.observation.items()},
            "frames": {name: spec.frame for name, spec in contract.observation.items()},
            **time,
        },
        "noise": {
            "dtype": "float32",
            "shape": list(chunk),
            "kind": "noise/standard_normal",
            "drawn": "anew for every chunk",
        },
        PREFIX_INPUT: {
            "dtype": "float32",
            "shape": [1, contract.prefix, len(actions) + 1],
            "kind": "state/decided_actions",
            "element_names": [None, TIME_AXIS, [*actions, "decided"]],
        },
        "tokens": {"dtype": "int64", "kind": "command/instruction/tokens"},
        "tokens_mask": {"dtype": "bool", "kind": "command/instruction/mask"},
        "action": {
            "dtype": "float32",
            "shape": list(chunk),
            "kind": KINDS.get(contract.action_interface, f"target/{contract.action_interface}"),
            "element_names": [None, TIME_AXIS, actions],
            "unit": contract.action.unit,
            "frame": contract.action.frame,
            "first_executed": contract.n_obs_steps - 1,
            "executed": contract.n_action_steps,
            **time,
        },
        **{name: _sensor(spec, contract) for name, spec in contract.sensors.items()},
    }
    if tokenizer is not None:
        # LEAPP has no axes of variable length; shorter sentences are padded.
        known["tokens"]["shape"] = known["tokens_mask"]["shape"] = [1, tokenizer.max_tokens]
        known["tokens"]["suffix"] = tokenizer.suffix
    inputs, outputs = (
        [{"name": node.name, "type": "tensor", **known[node.name]} for node in nodes]
        for nodes in (model.graph.input, model.graph.output)
    )
    parameters = {
        "model_path": ONNX_FILE,
        "md5sum": hashlib.md5(graph, usedforsecurity=False).hexdigest(),
        "sha256sum": hashlib.sha256(graph).hexdigest(),
        "backend": "onnx",
    }
    document = {
        "models": {NODE: {"inputs": inputs, "outputs": outputs, "parameters": parameters}},
        "pipeline": {
            "inputs": {NODE: [entry["name"] for entry in inputs]},
            "outputs": {NODE: [entry["name"] for entry in outputs]},
            "data_flow": {},
            "feedback_flow": {},
            "configs": {"frequency": contract.rate_hz},
        },
        "system information": {
            "leapp config version": LEAPP_VERSION,
            "created_by": "Handoff",
            "contract": f"metadata '{CONTRACT_KEY}' of {ONNX_FILE}",
        },
    }
    return yaml.safe_dump(document, sort_keys=False, width=100).encode()


def _sensor(spec: FieldSpec, contract: Contract) -> dict[str, Any]:
    image = spec.unit == "u8"
    axes = [None, None, ["r", "g", "b"]] if image else [None, *map(list, spec.names[-1:])]
    return {
        "dtype": "uint8" if image else "float32",
        "shape": [1, contract.n_obs_steps, *spec.shape],
        "kind": "state/image/rgb" if image else "state/points",
        "element_names": [None, TIME_AXIS, *axes, *[None] * (len(spec.shape) - len(axes))],
        "temporal_period_ms": 1000.0 / contract.rate_hz,
    }


def _studio(contract: Contract) -> bytes:
    state = [
        entry for name, spec in contract.observation.items() for entry in entry_names(name, spec)
    ]
    actions = entry_names("action", contract.action)
    robot: dict[str, Any] = {
        "name": "main",
        "type": contract.robot,
        "action": {"shape": [len(actions)], "dtype": "float32", "order": actions},
    }
    if state:
        robot["state"] = {"shape": [len(state)], "dtype": "float32", "order": state}
    cameras = [
        # The format states pictures as channel, height, width; the graph's input is RGB in the
        # order height, width, channel, as its contract says.
        {"name": name, "shape": [spec.shape[2], *spec.shape[:2]], "dtype": "uint8"}
        for name, spec in contract.sensors.items()
        if spec.unit == "u8"
    ]
    document = {
        "format": "policy_package",
        "version": "1.0",
        "policy": {"name": NODE},
        "model": {
            "n_obs_steps": contract.n_obs_steps,
            "runner": {"type": "single_pass"},
            "artifacts": {"onnx": ONNX_FILE},
            "postprocessors": [
                {"type": "action_chunk_trimmer", "n_action_steps": contract.n_action_steps}
            ],
        },
        "hardware": {"robots": [robot], "cameras": cameras},
        "metadata": {"created_by": "Handoff"},
        "contract": to_plain(contract),
    }
    return (json.dumps(document, indent=2) + "\n").encode()
