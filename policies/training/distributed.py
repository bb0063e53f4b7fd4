"""Training in several processes: who has which rows, and which chance.

One process alone and several, on processors or GPUs, take the same path through accelerate; several
are started with `accelerate launch` or `torchrun`. All work out the same batch of an update and
every one learns from its own share of the rows; gradients are averaged, so that they are those of
the whole batch, and the weights stay the same everywhere.

Chance differs between them: the loss of process r draws by the number of the update plus r * 2^40,
so that no two rows of an update see the same noise. Process 0, and thus a training in one process,
draws by the number alone. A loss that draws nothing therefore has the same gradient however many
processes share it; one that does has another sample of it.
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
    """True in the one process that writes files; also where there is one alone."""
    return int(os.environ.get("RANK", "0")) == 0


def check_single_process(work: str) -> None:
    """Refuses several processes for `work` that knows no shares.

    Raises:
        HandoffError: several were started.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        raise HandoffError(
            f"{work}: {processes} processes, expected 1. Was it started by accelerate launch or torchrun?"
        )


def new_accelerator(device: torch.device, precision: str) -> Accelerator:
    """Joins the other processes, if there are any.

    Args:
        device: of this process.
        precision: in which the whole of a loss is worked out; `fp32` leaves it to the loss.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    threads = torch.get_num_threads()
    # accelerate keeps one state per process and would hold a second training to the first one's
    # device and precision.
    AcceleratorState._reset_state(reset_partial_state="LOCAL_RANK" not in os.environ)
    accelerator = Accelerator(
        cpu=device.type == "cpu",
        mixed_precision="bf16" if precision == "bf16" else "no",
        device_placement=False,
    )
    # It chooses a number of its own for processes that share a processor.
    torch.set_num_threads(threads)
    return accelerator


def number_of_draw(step: int, process: int) -> int:
    """By which process number `process` draws the chance of update number `step`."""
    return RandomStream.UPDATE + step + process * PROCESS_SPACING


def share(rows: Any, process: int, processes: int) -> Any:
    """The rows of one of several processes: the `process`-th of equal parts, in order.

    Args:
        rows: tensors (rows, ...), tuples of one sentence per row, None, and tuples and mappings of
            all these.
        process: number, from 0.
        processes: how many.

    Raises:
        HandoffError: rows that cannot be shared evenly, or of another kind.
    """
    if processes == 1 or rows is None:
        return rows
    match rows:
        case Tensor() | (str(), *_):
            size, rest = divmod(len(rows), processes)
            if rest:
                raise HandoffError(
                    f"training: {len(rows)} rows per update cannot be shared evenly by {processes} processes; take a "
                    f"batch_size that is a multiple of {processes}. Are there fewer windows than batch_size?"
                )
            return rows[process * size : (process + 1) * size]
        case Mapping():
            return {name: share(part, process, processes) for name, part in rows.items()}
        case tuple():
            parts = [share(part, process, processes) for part in rows]
            return type(rows)._make(parts) if hasattr(rows, "_fields") else tuple(parts)  # type: ignore[attr-defined]
    raise HandoffError(
        f"training: rows of type {type(rows).__name__} cannot be shared by {processes} processes."
    )
