"""Stage `export`: exports a policy to one ONNX file with its contract, and golden examples of its
outputs.

The graph contains normalisers and the unrolled sampler, so a robot process needs nothing else:
observations in physical units, raw camera images and standard normal noise in, actions in physical
units out. The tokenizer of a language-conditioned policy is saved next to the graph.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from policies.export.contract import (
    ActionMeaning,
    contract_of,
    stated_interface,
    training_ranges,
)
from policies.export.graph import to_onnx
from policies.export.manifests import foreign_manifests
from policies.export.precision import with_precision
from robots.config import Count, Seed, config
from robots.contract import (
    CONTRACT_KEY,
    GOLDEN_FIELDS,
    GOLDEN_FILE,
    GOLDEN_RATE,
    GOLDEN_SENSORS,
    ONNX_FILE,
    PREFIX_INPUT,
    Precision,
)
from robots.control.actions import ActionInterface, StepSpace
from robots.control.impedance import ImpedanceGains
from robots.interfaces import Progress
from robots.language.text import INSTRUCTION, encode
from robots.language.tokenizer import TOKENIZER_FILE, TOKENIZER_KEY, TokenizerSpec
from robots.storage.durable import explain_write_errors, write_atomically
from robots.storage.onnx_file import with_digest

if TYPE_CHECKING:
    import onnx

    from policies.card import PolicyCard
    from policies.data.demonstrations import DemonstrationArrays
    from policies.policy import ChunkPolicy


_BATCH = 32
"""Batch size for golden examples with images or instructions; all at once would take gigabytes."""
_BATCH_BYTES = 2**24
"""Largest size of the pictures of such a batch [bytes]; a network needs about forty times that."""
_GOLDEN_BYTES = 2**26
"""Largest size of the pictures of all golden examples [bytes]."""
_FEWEST = 16
"""Golden examples even of larger pictures."""


@config
class ExportConfig:
    """Options of the ONNX export."""

    action_interface: ActionInterface | None = None
    """Meaning of an action to the controller, see `robots.contract.INTERFACES`. None takes the one
    that the recorded actions or the task of the demonstrations state, and refuses actions of
    unknown meaning."""
    steps: StepSpace | None = None
    """Step sizes and limits of actions of an arm. None leaves them unspecified, so that no
    controller accepts such actions; the stage `export` sets those that its demonstrations state, or
    those of their simulated task."""
    impedance: ImpedanceGains | None = None
    """Gains of the impedance law in training, for the contract. None leaves them unspecified; the
    stage `export` sets those of the simulated task of its demonstrations."""
    precision: Precision = "float32"
    """Number type inside the graph. The golden examples are those of torch in float32 in any case,
    so that the gate measures what `float16` and `int8` cost."""
    opset: Annotated[int, Field(ge=18, le=23)] = 20
    """ONNX operator set of the graph; with 20, ONNX Runtime from 1.17 on reads the file."""
    golden: Count = 512
    """Number of golden examples, evenly spread over the demonstrations; fewer where their pictures
    would take more than 64 MB, at least 16."""
    seed: Seed = 0
    """Seed of the noise of the golden examples."""


def export(
    config: ExportConfig,
    policy: Path,
    demos: Path,
    out: Path,
    progress: Progress,
    policy_digest: str,
    demos_digest: str,
) -> dict[str, Any]:
    """Writes a bundle to `out`: `policy.onnx`, `golden.npz`, `leapp.yaml`, `manifest.json`, and
    `tokenizer.json` of a language-conditioned policy.

    `golden.npz` contains `observation` (N, T, O), `noise` and `action` (N, H, A), computed by torch
    in float32, observations and actions in physical units, and `action_scale` (H, A), physical
    units per normalised unit; per camera and point cloud `sensors/<field>` (N, T, ...) as recorded;
    for a language-conditioned policy `instruction` (N, bytes) uint8, encoded by
    `robots.language.text`; for one that takes decided actions `prefix` (N, P, A + 1).

    Args:
        config: export options.
        policy: directory of the policy; it is exported with its own sampler.
        demos: directory with the demonstrations' `store.zarr`.
        out: directory of the bundle.
        progress: called after each of three parts.
        policy_digest: digest of the policy artifact, for the contract.
        demos_digest: digest of the demonstrations' artifact, for the contract.

    Returns:
        Metrics: bytes, nodes, opset, sampler and golden.

    Raises:
        HandoffError: no policy, one that is too large for a file, actions of unknown meaning,
            unusable demonstrations, or a full disk.
    """
    from policies.data.demonstrations import read_demonstrations
    from policies.export.pictures import picture_metadata
    from policies.families.lora import merge_adapters
    from policies.load import load_module

    # Read the policy and its data; the meaning of its actions must be known.
    module, card = load_module(policy)
    merge_adapters(module)
    interface = stated_interface(config.action_interface, card)
    data = read_demonstrations(demos, card.model)
    contract = contract_of(
        card,
        ActionMeaning(interface, config.steps, config.impedance),
        module.sampler,
        policy=policy_digest,
        training_data=demos_digest,
        ranges=training_ranges(module, data),
        precision=config.precision,
    )
    model = with_precision(to_onnx(module, config.opset), config.precision)
    progress(1, 3, "graph")
    language = _language_files(module)
    metadata = {CONTRACT_KEY: contract.to_json(), **language.metadata, **picture_metadata(data)}
    graph = _serialized(model, metadata)
    # Compute golden examples and write the files.
    golden = golden_examples(config, module, data)
    golden |= _as_trained(card, golden["observation"])
    progress(2, 3, "golden examples")
    files = {
        GOLDEN_FILE: _npz(golden),
        **language.files,
        **foreign_manifests(contract, model, graph, language.spec),
        # The graph comes last: a folder with it is complete.
        ONNX_FILE: graph,
    }
    with explain_write_errors(out, "the bundle was not written"):
        for name, content in files.items():
            write_atomically(out / name, content)
    progress(3, 3, "written")
    return {
        "bytes": len(graph),
        "nodes": len(model.graph.node),
        "opset": config.opset,
        "sampler": contract.sampler,
        "golden": len(golden["action"]),
    }


def _serialized(model: onnx.ModelProto, metadata: Mapping[str, str]) -> bytes:
    """The file of a graph with its metadata and their common digest."""
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key = key
        entry.value = value
    return with_digest(model.SerializeToString())


def golden_examples(
    config: ExportConfig, module: ChunkPolicy, data: DemonstrationArrays
) -> dict[str, np.ndarray]:
    """Recorded observations and instructions, noise, and the actions computed by torch."""
    import torch

    from policies.data.windows import window_index
    from policies.training.loop import rng

    # Choose evenly spread windows and their noise.
    index = window_index(data.ends_E, *module.config.window)
    picture = sum(
        math.prod(frames.step_shape)
        for frames in data.sensors.values()
        if len(frames.step_shape) == 3
    )
    size = max(1, picture * index.observation_NT.shape[1])
    number = min(config.golden, max(_FEWEST, _GOLDEN_BYTES // size))
    window_N = np.unique(np.linspace(0, len(index.observation_NT) - 1, number).astype(np.int64))
    observation = data.observation_MO[index.observation_NT[window_N]]
    noise = rng(config.seed, 0).standard_normal(
        (len(window_N), *module.chunk_shape), dtype=np.float32
    )
    # Sensors and instructions of the windows.
    steps_NT = torch.from_numpy(index.observation_NT[window_N])
    sensors = {name: frames.steps(steps_NT).numpy() for name, frames in data.sensors.items()}
    instructions = (
        [data.instruction_M[step] for step in index.observation_NT[window_N, -1]]
        if data.instruction_M
        else []
    )
    # Compute the actions in batches; the policy's own actions serve as decided ones.
    rows = len(window_N)
    if sensors or instructions:
        rows = max(1, min(_BATCH, _BATCH_BYTES // size))
    prefix: np.ndarray | None = None

    def computed() -> np.ndarray:
        actions = []
        for first in range(0, len(window_N), rows):
            part = slice(first, first + rows)
            frames_part = {name: torch.from_numpy(frames[part]) for name, frames in sensors.items()}
            arrays = (torch.from_numpy(array[part]) for array in (observation, noise))
            decided = None if prefix is None else torch.from_numpy(prefix[part])
            words = tuple(instructions[part])
            actions.append(module(*arrays, frames_part, words, prefix_BPE=decided).numpy())
        return np.concatenate(actions)

    with torch.no_grad():
        action = computed()
        most = module.config.most_decided
        if most:
            prefix = decided_rows(action[:, module.config.n_obs_steps - 1 :][:, :most])
            action = computed()
    return {
        "observation": observation,
        "noise": noise,
        "action": action,
        **({} if prefix is None else {PREFIX_INPUT: prefix}),
        "action_scale": module.normalize_action.scale.numpy(),
        **{GOLDEN_SENSORS + name: frames for name, frames in sensors.items()},
        **(
            {INSTRUCTION: encode(instructions, max(len(line.encode()) for line in instructions))}
            if instructions
            else {}
        ),
    }


def decided_rows(action_NPA: np.ndarray) -> np.ndarray:
    """(N, P, A + 1) prefixes of 0 to P decided actions, in turn; see
    `robots.interfaces.PolicyInput.prefix`."""
    rows, most = action_NPA.shape[:2]
    mask_NP = np.arange(most) < (np.arange(rows) % (most + 1))[:, None]
    flagged = np.concatenate([action_NPA, np.ones((rows, most, 1), np.float32)], axis=-1)
    return (flagged * mask_NP[..., None]).astype(np.float32)


def _as_trained(card: PolicyCard, observation_NTO: np.ndarray) -> dict[str, np.ndarray]:
    """The golden observations by field, `fields/<field>` (N, T, ...), and the rate of the
    demonstrations, `rate_hz`: a contract that orders or times them otherwise is found by them."""
    entries: dict[str, np.ndarray] = {GOLDEN_RATE: np.array(card.rate_hz, np.float32)}
    begin = 0
    for name, spec in card.observation.items():
        end = begin + math.prod(spec.shape)
        part = observation_NTO[..., begin:end]
        entries[GOLDEN_FIELDS + name] = part.reshape(*observation_NTO.shape[:2], *spec.shape)
        begin = end
    return entries


class _LanguageFiles(NamedTuple):
    """Additional content of the bundle of a language-conditioned policy; empty for others."""

    metadata: dict[str, str]
    """Metadata of the graph by key."""
    files: dict[str, bytes]
    """File contents by name."""
    spec: TokenizerSpec | None


def _language_files(module: ChunkPolicy) -> _LanguageFiles:
    if not module.language_conditioned:
        return _LanguageFiles({}, {}, None)
    from policies.export.language import tokenizer_spec

    spec, tokenizer = tokenizer_spec(module)
    return _LanguageFiles({TOKENIZER_KEY: spec.to_json()}, {TOKENIZER_FILE: tokenizer}, spec)


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
