"""Generates offline data with scripted actors: of mixed quality, or in pieces that must be
combined."""

from __future__ import annotations

import numpy as np

from robots.errors import HandoffError
from robots.wire.steps import Steps, select_steps
from tests.toy_envs.person import expert_with, uniform
from tests.toy_envs.point_maze import PointMaze, in_wall, towards
from tests.toy_envs.toy_env import ToyEnv, rollouts

NUM_ENVS = 10
"""Number of environments that generate data in parallel."""


def random_and_expert(
    toy_env: type[ToyEnv],
    episodes: int,
    expert_share: float = 0.05,
    skill: float = 1.0,
    seed: int = 0,
) -> list[Steps]:
    """Whole episodes, those of uniform actions first, then a share of an expert's.

    Args:
        toy_env: class of the environment.
        episodes: number of all episodes.
        expert_share: share of the expert's episodes, rounded to whole episodes.
        skill: skill of the expert, see `expert_with`.
        seed: seed of initial states and actions.
    """
    good = round(expert_share * episodes)
    random_env, expert_env = toy_env(NUM_ENVS, 2 * seed), toy_env(NUM_ENVS, 2 * seed + 1)
    return joined(
        rollouts(random_env, uniform(random_env, seed), episodes - good),
        rollouts(expert_env, expert_with(expert_env, skill, seed), good),
    )


def joined(*parts: list[Steps]) -> list[Steps]:
    """Concatenates data sets and renumbers episodes so that all differ."""
    together: list[Steps] = []
    offset = 0
    for part in parts:
        together += [steps._replace(episode=steps.episode + offset) for steps in part]
        offset += 1 + max((int(steps.episode.max()) for steps in part), default=-1)
    return together


def maze_segments(
    segments: int, length: int = 15, seed: int = 0, noise: float = 0.3, goal_share: float = 0.1
) -> list[Steps]:
    """Pieces of paths through PointMaze, none of which leads from an initial state to the goal.

    Every piece begins at a random place and moves towards another, around the wall, until it
    reaches the goal or `length` steps are over, which counts as a time limit. Leaving the wall's
    pocket and entering the other half take at least 8 steps each, so a piece of at most 16 steps is
    no
    solution: pieces must be combined.

    Args:
        segments: number of pieces.
        length: steps per piece.
        seed: seed of initial states, targets and noise.
        noise: standard deviation of the action noise.
        goal_share: share of the pieces whose target is the goal; other targets are uniform.

    Raises:
        HandoffError: pieces of more than 16 steps.
    """
    if length > 16:
        raise HandoffError(
            f"maze segments: length {length} is above 16 steps; a longer piece can be a solution."
        )
    rng = np.random.default_rng([seed, 4])
    maze = PointMaze(segments, seed)
    maze.point = _free_places(segments, rng)
    maze.max_steps = length
    target_N2 = _free_places(segments, rng)
    target_N2[rng.random(segments) < goal_share] = maze.goal
    running, pieces = np.ones(segments, bool), []
    for _ in range(length):
        action_NA = towards(maze.point, target_N2) + noise * rng.standard_normal((segments, 2))
        steps, outcome = maze.transition(action_NA)
        pieces.append(select_steps(steps, running))
        running &= ~(outcome.terminated | outcome.truncated)
    return [steps for steps in pieces if steps.rows]


def _free_places(count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, 2) uniform places off the wall and off the goal [m]."""
    places = np.zeros((0, 2))
    while len(places) < count:
        drawn = rng.uniform(0.0, 1.0, (count, 2))
        at_goal = np.linalg.norm(drawn - np.array([0.1, 0.9]), axis=1) < PointMaze.near
        places = np.concatenate([places, drawn[~in_wall(drawn) & ~at_goal]])
    return places[:count]
