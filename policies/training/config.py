"""Options of this package."""

from __future__ import annotations

from typing import Literal

from robots.config import config


@config
class TrainingConfig:
    """Gradient descent, bounded by steps so that it is repeatable."""

    steps: int
    """Updates."""
    learning_rate: float
    """Peak of the schedule."""
    batch_size: int = 256
    """Windows per update; several processes share them evenly."""
    schedule: Literal["plateau", "cosine"] = "plateau"
    """After linear warm-up, `plateau` stays at the peak and then falls linearly to 0, `cosine`
    falls along half a cosine at once."""
    warmup_steps: int = 200
    """Updates of linear warm-up."""
    decay_fraction: float = 1 / 3
    """Last share of the updates, over which `plateau` falls."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's running means of gradient and squared gradient."""
    weight_decay: float = 1e-6
    """Weight decay of AdamW."""
    decay: Literal["all", "matrices"] = "all"
    """Parameters that `weight_decay` falls on; `matrices` spares biases, norms, embeddings and
    positions."""
    max_grad_norm: float | None = None
    """Gradients are scaled down to this norm over all parameters where it is larger; None leaves
    them."""
    ema_power: float = 0.75
    """Averaging keeps 1 - (1 + step)^-power of the old weights."""
    ema_max: float = 0.9999
    """Upper bound of that share."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision of the matrix products; weights stay float32. `auto` takes bf16 where the processor
    multiplies it faster."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA when there is a device."""
    threads: int = 1
    """Processor threads of torch."""
    log_every: int = 100
    """Updates per entry of the loss curve; a checkpoint falls on such a step."""
    checkpoint_seconds: float = 20.0
    """Wall-clock seconds between checkpoints, rounded up to the next entry of the loss curve."""
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Where the loss curve is shown beside `loss.jsonl`, at every checkpoint: in folders of those
    names."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline` writes files for `wandb sync`; nothing leaves the machine before."""
    preflight_seconds: float = 30.0
    """Most wall-clock seconds for timing decode, collate and compute before the first update; 0
    skips it, as does a training of less than a hundred updates."""
    seed: int = 0
    """Seed of initial weights, order of the data, noise and noise levels."""
