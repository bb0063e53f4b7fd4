"""The data of the offline learning checks have the stated contents."""

import numpy as np

from tests.toy_envs.bimodal_reach import BimodalReach, detours, passed_above
from tests.toy_envs.maze_walks import maze_walks
from tests.toy_envs.toy_env import rollouts, success_rate


def test_no_walk_leads_from_below_the_wall_to_the_goal():
    walks = maze_walks(120)
    below = {
        int(e) for steps in walks for e in steps.episode[(steps.observation < 0.4).all(axis=1)]
    }
    there = {int(e) for steps in walks for e in steps.episode[steps.terminated]}
    assert len(below) > 30
    assert len(there) > 15
    assert not below & there


def test_below_the_wall_walks_go_there_and_back_equally_often():
    walks = maze_walks(600)
    below = [steps.observation[:, 1] < 0.45 for steps in walks]
    way = np.concatenate(
        [
            (steps.next_observation - steps.observation)[rows]
            for steps, rows in zip(walks, below, strict=True)
        ]
    )
    assert (np.abs(way.mean(axis=0)) < 0.1 * np.abs(way).mean(axis=0)).all()


def test_detours_arrive_on_both_sides_and_later_than_the_expert():
    toy_env = BimodalReach(20, 0)
    data = rollouts(toy_env, detours(toy_env, 0), 100)
    assert sum(int(steps.terminated.sum()) for steps in data) == 100
    above = {int(e) for steps in data for e in steps.episode[steps.observation[:, 1] > 0.2]}
    below = {int(e) for steps in data for e in steps.episode[steps.observation[:, 1] < -0.2]}
    assert len(above | below) == 100
    assert not above & below
    assert 35 <= len(above) <= 65
    expert = BimodalReach(20, 0)
    best = sum(steps.rows for steps in rollouts(expert, lambda _: expert.expert(), 100))
    assert best < 0.85 * sum(steps.rows for steps in data)


def test_the_wanted_share_of_ways_goes_straight_on_and_stays_at_the_obstacle():
    toy_env = BimodalReach(20, 0)
    data = rollouts(toy_env, detours(toy_env, 0, straight=0.25), 200)
    ended = {
        int(episode): bool(arrived)
        for steps in data
        for episode, arrived, late in zip(
            steps.episode, steps.terminated, steps.truncated, strict=True
        )
        if arrived or late
    }
    assert len(ended) == 200
    assert 0.15 < 1.0 - sum(ended.values()) / 200 < 0.35


def test_straight_on_the_obstacle_is_in_the_way():
    assert (
        success_rate(BimodalReach(10, 0), lambda obs: np.tile([1.0, 0.0], (len(obs), 1)), 10) == 0.0
    )


def test_the_side_is_read_off_behind_the_obstacles_centre():
    path = np.array([[[0.4, -0.3], [0.4, 0.1], [0.1, 0.9]], [[0.6, 0.3], [0.6, -0.1], [0.2, 0.9]]])
    assert passed_above(path).tolist() == [1.0, -1.0, 0.0]
