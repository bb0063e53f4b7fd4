"""Starts child processes that end with their parent, relays their errors, and ends them in time.

A `Child` is a spawned process and a pipe to it. What the two say to each other is up to the caller;
how a child is started, how its end and its errors become known, and how it is ended is the same for
stages, simulators, workers, learners and servers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Never

from robots import errors
from robots.errors import HandoffError, describe
from robots.signals import ENDING, exit_code, raising_signals

END_SECONDS = 10.0
"""Time that a process has for its `finally` blocks before it is killed [s]."""
GONE = (EOFError, BrokenPipeError, ConnectionResetError)
"""Errors of a pipe whose other end is closed."""


class ChildEndedError(HandoffError):
    """A child process ended without the message that was waited for; the text says how."""


class Child:
    """A spawned process, and this side's end of the pipe to it; see `spawn`."""

    def __init__(
        self,
        name: str,
        function: Callable[..., None],
        arguments: tuple[Any, ...] = (),
        *,
        daemon: bool,
    ) -> None:
        """Starts `function(*arguments, pipe)` in a new process; see `spawn` for the arguments."""
        self.pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        self.process = spawn(name, function, (*arguments, theirs), daemon=daemon, tell=theirs)
        # Only the child may hold its end, or its death would not show as a closed pipe.
        theirs.close()

    def receive(self) -> Any:
        """Waits for the next message of the child.

        Raises:
            ChildEndedError: the child has ended, and its messages have been received.
            HandoffError: what the function raised, with the child's traceback as a note.
        """
        try:
            message = self.pipe.recv()
        except GONE:
            raise ChildEndedError(self.cause_of_death()) from None
        if isinstance(message, _Failure):
            raise message.error()
        return message

    def cause_of_death(self) -> str:
        """How the child has ended, in words; one that has closed its pipe, but goes on, is
        ended."""
        self.process.join(END_SECONDS)
        end([self.process])
        return cause_of_death(self.process.exitcode or 0)


def spawn(
    name: str,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    *,
    daemon: bool,
    tell: Connection | None = None,
) -> BaseProcess:
    """Starts `function(*arguments)` in a new process, which ends with this one, however this ends.

    SIGTERM and SIGHUP end it by an exception, so that its `finally` blocks run; its exit code then
    is that of `robots.signals.exit_code`.

    Args:
        name: of the process.
        function: picklable, as the arguments are.
        arguments: of the function.
        daemon: whether an exit of this process ends it as well; it may then have no children. The
            exit waits for other processes.
        tell: the pipe's end over which an error of the function is sent; without one it is printed.
    """
    context = multiprocessing.get_context("spawn")
    process = context.Process(
        target=_run, args=(function, arguments, tell), name=name, daemon=daemon
    )
    process.start()
    return process


def end(processes: Sequence[BaseProcess], seconds: float = END_SECONDS) -> None:
    """Ends processes by SIGTERM, and by SIGKILL those that are left after so many seconds."""
    living = [process for process in processes if process.is_alive()]
    for process in living:
        process.terminate()
    deadline = time.monotonic() + seconds
    for process in living:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in living:
        if process.is_alive():
            process.kill()
            process.join()


def killing_signal(code: int) -> signal.Signals | None:
    """The signal that has ended a process of this exit code, by an exception or by itself; None
    where the process has ended of its own accord."""
    number = code - 128 if code - 128 in ENDING else -code
    return signal.Signals(number) if number > 0 else None


def cause_of_death(code: int) -> str:
    """How a process of this exit code has ended, in words that follow its name."""
    killer = killing_signal(code)
    if killer is None:
        return f"died with exit code {code} and no result."
    hint = " Was the machine out of memory?" if killer is signal.SIGKILL else ""
    return f"was killed by {killer.name} and died with exit code {code}.{hint}"


def end_with_parent() -> None:
    """Ends this process by SIGTERM once the one that started it is gone, however that went.

    By a signal, so that a terminal is put right and a learner saves. Does nothing in a process that
    `multiprocessing` did not start.
    """
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_follow, name="parent", daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


class _Failure(NamedTuple):
    """An error on its way from a child to its parent."""

    kind: str
    text: str
    trace: str

    def error(self) -> HandoffError:
        """The error, of the child's class if that is one of `robots.errors`."""
        error = getattr(errors, self.kind, HandoffError)(self.text)
        error.add_note(self.trace)
        return error


def _run(
    function: Callable[..., None], arguments: tuple[Any, ...], tell: Connection | None
) -> None:
    """The child."""
    end_with_parent()
    try:
        with raising_signals():
            function(*arguments)
    except KeyboardInterrupt as error:
        raise SystemExit(exit_code(error)) from None
    except Exception as error:
        if tell is None:
            raise
        _tell(tell, error)


def _tell(pipe: Connection, error: Exception) -> Never:
    # A parent that is gone has nobody to be told.
    with suppress(*GONE):
        pipe.send(_Failure(type(error).__name__, describe(error), traceback.format_exc()))
    raise SystemExit(1)
