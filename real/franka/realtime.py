"""Real-time priority for one thread only: the one that runs an arm's 1 kHz loop.

libfranka gives the highest real-time priority to whichever thread makes its `Robot`, also where
real time is not enforced, and every thread that one starts inherits it. The loop needs it; Python,
a policy's threads and a page's do
not: of the same priority they would hold up the loop, and threads that spin would hold up the
computer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Scheduling:
    """How Linux schedules a thread, sched(7)."""

    policy: int
    """`os.SCHED_OTHER`, `os.SCHED_FIFO`, ..."""
    priority: int
    """1 to 99 where the policy is real-time, else 0."""

    @classmethod
    def current(cls) -> Scheduling:
        """That of the calling thread."""
        return cls(os.sched_getscheduler(0), os.sched_getparam(0).sched_priority)

    def take(self) -> None:
        """Makes it the calling thread's; threads that it starts inherit it."""
        os.sched_setscheduler(0, self.policy, os.sched_param(self.priority))


@contextmanager
def scheduled(scheduling: Scheduling | None = None) -> Iterator[None]:
    """Inside, the calling thread is scheduled as given (None: as it is); after, as before, whatever
    happened inside."""
    before = Scheduling.current()
    try:
        if scheduling is not None and scheduling != before:
            scheduling.take()
        yield
    finally:
        if Scheduling.current() != before:
            before.take()
