"""Stage `export`: exports a policy to one ONNX file with its contract, and golden examples of its
outputs.

The graph contains normalisers and the unrolled sampler, so a robot process needs nothing else:
observations in physical units, raw camera images and standard normal noise in, actions in physical
units out. The tokenizer of a language-conditioned policy is saved next to the graph.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from policies.export.contract import (
    ActionMeaning,
    contract_of,
    stated_interface,
    training_ranges,
)
from policies.export.manifests import foreign_manifests
from policies.export.precision import to_float16
from robots.config import Count, Seed, config
from robots.contract import (
    CONTRACT_KEY,
    GOLDEN_FIELDS,
    GOLDEN_FILE,
    GOLDEN_RATE,
    GOLDEN_SENSORS,
    ONNX_FILE,
)
from robots.control.actions import ActionInterface, CartesianDelta
from robots.control.impedance import ImpedanceGains
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.language.text import INSTRUCTION, encode
from robots.language.tokenizer import TOKEN_INPUTS, TOKENIZER_FILE, TOKENIZER_KEY, TokenizerSpec
from robots.storage.durable import explain_write_errors, write_atomically
from robots.storage.onnx_file import with_digest

if TYPE_CHECKING:
    import onnx

    from policies.card import PolicyCard
    from policies.data.demonstrations import DemonstrationArrays
    from policies.policy import ChunkPolicy


INPUTS = ("observation", "noise")
"""Inputs of every graph; language-conditioned policies have
`robots.language.tokenizer.TOKEN_INPUTS` next, and one per camera and point cloud follows, named by
its field."""
_BATCH = 32
"""Batch size for golden examples with images or instructions; all at once would take gigabytes."""


@config
class ExportConfig:
    """Options of the ONNX export."""

    action_interface: ActionInterface | None = None
    """Meaning of an action to the controller, see `robots.contract.INTERFACES`. None takes the one
    that the recorded actions or the task of the demonstrations state, and refuses actions of
    unknown meaning."""
    steps: CartesianDelta | None = None
    """Step sizes of `cartesian_delta`. None leaves them unspecified, so that no controller accepts
    such actions; the stage `export` sets those of the simulated task of its demonstrations."""
    impedance: ImpedanceGains | None = None
    """Gains of the impedance law in training, for the contract. None leaves them unspecified; the
    stage `export` sets those of the simulated task of its demonstrations."""
    precision: Literal["float32", "float16"] = "float32"
    """Number type inside the graph. The golden examples are those of torch in float32 in any case,
    so that the gate measures what half precision costs."""
    opset: Annotated[int, Field(ge=18, le=23)] = 20
    """ONNX operator set of the graph; with 20, ONNX Runtime from 1.17 on reads the file."""
    golden: Count = 512
    """Number of golden examples, evenly spread over the demonstrations."""
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
    `robots.language.text`.

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
    model = to_onnx(module, config.opset)
    if config.precision == "float16":
        model = to_float16(model)
    progress(1, 3, "graph")
    language = _language_files(module)
    graph = _serialized(model, {CONTRACT_KEY: contract.to_json(), **language.metadata})
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


def to_onnx(module: ChunkPolicy, opset: int) -> onnx.ModelProto:
    """The policy as one graph with output `action` and a dynamic batch.

    Inputs are `observation` (batch, T, O), `noise` (batch, H, A), for a language-conditioned policy
    `tokens` and `tokens_mask` (batch, words) int64 and bool, and per camera and point cloud the
    name of its field: (batch, T, height, width, 3) uint8 or (batch, T, points, entries) float32.

    Raises:
        HandoffError: a camera or point cloud has the name of another tensor of the graph, weights
            that are too large for a file, or a graph that takes batches of one size only.
    """
    import torch
    from onnx import helper

    from policies.families.vision_language import VisionLanguagePolicy

    # Check the names of the inputs.
    batch = torch.export.Dim("batch", min=1)
    sensors = module.shapes.sensors
    inputs = [*INPUTS, *(TOKEN_INPUTS if isinstance(module, VisionLanguagePolicy) else ())]
    if sensors.keys() & {*inputs, "action"}:
        raise HandoffError(
            f"export: sensors {sorted(sensors)} must not have the names {[*inputs, 'action']}."
        )
    # Example inputs and dynamic axes.
    steps = module.observation_shape[0]
    keywords: dict[str, Any] = {}
    example = tuple(
        torch.zeros(2, *shape) for shape in (module.observation_shape, module.chunk_shape)
    )
    dynamic: dict[str, Any] = {"observation_BTO": {0: batch}, "noise_BHA": {0: batch}}
    if sensors:
        # Images have three axes, point clouds two.
        kinds = {
            name: torch.uint8 if len(shape) == 3 else torch.float32
            for name, shape in sensors.items()
        }
        keywords["sensors"] = {
            name: torch.zeros(2, steps, *shape, dtype=kinds[name])
            for name, shape in sensors.items()
        }
        dynamic["sensors"] = {name: {0: batch} for name in sensors}
    options: dict[str, Any] = {"kwargs": keywords, "dynamic_shapes": dynamic}
    # Export; language-conditioned policies need their own program.
    with _quietly():
        exported: Any = module
        if isinstance(module, VisionLanguagePolicy):
            from policies.export.language import custom_translations, export_program

            exported, axes = export_program(module, example, keywords, dynamic)
            options, example = (
                {"dynamic_shapes": axes, "custom_translation_table": custom_translations()},
                (),
            )
        program = torch.onnx.export(
            exported,
            example,
            dynamo=True,
            input_names=[*inputs, *sensors],
            output_names=["action"],
            opset_version=opset,
            verbose=False,
            **options,
        )
    assert program is not None
    model = program.model_proto
    _check_batch(model)
    # torch writes a newer version of the format than the operators need; old readers refuse it.
    model.ir_version = helper.find_min_ir_version_for(model.opset_import)
    return model


def _check_batch(model: onnx.ModelProto) -> None:
    """Refuses a graph that takes batches of one size only."""
    for entry in model.graph.input:
        size = entry.type.tensor_type.shape.dim[0]
        if size.HasField("dim_value"):
            raise HandoffError(
                f"export: the graph accepts only batches of {size.dim_value} at its input '{entry.name}', expected "
                "any size. Does the policy's code use the size of a batch as a number?"
            )


@contextmanager
def _quietly() -> Iterator[None]:
    """Silences torch's warnings about deprecations, inputs with a common batch axis, and the
    missing torchvision, which is not needed."""
    import logging
    import warnings

    exporter = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def golden_examples(
    config: ExportConfig, module: ChunkPolicy, data: DemonstrationArrays
) -> dict[str, np.ndarray]:
    """Recorded observations and instructions, noise, and the actions computed by torch."""
    import torch

    from policies.data.windows import window_index
    from policies.training.loop import rng

    # Choose evenly spread windows and their noise.
    index = window_index(data.ends_E, *module.config.window)
    window_N = np.unique(
        np.linspace(0, len(index.observation_NT) - 1, config.golden).astype(np.int64)
    )
    observation = data.observation_MO[index.observation_NT[window_N]]
    noise = rng(config.seed, 0).standard_normal(
        (len(window_N), *module.chunk_shape), dtype=np.float32
    )
    # Sensors and instructions of the windows.
    steps_NT = torch.from_numpy(index.observation_NT[window_N])
    sensors = {name: frames.steps(steps_NT).numpy() for name, frames in data.sensors.items()}
    instructions = (
        [data.instruction_E[episode] for episode in index.episode_N[window_N]]
        if data.instruction_E
        else []
    )
    # Compute the actions in batches.
    rows = _BATCH if sensors or instructions else len(window_N)
    actions = []
    with torch.no_grad():
        for first in range(0, len(window_N), rows):
            part = slice(first, first + rows)
            frames_part = {name: torch.from_numpy(frames[part]) for name, frames in sensors.items()}
            arrays = (torch.from_numpy(array[part]) for array in (observation, noise))
            actions.append(module(*arrays, frames_part, tuple(instructions[part])).numpy())
    return {
        "observation": observation,
        "noise": noise,
        "action": np.concatenate(actions),
        "action_scale": module.normalize_action.scale.numpy(),
        **{GOLDEN_SENSORS + name: frames for name, frames in sensors.items()},
        **(
            {INSTRUCTION: encode(instructions, max(len(line.encode()) for line in instructions))}
            if instructions
            else {}
        ),
    }


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
    from policies.families.vision_language import VisionLanguagePolicy

    if not isinstance(module, VisionLanguagePolicy):
        return _LanguageFiles({}, {}, None)
    from policies.export.language import tokenizer_spec

    spec, tokenizer = tokenizer_spec(module)
    return _LanguageFiles({TOKENIZER_KEY: spec.to_json()}, {TOKENIZER_FILE: tokenizer}, spec)


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
