"""Starts child processes that end with their parent, relays their errors, and ends them in time.

A `Child` is a spawned process with a pipe to its parent. The caller defines the messages; starting
a child, detecting its end, relaying its errors and ending it are the same for stages, simulators,
workers, learners and servers.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, Never

from setproctitle import setproctitle

from robots import errors
from robots.errors import HandoffError, describe
from robots.imported_code import CodeGuard, current_guard, install_guard
from robots.signals import ENDING_SIGNALS, blocked_interrupt, exit_code, raising_signals

END_SECONDS = 10.0
"""Time limit for the `finally` blocks of a process, after which it is killed [s]."""
CHECK_SECONDS = 0.2
"""Time between two looks at a process that is kept [s]."""
CLOSED_PIPE_ERRORS = (EOFError, BrokenPipeError, ConnectionResetError)
"""Errors raised by a pipe whose other end is closed."""
LONGEST_COMMAND = 100
"""Number of characters after which `command_line` cuts."""


class ChildEndedError(HandoffError):
    """A child process ended without sending the expected message; the error says how it ended."""


class Child:
    """A spawned process and the parent's end of the pipe to it; see `spawn`."""

    def __init__(
        self,
        name: str,
        function: Callable[..., None],
        arguments: tuple[Any, ...] = (),
        *,
        daemon: bool,
    ) -> None:
        """Starts `function(*arguments, pipe)` in a new process; see `spawn` for the arguments."""
        self.pipe, child_pipe = multiprocessing.get_context("spawn").Pipe()
        self.process = spawn(
            name, function, (*arguments, child_pipe), daemon=daemon, error_pipe=child_pipe
        )
        # While the parent holds this end open, the death of the child does not close the pipe.
        child_pipe.close()

    def receive(self) -> Any:
        """Waits for the next message of the child.

        Raises:
            ChildEndedError: the child has ended, and all its messages have been received.
            HandoffError: the error that the function raised, with the child's traceback as a note.
        """
        try:
            message = self.pipe.recv()
        except CLOSED_PIPE_ERRORS:
            raise ChildEndedError(self.cause_of_death()) from None
        if isinstance(message, _Failure):
            raise message.error()
        return message

    def cause_of_death(self) -> str:
        """Description of how the child ended; a child that closed its pipe but still runs is ended
        first."""
        self.process.join(END_SECONDS)
        end([self.process])
        return cause_of_death(self.process.exitcode or 0)


def spawn(
    name: str,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    *,
    daemon: bool,
    error_pipe: Connection | None = None,
) -> BaseProcess:
    """Starts `function(*arguments)` in a new process, which ends whenever this process ends.

    SIGTERM and SIGHUP raise an exception in it, so that its `finally` blocks run; its exit code is
    then that of `robots.signals.exit_code`.

    Args:
        name: name of the process; `ps` shows it behind `handoff: `.
        function: function to be run; function and arguments must be picklable.
        arguments: arguments of the function.
        daemon: whether the exit of this process ends the new one; a daemon cannot have children. If
            False, the exit waits for the new process.
        error_pipe: end of a pipe through which an error of the function is sent; None prints it.
    """
    context = multiprocessing.get_context("spawn")
    process = context.Process(
        target=_child_main,
        args=(function, arguments, error_pipe, current_guard()),
        name=name,
        daemon=daemon,
    )
    # Ctrl-C waits until the new process can end without a traceback.
    with blocked_interrupt():
        process.start()
    return process


