"""Stage `pretrain`: demonstrations to a policy of any family, by imitation.

By default a diffusion policy, by denoising (Chi et al., RSS 2023). Followed is the released
diffusion_policy (squared cosine, clipped samples, min-max normalisation, edge padding, EMA), except
that the network is a residual MLP and predicts velocity, which learns push-T in minutes of one
processor core.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.imitation.config import PretrainConfig
from policies.training.config import TrainingConfig
from robots.interfaces import Progress

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def pretrain(config: PretrainConfig, demos: Path, out: Path, progress: Progress) -> dict[str, Any]:
    """Trains a policy and writes it to `out`, with its loss curve (`loss.jsonl`, `loss.png`) and
    `samples.png`.

    Args:
        config: what and how.
        demos: directory with the demonstrations' `store.zarr`.
        out: directory of the policy; training goes on from what a killed run left there.
        progress: told every update.

    Returns:
        Metrics: steps, cpu_seconds, steps_per_s (of processor time), loss, validation_loss (over
        the held-out windows of all stores alike; None when there are none), windows,
        windows_per_store (by name; `demos` are the demonstrations), parameters, precision and
        device.

    Raises:
        HandoffError: unusable demonstrations, a loss that is not finite, or a full disk.
    """
    from policies.checkpoint import save_policy
    from policies.data.frames import FrameSpace
    from policies.imitation.objective import imitation_objective, prepare, validation_loss
    from policies.training.distributed import is_main_process
    from policies.training.loop import resolve_device, resolve_precision, torch_threads, train
    from policies.training.plots import draw_samples

    training = config.training
    device = resolve_device(training.device)
    precision = resolve_precision(training.precision, device)
    space = FrameSpace(config.memory_gb, out)
    with torch_threads(training.threads):
        module, card, (learned, held_out), mixture, stores = prepare(config, demos, space, device)
        objective = imitation_objective(
            module, learned, training.batch_size, training.seed, precision, mixture
        )
        identity = _identity(config, learned.digest(), precision, device)

        def keep(step: int, average: dict[str, Tensor]) -> None:
            folder = out / f"step-{step}"
            folder.mkdir(exist_ok=True)
            save_policy(folder, card, average, module.extra_files())

        trained = train(
            training,
            module,
            objective,
            identity,
            out,
            progress,
            keep_every=config.keep_every,
            keep=keep,
        )
        module.load_state_dict(trained.average)
        held_out_loss = validation_loss(module, held_out, training.seed) if len(held_out) else None
        if is_main_process():
            draw_samples(
                module, held_out if len(held_out) else learned, out, training.seed, card.action
            )
    if is_main_process():
        save_policy(out, card, module.state_dict(), module.extra_files())
        _close(training, out)
        space.clear()
    return {
        "steps": training.steps,
        "cpu_seconds": round(trained.cpu_seconds, 3),
        "steps_per_s": round(training.steps / trained.cpu_seconds, 2),
        "loss": trained.loss,
        "validation_loss": held_out_loss,
        "windows": len(learned),
        "windows_per_store": dict(zip(stores, mixture.counts, strict=True)),
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "precision": precision,
        "device": device.type,
    }


def _close(training: TrainingConfig, out: Path) -> None:
    """Draws the loss, hands the pictures to the loggers and removes the checkpoint of the finished
    training."""
    from policies.training.loggers import log_pictures
    from policies.training.loop import STATE
    from policies.training.plots import draw_curve

    draw_curve(out, "loss")
    log_pictures(training, out, {name: out / f"{name}.png" for name in ("loss", "samples")})
    (out / STATE).unlink()


def _identity(config: PretrainConfig, windows: str, precision: str, device: torch.device) -> str:
    """What an interrupted training must have in common with this one to be gone on with.

    All but where pictures lie, which changes nothing: so a run killed for want of memory may go on
    with less of it.
    """
    from policies.checkpoint import WEIGHTS, digest_file
    from policies.training.loop import job_identity

    initial = "" if config.initial is None else digest_file(Path(config.initial) / WEIGHTS)
    return job_identity(replace(config, memory_gb=0.0), windows + initial, precision, device)
