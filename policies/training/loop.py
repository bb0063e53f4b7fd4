"""The training loop: AdamW, moving average of the weights, checkpoints, loss curve, a stop when the
training has died.

The loss of an update is a pure function of the weights and the number of the update (random numbers
are drawn from a generator keyed by seed and number), so a run that was killed goes on from its
checkpoint with the weights it would have had, bit for bit, on the same machine. The path is the
same for one process and for several (`policies.training.distributed`).
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

from policies.training.config import TrainingConfig
from policies.training.distributed import new_accelerator, number_of_draw, share
from policies.training.health import LOOK_SECONDS, Sentinel
from policies.training.loggers import CURVE, Logger, open_loggers
from policies.training.optimizer import ema_decay, learning_rate, new_optimizer
from policies.training.preflight import clock_time, preflight
from policies.training.resumable_run import ResumableRun
from robots.config import to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress

STATE = "training.pt"

Rows = TypeVar("Rows")


class Objective(NamedTuple, Generic[Rows]):
    """What an update needs; both are functions of the weights and the number of the update
    alone."""

    batch: Callable[[int], Rows]
    """Number of the update to its data, on the device; may be a
    `policies.training.preflight.TwoStageBatch`."""
    loss: Callable[[Rows, int], Tensor]
    """Data and the number that its chance is drawn by to the scalar mean over the rows. That number
    is the update's in one process; in several every process hands in its share of the rows and
    another number."""

    def __call__(self, step: int) -> Tensor:
        """The scalar loss of update number `step`."""
        return self.loss(self.batch(step), step)


def without_data(loss: Callable[[int], Tensor]) -> Objective[None]:
    """The objective of a loss that knows its data already: number of the update to scalar loss."""
    return Objective(lambda step: None, lambda rows, step: loss(step))


class Trained(NamedTuple):
    """What a finished training leaves."""

    average: dict[str, Tensor]
    """Averaged weights and the buffers: a state dictionary."""
    loss: float
    """Mean over the last entry of the curve."""
    cpu_seconds: float
    """Processor time of this process and of those that were interrupted, up to their last
    checkpoint."""


Keep = Callable[[int, dict[str, Tensor]], None]
"""Takes the number of updates done and the averaged weights, to keep them."""


def train(
    config: TrainingConfig,
    model: nn.Module,
    objective: Objective[Any],
    identity: str,
    out: Path,
    progress: Progress,
    *,
    keep_every: int = 0,
    keep: Keep | None = None,
    precision: str = "fp32",
) -> Trained:
    """Trains `model` in place, going on from the checkpoint in `out` when it belongs to the same
    job.

    Of several processes all call this with the same arguments; one of them writes, reports and
    keeps.

    Args:
        config: how.
        model: on its device; its trainable parameters are updated.
        objective: of one update; looks at `model` as it then is.
        identity: what makes this job the same as an interrupted one; a checkpoint of another job is
            ignored.
        out: directory of the checkpoint, the loss curve, `preflight.json` and whatever the loggers
            write.
        progress: told every update.
        keep_every: updates between calls of `keep`; 0 never calls it.
        keep: given the weights on the way; after a resume it may be given some again, and they are
            the same.
        precision: `bf16` works out the whole loss under autocast; `fp32` leaves that to the loss.

    Raises:
        HandoffError: the training has died (see `policies.training.health`; nothing that is spoilt
            is saved), or the disk is full.
    """
    run = _Training(config, model, identity, out, precision)
    try:
        with run.resumable.timed():
            run.begin(objective)
            while run.step < config.steps:
                run.update(objective)
                if keep is not None and keep_every and run.step % keep_every == 0:
                    run.look()
                    if run.writes:
                        keep(run.step, run.average_state())
                if run.writes:
                    progress(run.step, config.steps, run.note)
            run.accelerator.wait_for_everyone()
    finally:
        run.close()
    return Trained(run.average_state(), run.last_loss, run.resumable.cpu_seconds())


def resolve_device(device: str) -> torch.device:
    """`auto` becomes CUDA when there is a device; of several processes each takes its own.

    Raises:
        HandoffError: CUDA is asked for and absent.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise HandoffError(
            "device is 'cuda', but torch finds no CUDA device. Is this the CPU build of torch?"
        )
    kind = ("cuda" if available else "cpu") if device == "auto" else device
    own = os.environ.get("LOCAL_RANK")
    return (
        torch.device("cuda", int(own)) if kind == "cuda" and own is not None else torch.device(kind)
    )


def resolve_precision(precision: str, device: torch.device) -> str:
    """`auto` becomes `bf16` where the processor multiplies it faster, else `fp32`.

    Of processors without AMX those with AVX512-BF16 do, unless they have AVX512-FP16, too:
    measured, Intel's then multiply bf16 at .55 of the speed of fp32, AMD's at 1.8.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        capabilities = torch.cpu.get_capabilities()
        wide = capabilities.get("avx512_bf16", False) and not capabilities.get("avx512_fp16", False)
        native = wide or capabilities.get("amx_bf16", False)
    return "bf16" if native else "fp32"


def job_identity(settings: Any, data: str, precision: str, device: torch.device) -> str:
    """What an interrupted training must have in common with this one to be gone on with.

    Args:
        settings: a configuration.
        data: digest of the data.
        precision: `bf16` or `fp32`.
        device: of the training.
    """
    return json.dumps(
        {"config": to_plain(settings), "data": data, "on": [precision, device.type]}, sort_keys=True
    )


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context in which the network runs."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def rng(seed: int, number: int) -> np.random.Generator:
    """The random numbers of draw `number`, the same on every device and in whatever order they are
    asked for."""
    return np.random.Generator(np.random.Philox(key=[seed, number]))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Runs torch with `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Loss(nn.Module):
    """The loss as a module over the policy's parameters, so that the gradients of several processes
    are averaged."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, loss: Callable[[], Tensor]) -> Tensor:
        return loss()


