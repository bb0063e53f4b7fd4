"""PointMaze-U: a point must go round a wall; sparse success, hard to find by chance."""

from __future__ import annotations

import numpy as np

from tests.beds.bed import Bed

STEP = 0.05
"""Way of one step at action 1 [m]."""
NEAR = 0.1
"""Distance to the goal that counts as there [m]."""
WALL_X, WALL_HALF = 0.6, 0.05
"""The wall goes from x = 0 to `WALL_X` [m], `WALL_HALF` thick to either side of y = 0.5."""


class PointMaze(Bed):
    """A point in the unit square [0, 1]^2 with a wall in the middle: from below it to above it, round its end.

    Observation (O = 2): position [m]. Action: x, y. Solved: within `NEAR` of the goal at (0.1, 0.9).
    """

    observation_size, action_size, max_steps = 2, 2, 100

    def __init__(self, num_envs: int = 1, seed: int = 0) -> None:
        self.point = np.zeros((num_envs, 2))
        self.goal = np.array([0.1, 0.9])
        super().__init__(num_envs, seed)

    def start(self, row: int, rng: np.random.Generator) -> None:
        """See `Bed.start`: the lower left."""
        self.point[row] = rng.uniform([0.02, 0.02], [0.2, 0.2])

    def move(self, action_NA: np.ndarray) -> None:
        """See `Bed.move`: x first, then y; what would enter the wall stays where it was."""
        for axis in (0, 1):
            way = np.zeros_like(self.point)
            way[:, axis] = STEP * action_NA[:, axis]
            after = np.clip(self.point + way, 0.0, 1.0)
            self.point = np.where(in_wall(after)[:, None], self.point, after)

    def observe(self) -> np.ndarray:
        """See `Bed.observe`."""
        return self.point.astype(np.float32)

    def solved(self) -> np.ndarray:
        """See `Bed.solved`."""
        return np.linalg.norm(self.point - self.goal, axis=1) < NEAR

    def expert(self) -> np.ndarray:
        """See `Bed.expert`: right, up, left."""
        below, beside = self.point[:, 1] < 0.5 + 2 * WALL_HALF, self.point[:, 0] > WALL_X + 0.02
        to_end = np.array([WALL_X + 0.1, 0.3]) - self.point
        up = np.array([WALL_X + 0.1, 0.65]) - self.point
        over = self.goal - self.point
        way = np.where((below & ~beside)[:, None], to_end, np.where(below[:, None], up, over)) / STEP
        return way / np.maximum(1.0, np.abs(way).max(axis=1, keepdims=True))


def in_wall(point_N2: np.ndarray) -> np.ndarray:
    """(N,) bool."""
    return (point_N2[:, 0] < WALL_X) & (np.abs(point_N2[:, 1] - 0.5) < WALL_HALF)
