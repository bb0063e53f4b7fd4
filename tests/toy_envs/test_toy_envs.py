"""The toy environments: dynamics, experts, persons and data."""

from __future__ import annotations

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.wire.steps import Steps
from tests.toy_envs.datasets import joined, maze_segments, random_and_expert
from tests.toy_envs.hazard_reach import HazardReach
from tests.toy_envs.person import Person, PersonConfig, expert_with, uniform
from tests.toy_envs.point_maze import PointMaze, in_wall, waypoint
from tests.toy_envs.point_reach import PointReach
from tests.toy_envs.toy_env import ToyEnv, demonstrations, rollouts, success_rate

TOY_ENVS = pytest.mark.parametrize("toy_env", [HazardReach, PointMaze, PointReach])


def column(data: list[Steps], name: str) -> np.ndarray:
    """One column of all steps."""
    return np.concatenate([getattr(steps, name) for steps in data])


@TOY_ENVS
def test_an_environment_does_not_depend_on_the_others(toy_env: type[ToyEnv]) -> None:
    many, one = toy_env(3, seed=7), toy_env(1, seed=7)
    act_many, act_one = uniform(many, 5), uniform(one, 5)
    for _ in range(2 * toy_env.max_steps + 5):
        of_many, of_one = many.step(act_many(many.observe())), one.step(act_one(one.observe()))
        for field, alone in zip(of_many, of_one, strict=True):
            np.testing.assert_array_equal(field[:1], alone)
    assert not np.array_equal(many.observe()[0], many.observe()[1])


def test_the_short_way_costs_and_the_experts_does_not() -> None:
    costs = []
    for straight in (True, False):
        toy_env = HazardReach(20, seed=2)
        cost = np.zeros(20)
        while not toy_env.finished:
            way = toy_env.goal - toy_env.point
            outcome = toy_env.step(
                way / np.linalg.norm(way, axis=1, keepdims=True) if straight else toy_env.expert()
            )
            cost += toy_env.cost()
            assert np.isfinite(outcome.reward).all()
        costs.append(cost.mean())
    assert costs[0] >= 4.0
    assert costs[1] == 0.0


@TOY_ENVS
def test_the_expert_always_succeeds_and_random_actions_never(toy_env: type[ToyEnv]) -> None:
    expert, chance = toy_env(50, seed=1), toy_env(50, seed=1)
    assert success_rate(expert, lambda _: expert.expert(), 500) == 1.0
    assert success_rate(chance, uniform(chance), 200) <= 0.01


@TOY_ENVS
def test_less_skill_means_less_success(toy_env: type[ToyEnv]) -> None:
    rates = []
    for skill in (1.0, 0.7, 0.4):
        env = toy_env(100, seed=2)
        rates.append(success_rate(env, expert_with(env, skill, seed=3), 500))
    assert rates[0] == 1.0
    assert 0.6 <= rates[1] <= 0.85
    assert 0.15 <= rates[2] <= 0.45


@TOY_ENVS
def test_the_expert_shortens_the_remaining_way_to_nearly_nothing(toy_env: type[ToyEnv]) -> None:
    env = toy_env(1, seed=3)
    first = last = env.remaining()[0]
    while env.finished == 0:
        last = env.remaining()[0]
        env.step(env.expert())
    assert first > 0.2
    assert last < toy_env.near + 0.08


@TOY_ENVS
def test_the_time_limit_truncates_with_the_true_final_observation(
    toy_env: type[ToyEnv],
) -> None:
    env = toy_env(1, seed=0)
    still = np.zeros((1, toy_env.action_size))
    start = env.observe()
    steps = [env.transition(still)[0] for _ in range(toy_env.max_steps)]
    assert [bool(s.truncated[0]) for s in steps] == [False] * (toy_env.max_steps - 1) + [True]
    assert not any(s.terminated[0] for s in steps)
    assert [int(s.number[0]) for s in steps] == list(range(toy_env.max_steps))
    np.testing.assert_array_equal(steps[-1].next_observation, start)
    assert not np.array_equal(env.observe(), start)