class _Training:
    """The weights of a training, their average, and all else that its checkpoint holds."""

    def __init__(
        self,
        config: TrainingConfig,
        model: nn.Module,
        identity: str,
        out: Path,
        precision: str = "fp32",
    ) -> None:
        self.config = config
        self.model = model
        self.out = out
        self.resumable = ResumableRun(out, identity, state=STATE, curve=CURVE, key="curve")
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters: list[Tensor] = list(self.named.values())
        self.accelerator = new_accelerator(self.parameters[0].device, precision)
        self.writes = self.accelerator.is_main_process
        self.loss: nn.Module = self.accelerator.prepare_model(_Loss(model))
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer = new_optimizer(config, model)
        self.sentinel = Sentinel(self.named, self.optimizer)
        self.loggers: list[Logger] = []
        self.step = 0
        self.sum = torch.zeros((), device=self.parameters[0].device)
        self.norm: Tensor | None = None
        self.note = ""
        self.saved = self.began = self.looked = time.monotonic()
        self.began_at = self.told = 0

    @property
    def last_loss(self) -> float:
        return self.resumable.entries[-1]["loss"]

    def begin(self, objective: Objective[Any]) -> None:
        """Goes on from a checkpoint, or looks ahead where there is none."""
        self.resume()
        if self.writes:
            self.loggers = open_loggers(self.config, self.out, self.step)
        if self.step == 0:
            loss = partial(self._loss_of_share, objective)
            estimate = preflight(self.config, self.model, objective.batch, loss)
            if estimate is not None and self.writes:
                estimate.write(self.out)
                self.note = estimate.note()
        self.began = self.looked = time.monotonic()

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()

    def update(self, objective: Objective[Any]) -> None:
        config, step = self.config, self.step
        rate = learning_rate(config, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        value = self.loss(partial(self._loss_of_share, objective, objective.batch(step), step))
        self.optimizer.zero_grad(
            set_to_none=False
        )  # allocating them anew costs more than the zeros
        if not value.requires_grad:
            raise HandoffError(
                "training: the loss depends on no trainable parameter. Is the network frozen, or cut off?"
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
        if self.step % config.log_every == 0 or self.step == config.steps:
            self._log()
        elif time.monotonic() - self.looked >= LOOK_SECONDS:
            self.look()

    def look(self) -> None:
        """Stops a training that has died."""
        self._mean_loss(self.sum)
        config, last = self.config, self.step - 1
        rate = max(
            learning_rate(config, min(self.sentinel.looked_at, last)), learning_rate(config, last)
        )
        # The last updates of a schedule are too small to move a weight.
        self.sentinel.look(self.step, rate if rate > 1e-3 * config.learning_rate else 0.0)
        self.looked = time.monotonic()

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
        if self.accelerator.num_processes > 1:
            self.sum = cast(Tensor, self.accelerator.reduce(self.sum, "mean"))
        mean = self._mean_loss(self.sum)
        self.look()
        self.sum.zero_()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients) if self.norm is None else self.norm)
        rate = learning_rate(self.config, self.step - 1)
        entry = {
            "step": self.step,
            "loss": mean,
            "learning_rate": rate,
            "cpu_seconds": round(self.resumable.cpu_seconds(), 3),
        }
        self.resumable.entries.append(entry | {"gradient_norm": norm})
        left = (
            (time.monotonic() - self.began)
            / (self.step - self.began_at)
            * (self.config.steps - self.step)
        )
        words = [
            f"loss {mean:.4f}",
            f"rate {rate:.1e}",
            f"gradient {norm:.3g}",
            f"{clock_time(left)} left",
        ]
        self.note = ", ".join(filter(None, [*words, self.sentinel.exploding(norm)]))
        if (
            time.monotonic() - self.saved >= self.config.checkpoint_seconds
            or self.step == self.config.steps
        ):
            self._save()

    def _save(self) -> None:
        self.saved = time.monotonic()
        if not self.writes:
            return
        state = {
            "step": self.step,
            "parameters": [parameter.detach() for parameter in self.parameters],
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
        }
        self.resumable.save(state)
        for entry in self.resumable.entries[self.told :]:
            values = {name: value for name, value in entry.items() if name != "step"}
            for logger in self.loggers:
                logger.log(int(entry["step"]), values)
        for logger in self.loggers:
            logger.flush()
        self.told, self.saved = len(self.resumable.entries), time.monotonic()

    def resume(self) -> None:
        state = self.resumable.resume()
        if state is None:
            return
        with torch.no_grad():
            for own, saved in zip(
                self.parameters + self.average, state["parameters"] + state["average"], strict=True
            ):
                own.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self.began_at, self.told = self.step, len(self.resumable.entries)
        self.sentinel = Sentinel(self.named, self.optimizer, self.step)

    def _loss_of_share(self, objective: Objective[Any], rows: Any, step: int) -> Tensor:
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        return objective.loss(share(rows, process, processes), number_of_draw(step, process))

    def average_state(self) -> dict[str, Tensor]:
        return self.model.state_dict() | dict(zip(self.named, self.average, strict=True))
