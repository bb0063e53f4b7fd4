"""Decodes batches ahead of the training in worker processes, by torch's `DataLoader`.

The rows of an update are a pure function of its number, so their order depends neither on the
number of workers nor on which of them is faster, and a resumed training goes on at any update.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from robots.errors import HandoffError

END_SECONDS = 2.0
"""Time that a worker gets to finish its batch at the end [s]."""
_SHARED_MEMORY = "/dev/shm"

Decode = Callable[[int], Any]
"""Maps the number of an update to its rows, without a GPU. It is sent to the workers."""


class BatchWorkers:
    """Worker processes that decode the batches of one training.

    They start at the first batch, each with one thread of torch, and are ended by `close`. Signals
    of the terminal, such as Ctrl-C, are left to the training, which ends them.

    Args:
        count: number of processes; 0 decodes in the process of the training.
        ahead: batches that each process decodes ahead.
        stop: number of updates of the training.
        pinned: whether rows are put into pinned memory, for asynchronous copies to a GPU.
    """

    def __init__(self, count: int, ahead: int, stop: int, *, pinned: bool = False) -> None:
        self._count = count
        self._ahead = ahead
        self._order = _Updates(stop)
        self._pinned = pinned
        self._next = 0
        self._loader: DataLoader[Any] | None = None
        self._rows: Iterator[Any] | None = None
        self._processes: list[Any] = []

    def rows(self, decode: Decode, step: int) -> Any:
        """The rows of update `step`; those of the updates after it are decoded meanwhile.

        Args:
            decode: the function of the training, the same in every call.
            step: number of the update.

        Raises:
            HandoffError: `decode` raised one in a worker, a worker died, or the shared memory is
                full.
        """
        if not self._count or step >= self._order.stop:
            return decode(step)
        try:
            if self._rows is None or step != self._next:
                self._rows = self._start(decode, step)
            result = next(self._rows)
        except RuntimeError as error:
            raise self._explained(error) from None
        if isinstance(result, _Failure):
            raise HandoffError(result.message)
        self._next = step + 1
        return result

    def close(self) -> None:
        """Ends the workers."""
        # Their end is begun by the loader when it is released.
        self._rows = self._loader = None
        for process in self._processes:
            process.join(END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
        self._processes = []

    def _start(self, decode: Decode, step: int) -> Iterator[Any]:
        """The rows from update `step` on, by the workers that run already or by new ones."""
        self._order.first = step
        if self._loader is not None:
            return iter(self._loader)
        before = set(multiprocessing.active_children())
        previous = signal.getsignal(signal.SIGCHLD)
        try:
            with warnings.catch_warnings():
                # More processes than cores are no fault where they wait for a disk or a network.
                warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
                self._loader = DataLoader(
                    _Rows(decode),
                    batch_size=None,
                    sampler=self._order,
                    num_workers=self._count,
                    prefetch_factor=self._ahead,
                    persistent_workers=True,
                    pin_memory=self._pinned,
                    collate_fn=_unchanged,
                    worker_init_fn=_leave_signals,
                    # A fork of a process with threads, such as those of torch and Zarr, may hang.
                    multiprocessing_context="spawn",
                )
                return iter(self._loader)
        finally:
            self._processes = [
                child for child in multiprocessing.active_children() if child not in before
            ]
            # The loader's handler would raise the death of a worker in the middle of an update.
            if previous is not signal.getsignal(signal.SIGCHLD):
                signal.signal(signal.SIGCHLD, previous)

    def _explained(self, error: RuntimeError) -> Exception:
        if "shared memory" in str(error):
            return HandoffError(_full("the frames of the training do not fit"))
        if not str(error).startswith("DataLoader worker"):
            return error
        codes = {process.pid: process.exitcode for process in self._processes}
        ended = [
            f"{pid} ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
            for pid, code in codes.items()
            if code
        ]
        return HandoffError(
            f"training: of {self._count} processes that decode batches, {', '.join(ended) or 'one'} ended before "
            f"update {self._next}. Was there too little memory? workers=0 decodes in the training itself."
        )


class _Updates(Sampler[int]):
    """Numbers of updates in order, from `first` on."""

    def __init__(self, stop: int) -> None:
        self.first = 0
        self.stop = stop

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.stop))

    def __len__(self) -> int:
        return self.stop - self.first


class _Failure(NamedTuple):
    """Result of a worker that failed; the message of the error is one line, which the loader would
    extend by a traceback."""

    message: str


class _Rows(Dataset[Any]):
    """Rows by the number of the update."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def __getitem__(self, step: int) -> Any:
        try:
            rows = self._decode(step)
        except HandoffError as error:
            return _Failure(str(error))
        try:
            _share(rows)
        except RuntimeError:
            # A failure in the queue's own thread would be printed, and the training would wait.
            return _Failure(_full(f"the decoded rows of update {step} do not fit"))
        return rows


def _share(rows: Any) -> None:
    """Moves the tensors of nested tuples and mappings to shared memory."""
    if isinstance(rows, Tensor):
        rows.share_memory_()
    elif isinstance(rows, Mapping):
        _share(tuple(rows.values()))
    elif isinstance(rows, tuple):
        for part in rows:
            _share(part)


def _full(what: str) -> str:
    try:
        left = f"{shutil.disk_usage(_SHARED_MEMORY).free / 1e9:.2g} GB are free"
    except OSError:
        left = "there is none"
    return (
        f"training: {what} in shared memory, of which {left} ({_SHARED_MEMORY}). Is a container's limit too low "
        "(docker run --shm-size)? Set fewer workers, or workers=0."
    )


def _unchanged(rows: Any) -> Any:
    return rows


def _leave_signals(worker: int) -> None:
    """Leaves signals that are sent to all processes of a terminal or service to the training, which
    finishes its update before it ends the workers."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
