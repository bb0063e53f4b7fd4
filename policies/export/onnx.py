"""Stage `export`: a policy to one ONNX file that carries its contract, and recorded examples of its
answers.

The graph holds normaliser, unrolled sampler and un-normaliser, so a robot process needs nothing
else: physical observation, pictures as the camera gives them and standard normal noise in, physical
actions out. A policy that reads has its tokenizer beside the graph.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from robots.config import config
from robots.contract import CONTRACT_KEY, Contract
from robots.control.actions import PD_TARGET, CartesianDelta
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.language.text import INSTRUCTION, encode
from robots.language.tokenizer import READING_KEY, TOKENIZER, WORDS
from robots.storage.durable import explain_write_errors, write_atomically

if TYPE_CHECKING:
    import onnx

    from policies.card import PolicyCard
    from policies.policy import ChunkPolicy


INPUTS = ("observation", "noise")
"""Of every graph; those of a policy that reads have `robots.language.tokenizer.WORDS` next, and one
per camera and point cloud follows, under its field's name."""
SENSORS = "sensors/"
"""Before the names of cameras and point clouds in `golden.npz`."""
_SEEN_ROWS = 32
"""Golden examples with pictures or words that torch answers at a time; all of them would take
gigabytes."""


@config
class ExportConfig:
    """One ONNX file."""

    action_interface: str = PD_TARGET
    """What an action means to the controller; `robots.control.actions` lists the known ones."""
    steps: CartesianDelta | None = None
    """What a step of `cartesian_delta` is. None: nobody says, and no controller can take one; a
    pipeline fills in those of its simulated task."""
    opset: int = 21
    """ONNX operator set of the graph."""
    golden: int = 512
    """Recorded observations with the actions that torch gives, spread evenly over the
    demonstrations."""
    seed: int = 0
    """Seed of the noise of these examples."""


def export(
    config: ExportConfig,
    policy: Path,
    demos: Path,
    out: Path,
    progress: Progress,
    policy_digest: str,
    demos_digest: str,
) -> dict[str, Any]:
    """Writes `policy.onnx` and `golden.npz` to `out`, and `tokenizer.json` of a policy that reads.

    `golden.npz` holds `observation` (N, T, O), `noise` and `action` (N, H, A), float32 and in
    physical units where they have any, as torch computes them in float32, and `action_scale` (H,
    A), physical units per normalised unit; per camera and point cloud `sensors/<field>` (N, T, ...)
    as recorded; of a policy that reads `instruction` (N, bytes) uint8, the sentences as
    `robots.language.text` has them.

    Args:
        config: how.
        policy: directory of the policy; it is exported with its own sampler.
        demos: directory with the demonstrations' `store.zarr`.
        out: directory of the bundle.
        progress: told after each of three parts.
        policy_digest: of the policy artifact, for the contract.
        demos_digest: of the demonstrations' artifact, for the contract.

    Returns:
        Metrics: bytes, nodes, opset, sampler and golden.

    Raises:
        HandoffError: no policy, one that is too large for a file, unusable demonstrations, or a
            full disk.
    """
    from policies.families.lora import merge_adapters
    from policies.load import load_module

    module, card = load_module(policy)
    merge_adapters(module)
    contract = contract_of(
        card,
        config.action_interface,
        module.sampler,
        policy=policy_digest,
        training_data=demos_digest,
        steps=config.steps,
    )
    model = to_onnx(module, config.opset)
    progress(1, 3, "graph")
    words = _words(module)
    for key, value in {CONTRACT_KEY: contract.to_json(), **words.said}.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    golden = golden_examples(config, module, card, demos)
    progress(2, 3, "golden examples")
    with explain_write_errors(out, "the bundle was not written"):
        write_atomically(out / "golden.npz", _npz(golden))
        for name, data in words.files.items():
            write_atomically(out / name, data)
        write_atomically(out / "policy.onnx", model.SerializeToString())
    progress(3, 3, "written")
    return {
        "bytes": (out / "policy.onnx").stat().st_size,
        "nodes": len(model.graph.node),
        "opset": config.opset,
        "sampler": contract.sampler,
        "golden": len(golden["action"]),
    }


