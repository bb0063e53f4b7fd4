"""Keeps an arm to one process of this computer at a time, by a kernel lock on a file per robot.

The kernel frees the lock when its holder ends for any reason, also by SIGKILL. The file names the
holder, for the message to a process that finds the arm in use. Which computer may use an arm is not
decided here.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import MappingProxyType

from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.processes import command_line, login
from robots.storage.durable import open_shared
from robots.wire.addresses import is_loopback

FOLDER = Path("/tmp")
"""Folder of the lock files. All users must have the same, so `TMPDIR` does not move it."""
POLL_SECONDS = 0.2
"""Time between two attempts to take a lock [s]."""
EVERY_USER = 0o666
"""Permissions of a lock file: every user must be able to lock it and to write the holder."""
LONGEST_RECORD = 4096
"""Largest size of the description of a holder [bytes]."""

_HELD: ContextVar[Mapping[str, int]] = ContextVar("held arms", default=MappingProxyType({}))
"""Descriptors of the locks of held arms, by their address."""
_DESCRIPTORS: set[int] = set()
"""Open lock files of all threads of this process."""


@contextmanager
def robot_slot(
    host: str, name: str, *, patience: float = 0.0, progress: Progress = no_progress
) -> Iterator[None]:
    """Holds the arm at `host` while the context lasts; no other process of this computer can.

    A context inside another one of the same arm and thread has no effect, so a session holds the
    arm from its first to its last episode, and every connection holds it as well.

    Args:
        host: name or address of the robot's control, or of its twin.
        name: name of the robot, for messages.
        patience: time to wait for another holder [s].
        progress: called with a note while it waits.

    Raises:
        HandoffError: another process holds the arm; the message names it.
    """
    address = robot_address(host)
    if address in _HELD.get():
        yield
        return
    file = FOLDER / f"handoff-robot-{address}.lock"
    descriptor = _lock(file, f"{name} at {host}", time.monotonic() + patience, progress)
    _free_in_forks()
    _DESCRIPTORS.add(descriptor)
    _HELD.set({**_HELD.get(), address: descriptor})
    try:
        _write_holder(descriptor)
        yield
    finally:
        _HELD.set({name: held for name, held in _HELD.get().items() if name != address})
        # A forked process has closed it, and the number may be another file's by now.
        if descriptor in _DESCRIPTORS:
            _DESCRIPTORS.remove(descriptor)
            os.close(descriptor)


def held_slot(host: str) -> int:
    """The descriptor of the lock of the arm at `host`, for a process that drives it on behalf of
    the one that holds it.

    Raises:
        HandoffError: this process does not hold the arm.
    """
    address = robot_address(host)
    if address not in _HELD.get():
        raise HandoffError(f"arm at {host}: it is driven by a process that does not hold it.")
    return _HELD.get()[address]


@contextmanager
def adopted_slot(host: str, descriptor: int) -> Iterator[None]:
    """Holds the arm at `host` by a lock that another process has taken. The arm stays held until
    both have let go, so that nobody takes it while it is still brought to rest.

    Args:
        host: name or address of the robot's control.
        descriptor: descriptor of the lock in this process, which is closed at the end.
    """
    before = _HELD.get()
    _HELD.set({**before, robot_address(host): descriptor})
    try:
        yield
    finally:
        _HELD.set(before)
        os.close(descriptor)


def robot_address(host: str) -> str:
    """The address of `host`, so that two names of an arm are one arm, as part of a file name."""
    try:
        address = socket.gethostbyname(host)
    except (OSError, UnicodeError):
        address = host
    return re.sub(r"[^\w.-]", "_", address)


def is_on_this_computer(host: str) -> bool:
    """Whether the address of an arm is one of this computer, as that of a twin is."""
    return is_loopback(robot_address(host))


def _lock(file: Path, arm: str, deadline: float, progress: Progress) -> int:
    """Waits until the lock is free or time has reached `deadline`; returns the locked
    descriptor."""
    while True:
        try:
            descriptor = open_shared(file, EVERY_USER)
        except OSError as error:
            raise HandoffError(
                f"{arm}: its lock {file} cannot be opened ({error.strerror}). May all users read and write it?"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            if time.monotonic() >= deadline:
                raise HandoffError(f"{arm}: in use by {holder}. Wait for it, or stop it.") from None
            progress(0, 1, f"waiting for {arm}: in use by {holder}")
            time.sleep(POLL_SECONDS)
            continue
        if _is_at(file, descriptor):
            return descriptor
        # The file was removed between opening and locking; a lock of it keeps nobody out.
        os.close(descriptor)


def _is_at(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_holder(descriptor: int) -> None:
    record = {
        "process": os.getpid(),
        "command": command_line(),
        "user": login(),
        "since": time.time(),
    }
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps(record).encode())


def _holder(descriptor: int) -> str:
    """Describes the holder by its record, which any user can have written."""
    try:
        record = json.loads(os.pread(descriptor, LONGEST_RECORD, 0))
        command, user = (" ".join(str(record[key]).split()) for key in ("command", "user"))
        return f"process {int(record['process'])} ({command}, user {user}) since {clock_time(float(record['since']))}"
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return "another process"


def clock_time(moment: float) -> str:
    """The local time of a moment [s since the epoch], with the date unless it is today's."""
    local = time.localtime(moment)
    today = time.strftime("%F") == time.strftime("%F", local)
    return time.strftime("%H:%M" if today else "%F %H:%M", local)


@cache
def _free_in_forks() -> None:
    """Makes forked processes close their copies of the locks, which would outlive the holder."""
    os.register_at_fork(after_in_child=_close_copies)


def _close_copies() -> None:
    while _DESCRIPTORS:
        os.close(_DESCRIPTORS.pop())
    _HELD.set({})
