"""PointReach: a point with a gripper grasps an object, carries it to a goal and releases it there.
Sparse success."""

from __future__ import annotations

import numpy as np

from tests.toy_envs.toy_env import Act, ToyEnv

STEP = 0.05
"""Way of one step at action 1 [m]."""
APART = 0.2
"""Least distance of thing and goal at the start [m]: four times what counts as there."""


class PointReach(ToyEnv):
    """A point in the unit square [-0.5, 0.5]^2 with a hand; action: x, y, hand (below -0.5 closes,
    above 0.5 opens).

    Solved: the thing lies within `near` of the goal and the hand is open.
    Observation (O = 7): point (2), thing (2), goal (2) [m], hand (1 open, -1 closed).
    """

    observation_size, action_size, max_steps, near = 7, 3, 60, 0.05

    def __init__(self, num_envs: int = 1, seed: int = 0) -> None:
        self.point, self.thing, self.goal = (np.zeros((num_envs, 2)) for _ in range(3))
        self.open = np.ones(num_envs, bool)
        self.held = np.zeros(num_envs, bool)
        self.toggles = np.zeros(num_envs, np.int64)
        """(N,) of the running episode."""
        super().__init__(num_envs, seed)

    def start(self, row: int, rng: np.random.Generator) -> None:
        """See `ToyEnv.start`."""
        self.point[row], self.thing[row] = rng.uniform(-0.5, 0.5, 2), rng.uniform(-0.4, 0.4, 2)
        self.goal[row] = rng.uniform(-0.4, 0.4, 2)
        while np.linalg.norm(self.goal[row] - self.thing[row]) < APART:
            self.goal[row] = rng.uniform(-0.4, 0.4, 2)
        self.open[row], self.held[row], self.toggles[row] = True, False, 0

    def toggled(self, action_NA: np.ndarray) -> np.ndarray:
        """(N,) bool, whether the action toggles the gripper."""
        return np.where(self.open, action_NA[:, 2] < -0.5, action_NA[:, 2] > 0.5)

    def move(self, action_NA: np.ndarray) -> None:
        """See `ToyEnv.move`."""
        turn = self.toggled(action_NA)
        self.toggles += turn
        self.open ^= turn
        near = np.linalg.norm(self.point - self.thing, axis=1) < self.near
        self.held = np.where(turn, near & ~self.open, self.held & ~self.open)
        way = STEP * action_NA[:, :2]
        before = self.point.copy()
        self.point = np.clip(self.point + way, -0.5, 0.5)
        self.thing[self.held] += (self.point - before)[self.held]

    def observe(self) -> np.ndarray:
        """See `ToyEnv.observe`."""
        hand = np.where(self.open, 1.0, -1.0)[:, None]
        return np.concatenate([self.point, self.thing, self.goal, hand], axis=1).astype(np.float32)

    def solved(self) -> np.ndarray:
        """See `ToyEnv.solved`."""
        return (np.linalg.norm(self.thing - self.goal, axis=1) < self.near) & self.open

    def remaining(self) -> np.ndarray:
        """See `ToyEnv.remaining`."""
        reach = np.where(self.held, 0.0, np.linalg.norm(self.thing - self.point, axis=1))
        return reach + np.linalg.norm(self.goal - self.thing, axis=1)

    def expert(self, misjudged_N2: np.ndarray | float = 0.0) -> np.ndarray:
        """See `ToyEnv.expert`: what they hold they misjudge with the point."""
        to_thing = self.thing - self.point - misjudged_N2
        to_goal = self.goal - self.thing - misjudged_N2
        at_thing = np.linalg.norm(to_thing, axis=1) < 0.5 * self.near
        at_goal = np.linalg.norm(to_goal, axis=1) < 0.5 * self.near
        way = np.where(self.held[:, None], to_goal, to_thing) / STEP
        largest = np.maximum(1.0, np.abs(way).max(axis=1, keepdims=True))
        # Closed on nothing it opens first.
        hand = np.where(
            self.held,
            np.where(at_goal, 1.0, 0.0),
            np.where(~self.open, 1.0, np.where(at_thing, -1.0, 0.0)),
        )
        stay = (~self.held & at_thing) | (self.held & at_goal)
        return np.concatenate([np.where(stay[:, None], 0.0, way / largest), hand[:, None]], axis=1)


def shaking(toy_env: PointReach, noise: float, seed: int) -> Act:
    """A person whose hand shakes: the expert, with noise of the deviation `noise` on x and y."""
    draw = np.random.default_rng([seed, 3])

    def act(_: np.ndarray) -> np.ndarray:
        wanted = toy_env.expert()
        wanted[:, :2] += noise * draw.standard_normal((toy_env.num_envs, 2))
        return np.clip(wanted, -1.0, 1.0)

    return act