def test_running_episodes_have_different_numbers_for_ever() -> None:
    data = rollouts(PointReach(4, seed=0), uniform(PointReach(4, seed=0)), 10)
    pairs = list(
        zip(column(data, "episode").tolist(), column(data, "number").tolist(), strict=True)
    )
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("num_envs", [1, 3, 30])
def test_demonstrations_are_whole_episodes(num_envs: int) -> None:
    data = demonstrations(PointReach(num_envs, seed=0), 20)
    ended = column(data, "terminated") | column(data, "truncated")
    episode, number = column(data, "episode"), column(data, "number")
    assert sorted(episode[ended].tolist()) == list(range(20))
    for each in range(20):
        assert number[episode == each].tolist() == list(range((episode == each).sum()))
    assert column(data, "demo").all()


def test_a_used_bed_gives_no_data_set() -> None:
    toy_env = PointMaze(2)
    toy_env.step(toy_env.expert())
    with pytest.raises(HandoffError, match="expected a fresh one"):
        demonstrations(toy_env, 1)


def test_episodes_must_fill_the_environments() -> None:
    with pytest.raises(HandoffError, match="7 episodes in 2 environments"):
        success_rate(PointMaze(2), lambda observation: observation, 7)


def placed(
    point: tuple[float, float], thing: tuple[float, float], goal: tuple[float, float]
) -> PointReach:
    """One environment of PointReach in a given state, hand open."""
    toy_env = PointReach(1)
    toy_env.point[0], toy_env.thing[0], toy_env.goal[0] = point, thing, goal
    return toy_env


def test_a_hand_that_closes_on_the_thing_carries_it_until_it_opens() -> None:
    toy_env = placed((0.0, 0.0), (0.03, 0.0), (0.4, 0.4))
    toy_env.move(np.array([[1.0, 0.0, -1.0]]))
    assert toy_env.held[0]
    np.testing.assert_allclose(toy_env.thing[0], [0.08, 0.0])
    toy_env.move(np.array([[0.0, 1.0, 0.0]]))
    np.testing.assert_allclose(toy_env.thing[0], [0.08, 0.05])
    toy_env.move(np.array([[1.0, 0.0, 1.0]]))
    assert not toy_env.held[0]
    np.testing.assert_allclose(toy_env.thing[0], [0.08, 0.05])
    np.testing.assert_allclose(toy_env.point[0], [0.1, 0.05])


def test_a_hand_that_closes_far_from_the_thing_never_holds_it() -> None:
    toy_env = placed((0.0, 0.0), (0.08, 0.0), (0.4, 0.4))
    toy_env.move(np.array([[0.0, 0.0, -1.0]]))
    for _ in range(3):
        toy_env.move(np.array([[0.9, 0.0, -1.0]]))
    assert not toy_env.held[0]
    np.testing.assert_allclose(toy_env.thing[0], [0.08, 0.0])


def test_a_thing_at_the_goal_is_not_solved_before_the_hand_lets_go() -> None:
    toy_env = placed((0.2, 0.2), (0.2, 0.2), (0.2, 0.2))
    toy_env.step(np.array([[0.0, 0.0, -1.0]]))
    assert toy_env.finished == 0
    toy_env.step(np.array([[0.0, 0.0, 1.0]]))
    assert toy_env.finished == 1


def test_every_start_of_point_reach_needs_the_hand() -> None:
    toy_env = PointReach(300, seed=4)
    assert not toy_env.solved().any()
    # Without a command of the hand nothing but the point moves, wherever it goes.
    act = uniform(toy_env)
    assert success_rate(toy_env, lambda o: act(o) * np.array([1.0, 1.0, 0.49]), 300) == 0.0


def test_only_commands_that_turn_the_hand_are_toggles() -> None:
    toy_env = placed((0.0, 0.0), (0.4, 0.4), (-0.4, 0.4))
    commands = [
        (1.0, False),
        (0.4, False),
        (-0.4, False),
        (-1.0, True),
        (-1.0, False),
        (0.0, False),
        (1.0, True),
    ]
    for command, toggles in commands:
        steps, _ = toy_env.transition(np.array([[0.0, 0.0, command]]))
        assert bool(steps.toggle[0]) is toggles
    assert toy_env.toggles[0] == 2


