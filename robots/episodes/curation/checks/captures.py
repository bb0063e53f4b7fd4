"""Summarises the capture times of one episode's pictures as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robots.episodes.curation.checks.pictures import longest_runs


@dataclass(frozen=True)
class CaptureSummary:
    """Capture times of one source in one episode."""

    longest: int
    """Steps of the longest run with the same capture time."""
    start: int
    """First step of that run."""
    falls: int
    """Number of steps whose capture time is before that of the step before."""
    interval: float
    """Median time between two captures that were used [s]; 0 below three of them."""
    deviation: float
    """95th percentile of the deviation of these times from their median [s]."""


def summarise_captures(values: np.ndarray) -> CaptureSummary:
    """Summarises the capture times (T,) [s] of one episode."""
    times = values.reshape(-1).astype(np.float64)
    difference = np.diff(times)
    longest, last = longest_runs((difference == 0.0)[:, None])
    between = difference[difference > 0.0]
    interval = float(np.median(between)) if len(between) >= 2 else 0.0
    deviation = np.abs(between - interval) if len(between) >= 2 else np.zeros(1)
    return CaptureSummary(
        longest=int(longest[0]),
        start=int(last[0]) - int(longest[0]) + 1,
        falls=int((difference < 0.0).sum()),
        interval=interval,
        deviation=float(np.percentile(deviation, 95.0)),
    )
