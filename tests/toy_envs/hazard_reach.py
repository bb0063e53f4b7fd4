"""HazardReach: a point crosses a room to a goal; the shortest path leads through a hazard that
costs but does not block."""

from __future__ import annotations

import numpy as np

from tests.toy_envs.toy_env import ToyEnv

STEP = 0.1
"""Way of one step at an action of length 1 [m]; longer ones count as 1."""
HAZARD, RADIUS = np.array([0.5, 0.0]), 0.25
"""A disc [m]."""


class HazardReach(ToyEnv):
    """A point in [0, 1] x [-1, 1]; a start on the left, the goal on the right, a disc between them.

    Observation (O = 2): position [m]. Action: x, y. Every step pays minus the distance to the goal
    [m], until solved: within `near` of (0.95, 0). Every step that ends in the disc costs 1 of what
    a constraint bounds: straight through it are 9 steps, 5 of them in it; the expert goes around it
    in 12.
    """

    observation_size, action_size, max_steps, near = 2, 2, 40, 0.08

    def __init__(self, num_envs: int = 1, seed: int = 0) -> None:
        self.point = np.zeros((num_envs, 2))
        self.goal = np.array([0.95, 0.0])
        self.inside = np.zeros(num_envs, bool)
        """(N,) where the last step ended in the disc; also of an environment that has started anew
        since."""
        super().__init__(num_envs, seed)

    def start(self, row: int, rng: np.random.Generator) -> None:
        """See `ToyEnv.start`."""
        self.point[row] = np.array([0.05, 0.0]) + rng.uniform(-0.02, 0.02, 2)

    def move(self, action_NA: np.ndarray) -> None:
        """See `ToyEnv.move`."""
        way = STEP * action_NA / np.maximum(1.0, np.linalg.norm(action_NA, axis=1, keepdims=True))
        self.point = np.clip(self.point + way, [0.0, -1.0], [1.0, 1.0])
        self.inside = np.linalg.norm(self.point - HAZARD, axis=1) < RADIUS

    def observe(self) -> np.ndarray:
        """See `ToyEnv.observe`."""
        return self.point.astype(np.float32)

    def solved(self) -> np.ndarray:
        """See `ToyEnv.solved`."""
        return np.linalg.norm(self.point - self.goal, axis=1) < self.near

    def reward(self) -> np.ndarray:
        """See `ToyEnv.reward`."""
        return -np.linalg.norm(self.point - self.goal, axis=1).astype(np.float32)

    def cost(self) -> np.ndarray:
        """(N,) of the last step."""
        return self.inside.astype(np.float32)

    def expert(self, misjudged_N2: np.ndarray | float = 0.0) -> np.ndarray:
        """See `ToyEnv.expert`: over the disc, and down to the goal behind it."""
        point = self.point + misjudged_N2
        over = np.array([0.5, RADIUS + 0.15])
        way = np.where((point[:, :1] < over[0] - 0.05), over, self.goal) - point
        return way / np.maximum(STEP, np.linalg.norm(way, axis=1, keepdims=True))

    def remaining(self) -> np.ndarray:
        """See `ToyEnv.remaining`: through the disc."""
        return np.linalg.norm(self.point - self.goal, axis=1)
