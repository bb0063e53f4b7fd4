"""Before the first update: what slows the training down, how long it will take and how much memory.

Data and loss of the first updates are worked out and timed; weights, buffers, optimiser and random
states are as before afterwards. Medians are reported, the first repetition left out.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from policies.training.config import TrainingConfig
from robots.storage.durable import explain_write_errors, write_atomically

REPORT = "preflight.json"
_REPETITIONS, _FEWEST, _SHARE = 10, 3, 0.03
"""Most and fewest repetitions, and the largest share of the training that they may take."""
_PROBE = 1 << 20
"""Weights of the trial on which an update of the optimiser is timed."""


@runtime_checkable
class TwoStageBatch(Protocol):
    """A batch function that says which part of it reads and which part puts together, so that they
    are timed apart."""

    def __call__(self, step: int) -> Any:
        """The same as `collate(decode(step))`."""
        ...

    def decode(self, step: int) -> Any:
        """Reads what update number `step` needs, such as pictures out of files."""
        ...

    def collate(self, rows: Any) -> Any:
        """Makes a batch of it, on the device."""
        ...


class Estimate(NamedTuple):
    """What an update and the whole training will take."""

    seconds: dict[str, float]
    """Wall-clock seconds of one update's `decode` (all of the batch function unless it is a
    `TwoStageBatch`), `collate`, `compute` (loss and gradients) and `optimize` (of a trial with as
    many weights)."""
    bytes: dict[str, int]
    """Memory of `parameters`, `gradients`, `moments`, `average` and `activations`."""
    steps: int
    """Updates of the training."""
    repetitions: int

    @property
    def bottleneck(self) -> str:
        """The part that takes longest."""
        return max(self.seconds, key=lambda part: self.seconds[part])

    @property
    def total_seconds(self) -> float:
        """Of the whole training."""
        return self.steps * sum(self.seconds.values())

    def note(self) -> str:
        """One phrase for a progress bar."""
        update = sum(self.seconds.values())
        share = self.seconds[self.bottleneck] / update if update else 0.0
        return (
            f"preflight: {self.bottleneck} takes {share:.0%} of {update:.3g} s per update, "
            f"about {clock_time(self.total_seconds)}, {sum(self.bytes.values()) / 1e9:.2g} GB"
        )

    def write(self, out: Path) -> None:
        """Writes `preflight.json` to the directory `out`."""
        update = sum(self.seconds.values())
        report = {
            "bottleneck": self.bottleneck,
            "share": self.seconds[self.bottleneck] / update if update else 0.0,
            "seconds_per_update": self.seconds,
            "estimated_seconds": self.total_seconds,
            "estimated_bytes": self.bytes,
            "peak_memory_gb": sum(self.bytes.values()) / 1e9,
            "repetitions": self.repetitions,
        }
        with explain_write_errors(out / REPORT, "the estimate was not saved"):
            write_atomically(out / REPORT, json.dumps(report, indent=2).encode())


def preflight(
    config: TrainingConfig,
    model: nn.Module,
    batch: Callable[[int], Any],
    loss: Callable[[Any, int], Tensor],
    clock: Callable[[], float] = time.perf_counter,
) -> Estimate | None:
    """Times the first updates without making them.

    Args:
        config: of the training; bounds the time.
        model: whose trainable parameters `loss` depends on.
        batch: number of an update to its data.
        loss: data and number of an update to its scalar loss.
        clock: seconds.

    Returns:
        None where the training is too short, or no time is granted.
    """
    most = min(_REPETITIONS, int(_SHARE * config.steps))
    if most < _FEWEST or config.preflight_seconds <= 0.0:
        return None
    parameters: list[Tensor] = [
        parameter for parameter in model.parameters() if parameter.requires_grad
    ]
    device = parameters[0].device
    decode, collate = (
        (batch.decode, batch.collate)
        if isinstance(batch, TwoStageBatch)
        else (batch, lambda rows: rows)
    )
    began, activations, timed = clock(), 0, []
    with untouched(model, device):
        while len(timed) < most and (not timed or clock() - began < config.preflight_seconds):
            marks = [_now(clock, device)]
            rows = decode(len(timed))
            marks.append(_now(clock, device))
            rows = collate(rows)
            marks.append(_now(clock, device))
            if timed:
                torch.autograd.grad(loss(rows, len(timed)), parameters, allow_unused=True)
            else:
                activations = _activations(lambda rows=rows: loss(rows, 0), model, parameters)
            marks.append(_now(clock, device))
            timed.append(np.diff(marks))
    means = np.median(timed[1:] or timed, axis=0).tolist()
    seconds: dict[str, float] = dict(zip(("decode", "collate", "compute"), means, strict=True))
    size = _bytes(parameters)
    memory = {
        "parameters": _bytes([*model.parameters(), *model.buffers()]),
        "gradients": size,
        "moments": 2 * size,
        "average": size,
        "activations": activations,
    }
    seconds["optimize"] = _seconds_of_optimizer(parameters, clock)
    return Estimate(seconds, memory, config.steps, len(timed))


@contextmanager
def untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Puts buffers and all random states back, whatever happens inside."""
    buffers = [buffer.clone() for buffer in model.buffers()]
    own, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(numbers)
            with torch.no_grad():
                for buffer, kept in zip(model.buffers(), buffers, strict=True):
                    buffer.copy_(kept)


def clock_time(seconds: float) -> str:
    """A span in the unit that suits it, such as `2.3 h`."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _activations(loss: Callable[[], Tensor], model: nn.Module, parameters: list[Tensor]) -> int:
    """Bytes that the way from weights to gradients needs beside both of them."""
    device = parameters[0].device
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        torch.autograd.grad(loss(), parameters, allow_unused=True)
        return max(0, torch.cuda.max_memory_allocated(device) - before - _bytes(parameters))
    weights = {
        tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())
    }
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        torch.autograd.grad(loss(), parameters, allow_unused=True)
    return sum(size for place, size in kept.items() if place not in weights)


def _seconds_of_optimizer(parameters: list[Tensor], clock: Callable[[], float]) -> float:
    """Of AdamW and the average over as many weights, from a trial on fewer of them."""
    total, device = sum(parameter.numel() for parameter in parameters), parameters[0].device
    trial = torch.zeros(min(total, _PROBE), device=device, requires_grad=True)
    trial.grad, average = torch.ones_like(trial), torch.zeros_like(trial)
    optimizer = torch.optim.AdamW([trial], lr=1e-3, fused=True)
    spans = []
    for _ in range(_FEWEST):
        began = _now(clock, device)
        optimizer.step()
        average.lerp_(trial.detach(), 0.5)
        spans.append(_now(clock, device) - began)
    return statistics.median(spans) * total / len(trial)


def _now(clock: Callable[[], float], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
