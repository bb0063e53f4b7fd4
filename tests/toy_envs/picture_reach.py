"""PictureReach: a point must reach a goal that is visible only in the image."""

from __future__ import annotations

import numpy as np

from robots.wire.steps import Steps
from tests.toy_envs.toy_env import ToyEnv

STEP = 0.05
"""Way of one step at action 1 [m]."""
APART = 0.2
"""Least distance of point and goal at the start [m]."""
PIXELS = 32
"""Of the camera, either way; it looks at the whole square."""
RADIUS = 2
"""Half of the squares as which point and goal are drawn [pixel]."""
CAMERA = ("above", PIXELS, PIXELS)


class PictureReach(ToyEnv):
    """A point in the unit square [-0.5, 0.5]^2. Action: x, y. Solved: within `near` of the goal.

    Observation (O = 4): point (2), goal (2) [m]: the whole state. `photographed` leaves the point
    alone in the vector and draws both. Blindly sweeping the square finds a seventh of it in an
    episode's time.
    """

    observation_size, action_size, max_steps, near = 4, 2, 25, 0.06

    def __init__(self, num_envs: int = 1, seed: int = 0) -> None:
        self.point, self.goal = np.zeros((num_envs, 2)), np.zeros((num_envs, 2))
        super().__init__(num_envs, seed)

    def start(self, row: int, rng: np.random.Generator) -> None:
        """See `ToyEnv.start`."""
        self.point[row], self.goal[row] = rng.uniform(-0.4, 0.4, (2, 2))
        while np.linalg.norm(self.goal[row] - self.point[row]) < APART:
            self.goal[row] = rng.uniform(-0.4, 0.4, 2)

    def move(self, action_NA: np.ndarray) -> None:
        """See `ToyEnv.move`."""
        self.point = np.clip(self.point + STEP * action_NA, -0.5, 0.5)

    def observe(self) -> np.ndarray:
        """See `ToyEnv.observe`."""
        return np.concatenate([self.point, self.goal], axis=1).astype(np.float32)

    def solved(self) -> np.ndarray:
        """See `ToyEnv.solved`."""
        return np.linalg.norm(self.point - self.goal, axis=1) < self.near

    def expert(self, misjudged_N2: np.ndarray | float = 0.0) -> np.ndarray:
        """See `ToyEnv.expert`: straight on."""
        way = (self.goal - self.point - misjudged_N2) / STEP
        return way / np.maximum(1.0, np.abs(way).max(axis=1, keepdims=True))


def picture(observation_N4: np.ndarray, goal_shown: bool = True) -> np.ndarray:
    """(N, PIXELS, PIXELS, 3) uint8 RGB: the goal green, the point red; y is down."""
    drawn = np.zeros((len(observation_N4), PIXELS, PIXELS, 3), np.uint8)
    line = np.arange(PIXELS)
    for channel, place_N2 in ((0, observation_N4[:, :2]), (1, observation_N4[:, 2:])):
        centre_N2 = np.round((place_N2 + 0.5) * (PIXELS - 1))
        near_N2P = np.abs(line - centre_N2[:, :, None]) <= RADIUS
        square_NPP = near_N2P[:, 1, :, None] & near_N2P[:, 0, None, :]
        drawn[..., channel] = 255 * (square_NPP if channel == 0 or goal_shown else False)
    return drawn


def photographed(steps: Steps, goal_shown: bool = True) -> Steps:
    """The same steps as a learner with a camera sees them: the point's place, and pictures."""
    return steps._replace(
        observation=steps.observation[:, :2],
        next_observation=steps.next_observation[:, :2],
        pictures={CAMERA[0]: picture(steps.observation, goal_shown)},
        next_pictures={CAMERA[0]: picture(steps.next_observation, goal_shown)},
    )
