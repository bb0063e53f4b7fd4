"""Locks of an artifact that is being made: one run makes it, and the processes of one run write its
files.

These are two locks (`flock`), because their holders end at different times. The run's lock ends
with the run. The writers' lock is inherited by the stage's process and by the processes that this
one starts for its own work: the kernel copies it as it makes a process, so at no moment is it free
while one of them can still write. How late such a process hears that its run is gone, in the middle
of a long call of C code for instance, does not matter.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import reduction
from multiprocessing.context import assert_spawning
from pathlib import Path
from typing import Any

from robots.errors import HandoffError
from robots.interfaces import Progress

PATIENCE_SECONDS = 30.0
"""How long a run waits until the processes of an earlier run that is gone have ended [s]."""
LOOK_SECONDS = 0.1
"""Time between two attempts to take the writers' lock [s]."""


class WriteLock:
    """The writers' lock of one artifact; as an argument of a spawned process it is inherited."""

    def __init__(self, descriptor: int) -> None:
        """Wraps the descriptor of a lock file on which the lock has been taken."""
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        """Puts the descriptor among those that the new process is made with."""
        assert_spawning(self)
        return _inherited, (reduction.DupFd(self._descriptor),)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Notes this process as a writer, and lets `inheritable_lock` find the lock, for the length
        of the context."""
        os.write(self._descriptor, f"{os.getpid()}\n".encode())
        before = _HELD.set(self)
        try:
            yield
        finally:
            _HELD.reset(before)


_HELD: ContextVar[WriteLock | None] = ContextVar("write lock", default=None)


def inheritable_lock() -> WriteLock | None:
    """The lock under which this process writes, for a process that is started to write as well;
    None without a lock."""
    return _HELD.get()


@contextmanager
def run_lock(artifact: Path) -> Iterator[None]:
    """Makes this run the one that makes the artifact, for the length of the context.

    Raises:
        HandoffError: another run makes it.
    """
    artifact.parent.mkdir(parents=True, exist_ok=True)
    with _opened(artifact, "lock") as descriptor:
        if not _taken(descriptor):
            raise HandoffError(
                f"artifact {artifact}: another run is building it right now. Wait for it, or stop it."
            )
        yield


@contextmanager
def write_lock(artifact: Path, progress: Progress) -> Iterator[WriteLock]:
    """Takes the writers' lock for the length of the context; to be called under `run_lock`.

    A process of an earlier run that is gone ends by itself, which is waited for.

    Args:
        artifact: where it is to lie.
        progress: told what is waited for.

    Raises:
        HandoffError: such a process still lives after `PATIENCE_SECONDS`.
    """
    with _opened(artifact, "writing") as descriptor:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _taken(descriptor):
            writers = _writers(descriptor)
            if time.monotonic() >= deadline:
                raise HandoffError(
                    f"artifact {artifact}: {writers} is still ending, {PATIENCE_SECONDS:g} s after this run began to "
                    "wait for it; the run that started it is gone. Two must not write at once: run again when it has "
                    "ended, or end it by kill -9."
                )
            progress(0, 1, f"waiting until {writers} has ended, whose run is gone")
            time.sleep(LOOK_SECONDS)
        os.ftruncate(descriptor, 0)
        yield WriteLock(descriptor)


def _inherited(handed: Any) -> WriteLock:
    descriptor = handed.detach()
    # A program that this process runs, such as git, is not to keep the lock.
    os.set_inheritable(descriptor, False)
    return WriteLock(descriptor)


@contextmanager
def _opened(artifact: Path, suffix: str) -> Iterator[int]:
    file = artifact.parent / f".{artifact.name}.{suffix}"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _writers(descriptor: int) -> str:
    """Those of the processes noted in the lock file that live, in words."""
    import psutil

    noted = os.pread(descriptor, 4096, 0).decode(errors="replace").split()
    living = [number for number in noted if number.isdigit() and psutil.pid_exists(int(number))]
    return f"the stage's process {' or '.join(living)}" if living else "a process of the stage"
