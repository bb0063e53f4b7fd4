"""Options of supervised training."""

from __future__ import annotations

from typing import Literal

from robots.config import (
    Count,
    Delay,
    LearningRate,
    NonNegative,
    Positive,
    Repetitions,
    Seed,
    Share,
    ShareBelowOne,
    Whole,
    config,
)

LoggerKind = Literal["tensorboard", "wandb", "trackio"]


@config
class LoggingConfig:
    """Options of where the metrics of a run are logged, in addition to its file of JSON lines."""

    loggers: tuple[LoggerKind, ...] = ()
    """Loggers in addition to the file of JSON lines, updated at every saved state in folders of
    their names."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """Mode of Weights & Biases; `offline` writes files for `wandb sync` and sends nothing."""


MOST_BETWEEN_ENTRIES, LEAST_ENTRIES = 100, 10
"""Largest number of updates between entries of the loss curve, and smallest number of entries,
unless the options say otherwise."""


@config
class TrainingConfig(LoggingConfig):
    """Options of the training loop; its length is given in updates, so that it is repeatable."""

    steps: Repetitions
    """Number of updates."""
    learning_rate: LearningRate
    """Peak learning rate of the schedule."""
    batch_size: Count = 256
    """Windows per update, divided evenly among processes."""
    schedule: Literal["plateau", "cosine"] = "plateau"
    """Learning-rate schedule after linear warm-up: `plateau` stays at the peak and then falls
    linearly to 0, `cosine` decays along half a cosine."""
    warmup_steps: Whole = 200
    """Updates of linear warm-up."""
    decay_fraction: Share = 1 / 3
    """Final fraction of the updates over which `plateau` decays."""
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)
    """AdamW's decay rates of the running means of gradient and squared gradient."""
    weight_decay: NonNegative = 1e-6
    """Weight decay of AdamW."""
    decay: Literal["all", "matrices"] = "all"
    """Parameters with weight decay; `matrices` excludes biases, norms, embeddings and positions."""
    max_grad_norm: Positive | None = None
    """Maximum gradient norm over all parameters; None disables clipping."""
    ema_power: NonNegative = 0.75
    """Power of the EMA's decay, 1 - (1 + step)^-power."""
    ema_max: Share = 0.9999
    """Upper bound of the EMA's decay."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision of matrix products; weights stay float32. `auto` chooses bf16 where the hardware
    multiplies it faster."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the training; `auto` chooses CUDA if available."""
    threads: Count = 1
    """Number of torch's CPU threads."""
    log_every: Count | None = None
    """Updates between entries of the loss curve; checkpoints are written at such steps only. None
    takes a tenth of the steps, at most 100."""
    checkpoint_seconds: Delay = 20.0
    """Wall-clock seconds between checkpoints, rounded up to the next entry of the loss curve."""
    preflight_seconds: Delay = 30.0
    """Time limit for measuring decode, collate and compute before the first update [s]; 0 skips the
    measurement, as do trainings of less than a hundred updates."""
    seed: Seed = 0
    """Seed of initial weights, order of the data, noise and noise levels."""

    @property
    def entry_every(self) -> int:
        """Updates between entries of the loss curve."""
        return self.log_every or min(MOST_BETWEEN_ENTRIES, max(1, self.steps // LEAST_ENTRIES))
