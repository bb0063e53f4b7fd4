"""Turns signals that end a process into exceptions in its main thread, as Ctrl-C does.

By default SIGTERM (`kill`, a stopped service) and SIGHUP (a closed terminal or ssh session) end a
Python process without running its `finally` blocks. An exception leaves every context: the arm is
stopped, the running episode is stored, and child processes are ended.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from robots.errors import error_text

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
REPEAT_SECONDS = 10.0
"""Time after a signal for which further ones are ignored [s]: a service manager and a terminal send
several, and a second one would interrupt the stop of the arm."""


class TerminatedError(KeyboardInterrupt):
    """A signal asked the process to end. Like `KeyboardInterrupt`, it is no `Exception`, so that
    `except Exception` does not catch it."""

    def __init__(self, number: int) -> None:
        """`number` is the number of the signal."""
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def exit_code(error: KeyboardInterrupt) -> int:
    """The exit code of a process that `error` ended: 128 plus the signal's number, as in a
    shell."""
    return 128 + (error.number if isinstance(error, TerminatedError) else signal.SIGINT)


@contextmanager
def raising_signals() -> Iterator[None]:
    """Context in which SIGTERM and SIGHUP raise `TerminatedError` in the main thread.

    A signal that the process ignores, such as SIGHUP under `nohup`, stays ignored, and so is one
    that arrives while Ctrl-C already ends the process. In another thread the context does nothing.

    Raises:
        TerminatedError: a signal arrived; errors during the clean-up are its notes.
    """
    received: list[tuple[int, float]] = []
    """Number and time of the signals that raised an exception."""

    def end(number: int, frame: FrameType | None) -> None:
        if _cleans_up_after_interrupt():
            return
        if not received or time.monotonic() - received[-1][1] > REPEAT_SECONDS:
            received.append((number, time.monotonic()))
            raise TerminatedError(number)

    with _handled(ENDING_SIGNALS, end):
        try:
            yield
        except Exception as error:
            if not received:
                raise
            terminated = TerminatedError(received[0][0])
            terminated.add_note(error_text(error))
            raise terminated from error


@contextmanager
def announced_end(words: str) -> Iterator[None]:
    """Context in which Ctrl-C, SIGTERM and SIGHUP write `words` to the standard error as soon as
    they arrive, once, whatever the main thread is doing: it may be computing, or delay them.

    A signal that the process ignores writes nothing. In another thread than the main one the
    context does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, written = socket.socketpair()
    written.setblocking(False)
    numbers = (signal.SIGINT, *ENDING_SIGNALS)

    def listen() -> None:
        # The interpreter writes the number of every signal that it handles.
        while received := ours.recv(1):
            if received[0] in numbers:
                # The streams of Python may be locked by the thread that was interrupted.
                with suppress(OSError):
                    os.write(2, f"{words}\n".encode())
                return

    listener = threading.Thread(target=listen, name="announced-end", daemon=True)
    listener.start()
    previous = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        written.close()
        listener.join()
        ours.close()


def _cleans_up_after_interrupt() -> bool:
    """Whether the code that a signal interrupts runs because of a Ctrl-C, such as a `finally`
    block: Ctrl-C reaches all processes of a terminal, and the parent then ends its children by
    SIGTERM."""
    error = sys.exception()
    while error is not None:
        if isinstance(error, KeyboardInterrupt) and not isinstance(error, TerminatedError):
            return True
        error = error.__context__
    return False


@contextmanager
def blocked_interrupt() -> Iterator[None]:
    """Context in which Ctrl-C waits; a process that is started in it never receives one, unless it
    unblocks SIGINT, and is to be ended by another signal."""
    from multiprocessing import resource_tracker

    # Python starts it with the first process of `multiprocessing`, and then unblocks SIGINT.
    resource_tracker.ensure_running()
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Context that delays Ctrl-C, SIGTERM and SIGHUP until its block has finished.

    In threads other than the main one, which receive no signals, the context does nothing.
    """
    received: list[int] = []
    try:
        with _handled(
            (signal.SIGINT, *ENDING_SIGNALS), lambda number, frame: received.append(number)
        ):
            yield
    finally:
        if received:
            signal.raise_signal(received[0])


@contextmanager
def _handled(
    numbers: tuple[int, ...], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Installs `handler` for those signals that are not ignored, and restores the previous handlers
    at the end."""
    previous = {number: signal.getsignal(number) for number in numbers}
    # Python reports a handler installed by C code as None and could not restore it.
    replaced = {
        number: old for number, old in previous.items() if old not in (signal.SIG_IGN, None)
    }
    if threading.current_thread() is not threading.main_thread():
        replaced = {}
    for number in replaced:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in replaced.items():
            signal.signal(number, old)
