"""Training loop with AdamW, moving average of the weights, checkpoints, loss curve and health
checks.

The loss of an update is a pure function of the weights and the number of the update (random numbers
come from a generator keyed by seed and number), so a resumed run gives bit-identical weights on the
same machine. Single- and multi-process training share the code (`policies.training.distributed`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from policies.training.batch_wait import BatchWait, wait_note
from policies.training.config import TrainingConfig
from policies.training.distributed import new_accelerator, shard, stream_number
from policies.training.health import CHECK_SECONDS, TrainingHealth
from policies.training.loggers import CURVE
from policies.training.optimizer import ema_decay, learning_rate, new_optimizer
from policies.training.preflight import format_duration, preflight
from policies.training.resumable_run import ResumableRun
from robots.config import to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.signals import delayed_signals

STATE = "training.pt"

Rows = TypeVar("Rows")


class Objective(NamedTuple, Generic[Rows]):
    """Batch and loss function of a training; both depend on the weights and the number of the
    update only."""

    batch: Callable[[int], Rows]
    """Maps the number of an update to its batch on the device; may be a
    `policies.training.preflight.TwoStageBatch`."""
    loss: Callable[[Rows, int], Tensor]
    """Maps batch and stream number of the randomness to the scalar mean loss over the rows. The
    stream number is that of the update in a single process; with several, every process passes its
    shard of the rows and another stream number."""

    def __call__(self, step: int) -> Tensor:
        """The scalar loss of update number `step`."""
        return self.loss(self.batch(step), step)


def without_data(loss: Callable[[int], Tensor]) -> Objective[None]:
    """Objective of a loss without batches: number of the update to scalar loss."""
    return Objective(lambda step: None, lambda rows, step: loss(step))


class TrainingResult(NamedTuple):
    """Result of a finished training."""

    average: dict[str, Tensor]
    """State dictionary of averaged weights and buffers."""
    loss: float
    """Mean loss of the last entry of the curve."""
    cpu_seconds: float
    """CPU time of this process and of interrupted ones up to their last checkpoint."""
    batch_wait: float
    """Fraction of the wall-clock time since the start or resume spent waiting for batches."""


SaveWeights = Callable[[int, dict[str, Tensor]], None]
"""Saves averaged weights, given the number of completed updates."""


def train(
    config: TrainingConfig,
    model: nn.Module,
    objective: Objective[Any],
    identity: str,
    out: Path,
    progress: Progress,
    *,
    keep_every: int = 0,
    keep: SaveWeights | None = None,
    precision: str = "fp32",
    average: nn.Module | None = None,
) -> TrainingResult:
    """Trains `model` in place, resuming from the checkpoint in `out` if its identity matches.

    With several processes, all call this with the same arguments; only the main process writes,
    reports progress and calls `keep`. A training that Ctrl-C, SIGTERM or SIGHUP ends saves its last
    update.

    Args:
        config: training options.
        model: on its device; its trainable parameters are updated.
        objective: batch and loss of an update, computed with the current weights of `model`.
        identity: identity of the run; a checkpoint with another one is ignored.
        out: directory of the checkpoint, the loss curve, `preflight.json` and the loggers' files.
        progress: called after every update.
        keep_every: updates between calls of `keep`; 0 never calls it.
        keep: called with intermediate weights; after a resume it may be called again with the same
            ones.
        precision: `bf16` computes the whole loss under autocast; `fp32` leaves it to the loss.
        average: a copy of `model` that has the averaged weights in every update, for losses with
            targets of its own; None keeps them out of sight.

    Raises:
        HandoffError: a health check failed (see `policies.training.health`; the broken state is not
            saved), or the disk is full.
    """
    run = _Training(config, model, identity, out, precision, average)
    try:
        with run.resumable.timed():
            run.start(objective)
            while run.step < config.steps:
                with delayed_signals():
                    run.update(objective)
                if keep is not None and keep_every and run.step % keep_every == 0:
                    run.check_health()
                    if run.writes:
                        keep(run.step, run.average_state())
                if run.writes:
                    progress(run.step, config.steps, run.note)
            run.accelerator.wait_for_everyone()
    except KeyboardInterrupt:
        # Signals arrive between two updates only, so the state is that of a whole update.
        run.save_interrupted()
        raise
    finally:
        run.close()
    seconds, wait = run.resumable.cpu_seconds(), run.batch_wait.total()
    return TrainingResult(run.average_state(), run.last_loss, seconds, wait)


def resolve_device(device: str) -> torch.device:
    """Resolves `auto` to CUDA if available; with several processes each uses the device of its
    local rank.

    Raises:
        HandoffError: CUDA is requested but not available.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise HandoffError(
            "device is 'cuda', but torch finds no CUDA device. Is this the CPU build of torch?"
        )
    kind = ("cuda" if available else "cpu") if device == "auto" else device
    local_rank = os.environ.get("LOCAL_RANK")
    return (
        torch.device("cuda", int(local_rank))
        if kind == "cuda" and local_rank is not None
        else torch.device(kind)
    )


