import numpy as np
import pytest
import torch

from policies.data.frames import Frames
from policies.data.windows import (
    Windows,
    chunks,
    episode_windows,
    future_rows,
    shuffled_batch,
    shuffled_span,
    window_index,
)
from robots.errors import HandoffError


def test_edges_repeat_the_first_and_last_step():
    index = window_index(np.array([5, 8]), n_obs_steps=2, horizon=4, n_action_steps=2)
    assert index.action_NH.tolist() == [
        [0, 0, 1, 2],
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [2, 3, 4, 4],
        [5, 5, 6, 7],
        [5, 6, 7, 7],
    ]
    assert index.observation_NT.tolist() == [[0, 0], [0, 1], [1, 2], [2, 3], [5, 5], [5, 6]]
    assert index.episode_N.tolist() == [0, 0, 0, 0, 1, 1]


def test_push_t_sizes_give_length_minus_seven_windows():
    assert len(window_index(np.array([100]), 2, 16, 8).action_NH) == 93


def test_an_episode_shorter_than_what_is_executed_has_no_window():
    assert set(window_index(np.array([2, 12]), 2, 8, 4).episode_N) == {1}


def test_a_horizon_too_short_for_the_executed_actions_is_refused():
    with pytest.raises(
        HandoffError, match="8 actions from index 1 on do not fit in a horizon of 8"
    ):
        window_index(np.array([100]), 2, 8, 8)


def test_no_window_at_all_is_refused():
    with pytest.raises(HandoffError, match="none in 2 episodes"):
        window_index(np.array([2, 4]), 2, 16, 8)


def eight_steps(goals: bool = False) -> Windows:
    """Windows of the second of two episodes, of five and three steps; every value is the number of
    its row."""
    index = window_index(np.array([5, 8]), 2, 4, 2).select([1])
    steps = np.arange(8.0)[:, None]
    return Windows(
        torch.from_numpy(steps),
        torch.from_numpy(index.observation_NT),
        torch.from_numpy(chunks(index, steps, 10 * steps, anchor=None)),
        torch.from_numpy(index.padded_NH),
        {"camera": Frames([torch.arange(8, dtype=torch.uint8)[:, None].repeat(1, 3)])},
        ("push it", "pull it"),
        torch.from_numpy(index.end_N) if goals else None,
    )


def test_a_batch_holds_the_rows_of_its_windows():
    windows = eight_steps()
    batch = windows.batch(torch.tensor([1]))
    assert len(windows) == 2
    assert batch.obs.vector_BTO.tolist() == [[[5.0], [6.0]]]
    assert batch.obs.sensors["camera"].tolist() == [[[5, 5, 5], [6, 6, 6]]]
    assert batch.obs.instructions == ("pull it",)
    assert batch.obs.goal_BO is None
    assert batch.chunk_BHA.tolist() == [[[50.0], [60.0], [70.0], [70.0]]]
    assert batch.padded_BH.tolist() == [[False, False, False, True]]


def test_every_window_knows_where_its_episode_ends():
    index = window_index(np.array([5, 8]), n_obs_steps=2, horizon=4, n_action_steps=2)
    assert index.end_N.tolist() == [5, 5, 5, 5, 8, 8]
    assert index.select([1]).episode_N.tolist() == [1, 1]


def test_windows_of_one_episode_are_those_among_many():
    index, alone = window_index(np.array([5, 8]), 2, 4, 2).select([0]), episode_windows(5, 2, 4, 2)
    assert all(np.array_equal(one, other) for one, other in zip(index, alone, strict=True))
    assert len(episode_windows(1, 2, 4, 2).episode_N) == 0


def test_goals_are_later_rows_of_the_same_episode_all_equally_often():
    goals = future_rows(np.full(6000, 3), np.full(6000, 7), np.random.default_rng(0))
    rows, counts = np.unique(goals, return_counts=True)
    assert rows.tolist() == [4, 5, 6]
    # 2000 of each are expected, with a deviation of 37.
    assert np.abs(counts - 2000).max() < 5 * 37


