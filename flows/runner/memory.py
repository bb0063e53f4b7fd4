"""Measures the peak memory of this process and all its descendants."""

from __future__ import annotations

import threading

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
        import psutil

        root = psutil.Process()
        while True:
            total = 0
            for process in [root, *root.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak_bytes = max(self.peak_bytes, total)
            if self._stop.wait(SAMPLE_SECONDS):
                return
