"""Batches that worker processes decode ahead."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from policies.training import batch_workers
from policies.training.batch_workers import BatchWorkers
from robots.errors import HandoffError
from tests.nightly import in_every_run

STEPS = 7


class Rows(NamedTuple):
    values: Tensor
    frames: dict[str, Tensor]
    process: int
    threads: int


class Decoder(NamedTuple):
    """Rows by the number of the update; from `spoilt` on, the files are damaged."""

    spoilt: int = STEPS

    def __call__(self, step: int) -> Rows:
        if step >= self.spoilt:
            raise HandoffError(f"store: samples of update {step} cannot be decoded.")
        draw = torch.Generator().manual_seed(step)
        values = torch.rand(3, generator=draw)
        return Rows(values, {"camera": values * 2}, os.getpid(), torch.get_num_threads())


class Killed(NamedTuple):
    """Ends its process with SIGKILL at an update."""

    at: int

    def __call__(self, step: int) -> int:
        if step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return step


@pytest.fixture(scope="module")
def two() -> Iterator[BatchWorkers]:
    with closing(BatchWorkers(2, 2, STEPS)) as workers:
        yield workers


def assert_rows(found: Rows, step: int) -> None:
    expected = Decoder()(step)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.frames["camera"], expected.frames["camera"])


@pytest.mark.parametrize("count", in_every_run([0, 1, 3], 0, 1))
def test_rows_are_the_same_with_any_number_of_workers(count: int):
    with closing(BatchWorkers(count, 2, STEPS)) as workers:
        for step in range(STEPS):
            assert_rows(workers.rows(Decoder(), step), step)


def test_workers_start_again_at_any_update(two: BatchWorkers):
    processes = set()
    for step in (0, 1, 0, 1, 2, 5, 6):
        rows = two.rows(Decoder(), step)
        assert_rows(rows, step)
        processes.add(rows.process)
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_a_worker_has_one_thread_of_torch(two: BatchWorkers):
    assert two.rows(Decoder(), 0).threads == 1


def test_updates_after_the_last_are_decoded_here(two: BatchWorkers):
    assert two.rows(lambda step: (step, os.getpid()), STEPS) == (STEPS, os.getpid())


def test_damaged_files_are_one_line():
    with closing(BatchWorkers(2, 2, STEPS)) as workers:
        assert_rows(workers.rows(Decoder(spoilt=1), 0), 0)
        with pytest.raises(HandoffError) as caught:
            workers.rows(Decoder(spoilt=1), 1)
    assert str(caught.value) == "store: samples of update 1 cannot be decoded."


def test_a_worker_that_dies_is_named_with_its_signal():
    before = signal.getsignal(signal.SIGCHLD)
    ended = r"of 1 processes .* \d+ \(signal 9\) ended before update [12]\."
    with closing(BatchWorkers(1, 1, STEPS)) as workers, pytest.raises(HandoffError, match=ended):
        list(map(partial(workers.rows, Killed(2)), range(STEPS)))
    assert signal.getsignal(signal.SIGCHLD) is before


def test_workers_outlive_the_signals_of_a_terminal_and_end_with_the_training():
    with closing(BatchWorkers(1, 1, STEPS)) as workers:
        process = workers.rows(Decoder(), 0).process
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(process, number)
        assert workers.rows(Decoder(), 1).process == process
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def hang(step: int) -> int:
    """Takes longer than a test, from the second update on."""
    time.sleep(1000.0 * min(step, 1))
    return os.getpid()


def test_a_worker_that_is_busy_is_ended_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_workers, "END_SECONDS", 0.2)
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
    workers = BatchWorkers(1, 1, STEPS)
    process = workers.rows(hang, 0)
    closed = threading.Thread(target=workers.close)
    closed.start()
    closed.join(20.0)
    assert not closed.is_alive()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_full_shared_memory_is_named(monkeypatch: pytest.MonkeyPatch):
    def full(tensor: Tensor) -> Tensor:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space")

    monkeypatch.setattr(Tensor, "share_memory_", full)
    failure = batch_workers._Rows(Decoder())[0]
    assert "rows of update 0 do not fit in shared memory" in failure.message
    assert "GB are free (/dev/shm)" in failure.message
