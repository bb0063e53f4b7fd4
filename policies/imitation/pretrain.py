"""Stage `pretrain`: trains a policy of any family on demonstrations, by imitation.

The default is a diffusion policy (Chi et al., RSS 2023). It follows the released diffusion_policy
(squared cosine, clipped samples, min-max normalisation, edge padding, EMA), except that the network
is a residual MLP and predicts velocity, which learns push-T in minutes on one CPU core.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.imitation.config import PretrainConfig
from policies.training.config import TrainingConfig
from robots.interfaces import Progress

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from policies.training.loop import TrainingResult


def pretrain(config: PretrainConfig, demos: Path, out: Path, progress: Progress) -> dict[str, Any]:
    """Trains a policy and writes it to `out`, with its loss curve (`loss.jsonl`, `loss.png`) and
    `samples.png`.

    Args:
        config: policy and training options.
        demos: directory with the demonstrations' `store.zarr`.
        out: directory of the policy; an interrupted run is resumed from its checkpoint there.
        progress: called after every update.

    Returns:
        Metrics: steps, cpu_seconds, steps_per_s (per second of CPU time), loss, validation_loss
        (mean over the held-out windows of all stores; None without held-out windows), windows,
        short_episodes (episodes for training without a window), small_crops (by camera, the
        fraction of its images that a crop covers, where it is less than half), windows_per_store
        (by name; `demos` are the demonstrations), parameters, precision, device and batch_wait
        (fraction of the training's wall-clock time spent waiting for batches).

    Raises:
        HandoffError: unusable demonstrations, a loss that is not finite, or a full disk.
    """
    from policies.checkpoint import save_policy
    from policies.data.frames import FrameStorage
    from policies.imitation.end_prediction import NAME, without_end_prediction
    from policies.imitation.field_dropout import FieldDropout
    from policies.imitation.objective import imitation_objective, prepare
    from policies.imitation.validation import validation_loss
    from policies.networks.images.image_size import encoded_sizes, small_crop_note, small_crops
    from policies.training.batch_workers import BatchWorkers
    from policies.training.distributed import is_main_process
    from policies.training.loop import resolve_device, resolve_precision, torch_threads, train
    from policies.training.plots import draw_samples

    # Set up data, policy and loss.
    training = config.training
    device = resolve_device(training.device)
    precision = resolve_precision(training.precision, device)
    storage = FrameStorage(config.memory_gb, out)
    workers = BatchWorkers(
        config.workers, config.prefetch, training.steps, pinned=device.type == "cuda"
    )
    with torch_threads(training.threads), closing(workers):
        setup = prepare(config, demos, storage, device, progress)
        module, card = setup.module, setup.card
        small = small_crops(encoded_sizes(card.model, card.shapes.sensors))
        progress = _with_note(progress, small_crop_note(small))
        mixture = setup.mixture
        train_windows, held_out_windows = setup.split
        objective = imitation_objective(
            module,
            train_windows,
            training.batch_size,
            training.seed,
            precision,
            mixture,
            workers if config.workers else None,
            FieldDropout.of(config.field_dropout, card.shapes.entries),
            setup.auxiliary,
        )
        identity = _identity(config, train_windows.digest(), precision, device)

        def save_intermediate(step: int, average: dict[str, Tensor]) -> None:
            folder = out / f"step-{step}"
            folder.mkdir(exist_ok=True)
            save_policy(folder, card, without_end_prediction(average), module.extra_files())

        # Train, then validate with the averaged weights.
        trained = train(
            training,
            module,
            objective,
            identity,
            out,
            progress,
            keep_every=config.keep_every,
            keep=save_intermediate,
        )
        if setup.ending is not None:
            # It has done its work, and is not part of the policy.
            delattr(module, NAME)
        module.load_state_dict(without_end_prediction(trained.average))
        held_out = len(held_out_windows) > 0
        loss = (
            validation_loss(module, held_out_windows, training.seed, progress) if held_out else None
        )
        # Plot samples and save the policy.
        if is_main_process():
            shown = held_out_windows if held_out else train_windows
            draw_samples(module, shown, out, training.seed, card.action)
    if is_main_process():
        save_policy(out, card, module.state_dict(), module.extra_files())
        _close(training, out)
        storage.clear()
    return _figures(training, trained) | {
        "validation_loss": loss,
        "windows": len(train_windows),
        "short_episodes": setup.short_episodes,
        "small_crops": small,
        "windows_per_store": dict(zip(setup.stores, mixture.counts, strict=True)),
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "precision": precision,
        "device": device.type,
    }


def _with_note(progress: Progress, lasting: str) -> Progress:
    """Progress that shows `lasting` after every note."""

    def report(done: int, total: int, note: str = "") -> None:
        progress(done, total, "; ".join(filter(None, [note, lasting])))

    return report


def _figures(training: TrainingConfig, trained: TrainingResult) -> dict[str, Any]:
    """Metrics of the training itself."""
    return {
        "steps": training.steps,
        "cpu_seconds": round(trained.cpu_seconds, 3),
        "steps_per_s": round(training.steps / trained.cpu_seconds, 2),
        "loss": trained.loss,
        "batch_wait": round(trained.batch_wait, 4),
    }


def _close(training: TrainingConfig, out: Path) -> None:
    """Plots the loss, logs the plots and removes the checkpoint of the finished training."""
    from policies.training.loggers import log_images
    from policies.training.loop import STATE
    from policies.training.plots import draw_curve

    draw_curve(out, "loss")
    log_images(training, out, {name: out / f"{name}.png" for name in ("loss", "samples")})
    (out / STATE).unlink()


def _identity(config: PretrainConfig, windows: str, precision: str, device: torch.device) -> str:
    """Identity that a checkpoint must have to be resumed.

    It excludes how frames are read, which does not affect results, so that a run killed for lack of
    memory can be resumed with a lower limit or with streamed frames.
    """
    from policies.checkpoint import WEIGHTS, digest_file
    from policies.training.loop import job_identity

    initial = "" if config.initial is None else digest_file(Path(config.initial) / WEIGHTS)
    same = replace(config, memory_gb=0.0, frames="copy", workers=0, prefetch=1)
    return job_identity(same, windows + initial, precision, device)
