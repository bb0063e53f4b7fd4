"""Chooses views of a board that differ, among the many of a film or a camera."""

from __future__ import annotations

import numpy as np

from real.cameras.calibration.board import BoardView

LEAST_MOTION = 0.04
"""Smallest mean motion of the corners between two views that are used, as a share of the picture's
diagonal."""
MOST_VIEWS = 40
"""Number of views after which no more are taken."""


class ViewChoice:
    """The views that are used, each different from all others.

    Args:
        size: width and height of the pictures [px].
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
        self.views: list[BoardView] = []
        self._least = LEAST_MOTION * float(np.hypot(*size))

    @property
    def full(self) -> bool:
        """Whether there are as many views as are used at most."""
        return len(self.views) >= MOST_VIEWS

    def offer(self, view: BoardView) -> bool:
        """Takes a view if it differs from those that were taken; returns whether it did."""
        if self.full or any(_motion(view, other) < self._least for other in self.views):
            return False
        self.views.append(view)
        return True

    def coverage(self) -> tuple[float, float]:
        """Share of the width and of the height of the pictures over which corners were seen."""
        if not self.views:
            return 0.0, 0.0
        corners = np.concatenate([view.corners for view in self.views])
        spread = (corners.max(axis=0) - corners.min(axis=0)) / self.size
        return float(spread[0]), float(spread[1])


def _motion(view: BoardView, other: BoardView) -> float:
    """Mean distance of the corners that both views have [px]; infinite without one."""
    _, here, there = np.intersect1d(view.numbers, other.numbers, return_indices=True)
    if not len(here):
        return np.inf
    return float(np.linalg.norm(view.corners[here] - other.corners[there], axis=1).mean())
