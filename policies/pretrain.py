"""Stage `pretrain`: demonstrations to a diffusion policy, by denoising (Chi et al., RSS 2023).

Followed is the released diffusion_policy (squared cosine, clipped samples, min-max normalisation, edge padding, EMA),
except that the network is a residual MLP and predicts velocity, which learns push-T in minutes of one processor core.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.config import TrainingConfig
from policies.policy_config import DiffusionPolicyConfig, PolicyConfig
from robots.config import config
from robots.types import Progress

if TYPE_CHECKING:
    from torch import Tensor


@config
class PretrainConfig:
    """A diffusion policy from demonstrations."""

    policy: PolicyConfig = field(default_factory=DiffusionPolicyConfig)
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(steps=20_000, learning_rate=1e-3))
    validation_fraction: float = 0.02
    """Share of the episodes that is held out to report a validation loss; 0 learns from all."""
    keep_every: int = 0
    """Updates between policies that are kept on the way, in folders `step-<updates>`, for a learning curve; 0 keeps the
    last one only."""


def pretrain(config: PretrainConfig, demos: Path, out: Path, progress: Progress) -> dict[str, Any]:
    """Trains a policy and writes it to `out`, with its loss curve (`loss.jsonl`, `loss.png`).

    Args:
        config: what and how.
        demos: directory with the demonstrations' `store.zarr`.
        out: directory of the policy; training goes on from what a killed run left there.
        progress: told every update.

    Returns:
        Metrics: steps, cpu_seconds, steps_per_s (of processor time), loss, validation_loss (None when no episode is
        held out), windows, parameters, precision and device.

    Raises:
        HandoffError: unusable demonstrations, a loss that is not finite, or a full disk.
    """
    from policies.checkpoint import save_policy
    from policies.curve import draw_curve
    from policies.demonstrations import read_demonstrations
    from policies.imitation import (
        held_out_episodes,
        imitation_objective,
        new_policy,
        split_windows,
        validation_loss,
    )
    from policies.training import STATE, job_identity, resolve_device, resolve_precision, torch_threads, train

    training = config.training
    device = resolve_device(training.device)
    precision = resolve_precision(training.precision, device)
    with torch_threads(training.threads):
        data = read_demonstrations(demos, config.policy)
        held_out = held_out_episodes(len(data.ends_E), config.validation_fraction, training.seed)
        module = new_policy(data, held_out, config.policy, training.seed).to(device)
        windows = split_windows(data, held_out, module, config.policy)
        objective = imitation_objective(module, windows.learned, training.batch_size, training.seed, precision)
        identity = job_identity(config, windows.learned.digest(), precision, device)

        def keep(step: int, average: dict[str, Tensor]) -> None:
            folder = out / f"step-{step}"
            folder.mkdir(exist_ok=True)
            save_policy(folder, data.card, average)

        trained = train(training, module, objective, identity, out, progress, keep_every=config.keep_every, keep=keep)
        module.load_state_dict(trained.average)
        held_out_loss = validation_loss(module, windows.held_out, training.seed) if len(held_out) else None
    save_policy(out, data.card, module.state_dict())
    draw_curve(out, "loss")
    (out / STATE).unlink()
    return {
        "steps": training.steps,
        "cpu_seconds": round(trained.cpu_seconds, 3),
        "steps_per_s": round(training.steps / trained.cpu_seconds, 2),
        "loss": trained.loss,
        "validation_loss": held_out_loss,
        "windows": len(windows.learned),
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "precision": precision,
        "device": device.type,
    }
