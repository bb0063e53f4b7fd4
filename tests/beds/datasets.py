"""Data to learn from offline, made by scripted actors: of mixed quality, or in pieces that have to
be put together."""

from __future__ import annotations

import numpy as np

from robots.errors import HandoffError
from robots.wire.steps import Steps, chosen
from tests.beds.bed import Bed, rollouts
from tests.beds.person import expert_with, uniform
from tests.beds.point_maze import PointMaze, in_wall, towards

WORLDS = 10
"""Worlds that make data side by side."""


def random_and_expert(
    bed: type[Bed], episodes: int, expert_share: float = 0.05, skill: float = 1.0, seed: int = 0
) -> list[Steps]:
    """Whole episodes, those of uniform actions first, then a share of an expert's.

    Args:
        bed: its class.
        episodes: in all.
        expert_share: share of them that the expert makes, rounded to whole episodes.
        skill: of the expert, see `expert_with`.
        seed: of starts and actions.
    """
    good = round(expert_share * episodes)
    bad_bed, good_bed = bed(WORLDS, 2 * seed), bed(WORLDS, 2 * seed + 1)
    return joined(
        rollouts(bad_bed, uniform(bad_bed, seed), episodes - good),
        rollouts(good_bed, expert_with(good_bed, skill, seed), good),
    )


def joined(*parts: list[Steps]) -> list[Steps]:
    """Several data sets, one after another, with episodes renumbered so that all differ."""
    together: list[Steps] = []
    offset = 0
    for part in parts:
        together += [steps._replace(episode=steps.episode + offset) for steps in part]
        offset += 1 + max((int(steps.episode.max()) for steps in part), default=-1)
    return together


def maze_segments(
    segments: int, length: int = 15, seed: int = 0, noise: float = 0.3, goal_share: float = 0.1
) -> list[Steps]:
    """Pieces of ways through PointMaze, all of `segments` at once, none of which leads from a start
    to the goal.

    Every piece begins anywhere and is on its way to some place, round the wall, until the goal is
    met or `length` steps are over, which counts as a time limit. Out from behind the wall and back
    in are 8 steps each at the least, so with at most 16 no piece is a solution: one has to be put
    together.

    Args:
        segments: their number.
        length: of a piece, in steps.
        seed: of starts, targets and noise.
        noise: deviation of the actions' noise.
        goal_share: share of the pieces whose place is the goal; the others' are uniform.

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
    running, made = np.ones(segments, bool), []
    for _ in range(length):
        action_NA = towards(maze.point, target_N2) + noise * rng.standard_normal((segments, 2))
        steps, outcome = maze.transition(action_NA)
        made.append(chosen(steps, running))
        running &= ~(outcome.terminated | outcome.truncated)
    return [steps for steps in made if steps.rows]


def _free_places(count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, 2) uniform places off the wall and off the goal [m]."""
    places = np.zeros((0, 2))
    while len(places) < count:
        drawn = rng.uniform(0.0, 1.0, (count, 2))
        at_goal = np.linalg.norm(drawn - np.array([0.1, 0.9]), axis=1) < PointMaze.near
        places = np.concatenate([places, drawn[~in_wall(drawn) & ~at_goal]])
    return places[:count]
