"""Measures the peak memory of processes and their descendants."""

from __future__ import annotations

import resource
import sys
import threading
from pathlib import Path

SAMPLE_SECONDS = 0.5
"""Interval between two samples [s]."""


class MemoryMeter:
    """Samples the resident memory of the process tree in a thread, while the context lasts.

    Pages shared between processes count once per process, so the result is an upper bound.
    """

    peak_bytes: int = 0
    """Highest sum of resident set sizes sampled so far [bytes]."""

    def __enter__(self) -> MemoryMeter:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, tree_memory())
            if self._stop.wait(SAMPLE_SECONDS):
                return


def tree_memory(pid: int | None = None) -> int:
    """Returns the resident memory of a process and all its descendants [bytes]; 0 if it has ended.

    Args:
        pid: number of the process; None takes this one.
    """
    import psutil

    total = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def peak_memory() -> int:
    """Returns the highest resident memory that this process has had, without its descendants
    [bytes]."""
    status = Path("/proc/self/status")
    if status.exists():
        # A spawned process inherits `ru_maxrss` from its parent, but not this figure.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
