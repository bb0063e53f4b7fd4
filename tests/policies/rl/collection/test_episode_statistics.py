"""Episode statistics, counted by environment and by episode number."""

import numpy as np
import pytest
import torch

from policies.rl.collection.episode_statistics import RECENT, EndedEpisode, EpisodeStatistics
from policies.rl.collection.interfaces import StepResult
from robots.wire.learner import EPISODES_PER_START
from robots.wire.steps import Steps, plain_steps, select_steps
from tests.toy_envs.point_maze import PointMaze


def decided(solved: list[bool], truncated: list[bool], device: str = "cpu") -> StepResult:
    """A decision by which those episodes end that solved the task or ran out of time."""
    rows = len(solved)
    won = torch.tensor(solved, device=device)
    late = torch.tensor(truncated, device=device)
    one_N = torch.ones(rows, device=device)
    return StepResult(won.float(), one_N, won, late, None, won, largest_N=won.float())


def steps_of(episode: int, rows: int, interventions: int, reward: float, end: str) -> Steps:
    number = np.arange(rows)
    last = number == rows - 1
    none = np.zeros((rows, 1))
    return plain_steps(
        np.full(rows, episode),
        number,
        none,
        none,
        reward * last,
        none,
        last & (end == "terminated"),
        last & (end == "truncated"),
        intervention=number < interventions,
    )


def test_a_decision_stays_on_its_device_until_figures_are_asked_for():
    statistics = EpisodeStatistics(2)
    # Tensors without data: whoever looks at them fails.
    statistics.add(decided([True, False], [False, False], "meta"))
    assert statistics.episodes == 0
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        statistics.flush()


def test_figures_are_averaged_over_all_episodes_of_a_rollout_or_the_newest_hundred():
    num_envs = 3 * RECENT
    solved = [number < RECENT for number in range(num_envs)]
    statistics = EpisodeStatistics(num_envs)
    assert statistics.success_rate(0) == 0.0, "none has ended"
    statistics.add(decided(solved, [False] * num_envs))
    statistics.add(decided([False] * num_envs, [not won for won in solved]))
    statistics.flush()
    assert not any(one.success for one in statistics.ended[-RECENT:])
    assert statistics.success_rate(0) == pytest.approx(1 / 3)
    assert statistics.mean_return(0) == pytest.approx(1 / 3)
    assert statistics.mean_largest_reward(0) == pytest.approx(1 / 3)
    assert statistics.success_rate(statistics.episodes) == 0.0, "the newest hundred"
    assert statistics.success_rate(2 * RECENT) == 0.0


def test_sums_of_an_environment_restart_with_its_episode():
    statistics = EpisodeStatistics(2)
    statistics.count(np.array([1.0, 2.0]), np.zeros(2, bool), np.zeros(2, bool))
    statistics.count(
        np.array([0.5, 4.0]),
        np.array([True, False]),
        np.array([True, True]),
        length_N=np.array([3, 2]),
        cost_N=np.array([0.25, 0.0]),
    )
    statistics.count(np.array([7.0, 0.0]), np.array([True, True]), np.array([False, False]))
    assert statistics.ended == [
        EndedEpisode(success=True, length=4, total_reward=1.5, cost=0.25),
        EndedEpisode(success=False, length=1, total_reward=7.0),
        EndedEpisode(success=False, length=4, total_reward=6.0),
    ]
    statistics.count(np.array([9.0, 9.0]), np.zeros(2, bool), np.zeros(2, bool))
    statistics.begin()
    statistics.count(np.ones(2), np.ones(2, bool), np.zeros(2, bool))
    assert statistics.ended[-1] == EndedEpisode(success=False, length=1, total_reward=1.0)


def test_decisions_before_a_new_beginning_count_for_the_episodes_before_it():
    statistics = EpisodeStatistics(2)
    statistics.add(decided([True, False], [False, False])._replace(reward_N=torch.ones(2)))
    statistics.begin()
    assert statistics.episodes == 1
    assert statistics.return_N.tolist() == [0.0, 0.0]


