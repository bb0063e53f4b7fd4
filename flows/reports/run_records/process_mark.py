"""Names a process so that it can be told later whether it still runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLOCK_SECONDS = 2.0
"""Largest difference of the start times of the same process, whose clock was set [s]."""


def process_mark() -> dict[str, Any]:
    """Returns the number and the start time [s] of this process."""
    import psutil

    process = psutil.Process()
    return {"number": process.pid, "started": process.create_time()}


def has_ended(mark: Mapping[str, Any]) -> bool:
    """Returns whether a process of this computer has ended; another one may have its number."""
    import psutil

    try:
        started = psutil.Process(mark["number"]).create_time()
    except psutil.NoSuchProcess:
        return True
    return abs(started - mark["started"]) >= CLOCK_SECONDS
