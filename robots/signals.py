"""Signals that end a process as Ctrl-C does: by an exception in its main thread.

SIGTERM (`kill`, a service that is stopped) and SIGHUP (a terminal or ssh session that is closed)
end a Python process without running its `finally` blocks. As an exception they leave every context
on their way: the arm is stopped, the running episode is stored, and processes that were started are
ended.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from robots.errors import words

ENDING = (signal.SIGTERM, signal.SIGHUP)
AGAIN_SECONDS = 10.0
"""Time after a signal in which more of them are ignored [s]: a service manager and a terminal send
several, and one that came while the arm is being stopped would leave it moving."""


class TerminatedError(KeyboardInterrupt):
    """A signal has asked the process to end. No `except Exception` holds it, as none holds
    Ctrl-C."""

    def __init__(self, number: int) -> None:
        """`number` is the signal's."""
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def exit_code(error: KeyboardInterrupt) -> int:
    """The exit code of a process that `error` has ended: 128 and the signal's number, as a shell
    tells it."""
    return 128 + (error.number if isinstance(error, TerminatedError) else signal.SIGINT)


@contextmanager
def raising_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP raise `TerminatedError` in the main thread for the length of the
    context.

    A signal that the process ignores, such as SIGHUP under `nohup`, stays ignored. In another
    thread the context does nothing.

    Raises:
        TerminatedError: a signal came. What else failed on the way out is noted on it.
    """
    came: list[tuple[int, float]] = []

    def end(number: int, frame: FrameType | None) -> None:
        if not came or time.monotonic() - came[-1][1] > AGAIN_SECONDS:
            came.append((number, time.monotonic()))
            raise TerminatedError(number)

    with _handled(ENDING, end):
        try:
            yield
        except Exception as error:
            if not came:
                raise
            ended = TerminatedError(came[0][0])
            ended.add_note(words(error))
            raise ended from error


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Lets Ctrl-C, SIGTERM and SIGHUP wait until the block is done, which must not be left
    half-way.

    In another thread than the main one, where no signal raises anything, the context does nothing.
    """
    came: list[int] = []
    try:
        with _handled((signal.SIGINT, *ENDING), lambda number, frame: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _handled(
    numbers: tuple[int, ...], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handles those signals that are not ignored by `handler`, and as before when the context is
    left."""
    before = {number: signal.getsignal(number) for number in numbers}
    # A handler that C code has installed is told as None and could not be put back.
    taken = {number: one for number, one in before.items() if one not in (signal.SIG_IGN, None)}
    if threading.current_thread() is not threading.main_thread():
        taken = {}
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, one in taken.items():
            signal.signal(number, one)
