"""Walks between neighbouring places of PointMaze, equally often in both directions, so that a
solution must be combined from several.

`datasets.maze_segments` has targets anywhere, so what its actors do on average already leads out
from behind the wall; here the directions cancel below the wall, and only values tell which of two
walks to follow. (A walk that begins within reach of the goal is over at once, so above the wall
more lead to the goal than away from it.)
"""

from __future__ import annotations

import numpy as np

from robots.wire.steps import Steps, select_steps
from tests.toy_envs.point_maze import PointMaze

PLACES = np.array([[0.12, 0.12], [0.75, 0.25], [0.75, 0.5], [0.75, 0.75], [0.1, 0.9]])
"""(5, 2) from the start to the goal round the wall's end [m]."""
LEGS = 2
"""Places that a walk goes on; the whole way is four."""
LENGTH = 40
"""Steps after which a walk ends, wherever it is."""


def maze_walks(walks: int, seed: int = 0, noise: float = 0.5) -> list[Steps]:
    """Walks from one place, over the next, to the one behind it; or back. None visits both start
    and goal.

    Args:
        walks: their number, all made at once.
        seed: of starts and noise.
        noise: deviation of the noise that is added to actions in [-1, 1].
    """
    rng = np.random.default_rng([seed, 5])
    route_NL = _routes(walks)
    maze = PointMaze(walks, seed)
    maze.max_steps = LENGTH
    maze.point = np.clip(PLACES[route_NL[:, 0]] + rng.uniform(-0.08, 0.08, (walks, 2)), 0.02, 0.98)
    leg_N, running_N, made = np.ones(walks, np.int64), np.ones(walks, bool), []
    for _ in range(LENGTH):
        way_N2 = PLACES[np.take_along_axis(route_NL, leg_N[:, None], axis=1)[:, 0]] - maze.point
        arrived_N = np.abs(way_N2).max(axis=1) < 0.06
        running_N &= ~(arrived_N & (leg_N == LEGS))
        leg_N = np.minimum(leg_N + arrived_N, LEGS)
        action_N2 = way_N2 / 0.05
        action_N2 /= np.maximum(1.0, np.abs(action_N2).max(axis=1, keepdims=True))
        steps, outcome = maze.transition(action_N2 + noise * rng.standard_normal((walks, 2)))
        made.append(select_steps(steps, running_N))
        running_N &= ~(outcome.terminated | outcome.truncated)
    return [steps for steps in made if steps.rows]


def _routes(walks: int) -> np.ndarray:
    """(walks, LEGS + 1) numbers of places, in turn there and back from every place that has two
    neighbours on."""
    there = [range(first, first + LEGS + 1) for first in range(len(PLACES) - LEGS)]
    kinds = np.array([list(one) for one in there] + [list(one)[::-1] for one in there])
    return kinds[np.arange(walks) % len(kinds)]
