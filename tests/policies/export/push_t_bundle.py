"""A bundle of a small untrained push-T policy, with demonstrations of random states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from policies.checkpoint import save_policy
from policies.data.demonstrations import read_demonstrations
from policies.export.onnx import ExportConfig, export
from policies.load import new_module
from policies.networks.config import MlpConfig
from policies.normalize import MinMaxStatistics
from policies.policy_config import DiffusionPolicyConfig
from robots.episodes.formats.pusht import pusht_schema
from robots.episodes.store import EpisodeStore
from robots.interfaces import no_progress
from sim.tasks.push_t.geometry import keypoints

ROWS = 60


def write_push_t_bundle(folder: Path, n_obs_steps: int = 1, **options) -> Path:
    """Writes the bundle to `folder`, which does not exist yet; `options` are those of the export."""
    draw = np.random.default_rng(0)
    poses = draw.uniform([0.1, 0.1, 0.0], [0.4, 0.4, 2.0 * np.pi], (ROWS, 3))
    values = {
        "agent": draw.uniform(0.05, 0.45, (ROWS, 2)).astype(np.float32),
        "keypoints": keypoints(poses).astype(np.float32),
        "block_pose": poses.astype(np.float32),
        "action": draw.uniform(0.05, 0.45, (ROWS, 2)).astype(np.float32),
    }
    folder.mkdir(parents=True)
    with EpisodeStore.create(folder / "demos" / "store.zarr", pusht_schema(False)) as store:
        store.append({"policy": values}, {})
    model = DiffusionPolicyConfig(
        n_obs_steps=n_obs_steps,
        horizon=8,
        n_action_steps=4,
        train_timesteps=10,
        inference_steps=1,
        network=MlpConfig(width=16, blocks=1, time_embedding=8),
    )
    data = read_demonstrations(folder / "demos", model)
    torch.manual_seed(0)
    module = new_module(model, data.card.shapes)
    statistics = MinMaxStatistics(data.card.observation_size)
    statistics.update(data.observation_MO)
    module.normalize_observation.fit(statistics)
    module.normalize_action.scale.fill_(0.05)
    policy = folder / "policy"
    policy.mkdir()
    save_policy(policy, data.card, module.state_dict())
    bundle = folder / "bundle"
    bundle.mkdir()
    config = ExportConfig(action_interface="pd_target", golden=8, **options)
    export(config, policy, folder / "demos", bundle, no_progress, "p" * 64, "d" * 64)
    return bundle
