"""PointMaze-U: a point must move around a wall; sparse success that random actions rarely reach."""

from __future__ import annotations

import numpy as np

from tests.toy_envs.toy_env import ToyEnv

STEP = 0.05
"""Way of one step at action 1 [m]."""
WALL_X, WALL_HALF = 0.6, 0.05
"""The wall goes from x = 0 to `WALL_X` [m], `WALL_HALF` thick to either side of y = 0.5."""
CORNER = np.array([WALL_X + 0.1, 0.5])
"""Beside the wall's end [m]: from here both halves can be seen."""
LOOKS = np.linspace(0.0, 1.0, 25)
"""Where a line is probed for the wall, which is thicker than the gaps between."""


class PointMaze(ToyEnv):
    """A point in the unit square [0, 1]^2 with a wall in the middle: from below it to above it,
    round its end.

    Observation (O = 2): position [m]. Action: x, y. Solved: within `near` of the goal at (0.1,
    0.9).
    """

    observation_size, action_size, max_steps, near = 2, 2, 100, 0.1

    def __init__(self, num_envs: int = 1, seed: int = 0) -> None:
        self.point = np.zeros((num_envs, 2))
        self.goal = np.array([0.1, 0.9])
        super().__init__(num_envs, seed)

    def start(self, row: int, rng: np.random.Generator) -> None:
        """See `ToyEnv.start`: the lower left."""
        self.point[row] = rng.uniform([0.02, 0.02], [0.2, 0.2])

    def move(self, action_NA: np.ndarray) -> None:
        """See `ToyEnv.move`: x first, then y; what would enter the wall stays where it was."""
        for axis in (0, 1):
            way = np.zeros_like(self.point)
            way[:, axis] = STEP * action_NA[:, axis]
            after = np.clip(self.point + way, 0.0, 1.0)
            self.point = np.where(in_wall(after)[:, None], self.point, after)

    def observe(self) -> np.ndarray:
        """See `ToyEnv.observe`."""
        return self.point.astype(np.float32)

    def solved(self) -> np.ndarray:
        """See `ToyEnv.solved`."""
        return np.linalg.norm(self.point - self.goal, axis=1) < self.near

    def expert(self, misjudged_N2: np.ndarray | float = 0.0) -> np.ndarray:
        """See `ToyEnv.expert`: to the wall's end, then to the goal."""
        return towards(self.point + misjudged_N2, self.goal)

    def remaining(self) -> np.ndarray:
        """See `ToyEnv.remaining`."""
        by = waypoint(self.point, self.goal)
        return np.linalg.norm(by - self.point, axis=1) + np.linalg.norm(self.goal - by, axis=1)


def towards(point_N2: np.ndarray, target_N2: np.ndarray) -> np.ndarray:
    """(N, 2) action of one step on the way to a target, round the wall."""
    way = (waypoint(point_N2, target_N2) - point_N2) / STEP
    return way / np.maximum(1.0, np.abs(way).max(axis=1, keepdims=True))


def waypoint(point_N2: np.ndarray, target_N2: np.ndarray) -> np.ndarray:
    """(N, 2) where to go next [m]: the target, or the wall's end where the wall stands between."""
    line_LN2 = point_N2 + LOOKS[:, None, None] * (target_N2 - point_N2)
    blocked: np.ndarray = np.any(in_wall(line_LN2, 0.02), axis=0)
    return np.where(blocked[:, None], CORNER, target_N2)


def in_wall(point_N2: np.ndarray, longer: float = 0.0) -> np.ndarray:
    """(..., N) bool for points (..., N, 2), if the wall were `longer` [m]."""
    return (point_N2[..., 0] < WALL_X + longer) & (np.abs(point_N2[..., 1] - 0.5) < WALL_HALF)