def to_onnx(module: ChunkPolicy, opset: int) -> onnx.ModelProto:
    """The whole policy as one graph with output `action` and a dynamic batch.

    Inputs are `observation` (batch, T, O), `noise` (batch, H, A), of a policy that reads `tokens`
    and `tokens_mask` (batch, words) int64 and bool, and per camera and point cloud its field's
    name: (batch, T, height, width, 3) uint8 or (batch, T, points, entries) float32.

    Raises:
        HandoffError: a camera or point cloud is called like another tensor of the graph, or weights
            that are too large for a file.
    """
    import torch

    from policies.families.vision_language import VisionLanguagePolicy

    batch = torch.export.Dim("batch", min=1)
    seen = module.shapes.sensors
    inputs = [*INPUTS, *(WORDS if isinstance(module, VisionLanguagePolicy) else ())]
    if seen.keys() & {*inputs, "action"}:
        raise HandoffError(
            f"export: sensors {sorted(seen)} must not be called like {[*inputs, 'action']}."
        )
    steps = module.observation_shape[0]
    shown: dict[str, Any] = {}
    example = tuple(
        torch.zeros(2, *shape) for shape in (module.observation_shape, module.chunk_shape)
    )
    dynamic: dict[str, Any] = {"observation_BTO": {0: batch}, "noise_BHA": {0: batch}}
    if seen:
        # A picture is told from a cloud by its axes.
        kinds = {
            name: torch.uint8 if len(shape) == 3 else torch.float32 for name, shape in seen.items()
        }
        shown["sensors"] = {
            name: torch.zeros(2, steps, *shape, dtype=kinds[name]) for name, shape in seen.items()
        }
        dynamic["sensors"] = {name: {0: batch} for name in seen}
    told: dict[str, Any] = {"kwargs": shown, "dynamic_shapes": dynamic}
    with _quietly():
        whole: Any = module
        if isinstance(module, VisionLanguagePolicy):
            from policies.export.language import captured, translations

            whole, axes = captured(module, example, shown, dynamic)
            told, example = {"dynamic_shapes": axes, "custom_translation_table": translations()}, ()
        program = torch.onnx.export(
            whole,
            example,
            dynamo=True,
            input_names=[*inputs, *seen],
            output_names=["action"],
            opset_version=opset,
            verbose=False,
            **told,
        )
    assert program is not None
    return program.model_proto


@contextmanager
def _quietly() -> Iterator[None]:
    """Keeps torch from warnings about its own deprecations, inputs that share a batch, and an
    absent torchvision, which Handoff does without."""
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
    config: ExportConfig, module: ChunkPolicy, card: PolicyCard, demos: Path
) -> dict[str, np.ndarray]:
    """Recorded observations and instructions, noise and what torch answers to them."""
    import torch

    from policies.data.demonstrations import read_demonstrations
    from policies.data.windows import window_index
    from policies.training.loop import rng

    sizes, data = card.model, read_demonstrations(demos, card.model)
    index = window_index(data.ends_E, *sizes.window)
    chosen = np.unique(
        np.linspace(0, len(index.observation_NT) - 1, config.golden).astype(np.int64)
    )
    observation = data.observation_MO[index.observation_NT[chosen]]
    noise = rng(config.seed, 0).standard_normal(
        (len(chosen), *module.chunk_shape), dtype=np.float32
    )
    steps_NT = torch.from_numpy(index.observation_NT[chosen])
    sensors = {name: frames.steps(steps_NT).numpy() for name, frames in data.sensors.items()}
    told = (
        [data.instruction_E[episode] for episode in index.episode_N[chosen]]
        if data.instruction_E
        else []
    )
    rows = _SEEN_ROWS if sensors or told else len(chosen)
    actions = []
    with torch.no_grad():
        for first in range(0, len(chosen), rows):
            part = slice(first, first + rows)
            shown = {name: torch.from_numpy(frames[part]) for name, frames in sensors.items()}
            seen = (torch.from_numpy(array[part]) for array in (observation, noise))
            actions.append(module(*seen, shown, tuple(told[part])).numpy())
    return {
        "observation": observation,
        "noise": noise,
        "action": np.concatenate(actions),
        "action_scale": module.normalize_action.scale.numpy(),
        **{SENSORS + name: frames for name, frames in sensors.items()},
        **({INSTRUCTION: encode(told, max(len(line.encode()) for line in told))} if told else {}),
    }


def contract_of(
    card: PolicyCard,
    action_interface: str,
    sampler: str,
    *,
    policy: str,
    training_data: str,
    steps: CartesianDelta | None = None,
) -> Contract:
    """The contract of a saved policy.

    Args:
        card: of the policy.
        action_interface: what its actions mean to the controller.
        sampler: name and steps.
        policy: digest of the policy.
        training_data: digest of the demonstrations; empty where it is not known.
        steps: what a step of `cartesian_delta` is.
    """
    return Contract(
        task=card.task,
        observation=card.observation,
        action=card.action,
        rate_hz=card.rate_hz,
        n_obs_steps=card.model.n_obs_steps,
        horizon=card.model.horizon,
        n_action_steps=card.model.n_action_steps,
        action_interface=action_interface,
        sampler=sampler,
        training_data=training_data,
        policy=policy,
        sensors=card.sensors,
        instruction=card.model.reads_language,
        steps=steps,
        robot=card.robot,
    )


class _Words(NamedTuple):
    """What the bundle of a policy that reads has beside all others; nothing for one that does
    not."""

    said: dict[str, str]
    """Metadata of the graph."""
    files: dict[str, bytes]
    """By name."""


def _words(module: ChunkPolicy) -> _Words:
    from policies.families.vision_language import VisionLanguagePolicy

    if not isinstance(module, VisionLanguagePolicy):
        return _Words({}, {})
    from policies.export.language import reading_of

    reading, tokenizer = reading_of(module)
    return _Words({READING_KEY: reading.to_json()}, {TOKENIZER: tokenizer})


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
