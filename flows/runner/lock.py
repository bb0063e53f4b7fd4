"""Locks the artifact that a run computes, so that the processes of one run alone write it.

There are two locks (`flock`) of an artifact, because their holders end at different times. The run
holds the run lock. The write lock is inherited by the stage's process and by all processes that it
starts: the kernel copies it when it creates a process, so it is never free while one of them can
still write, even if such a process notices late that its run is gone.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from multiprocessing import reduction
from multiprocessing.context import assert_spawning
from pathlib import Path
from typing import Any

from flows.runner.run_end import stop_if_ended
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.processes import LONGEST_COMMAND
from robots.storage.durable import explain_write_errors

PATIENCE_SECONDS = 30.0
"""Time that a run waits for the processes of an earlier, aborted run to end [s]."""
POLL_SECONDS = 0.1
"""Time between two attempts to take a lock [s]."""
EXCLUSIVE = Path(tempfile.gettempdir()) / "handoff-exclusive.lock"
"""Lock file of stages that must be alone on the computer, such as those that measure latencies."""


class WriteLock:
    """The write lock of one artifact; a spawned process that receives it as an argument inherits
    it."""

    def __init__(self, descriptor: int) -> None:
        """Wraps the descriptor of a lock file that is already locked."""
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        """Passes the descriptor to the new process."""
        assert_spawning(self)
        return _from_descriptor, (reduction.DupFd(self._descriptor),)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Registers this process as a writer, and the lock for `inheritable_lock`, while the
        context lasts."""
        os.write(self._descriptor, f"{os.getpid()}\n".encode())
        token = _HELD.set(self)
        try:
            yield
        finally:
            _HELD.reset(token)


_HELD: ContextVar[WriteLock | None] = ContextVar("write lock", default=None)


def inheritable_lock() -> WriteLock | None:
    """Returns the lock that this process holds, to pass it to child processes that also write; None
    without a lock."""
    return _HELD.get()


@contextmanager
def run_lock(artifact: Path, stage: str, progress: Progress) -> Iterator[None]:
    """Holds the run lock of the artifact while the context lasts; waits as long as another run
    computes it.

    Args:
        artifact: path of the artifact.
        stage: name of its stage.
        progress: called with a note while it waits.

    Raises:
        HandoffError: the run ended meanwhile, or the folder cannot be written.
    """
    with explain_write_errors(artifact.parent, f"stage {stage} cannot be computed"):
        artifact.parent.mkdir(parents=True, exist_ok=True)
        created = _create(artifact.parent / f".{artifact.name}.lock")
    with _opened(created) as descriptor:
        _wait(descriptor, stage, "another run, which computes the same artifact", progress)
        yield


@contextmanager
def exclusive_lock(stage: str, progress: Progress) -> Iterator[None]:
    """Holds a lock of the whole computer while the context lasts, for a stage that measures
    latencies; waits as long as such a stage of any run and any user holds it.

    Args:
        stage: name of the stage.
        progress: called with a note while it waits.

    Raises:
        HandoffError: the run ended meanwhile.
    """
    try:
        # Linux refuses to create a file of another user in a folder like /tmp, even if it exists.
        descriptor = os.open(EXCLUSIVE, os.O_RDONLY)
    except FileNotFoundError:
        descriptor = _create(EXCLUSIVE)
        # Other users must be able to open it, whatever the umask.
        os.fchmod(descriptor, 0o644)
    with _opened(descriptor):
        waited = f"a stage that must be alone,{_holder(descriptor) or ' of another run'}"
        _wait(descriptor, stage, waited, progress)
        yield


def _holder(descriptor: int) -> str:
    """Names the process that holds a lock file and its command, to follow what it holds; empty
    where the kernel does not say."""
    inode = os.fstat(descriptor).st_ino
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return ""
    for words in locks:
        if words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
            return f" of process {words[4]}{_command(words[4])}"
    return ""


def _command(process: str) -> str:
    """The command of a process behind its interpreter, or its title if it has set one, in brackets;
    empty for a process that has ended."""
    try:
        written = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    words = written.rstrip("\0").split("\0")
    program, *arguments = words[1:] or words
    line = " ".join([Path(program).name, *arguments])
    return f" ({line[:LONGEST_COMMAND]})" if line else ""


def _wait(descriptor: int, stage: str, holder: str, progress: Progress) -> None:
    while not _try_lock(descriptor):
        stop_if_ended(stage)
        progress(0, 1, f"waiting for {holder}")
        time.sleep(POLL_SECONDS)


@contextmanager
def write_lock(artifact: Path, progress: Progress) -> Iterator[WriteLock]:
    """Holds the write lock of the artifact while the context lasts; must be called under
    `run_lock`.

    Waits for processes of an earlier, aborted run, which end without help.

    Args:
        artifact: path of the artifact.
        progress: called with a note while it waits.

    Raises:
        HandoffError: such a process is still running after `PATIENCE_SECONDS`.
    """
    with _opened(_create(artifact.parent / f".{artifact.name}.writing")) as descriptor:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _try_lock(descriptor):
            writers = _writers(descriptor)
            if time.monotonic() >= deadline:
                raise HandoffError(
                    f"artifact {artifact}: {writers} of an earlier, aborted run is still running after "
                    f"{PATIENCE_SECONDS:g} s. Two processes must not write at once: wait until it has ended and "
                    "run again, or stop it with kill -9."
                )
            progress(0, 1, f"waiting for {writers} of an earlier, aborted run to end")
            time.sleep(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        yield WriteLock(descriptor)


@contextmanager
def free_locks(artifact: Path) -> Iterator[bool]:
    """Takes both locks of an artifact while the context lasts, and yields whether they were free;
    does not wait."""
    files = [artifact.parent / f".{artifact.name}.{ending}" for ending in ("lock", "writing")]
    with _opened(_create(files[0])) as run, _opened(_create(files[1])) as writing:
        yield _try_lock(run) and _try_lock(writing)


def is_locked(artifact: Path) -> bool:
    """Whether a run computes the artifact, or a process of an aborted run still writes it; writes
    nothing."""
    for ending in ("lock", "writing"):
        with suppress(FileNotFoundError):
            descriptor = os.open(artifact.parent / f".{artifact.name}.{ending}", os.O_RDONLY)
            with _opened(descriptor):
                if not _try_lock(descriptor):
                    return True
    return False


def _from_descriptor(duplicate: Any) -> WriteLock:
    descriptor = duplicate.detach()
    # Programs that this process runs, such as git, must not keep the lock.
    os.set_inheritable(descriptor, False)
    return WriteLock(descriptor)


def _create(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)


@contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _writers(descriptor: int) -> str:
    """Describes the processes registered in the lock file that are still running."""
    import psutil

    registered = os.pread(descriptor, 4096, 0).decode(errors="replace").split()
    running = [
        number for number in registered if number.isdigit() and psutil.pid_exists(int(number))
    ]
    return f"the stage's process {' or '.join(running)}" if running else "a process of the stage"