def test_only_the_newest_episodes_are_kept_where_a_number_is_given():
    statistics = EpisodeStatistics(1, keep=2)
    for reward in range(5):
        statistics.count(np.array([float(reward)]), np.ones(1, bool), np.ones(1, bool))
    assert [one.total_reward for one in statistics.ended] == [3.0, 4.0]
    assert statistics.episodes == 5
    assert statistics.mean_return() == 3.5


def test_steps_are_added_up_by_episode_however_they_interleave():
    steps, _ = PointMaze(2).transition(np.zeros((2, 2)), intervention=np.array([True, False]))
    off = np.zeros(2, bool)
    statistics = EpisodeStatistics()
    statistics.add_steps(steps)
    statistics.add_steps(steps._replace(intervention=off))
    halfway = statistics.state_dict()
    last = steps._replace(reward=np.array([1.0, 0.0]), terminated=np.array([True, False]))
    statistics.add_steps(last)
    ends = last._replace(truncated=np.array([False, True]), intervention=off)
    statistics.add_steps(select_steps(ends, np.array([1])))
    assert statistics.ended == [
        EndedEpisode(success=True, length=3, interventions=2, total_reward=1.0),
        EndedEpisode(success=False, length=4, interventions=0, total_reward=0.0),
    ]
    assert statistics.intervention_rate() == 2 / 7
    assert statistics.success_rate() == 0.5
    resumed = EpisodeStatistics()
    resumed.load_state_dict(halfway)
    resumed.add_steps(last)
    assert resumed.ended == statistics.ended[:1]


def test_recent_success_interventions_and_length_are_those_of_the_episodes_kept():
    statistics = EpisodeStatistics(keep=20)
    assert statistics.success_rate() == 0.0
    assert statistics.intervention_rate() == 1.0
    assert statistics.success_length() == 0.0
    statistics.add_steps(steps_of(0, 4, 3, 1.0, "terminated"))
    statistics.add_steps(steps_of(1, 10, 1, 0.0, "truncated"))
    statistics.add_steps(steps_of(2, 6, 0, 1.0, "terminated"))
    statistics.add_steps(steps_of(3, 5, 5, 0.0, "running"))
    assert (statistics.steps, statistics.episodes, statistics.interventions) == (25, 3, 9)
    assert statistics.success_rate() == pytest.approx(2 / 3)
    assert statistics.intervention_rate() == pytest.approx(4 / 20)
    assert statistics.success_length() == 5.0
    again = EpisodeStatistics(keep=20)
    again.load_state_dict(statistics.state_dict())
    again.add_steps(steps_of(3, 1, 0, 0.0, "terminated"))
    assert again.ended[-1] == EndedEpisode(success=False, length=6, interventions=5)
    for number in range(20):
        again.add_steps(steps_of(10 + number, 1, 0, 1.0, "terminated"))
    assert again.success_rate() == 1.0
    assert again.intervention_rate() == 0.0


def test_a_checkpoint_without_rewards_is_taken_over():
    statistics = EpisodeStatistics(keep=20)
    statistics.load_state_dict(
        {"counts": [25, 9, 3], "recent": [[True, 4, 3]], "running": [[3, 5, 5]]}
    )
    statistics.add_steps(steps_of(3, 1, 0, 1.0, "terminated"))
    assert statistics.ended == [
        EndedEpisode(success=True, length=4, interventions=3),
        EndedEpisode(success=True, length=6, interventions=5, total_reward=1.0),
    ]
    assert (statistics.steps, statistics.episodes, statistics.interventions) == (26, 4, 9)


def test_what_an_earlier_start_of_an_actor_left_unfinished_is_forgotten():
    statistics = EpisodeStatistics()
    statistics.add_steps(steps_of(1, 5, 0, 0.0, "running"))
    statistics.add_steps(steps_of(EPISODES_PER_START, 2, 0, 0.0, "running"))
    assert [row[0] for row in statistics.state_dict()["running"]] == [EPISODES_PER_START]
