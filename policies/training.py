"""The training loop: AdamW, moving average of the weights, checkpoints, loss curve, a stop when the loss is not finite.

The loss of an update is a pure function of the weights and the number of the update (random numbers are drawn from a
generator keyed by seed and number), so a run that was killed goes on from its checkpoint with the weights it would have
had, bit for bit, on the same machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from policies.checkpoint import read_state, save_state
from policies.config import TrainingConfig
from robots.config import to_plain
from robots.durable import write_atomically
from robots.errors import HandoffError
from robots.types import Progress

CURVE, STATE = "loss.jsonl", "training.pt"

Rows = TypeVar("Rows")


class Objective(NamedTuple, Generic[Rows]):
    """What an update needs; both are functions of the weights and the number of the update alone."""

    batch: Callable[[int], Rows]
    """Number of the update to its data, on the device."""
    loss: Callable[[Rows, int], Tensor]
    """Data and number of the update to its scalar loss."""

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
    """Processor time of this process and of those that were interrupted, up to their last checkpoint."""


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
) -> Trained:
    """Trains `model` in place, going on from the checkpoint in `out` when it belongs to the same job.

    Args:
        config: how.
        model: on its device; its trainable parameters are updated.
        objective: of one update; looks at `model` as it then is.
        identity: what makes this job the same as an interrupted one; a checkpoint of another job is ignored.
        out: directory of the checkpoint and the loss curve.
        progress: told every update.
        keep_every: updates between calls of `keep`; 0 never calls it.
        keep: given the weights on the way; after a resume it may be given some again, and they are the same.

    Raises:
        HandoffError: the loss is not finite (nothing is saved from then on), or the disk is full.
    """
    run = _Run(config, model, identity, out)
    run.resume()
    while run.step < config.steps:
        run.update(objective)
        if keep is not None and keep_every and run.step % keep_every == 0:
            keep(run.step, run.average_state())
        progress(run.step, config.steps, f"loss {run.last_loss:.4f}" if run.curve else "")
    return Trained(run.average_state(), run.last_loss, run.cpu_seconds())


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Rate of update number `step`: linear warm-up, plateau, linear decay over the last `decay_fraction` of updates."""
    warm = (step + 1) / max(1, config.warmup_steps)
    decay = (config.steps - step) / max(1.0, config.decay_fraction * config.steps)
    return config.learning_rate * min(1.0, warm, decay)


def ema_decay(step: int, power: float, maximum: float) -> float:
    """Share of the old average that update number `step` keeps; 0 at first (Karras; diffusion_policy's `EMAModel`)."""
    return min(maximum, 1.0 - (1.0 + step) ** -power)


def resolve_device(device: str) -> torch.device:
    """`auto` becomes CUDA when there is a device.

    Raises:
        HandoffError: CUDA is asked for and absent.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise HandoffError("device is 'cuda', but torch finds no CUDA device. Is this the CPU build of torch?")
    return torch.device("cuda" if available else "cpu") if device == "auto" else torch.device(device)


def resolve_precision(precision: str, device: torch.device) -> str:
    """`auto` becomes `bf16` where the processor multiplies it natively, else `fp32`, then the faster one."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        capabilities = torch.cpu.get_capabilities()
        native = capabilities.get("avx512_bf16", False) or capabilities.get("amx_bf16", False)
    return "bf16" if native else "fp32"


def job_identity(settings: Any, data: str, precision: str, device: torch.device) -> str:
    """What an interrupted training must have in common with this one to be gone on with.

    Args:
        settings: a configuration.
        data: digest of the data.
        precision: `bf16` or `fp32`.
        device: of the training.
    """
    return json.dumps({"config": to_plain(settings), "data": data, "on": [precision, device.type]}, sort_keys=True)


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context in which the network runs."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def rng(seed: int, number: int) -> np.random.Generator:
    """The random numbers of draw `number`, the same on every device and in whatever order they are asked for."""
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


class _Run:
    """Everything that a checkpoint holds."""

    def __init__(self, config: TrainingConfig, model: nn.Module, identity: str, out: Path) -> None:
        self.config, self.model, self.identity, self.out = config, model, identity, out
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters: list[Tensor] = list(self.named.values())
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.step = 0
        self.curve: list[dict[str, float]] = []
        self.sum = torch.zeros((), device=self.parameters[0].device)
        self.spent = 0.0
        self.started = time.process_time()
        self.saved = time.monotonic()

    @property
    def last_loss(self) -> float:
        return self.curve[-1]["loss"]

    def update(self, objective: Objective[Any]) -> None:
        config, step = self.config, self.step
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        value = objective(step)
        self.optimizer.zero_grad(set_to_none=True)
        value.backward()
        self.optimizer.step()
        decay = ema_decay(step, config.ema_power, config.ema_max)
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1.0 - decay)
            self.sum += value
        self.step += 1
        if self.step % config.log_every == 0 or self.step == config.steps:
            self._log()

    def _log(self) -> None:
        updates = self.step - (int(self.curve[-1]["step"]) if self.curve else 0)
        mean = float(self.sum) / updates
        if not np.isfinite(mean):
            raise HandoffError(
                f"training: loss is {mean} in the {updates} updates before {self.step}, expected a finite number. "
                f"Is the learning rate of {self.config.learning_rate:g} too high?"
            )
        self.sum.zero_()
        rate = learning_rate(self.config, self.step - 1)
        entry = {"step": self.step, "loss": mean, "learning_rate": rate, "cpu_seconds": round(self.cpu_seconds(), 3)}
        self.curve.append(entry)
        if time.monotonic() - self.saved >= self.config.checkpoint_seconds or self.step == self.config.steps:
            self._save()

    def _save(self) -> None:
        state = {
            "identity": self.identity,
            "step": self.step,
            "cpu_seconds": self.cpu_seconds(),
            "curve": self.curve,
            "parameters": [parameter.detach() for parameter in self.parameters],
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
        }
        save_state(self.out / STATE, state)
        lines = "".join(json.dumps(entry) + "\n" for entry in self.curve)
        write_atomically(self.out / CURVE, lines.encode())
        self.saved = time.monotonic()

    def resume(self) -> None:
        state = read_state(self.out / STATE, self.identity)
        if state is None:
            return
        with torch.no_grad():
            for own, saved in zip(self.parameters + self.average, state["parameters"] + state["average"], strict=True):
                own.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.curve, self.spent = state["step"], state["curve"], state["cpu_seconds"]

    def average_state(self) -> dict[str, Tensor]:
        return self.model.state_dict() | dict(zip(self.named, self.average, strict=True))

    def cpu_seconds(self) -> float:
        return self.spent + time.process_time() - self.started
