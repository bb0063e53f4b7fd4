"""Data-parallel training: division of rows and random streams among processes.

Single- and multi-process training, on CPUs or GPUs, use the same code path through accelerate;
several processes are started with `accelerate launch` or `torchrun`. Every process computes the
same batch and trains on its shard of the rows; gradients are averaged, so that they are those of
the whole batch, and the weights stay equal.

Random streams differ: the loss of process r uses the update's number plus r * 2^40, so that no two
rows of an update get the same noise. Process 0, and therefore a single process, uses the number
itself. The gradient of a deterministic loss does not depend on the number of processes; that of a
stochastic loss is another sample.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from policies.random_streams import PROCESS_SPACING, RandomStream
from robots.errors import HandoffError

if TYPE_CHECKING:
    from accelerate import Accelerator


def is_main_process() -> bool:
    """Whether this process writes files: process 0, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def check_single_process(work: str) -> None:
    """Checks that `work`, which does not support data parallelism, runs in a single process.

    Raises:
        HandoffError: several processes were started.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        raise HandoffError(
            f"{work}: {processes} processes, expected 1. Was it started by accelerate launch or torchrun?"
        )


def new_accelerator(device: torch.device, precision: str) -> Accelerator:
    """Connects to the other processes, if there are any.

    Args:
        device: device of this process.
        precision: `bf16` computes the whole loss under autocast; `fp32` leaves precision to the
            loss.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    threads = torch.get_num_threads()
    # accelerate keeps global state, which would give a second training the device and precision of
    # the first.
    AcceleratorState._reset_state(reset_partial_state="LOCAL_RANK" not in os.environ)
    accelerator = Accelerator(
        cpu=device.type == "cpu",
        mixed_precision="bf16" if precision == "bf16" else "no",
        device_placement=False,
    )
    # accelerate changes the number of threads.
    torch.set_num_threads(threads)
    return accelerator


def stream_number(step: int, process: int) -> int:
    """Stream number of the random numbers of update `step` in process `process`."""
    return RandomStream.UPDATE + step + process * PROCESS_SPACING


def shard(rows: Any, process: int, processes: int) -> Any:
    """The shard of one process: the `process`-th of equal, consecutive parts of the rows.

    Args:
        rows: tensors (rows, ...), tuples of one sentence per row, None, and nested tuples and
            mappings.
        process: index of the process, from 0.
        processes: number of processes.

    Raises:
        HandoffError: rows that cannot be divided evenly, or of an unsupported type.
    """
    if processes == 1 or rows is None:
        return rows
    match rows:
        case Tensor() | (str(), *_):
            size, rest = divmod(len(rows), processes)
            if rest:
                raise HandoffError(
                    f"training: {len(rows)} rows per update cannot be divided evenly among {processes} processes; set "
                    f"a batch_size that is a multiple of {processes}. Are there fewer windows than batch_size?"
                )
            return rows[process * size : (process + 1) * size]
        case Mapping():
            return {name: shard(part, process, processes) for name, part in rows.items()}
        case tuple():
            parts = [shard(part, process, processes) for part in rows]
            return type(rows)._make(parts) if hasattr(rows, "_fields") else tuple(parts)  # type: ignore[attr-defined]
    raise HandoffError(
        f"training: rows of type {type(rows).__name__} cannot be divided among {processes} processes."
    )
