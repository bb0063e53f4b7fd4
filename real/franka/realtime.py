"""Limits real-time priority to one thread, the one that runs an arm's 1 kHz loop.

libfranka gives the highest real-time priority to the thread that makes its `Robot`, even if real
time is not enforced, and every thread started by it inherits the priority. The loop needs it;
Python's other threads do not: at the same priority they would delay the loop, and threads that spin
would block the computer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Scheduling:
    """Scheduling of a thread by Linux, see sched(7)."""

    policy: int
    """Scheduling policy, such as `os.SCHED_OTHER` or `os.SCHED_FIFO`."""
    priority: int
    """Priority, 1 to 99 for a real-time policy, else 0."""

    @classmethod
    def current(cls) -> Scheduling:
        """Scheduling of the calling thread."""
        return cls(os.sched_getscheduler(0), os.sched_getparam(0).sched_priority)

    def take(self) -> None:
        """Applies to the calling thread; threads that it starts inherit it."""
        os.sched_setscheduler(0, self.policy, os.sched_param(self.priority))


@contextmanager
def scheduled(scheduling: Scheduling | None = None) -> Iterator[None]:
    """Changes the calling thread's scheduling inside the context (None: leaves it), and restores it
    afterwards, even after a call that changed it."""
    before = Scheduling.current()
    try:
        if scheduling is not None and scheduling != before:
            scheduling.take()
        yield
    finally:
        if Scheduling.current() != before:
            before.take()
