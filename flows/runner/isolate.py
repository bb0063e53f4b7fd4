"""Runs a stage in a child process, with its own threads and memory; a crash there becomes an error
message here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from flows.runner.lock import WriteLock
from flows.runner.memory import peak_memory, tree_memory
from flows.runner.run_end import interrupt_run, stop_if_ended
from flows.runner.stage_code import StageCode
from robots.errors import HandoffError
from robots.imported_code import check_data, install_guard
from robots.interfaces import Progress
from robots.processes import CLOSED_PIPE_ERRORS, Child, ChildEndedError, end

POLL_SECONDS = 0.2
"""Interval at which the end of the run is checked [s]."""
REPORT_SECONDS = 0.1
"""Minimum interval between two progress reports of a stage that are relayed [s]."""
MEMORY_SECONDS = 1.0
"""Interval at which the memory of a stage and its worker processes is sampled [s]."""


class StageProcessError(HandoffError):
    """The process of a stage died, such as by a signal or for want of memory; the stage resumes
    when it is started again."""


def run_isolated(
    name: str,
    function: Callable[..., dict[str, Any]],
    arguments: tuple,
    progress: Progress,
    lock: WriteLock,
    code: StageCode,
) -> tuple[dict[str, Any], int]:
    """Calls `function(*arguments, progress)` in a spawned process and relays its progress.

    The child ends when this process ends for any reason, and holds `lock` until then. It runs no
    other code than `code`, and records what it imports.

    Returns:
        The function's metrics, and the peak memory of the process with its descendants [bytes].

    Raises:
        HandoffError: the function's error, with the child's traceback as a note.
        StageProcessError: the process died.
    """
    child = Child(f"handoff-{name}", _work, (lock, code, function, arguments), daemon=False)
    try:
        return _listen(name, child, progress)
    except KeyboardInterrupt:
        interrupt_run()
        raise
    finally:
        end([child.process])


def _listen(name: str, child: Child, progress: Progress) -> tuple[dict[str, Any], int]:
    peak, sampled = 0, 0.0
    while True:
        stop_if_ended(name)
        # Sampled from here, because a thread in the child would disturb measured latencies.
        if time.monotonic() - sampled >= MEMORY_SECONDS:
            peak = max(peak, tree_memory(child.process.pid))
            sampled = time.monotonic()
        if not child.pipe.poll(POLL_SECONDS):
            continue
        try:
            message = child.receive()
        except ChildEndedError as error:
            raise StageProcessError(f"stage {name}: its process {error}") from None
        match message:
            case ("progress", done, total, note):
                progress(done, total, note)
            case ("metrics", metrics, own_peak):
                child.process.join()
                return metrics, max(peak, own_peak)


def _work(
    lock: WriteLock,
    code: StageCode,
    function: Callable[..., dict[str, Any]],
    arguments: tuple,
    pipe: Connection,
) -> None:
    """Main function of the child process."""
    last = 0.0

    def report(done: int, total: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_SECONDS or done >= total:
            last = now
            try:
                pipe.send(("progress", done, total, note))
            except CLOSED_PIPE_ERRORS:
                os._exit(1)  # the parent is gone; the stage can be resumed from disk

    guard = code.checked()
    install_guard(guard)
    with lock.held():
        metrics = function(*arguments, report)
        check_data(guard)
    pipe.send(("metrics", metrics, peak_memory()))