def test_the_last_step_of_an_episode_is_its_own_goal():
    assert future_rows(np.array([6, 9]), np.array([7, 10]), np.random.default_rng(0)).tolist() == [
        6,
        9,
    ]


def test_a_batch_has_the_goals_that_its_random_numbers_pick():
    windows = eight_steps(goals=True)
    goals = [
        windows.batch(torch.tensor([0, 1]), np.random.default_rng(seed)).obs.goal_BO
        for seed in (0, 0, 1, 2, 3)
    ]
    assert all(goal is not None and goal.shape == (2, 1) for goal in goals)
    picked = [tuple(goal.flatten().tolist()) for goal in goals if goal is not None]
    assert picked[0] == picked[1]
    # After row 5 of the first window come 6 and 7, after row 6 of the second 7 alone.
    assert set(picked) == {(6.0, 7.0), (7.0, 7.0)}


def test_goals_without_random_numbers_are_refused():
    with pytest.raises(HandoffError, match="no generator was given"):
        eight_steps(goals=True).batch(torch.tensor([0]))


def test_anchored_actions_are_relative_to_the_newest_observation_of_their_window():
    index = window_index(np.array([5]), n_obs_steps=2, horizon=4, n_action_steps=2)
    observation = np.stack([np.zeros(5), np.arange(5.0)], axis=1)
    relative = chunks(index, observation, 10 * np.arange(5.0)[:, None], anchor=1)
    assert relative[2].tolist() == [[8.0], [18.0], [28.0], [38.0]]


def test_an_epoch_shows_every_window_once():
    epoch = np.concatenate([shuffled_batch(4, 12, step, seed=3) for step in range(3)])
    assert sorted(epoch) == list(range(12))


def test_epochs_have_their_own_order():
    assert not np.array_equal(shuffled_batch(12, 12, 0, seed=3), shuffled_batch(12, 12, 1, seed=3))


def test_the_order_depends_on_nothing_but_step_and_seed():
    later = shuffled_batch(4, 12, 7, seed=3)
    for step in range(7):
        shuffled_batch(4, 12, step, seed=3)
    assert np.array_equal(later, shuffled_batch(4, 12, 7, seed=3))
    assert not np.array_equal(later, shuffled_batch(4, 12, 7, seed=4))


def test_cuts_of_any_size_show_every_window_once_per_epoch():
    sizes, first, cuts = [3, 0, 5, 1, 7], 0, []
    for size in sizes:
        cuts.append(shuffled_span(first, size, 4, seed=3, order=1))
        first += size
    assert [len(cut) for cut in cuts] == sizes
    row = np.concatenate(cuts)
    assert [sorted(row[start : start + 4].tolist()) for start in range(0, 16, 4)] == [
        [0, 1, 2, 3]
    ] * 4


def test_the_first_order_is_that_of_full_batches():
    assert np.array_equal(
        shuffled_span(4, 4, 12, seed=3, order=0), shuffled_batch(4, 12, 1, seed=3)
    )
    assert not np.array_equal(
        shuffled_span(4, 4, 12, seed=3, order=1), shuffled_batch(4, 12, 1, seed=3)
    )


def test_a_stride_observes_earlier_steps() -> None:
    index = window_index(
        np.array([7, 10]), n_obs_steps=3, horizon=4, n_action_steps=2, stride=2
    ).select([0])
    assert index.observation_NT.tolist() == [
        [0, 0, 0],
        [0, 0, 1],
        [0, 0, 2],
        [0, 1, 3],
        [0, 2, 4],
        [1, 3, 5],
        [2, 4, 6],
    ]
    # The newest observation belongs to the same action as without a stride.
    alone = window_index(np.array([7, 10]), n_obs_steps=3, horizon=4, n_action_steps=2).select([0])
    np.testing.assert_array_equal(index.action_NH, alone.action_NH)


def test_a_stride_of_an_episodes_length_remembers_its_first_step() -> None:
    index = window_index(np.array([7, 10]), 2, 2, 1, stride=100)
    assert index.observation_NT[:, 0].tolist() == [0] * 7 + [7] * 3
    assert index.observation_NT[:, 1].tolist() == [*range(10)]
