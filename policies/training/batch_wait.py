"""Measures the fraction of a training's time in which it waits for batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NOTED_FRACTION = 0.02
"""Fraction of the time from which the progress bar tells it."""


class BatchWait:
    """Wall-clock time spent waiting for batches, since the last entry of the curve and in all.

    Args:
        clock: returns the time [s].
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waited = 0.0
        self._last_waited = 0.0
        self._started = self._last = clock()

    def start(self) -> None:
        """Begins to measure, before the first update."""
        self._waited = self._last_waited = 0.0
        self._started = self._last = self._clock()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context in which the training waits for a batch."""
        began = self._clock()
        try:
            yield
        finally:
            self._waited += self._clock() - began

    def entry(self) -> float:
        """The fraction since the previous call, or since the start."""
        now = self._clock()
        fraction = (self._waited - self._last_waited) / max(now - self._last, 1e-9)
        self._last = now
        self._last_waited = self._waited
        return fraction

    def total(self) -> float:
        """The fraction since the start."""
        return self._waited / max(self._clock() - self._started, 1e-9)


def wait_note(fraction: float) -> str:
    """Phrase for the progress bar; empty if the training hardly waits."""
    return f"{fraction:.0%} waiting for batches" if fraction >= NOTED_FRACTION else ""
