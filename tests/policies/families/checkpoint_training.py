"""Trains and exports a `vla` that starts from a checkpoint, which is gone when it is read again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from policies.export.onnx import ExportConfig, export
from policies.families.vla import VlaPolicy
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_module
from policies.networks.config import BackboneConfig
from policies.policy_config import VlaConfig
from policies.training.config import TrainingConfig
from real.deploy.bundle_checks import golden_parity, read_golden
from real.deploy.onnx_policy import OnnxPolicy
from robots.interfaces import no_progress
from tests.policies.seeing import write_seeing_demonstrations

SMALL = VlaConfig(
    backbone=BackboneConfig(),
    observation_fields=("agent",),
    image_fields=("camera",),
    horizon=4,
    n_action_steps=2,
    inference_steps=2,
    instruction="follow the light",
)


class Trained(NamedTuple):
    """A policy after two updates."""

    folder: Path
    module: VlaPolicy
    parity: float
    """Largest difference of the exported file from torch [normalised units]."""


def trained_from(config: VlaConfig, backbone: Path, checkpoint: Path, folder: Path) -> Trained:
    """Trains from a copy of `checkpoint`, deletes the copy, reads and exports the policy.

    Args:
        config: options of the policy, without folders.
        backbone: folder of the backbone.
        checkpoint: folder of the checkpoint.
        folder: empty folder for all files.
    """
    demos, saved, bundle = folder / "demos", folder / "saved", folder / "bundle"
    write_seeing_demonstrations(demos)
    saved.mkdir()
    bundle.mkdir()
    given = shutil.copytree(checkpoint, folder / "checkpoint")
    policy = replace(config, backbone=BackboneConfig(folder=str(backbone)), checkpoint=str(given))
    training = TrainingConfig(
        steps=2, learning_rate=1e-3, batch_size=4, precision="fp32", preflight_seconds=0.0
    )
    imitation = PretrainConfig(policy=policy, training=training, validation_fraction=0.0)
    pretrain(imitation, demos, saved, no_progress)
    shutil.rmtree(given)
    module, _ = load_module(saved)
    assert isinstance(module, VlaPolicy)
    names = ExportConfig(action_interface="pd_target", golden=8)
    export(names, saved, demos, bundle, no_progress, "p" * 64, "d" * 64)
    golden = read_golden(bundle / "golden.npz")
    parity = golden_parity(OnnxPolicy(bundle / "policy.onnx"), golden).normalised
    return Trained(saved, module, parity)
