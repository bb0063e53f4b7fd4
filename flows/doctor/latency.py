"""Measures how late this machine wakes a loop up that asks for every millisecond.

The method is that of cyclictest: sleep until the next millisecond, and note how much later the loop
runs. The loop is in a process of its own that imports neither torch nor a simulator, at real-time
priority where the process may take it. The latency is that of Python; the loop of an arm is
franky's C++.
"""

from __future__ import annotations

import gc
import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from flows.doctor.check import Check
from robots.processes import Child, end

PERIOD_NS = 1_000_000
"""Period of the loop [ns]."""
PRIORITY = 80
"""Real-time priority of the loop, that of cyclictest in most guides."""
LIMIT_US = 300.0
"""Largest 99th percentile without a warning [us]: FCI wants a command within 1 ms of the state, of
which the network and the controller need the rest."""
EDGES_US = (25, 50, 100, 200, 500, 1000, 5000)
"""Upper edges of the histogram's rows [us]; the last row has no upper edge."""
BAR_COLUMNS = 40
"""Length of the longest bar."""


class WakeUps(NamedTuple):
    """Measured wake-ups."""

    late_ns: Sequence[int]
    """Lateness of each wake-up [ns]."""
    missed: int
    """Number of milliseconds that were skipped, because the loop was late by more than one."""
    priority: int
    """Real-time priority of the loop, 0 without."""


def wake_up_latency(seconds: float) -> Check:
    """Measures for `seconds` in a new process; less than one period measures nothing."""
    if seconds * 1e9 < PERIOD_NS:
        return Check("wake-ups", "not checked", f"left out by --seconds {seconds:g}")
    child = Child("handoff-wake-ups", _measure, (seconds,), daemon=True)
    try:
        return rated(child.receive())
    finally:
        end([child.process])


def wake_ups(
    seconds: float, now: Callable[[], int], sleep: Callable[[float], None]
) -> tuple[list[int], int]:
    """Sleeps until every next millisecond.

    Args:
        seconds: duration [s].
        now: returns the time [ns].
        sleep: waits for a number of seconds.

    Returns:
        The lateness of every wake-up [ns], and the number of milliseconds that were skipped.
    """
    late_ns: list[int] = []
    missed = 0
    due = now()
    last = due + round(seconds * 1e9)
    while due + PERIOD_NS <= last:
        due += PERIOD_NS
        wait = due - now()
        if wait > 0:
            sleep(wait * 1e-9)
        late = now() - due
        late_ns.append(max(late, 0))
        # The loop continues at the next millisecond instead of hurrying through those that are due.
        skipped = max(late, 0) // PERIOD_NS
        due += skipped * PERIOD_NS
        missed += skipped
    return late_ns, missed


def rated(measured: WakeUps) -> Check:
    """Returns the percentiles and the histogram of measured wake-ups."""
    late_us = sorted(late * 1e-3 for late in measured.late_ns)
    p50, p99 = percentile(late_us, 0.5), percentile(late_us, 0.99)
    largest = late_us[-1]
    priority = f"priority {measured.priority}" if measured.priority else "no real-time priority"
    found = (
        f"{len(late_us)} at 1 kHz, {priority}: late by p50 {p50:.0f}, p99 {p99:.0f}, "
        f"max {largest:.0f} us; {measured.missed} ms missed (Python, not the arm's C++ loop)"
    )
    slow = p99 > LIMIT_US
    advice = (
        f"Above {LIMIT_US:.0f} us: close other programs, set the governor to performance, use a "
        "PREEMPT_RT kernel."
    )
    return Check(
        "wake-ups",
        "warning" if slow else "ok",
        found,
        advice if slow else "",
        lines=tuple(histogram(late_us)),
        values={
            "p50_us": round(p50, 1),
            "p99_us": round(p99, 1),
            "max_us": round(largest, 1),
            "wake_ups": len(late_us),
            "missed_ms": measured.missed,
            "priority": measured.priority,
        },
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of the ordered values do not exceed."""
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def histogram(late_us: Sequence[float]) -> Iterator[str]:
    """Yields a row for each range up to the largest value, with a bar and the number of values."""
    counts = [0] * (len(EDGES_US) + 1)
    for late in late_us:
        counts[bisect_left(EDGES_US, late)] += 1
    last = max(index for index, count in enumerate(counts) if count)
    for index, count in enumerate(counts[: last + 1]):
        name = f"<= {EDGES_US[index]}" if index < len(EDGES_US) else f"> {EDGES_US[-1]}"
        # A single late wake-up has to be visible beside thousands of punctual ones.
        bar = "#" * math.ceil(BAR_COLUMNS * count / max(counts))
        yield f"{name:>7} us  {bar:<{BAR_COLUMNS}}  {count}"


def _measure(seconds: float, pipe: Connection) -> None:
    priority = _take_priority()
    gc.disable()
    late_ns, missed = wake_ups(seconds, time.monotonic_ns, time.sleep)
    pipe.send(WakeUps(late_ns, missed, priority))


def _take_priority() -> int:
    """Takes real-time priority where this user may, and returns it; 0 otherwise."""
    if not hasattr(os, "sched_setscheduler"):
        return 0
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError:
        return 0
    return PRIORITY
