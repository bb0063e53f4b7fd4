"""Stage `export`: a policy to one ONNX file that carries its contract, and recorded examples of its answers.

The graph holds normaliser, unrolled sampler and un-normaliser, so a robot process needs nothing else: physical
observation, pictures as the camera gives them and standard normal noise in, physical actions out.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.policy_config import PolicyConfig, TokenVlaConfig, VlaConfig
from robots.actions import PD_TARGET, CartesianDelta
from robots.config import config
from robots.contract import CONTRACT_KEY, Contract
from robots.durable import explain_write_errors, write_atomically
from robots.errors import HandoffError
from robots.types import Progress

if TYPE_CHECKING:
    import onnx

    from policies.chunk_policy import ChunkPolicy
    from policies.config import PolicyCard


INPUTS = ("observation", "noise")
"""Of every graph; one per camera and point cloud follows, under its field's name."""
SENSORS = "sensors/"
"""Before the names of cameras and point clouds in `golden.npz`."""
_SEEN_ROWS = 32
"""Golden examples with pictures that torch answers at a time; all of them would take gigabytes."""


@config
class ExportConfig:
    """One ONNX file."""

    action_interface: str = PD_TARGET
    """What an action means to the controller; `robots.actions` lists the known ones."""
    steps: CartesianDelta | None = None
    """What a step of `cartesian_delta` is. None: nobody says, and no controller can take one; a pipeline fills in those
    of its simulated task."""
    opset: int = 21
    """ONNX operator set of the graph."""
    golden: int = 512
    """Recorded observations with the actions that torch gives, spread evenly over the demonstrations."""
    seed: int = 0
    """Of the noise of these examples."""


def export(
    config: ExportConfig,
    policy: Path,
    demos: Path,
    out: Path,
    progress: Progress,
    policy_digest: str,
    demos_digest: str,
) -> dict[str, Any]:
    """Writes `policy.onnx` and `golden.npz` to `out`.

    `golden.npz` holds `observation` (N, T, O), `noise` and `action` (N, H, A), float32 and in physical units where
    they have any, as torch computes them in float32, and `action_scale` (H, A), physical units per normalised unit;
    per camera and point cloud `sensors/<field>` (N, T, ...) as recorded.

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
        HandoffError: no policy, one that cannot be exported, unusable demonstrations, or a full disk.
    """
    from policies.load import load_module

    module, card = load_module(policy)
    check_exportable(card.model)
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
    entry = model.metadata_props.add()
    entry.key, entry.value = CONTRACT_KEY, contract.to_json()
    golden = golden_examples(config, module, card, demos)
    progress(2, 3, "golden examples")
    with explain_write_errors(out, "the bundle was not written"):
        write_atomically(out / "golden.npz", _npz(golden))
        write_atomically(out / "policy.onnx", model.SerializeToString())
    progress(3, 3, "written")
    return {
        "bytes": (out / "policy.onnx").stat().st_size,
        "nodes": len(model.graph.node),
        "opset": config.opset,
        "sampler": contract.sampler,
        "golden": len(golden["action"]),
    }


def check_exportable(model: PolicyConfig) -> None:
    """Checks that all that a policy is shown has a place among the inputs of the graph.

    Raises:
        HandoffError: it reads language.
    """
    match model:
        case VlaConfig() | TokenVlaConfig():
            raise HandoffError(
                f"export: the family '{model.kind}' reads language, which a graph of arrays cannot. Run it from its "
                "directory instead."
            )
        case _:
            return


def to_onnx(module: ChunkPolicy, opset: int) -> onnx.ModelProto:
    """The whole policy as one graph with output `action` and a dynamic batch.

    Inputs are `observation` (batch, T, O), `noise` (batch, H, A) and per camera and point cloud its field's name:
    (batch, T, height, width, 3) uint8 or (batch, T, points, entries) float32.

    Raises:
        HandoffError: a camera or point cloud is called like another tensor of the graph.
    """
    import logging
    import warnings

    import torch

    batch = torch.export.Dim("batch", min=1)
    seen = module.shapes.sensors
    if seen.keys() & {*INPUTS, "action"}:
        raise HandoffError(f"export: sensors {sorted(seen)} must not be called like {[*INPUTS, 'action']}.")
    steps = module.observation_shape[0]
    shown: dict[str, Any] = {}
    example = tuple(torch.zeros(2, *shape) for shape in (module.observation_shape, module.chunk_shape))
    dynamic: dict[str, Any] = {"observation_BTO": {0: batch}, "noise_BHA": {0: batch}}
    if seen:
        # A picture is told from a cloud by its axes.
        kinds = {name: torch.uint8 if len(shape) == 3 else torch.float32 for name, shape in seen.items()}
        shown["sensors"] = {name: torch.zeros(2, steps, *shape, dtype=kinds[name]) for name, shape in seen.items()}
        dynamic["sensors"] = {name: {0: batch} for name in seen}
    exporter = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = exporter.level
    exporter.setLevel(logging.ERROR)  # it warns that torchvision, which Handoff does without, is absent
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about its own deprecations, and that both inputs share a batch
            program = torch.onnx.export(
                module,
                example,
                kwargs=shown,
                dynamo=True,
                input_names=[*INPUTS, *seen],
                output_names=["action"],
                dynamic_shapes=dynamic,
                opset_version=opset,
                verbose=False,
            )
    finally:
        exporter.setLevel(level)
    assert program is not None
    return program.model_proto


def golden_examples(config: ExportConfig, module: ChunkPolicy, card: PolicyCard, demos: Path) -> dict[str, np.ndarray]:
    """Recorded observations, noise and what torch answers to them."""
    import torch

    from policies.demonstrations import read_demonstrations
    from policies.training import rng
    from policies.windows import window_index

    sizes, data = card.model, read_demonstrations(demos, card.model)
    index = window_index(data.ends_E, sizes.n_obs_steps, sizes.horizon, sizes.n_action_steps)
    chosen = np.unique(np.linspace(0, len(index.observation_NT) - 1, config.golden).astype(np.int64))
    observation = data.observation_MO[index.observation_NT[chosen]]
    noise = rng(config.seed, 0).standard_normal((len(chosen), *module.chunk_shape), dtype=np.float32)
    steps_NT = torch.from_numpy(index.observation_NT[chosen])
    sensors = {name: frames.steps(steps_NT).numpy() for name, frames in data.sensors.items()}
    rows = _SEEN_ROWS if sensors else len(chosen)
    actions = []
    with torch.no_grad():
        for first in range(0, len(chosen), rows):
            part = slice(first, first + rows)
            shown = {name: torch.from_numpy(frames[part]) for name, frames in sensors.items()}
            actions.append(module(torch.from_numpy(observation[part]), torch.from_numpy(noise[part]), shown).numpy())
    return {
        "observation": observation,
        "noise": noise,
        "action": np.concatenate(actions),
        "action_scale": module.normalize_action.scale.numpy(),
        **{SENSORS + name: frames for name, frames in sensors.items()},
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
        instruction=isinstance(card.model, VlaConfig | TokenVlaConfig),
        steps=steps,
    )


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
