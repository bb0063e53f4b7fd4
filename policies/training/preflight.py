"""Measures a training before its first update: bottleneck, estimated duration and memory.

Batch, loss and gradients of the first updates are computed and timed; weights, buffers, optimiser
and random states are unchanged afterwards. Medians without the first repetition are reported.
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
_MAX_REPETITIONS = 10
_MIN_REPETITIONS = 3
_MAX_FRACTION = 0.03
"""Maximum and minimum number of repetitions, and their maximum number as a fraction of the
updates."""
_TRIAL_WEIGHTS = 1 << 20
"""Maximum number of weights with which the optimiser is timed."""


@runtime_checkable
class TwoStageBatch(Protocol):
    """A batch function with separate reading and collation, so that they are timed separately."""

    def __call__(self, step: int) -> Any:
        """Equal to `collate(decode(step))`."""
        ...

    def decode(self, step: int) -> Any:
        """Reads the data of update `step`, such as images from files."""
        ...

    def collate(self, rows: Any) -> Any:
        """Builds the batch on the device."""
        ...


class Estimate(NamedTuple):
    """Estimated time and memory of an update and of the whole training."""

    seconds: dict[str, float]
    """Wall-clock time per update [s] of `decode` (the whole batch function unless it is a
    `TwoStageBatch`), `collate`, `compute` (loss and gradients) and `optimize` (extrapolated to all
    weights)."""
    bytes: dict[str, int]
    """Memory [bytes] of `parameters`, `gradients`, `moments`, `average` and `activations`."""
    steps: int
    """Number of updates of the training."""
    repetitions: int

    @property
    def bottleneck(self) -> str:
        """Name of the slowest part of an update."""
        return max(self.seconds, key=lambda part: self.seconds[part])

    @property
    def total_seconds(self) -> float:
        """Estimated duration of the whole training [s]."""
        return self.steps * sum(self.seconds.values())

    def note(self) -> str:
        """Summary for a progress bar."""
        update = sum(self.seconds.values())
        share = self.seconds[self.bottleneck] / update if update else 0.0
        return (
            f"preflight: {self.bottleneck} takes {share:.0%} of {update:.3g} s per update, "
            f"about {format_duration(self.total_seconds)}, {sum(self.bytes.values()) / 1e9:.2g} GB"
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
    """Times the first updates without applying them.

    Args:
        config: training options, including the time limit.
        model: model with the trainable parameters of `loss`.
        batch: maps the number of an update to its batch.
        loss: maps batch and number of an update to its scalar loss.
        clock: returns the time [s].

    Returns:
        The estimate; None if the training is too short or the time limit is 0.
    """
    repetitions = min(_MAX_REPETITIONS, int(_MAX_FRACTION * config.steps))
    if repetitions < _MIN_REPETITIONS or config.preflight_seconds <= 0.0:
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
    # Time decode, collate and compute of several updates.
    started = clock()
    activations = 0
    durations = []
    with preserved_state(model, device):
        while len(durations) < repetitions and (
            not durations or clock() - started < config.preflight_seconds
        ):
            marks = [_now(clock, device)]
            rows = decode(len(durations))
            marks.append(_now(clock, device))
            rows = collate(rows)
            marks.append(_now(clock, device))
            if durations:
                torch.autograd.grad(loss(rows, len(durations)), parameters, allow_unused=True)
            else:
                activations = _activations(lambda rows=rows: loss(rows, 0), model, parameters)
            marks.append(_now(clock, device))
            durations.append(np.diff(marks))
    # Medians without the first repetition, and the memory estimate.
    means = np.median(durations[1:] or durations, axis=0).tolist()
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
    return Estimate(seconds, memory, config.steps, len(durations))


@contextmanager
def preserved_state(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restores buffers and all random states on exit."""
    buffers = [buffer.clone() for buffer in model.buffers()]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            with torch.no_grad():
                for buffer, saved in zip(model.buffers(), buffers, strict=True):
                    buffer.copy_(saved)


def format_duration(seconds: float) -> str:
    """Formats a duration [s] with a suitable unit, such as `2.3 h`."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _activations(loss: Callable[[], Tensor], model: nn.Module, parameters: list[Tensor]) -> int:
    """Bytes of activations stored for the backward pass."""
    device = parameters[0].device
    if device.type == "cuda":
        allocated = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        torch.autograd.grad(loss(), parameters, allow_unused=True)
        return max(0, torch.cuda.max_memory_allocated(device) - allocated - _bytes(parameters))
    weights = {
        tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())
    }
    stored: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        torch.autograd.grad(loss(), parameters, allow_unused=True)
    return sum(size for pointer, size in stored.items() if pointer not in weights)


def _seconds_of_optimizer(parameters: list[Tensor], clock: Callable[[], float]) -> float:
    """Seconds per update of AdamW and the EMA, extrapolated from a measurement with fewer
    weights."""
    total, device = sum(parameter.numel() for parameter in parameters), parameters[0].device
    trial = torch.zeros(min(total, _TRIAL_WEIGHTS), device=device, requires_grad=True)
    trial.grad = torch.ones_like(trial)
    average = torch.zeros_like(trial)
    optimizer = torch.optim.AdamW([trial], lr=1e-3, fused=True)
    spans = []
    for _ in range(_MIN_REPETITIONS):
        started = _now(clock, device)
        optimizer.step()
        average.lerp_(trial.detach(), 0.5)
        spans.append(_now(clock, device) - started)
    return statistics.median(spans) * total / len(trial)


def _now(clock: Callable[[], float], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
