"""Runs a stage in a process of its own: own threads and memory, and a crash there is an error
message here."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from flows.runner.lock import WriteLock
from robots import errors
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.processes import end_with_parent
from robots.signals import ENDING, exit_code, raising_signals

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
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(there, lock, function, arguments), name=f"handoff-{name}"
    )
    process.start()
    there.close()
    try:
        return _listen(name, here, process, progress)
    finally:
        if process.is_alive():
            process.terminate()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def _listen(name: str, here: Connection, process: Any, progress: Progress) -> dict[str, Any]:
    while True:
        if OVER.is_set():
            raise HandoffError(f"stage {name}: ended with its run.")
        if not here.poll(LOOK_SECONDS):
            continue
        try:
            message = here.recv()
        except EOFError:
            process.join()
            raise HandoffError(f"stage {name}: {_cause_of_death(process.exitcode)}") from None
        match message:
            case ("progress", done, total, note):
                progress(done, total, note)
            case ("metrics", metrics):
                process.join()
                return metrics
            case ("error", kind, text, trace):
                error = getattr(errors, kind, HandoffError)(text)
                error.add_note(trace)
                raise error


def _cause_of_death(code: int) -> str:
    code = -(code - 128) if code - 128 in ENDING else code
    if code >= 0:
        return f"its process ended with exit code {code} and no result."
    hint = " Was the machine out of memory?" if -code == signal.SIGKILL else ""
    return f"its process was killed by {signal.Signals(-code).name}.{hint}"


def _work(
    there: Connection, lock: WriteLock, function: Callable[..., dict[str, Any]], arguments: tuple
) -> None:
    end_with_parent()
    last = 0.0

    def report(done: int, total: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_SECONDS or done >= total:
            last = now
            try:
                there.send(("progress", done, total, note))
            except BrokenPipeError:
                os._exit(1)  # the parent is gone; what is on disk is resumable

    try:
        with raising_signals(), lock.held():
            metrics = function(*arguments, report)
        there.send(("metrics", metrics))
    except KeyboardInterrupt as error:
        raise SystemExit(exit_code(error)) from None
    except Exception as error:  # noqa: BLE001  every failure must reach the parent, whatever its type
        # A parent that is gone has nobody to tell.
        with suppress(BrokenPipeError):
            there.send(("error", type(error).__name__, describe(error), traceback.format_exc()))


def describe(error: Exception) -> str:
    """One clear line for any failure; a full disk is named as such."""
    if isinstance(error, HandoffError):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"disk full while writing {error.filename or 'a stage output'}. Free some space and run again: "
            "finished artifacts are untouched and the stage resumes."
        )
    return f"{type(error).__name__}: {error} (unexpected; --debug shows where)"
