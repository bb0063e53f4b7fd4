"""Runs a stage in a process of its own: own threads and memory, and a crash there is an error
message here."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from flows.runner.lock import WriteLock
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.processes import GONE, Child, ChildEndedError, end

OVER = threading.Event()
"""Set where a run is over before its stages are: the threads that listen to them end their
processes."""
LOOK_SECONDS = 0.2
"""Between two looks whether the run is over [s]."""
REPORT_SECONDS = 0.1
"""A stage may report every step; this many seconds pass between two reports that are sent on."""


def run_isolated(
    name: str,
    function: Callable[..., dict[str, Any]],
    arguments: tuple,
    progress: Progress,
    lock: WriteLock,
) -> dict[str, Any]:
    """Calls `function(*arguments, progress)` in a spawned process and relays its progress.

    The process ends when this one is gone, however that went, and holds `lock` until it has ended.

    Raises:
        HandoffError: what the function raised, with the child's traceback as a note; or the process
            died.
    """
    child = Child(f"handoff-{name}", _work, (lock, function, arguments), daemon=False)
    try:
        return _listen(name, child, progress)
    finally:
        end([child.process])


def _listen(name: str, child: Child, progress: Progress) -> dict[str, Any]:
    while True:
        if OVER.is_set():
            raise HandoffError(f"stage {name}: ended with its run.")
        if not child.pipe.poll(LOOK_SECONDS):
            continue
        try:
            message = child.receive()
        except ChildEndedError as error:
            raise HandoffError(f"stage {name}: its process {error}") from None
        match message:
            case ("progress", done, total, note):
                progress(done, total, note)
            case ("metrics", metrics):
                child.process.join()
                return metrics


def _work(
    lock: WriteLock,
    function: Callable[..., dict[str, Any]],
    arguments: tuple,
    pipe: Connection,
) -> None:
    """The process."""
    last = 0.0

    def report(done: int, total: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_SECONDS or done >= total:
            last = now
            try:
                pipe.send(("progress", done, total, note))
            except GONE:
                os._exit(1)  # the parent is gone; what is on disk is resumable

    with lock.held():
        metrics = function(*arguments, report)
    pipe.send(("metrics", metrics))