class KeptProcess:
    """A spawned process that is started again when a signal kills it, until `end`; one that ended
    by itself stays ended. See `spawn`."""

    def __init__(
        self,
        name: str,
        function: Callable[..., None],
        arguments: tuple[Any, ...],
        *,
        seconds: float = END_SECONDS,
    ) -> None:
        """Starts `function(*arguments)` in a new process; see `spawn` for the arguments.

        Args:
            name: name of the process.
            function: function to be run.
            arguments: arguments of the function.
            seconds: time limit of `end` before the process is killed [s].
        """
        self._begin = partial(spawn, name, function, arguments, daemon=True)
        self._seconds = seconds
        self._ending = threading.Event()
        self._process = self._begin()
        self._thread = threading.Thread(target=self._keep, name=f"{name}-keeper", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Process id of the running process."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    def end(self) -> None:
        """Ends the process for good."""
        self._ending.set()
        self._thread.join(self._seconds)
        end([self._process], self._seconds)

    def _keep(self) -> None:
        while not self._ending.is_set():
            self._process.join(CHECK_SECONDS)
            if self._process.is_alive() or self._ending.is_set():
                continue
            if killing_signal(self._process.exitcode or 0) is None:
                return
            self._process = self._begin()


def end(processes: Sequence[BaseProcess], seconds: float = END_SECONDS) -> None:
    """Ends processes by SIGTERM; those that still run after `seconds` are killed by SIGKILL."""
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


def exit_at_once(code: int) -> Never:
    """Ends this process with `code` after its threads and exit handlers, as an exit of Python does,
    but without freeing its memory object by object, which takes seconds once PyTorch is imported.

    For a process that a person waits for after a signal; all `finally` blocks must have run.
    """
    # The order of Py_FinalizeEx, up to the part that is left out.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # A closed pipe takes nothing more, and Python without a console has no streams.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def killing_signal(code: int) -> signal.Signals | None:
    """The signal that ended a process with this exit code; None if no signal ended it."""
    number = code - 128 if code - 128 in ENDING_SIGNALS else -code
    return signal.Signals(number) if number > 0 else None


def cause_of_death(code: int) -> str:
    """Description of how a process with this exit code ended, to follow the process's name."""
    killer = killing_signal(code)
    if killer is None:
        return f"died with exit code {code} and no result."
    hint = " Was the machine out of memory?" if killer is signal.SIGKILL else ""
    return f"was killed by {killer.name} and died with exit code {code}.{hint}"


def command_line() -> str:
    """The command that a person gave, on one line; a spawned process returns that of the process
    which spawned it."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    words = ["handoff" if program == "__main__.py" else program, *sys.argv[1:]]
    line = " ".join(" ".join(words).split())
    return line if len(line) <= LONGEST_COMMAND else f"{line[: LONGEST_COMMAND - 2]}.."


def login() -> str:
    """The login, or the number of a user who has no name on this computer."""
    from getpass import getuser

    try:
        return getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def end_with_parent() -> None:
    """Ends this process by SIGTERM as soon as its parent has ended for any reason.

    The signal lets a terminal be restored and a learner save its state. Does nothing in a process
    that `multiprocessing` did not start.
    """
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_wait_for_parent, name="parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


class _Failure(NamedTuple):
    """An error of a child, as sent to its parent."""

    kind: str
    text: str
    trace: str

    def error(self) -> HandoffError:
        """The error, of the original class if `robots.errors` defines it."""
        error = getattr(errors, self.kind, HandoffError)(self.text)
        error.add_note(self.trace)
        return error


def _child_main(
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    error_pipe: Connection | None,
    guard: CodeGuard | None,
) -> None:
    """Main function of the child process."""
    end_with_parent()
    name = multiprocessing.current_process().name
    setproctitle(f"handoff: {name.removeprefix('handoff-')}")
    try:
        with raising_signals():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            install_guard(guard)
            function(*arguments)
    except KeyboardInterrupt as error:
        exit_at_once(exit_code(error))
    except Exception as error:
        if error_pipe is None:
            raise
        _send_error(error_pipe, error)


def _send_error(pipe: Connection, error: Exception) -> Never:
    # Without a parent there is no receiver.
    with suppress(*CLOSED_PIPE_ERRORS):
        pipe.send(_Failure(type(error).__name__, describe(error), traceback.format_exc()))
    exit_at_once(1)