def resolve_precision(precision: str, device: torch.device) -> str:
    """Resolves `auto` to `bf16` where the hardware multiplies it faster, otherwise to `fp32`.

    CPUs with AMX are faster, and those with AVX512-BF16 but without AVX512-FP16: measured without
    AMX, Intel CPUs with both multiply bf16 at 0.55 times the speed of fp32, AMD CPUs at 1.8.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        capabilities = torch.cpu.get_capabilities()
        avx512_bf16 = capabilities.get("avx512_bf16", False) and not capabilities.get(
            "avx512_fp16", False
        )
        fast = avx512_bf16 or capabilities.get("amx_bf16", False)
    return "bf16" if fast else "fp32"


def job_identity(settings: Any, data: str, precision: str, device: torch.device) -> str:
    """Identity that a checkpoint must have to be resumed.

    Args:
        settings: configuration of the training.
        data: digest of the data.
        precision: `bf16` or `fp32`.
        device: device of the training.
    """
    return json.dumps(
        {"config": to_plain(settings), "data": data, "on": [precision, device.type]}, sort_keys=True
    )


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Autocast context for the network's forward pass."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def rng(seed: int, number: int) -> np.random.Generator:
    """Random generator of stream `number`, independent of device and of other streams."""
    return np.random.Generator(np.random.Philox(key=[seed, number]))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Sets torch's number of threads within the context."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


class _Loss(nn.Module):
    """Loss as a module over the policy's parameters, so that accelerate averages gradients of
    several processes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, loss: Callable[[], Tensor]) -> Tensor:
        return loss()