def test_the_wall_stops_and_its_end_lets_pass() -> None:
    maze = PointMaze(2)
    maze.point[:] = [[0.3, 0.43], [0.62, 0.43]]
    for _ in range(4):
        maze.move(np.array([[0.0, 1.0], [0.0, 1.0]]))
    np.testing.assert_allclose(maze.point, [[0.3, 0.43], [0.62, 0.63]])
    assert in_wall(np.array([[0.3, 0.46], [0.61, 0.5], [0.3, 0.44]])).tolist() == [
        True,
        False,
        False,
    ]


def test_the_way_leads_to_the_walls_end_only_where_the_wall_is_between() -> None:
    point = np.array([[0.1, 0.1], [0.9, 0.1], [0.1, 0.1]])
    target = np.array([[0.1, 0.9], [0.9, 0.9], [0.5, 0.3]])
    np.testing.assert_allclose(waypoint(point, target), [[0.7, 0.5], [0.9, 0.9], [0.5, 0.3]])


def test_a_person_takes_over_after_a_stall_for_the_time_of_a_takeover() -> None:
    maze = PointMaze(1)
    person = Person(maze, PersonConfig(probability=1.0, patience=3, hold=2, half_life=10**9))
    acted = []
    for _ in range(8):
        executed, acts = person.act(np.zeros((1, 2)))
        assert np.array_equal(executed, maze.expert() if acts[0] else np.zeros((1, 2)))
        maze.step(executed)
        acted.append(bool(acts[0]))
    # The first step is progress from nothing, three without follow; after two of help, which is
    # progress, again three.
    assert acted == [False, False, False, True, True, False, False, False]


def test_a_person_leaves_a_good_policy_alone() -> None:
    maze = PointMaze(10)
    person = Person(maze, PersonConfig(probability=1.0))
    for _ in range(100):
        executed, acts = person.act(maze.expert())
        assert not acts.any()
        maze.step(executed)


def test_a_persons_readiness_halves() -> None:
    maze = PointMaze(200)
    maze.steps[:] = 1
    person = Person(maze, PersonConfig(probability=1.0, patience=1, hold=1, half_life=200))
    person.best[:] = 0.0
    shares = [person.act(np.zeros((200, 2)))[1].mean() for _ in range(3)]
    assert shares[0] == 1.0
    assert abs(shares[1] - 0.5) < 0.12
    assert abs(shares[2] - 0.25) < 0.12


def test_a_mixed_data_set_has_its_share_of_the_expert() -> None:
    data = random_and_expert(PointReach, 100, expert_share=0.05)
    ended = column(data, "terminated") | column(data, "truncated")
    assert sorted(column(data, "episode")[ended].tolist()) == list(range(100))
    assert 5 <= column(data, "reward").sum() <= 6


def test_joined_data_sets_share_no_episode() -> None:
    one, two = demonstrations(PointMaze(1), 2), demonstrations(PointMaze(1, 1), 3)
    assert set(column(joined(one, two), "episode").tolist()) == {0, 1, 2, 3, 4}


def test_no_segment_of_the_maze_is_a_solution_but_together_they_are() -> None:
    data = maze_segments(500)
    episode, number, place = (column(data, name) for name in ("episode", "number", "observation"))
    ended, reward = column(data, "terminated") | column(data, "truncated"), column(data, "reward")
    assert sorted(episode[ended].tolist()) == list(range(500))
    assert number.max() <= 14
    solving = set(episode[reward > 0].tolist())
    start = (place < 0.2).all(axis=1)
    assert len(solving) >= 10
    assert start.any()
    assert not solving & set(episode[start].tolist())
    beside = set(episode[(place[:, 0] > 0.6) & (abs(place[:, 1] - 0.5) < 0.1)].tolist())
    assert beside & solving
    assert beside & set(episode[(place[:, 0] < 0.3) & (place[:, 1] < 0.4)].tolist())
