"""BimodalReach: a point reaches a goal behind an obstacle. Passing above and below are equally
good, and close passes are best."""

from __future__ import annotations

import numpy as np

from tests.toy_envs.toy_env import Act, ToyEnv

STEP = 0.1
"""Way of one step at an action of length 1 [m]; longer ones count as 1."""
OBSTACLE, RADIUS = np.array([0.5, 0.0]), 0.2
"""A disc [m]."""
START = np.array([0.05, 0.0])
HEIGHTS = (0.25, 0.7)
"""Of the scripted detours above or below the disc's centre [m]."""


class BimodalReach(ToyEnv):
    """A point in [0, 1] x [-1, 1] with a disc between start and goal; what would enter the disc
    stays where it was.

    Observation (O = 2): position [m]. Action: x, y. Solved: within `near` of (0.95, 0). Every step
    costs 1, so the return is minus the number of steps; the shortest way takes about 10, and a mean
    of both ways never arrives.

    Scripted detours go up or down first, then across, then back: who has not chosen yet loses time
    but hits nothing.
    """

    observation_size, action_size, max_steps, near = 2, 2, 40, 0.08

    def __init__(self, num_envs: int = 1, seed: int = 0) -> None:
        self.point = np.zeros((num_envs, 2))
        self.goal = np.array([0.95, 0.0])
        super().__init__(num_envs, seed)

    def start(self, row: int, rng: np.random.Generator) -> None:
        """See `ToyEnv.start`: the left, in the middle."""
        self.point[row] = START + rng.uniform(-0.02, 0.02, 2)

    def move(self, action_NA: np.ndarray) -> None:
        """See `ToyEnv.move`."""
        way = STEP * action_NA / np.maximum(1.0, np.linalg.norm(action_NA, axis=1, keepdims=True))
        after = np.clip(self.point + way, [0.0, -1.0], [1.0, 1.0])
        inside = np.linalg.norm(after - OBSTACLE, axis=1) < RADIUS
        self.point = np.where(inside[:, None], self.point, after)

    def observe(self) -> np.ndarray:
        """See `ToyEnv.observe`."""
        return self.point.astype(np.float32)

    def solved(self) -> np.ndarray:
        """See `ToyEnv.solved`."""
        return np.linalg.norm(self.point - self.goal, axis=1) < self.near

    def reward(self) -> np.ndarray:
        """See `ToyEnv.reward`: -1 until solved."""
        return self.solved().astype(np.float32) - 1.0

    def expert(self, misjudged_N2: np.ndarray | float = 0.0) -> np.ndarray:
        """See `ToyEnv.expert`: the lowest of the scripted detours, over where the point is above
        and under where below."""
        side_N = np.where(self.point[:, 1] >= 0.0, 1.0, -1.0)
        return _towards(self.point + misjudged_N2, self.goal, side_N * HEIGHTS[0])

    def remaining(self) -> np.ndarray:
        """See `ToyEnv.remaining`: by the expert's detour."""
        height_N = np.where(self.point[:, 1] >= 0.0, HEIGHTS[0], -HEIGHTS[0])
        by = _waypoint(self.point, self.goal, height_N)
        return np.linalg.norm(by - self.point, axis=1) + np.linalg.norm(self.goal - by, axis=1)


def detours(toy_env: BimodalReach, seed: int, noise: float = 0.2, straight: float = 0.0) -> Act:
    """Goes round the obstacle, every episode on a side and at a height of its own, drawn uniformly.

    Args:
        toy_env: whose environments are acted in.
        seed: of sides, heights and noise.
        noise: deviation of the noise that is added to actions of length 1.
        straight: share of the episodes that go straight on instead, and stay where the obstacle
            stops them.
    """
    rng = np.random.default_rng([seed, 6])
    episode_N = np.full(toy_env.num_envs, -1, np.int64)
    height_N = np.zeros(toy_env.num_envs)

    def act(observation_NO: np.ndarray) -> np.ndarray:
        drawn_N = rng.choice([-1.0, 1.0], toy_env.num_envs) * rng.uniform(
            *HEIGHTS, toy_env.num_envs
        )
        if straight:
            drawn_N[rng.random(toy_env.num_envs) < straight] = 0.0
        new_N = toy_env.episode != episode_N
        height_N[new_N], episode_N[:] = drawn_N[new_N], toy_env.episode
        return _towards(toy_env.point, toy_env.goal, height_N) + noise * rng.standard_normal(
            (toy_env.num_envs, 2)
        )

    return act


def passed_above(path_TN2: np.ndarray) -> np.ndarray:
    """(N,) 1 where the first point behind the obstacle's centre lies above it, -1 below, 0 where
    none lies behind."""
    behind_TN = path_TN2[..., 0] > OBSTACLE[0]
    first_N = behind_TN.argmax(axis=0)
    height_N = path_TN2[first_N, np.arange(path_TN2.shape[1]), 1]
    return np.where(behind_TN.any(axis=0), np.sign(height_N), 0.0)


def _waypoint(point_N2: np.ndarray, goal_2: np.ndarray, height_N: np.ndarray) -> np.ndarray:
    """(N, 2) the next corner of a detour at `height_N`: beside the start, beside the goal, then the
    goal itself."""
    first_N2, second_N2 = (
        np.stack([np.full(len(point_N2), x), height_N], axis=1) for x in (0.15, 0.87)
    )
    side_N = np.sign(height_N)
    low_N = (point_N2[:, 0] < 0.25) & (side_N * point_N2[:, 1] < np.abs(height_N) - 0.04)
    across_N2 = np.where((point_N2[:, 0] < 0.85)[:, None], second_N2, goal_2)
    return np.where(low_N[:, None], first_N2, across_N2)


def _towards(point_N2: np.ndarray, goal_2: np.ndarray, height_N: np.ndarray) -> np.ndarray:
    way_N2 = (_waypoint(point_N2, goal_2, height_N) - point_N2) / STEP
    return way_N2 / np.maximum(1.0, np.linalg.norm(way_N2, axis=1, keepdims=True))