class _Training:
    """State of a training: weights, their average, optimiser, curve and loggers."""

    def __init__(
        self,
        config: TrainingConfig,
        model: nn.Module,
        identity: str,
        out: Path,
        precision: str = "fp32",
        average: nn.Module | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.out = out
        self.resumable = ResumableRun(
            out, identity, state=STATE, curve=CURVE, key="curve", logging=config
        )
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters: list[Tensor] = list(self.named.values())
        self.accelerator = new_accelerator(self.parameters[0].device, precision)
        self.writes = self.accelerator.is_main_process
        self.loss: nn.Module = self.accelerator.prepare_model(_Loss(model))
        if average is None:
            self.average = [parameter.detach().clone() for parameter in self.parameters]
        else:
            averaged = dict(average.named_parameters())
            # Updated and restored in place, so the module follows.
            self.average = [averaged[name].detach() for name in self.named]
        self.optimizer = new_optimizer(config, model)
        self.health = TrainingHealth(self.named, self.optimizer)
        self.step = 0
        self.sum = torch.zeros((), device=self.parameters[0].device)
        self.norm: Tensor | None = None
        self.batch_wait = BatchWait()
        self.note = ""
        self.saved = self.started = self.checked = time.monotonic()
        self.first_step = 0

    @property
    def last_loss(self) -> float:
        return self.resumable.entries[-1]["loss"]

    def start(self, objective: Objective[Any]) -> None:
        """Resumes from a checkpoint, or runs the preflight measurement where there is none."""
        self.resume()
        if self.step == 0:
            loss = partial(self._loss_of_shard, objective)
            estimate = preflight(self.config, self.model, objective.batch, loss)
            if estimate is not None and self.writes:
                estimate.write(self.out)
                self.note = estimate.note()
        self.started = self.checked = time.monotonic()
        self.batch_wait.start()

    def close(self) -> None:
        self.resumable.close()

    def update(self, objective: Objective[Any]) -> None:
        config, step = self.config, self.step
        rate = learning_rate(config, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self.batch_wait.waiting():
            rows = objective.batch(step)
        value = self.loss(partial(self._loss_of_shard, objective, rows, step))
        self.optimizer.zero_grad(set_to_none=False)  # reallocation costs more than zeroing
        if not value.requires_grad:
            raise HandoffError(
                "training: the loss depends on no trainable parameter. Is the network frozen or detached?"
            )
        self.accelerator.backward(value)
        if config.max_grad_norm is not None:
            self.norm = self.accelerator.clip_grad_norm_(self.parameters, config.max_grad_norm)
        self.optimizer.step()
        decay = ema_decay(step, config.ema_power, config.ema_max)
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1.0 - decay)
            self.sum += value
        self.step += 1
        if self.step % config.entry_every == 0 or self.step == config.steps:
            self._log()
        elif time.monotonic() - self.checked >= CHECK_SECONDS:
            self.check_health()

    def check_health(self) -> None:
        """Runs the health checks, which raise if the training is broken."""
        self._mean_loss(self.sum)
        config, last = self.config, self.step - 1
        rate = max(
            learning_rate(config, min(self.health.checked_step, last)), learning_rate(config, last)
        )
        # The last updates of a schedule are too small to change a weight.
        self.health.check(self.step, rate if rate > 1e-3 * config.learning_rate else 0.0)
        self.checked = time.monotonic()

    def _mean_loss(self, total: Tensor) -> float:
        curve = self.resumable.entries
        updates = self.step - (int(curve[-1]["step"]) if curve else 0)
        mean = float(total) / max(1, updates)
        if not np.isfinite(mean):
            raise HandoffError(
                f"training: loss is {mean} in the {updates} updates before {self.step}, expected a finite number. "
                f"Is the learning rate of {self.config.learning_rate:g} too high?"
            )
        return mean

    def _log(self) -> None:
        # Mean loss and health checks.
        if self.accelerator.num_processes > 1:
            self.sum = cast(Tensor, self.accelerator.reduce(self.sum, "mean"))
        mean = self._mean_loss(self.sum)
        self.check_health()
        self.sum.zero_()
        # Entry of the curve.
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients) if self.norm is None else self.norm)
        rate = learning_rate(self.config, self.step - 1)
        entry = {
            "step": self.step,
            "loss": mean,
            "learning_rate": rate,
            "cpu_seconds": round(self.resumable.cpu_seconds(), 3),
        }
        wait = self.batch_wait.entry()
        measured = {"gradient_norm": norm, "batch_wait": round(wait, 4)}
        self.resumable.entries.append(entry | measured)
        # Note for the progress bar.
        remaining = (
            (time.monotonic() - self.started)
            / (self.step - self.first_step)
            * (self.config.steps - self.step)
        )
        phrases = [
            f"loss {mean:.4f}",
            f"rate {rate:.1e}",
            f"gradient {norm:.3g}",
            f"{format_duration(remaining)} left",
            wait_note(wait),
        ]
        self.note = ", ".join(filter(None, [*phrases, self.health.exploding(norm)]))
        # Checkpoint.
        if (
            time.monotonic() - self.saved >= self.config.checkpoint_seconds
            or self.step == self.config.steps
        ):
            self._save()

    def save_interrupted(self) -> None:
        """Saves a training that is ended between two entries of the curve."""
        if self.step > self.first_step and self.accelerator.num_processes == 1:
            self.check_health()
            self._save()

    def _save(self) -> None:
        self.saved = time.monotonic()
        if not self.writes:
            return
        state = {
            "step": self.step,
            "loss_sum": self.sum,
            "parameters": [parameter.detach() for parameter in self.parameters],
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
        }
        self.resumable.save(state)
        self.saved = time.monotonic()

    def resume(self) -> None:
        state = self.resumable.resume()
        if state is None:
            return
        with torch.no_grad():
            for parameter, saved in zip(
                self.parameters + self.average, state["parameters"] + state["average"], strict=True
            ):
                parameter.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        # Older states were saved at entries of the curve only.
        self.sum = state.get("loss_sum", self.sum).to(self.sum)
        self.first_step = self.step
        self.health = TrainingHealth(self.named, self.optimizer, self.step)

    def _loss_of_shard(self, objective: Objective[Any], rows: Any, step: int) -> Tensor:
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        return objective.loss(shard(rows, process, processes), stream_number(step, process))

    def average_state(self) -> dict[str, Tensor]:
        return self.model.state_dict() | dict(zip(self.named, self.average, strict=True))
