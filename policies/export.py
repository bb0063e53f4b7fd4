"""Stage `export`: a policy to one ONNX file that carries its contract, and recorded examples of its answers.

The graph holds normaliser, unrolled sampler and un-normaliser, so a robot process needs nothing else: physical
observation and standard normal noise in, physical actions out.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.actions import PD_TARGET
from robots.config import config
from robots.contract import CONTRACT_KEY, Contract
from robots.durable import explain_write_errors, write_atomically
from robots.types import Progress

if TYPE_CHECKING:
    import onnx

    from policies.chunk_policy import ChunkPolicy
    from policies.config import PolicyCard


@config
class ExportConfig:
    """One ONNX file."""

    action_interface: str = PD_TARGET
    """What an action means to the controller; `robots.actions` lists the known ones."""
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
    they have any, as torch computes them in float32, and `action_scale` (H, A), physical units per normalised unit.

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
        HandoffError: no policy, unusable demonstrations, or a full disk.
    """
    from policies.load import load_module

    module, card = load_module(policy)
    contract = _contract(config, card, module.sampler, policy_digest, demos_digest)
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


def to_onnx(module: ChunkPolicy, opset: int) -> onnx.ModelProto:
    """The whole policy as one graph with inputs `observation`, `noise`, output `action` and a dynamic batch."""
    import logging
    import warnings

    import torch

    batch = torch.export.Dim("batch", min=1)
    example = tuple(torch.zeros(2, *shape) for shape in (module.observation_shape, module.chunk_shape))
    exporter = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = exporter.level
    exporter.setLevel(logging.ERROR)  # it warns that torchvision, which Handoff does without, is absent
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about its own deprecations, and that both inputs share a batch
            program = torch.onnx.export(
                module,
                example,
                dynamo=True,
                input_names=["observation", "noise"],
                output_names=["action"],
                dynamic_shapes={"observation_BTO": {0: batch}, "noise_BHA": {0: batch}},
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
    with torch.no_grad():
        action = module(torch.from_numpy(observation), torch.from_numpy(noise)).numpy()
    scale = module.normalize_action.scale.numpy()
    return {"observation": observation, "noise": noise, "action": action, "action_scale": scale}


def _contract(config: ExportConfig, card: PolicyCard, sampler: str, policy_digest: str, demos_digest: str) -> Contract:
    return Contract(
        task=card.task,
        observation=card.observation,
        action=card.action,
        rate_hz=card.rate_hz,
        n_obs_steps=card.model.n_obs_steps,
        horizon=card.model.horizon,
        n_action_steps=card.model.n_action_steps,
        action_interface=config.action_interface,
        sampler=sampler,
        training_data=demos_digest,
        policy=policy_digest,
    )


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
