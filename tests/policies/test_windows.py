import numpy as np
import pytest
import torch

from policies.windows import chunks, select_windows, shuffled_batch, window_index
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
    with pytest.raises(HandoffError, match="8 actions from index 1 on do not fit in a horizon of 8"):
        window_index(np.array([100]), 2, 8, 8)


def test_no_window_at_all_is_refused():
    with pytest.raises(HandoffError, match="none in 2 episodes"):
        window_index(np.array([2, 4]), 2, 16, 8)


def test_a_batch_holds_the_rows_of_its_windows():
    index = window_index(np.array([5, 8]), 2, 4, 2)
    steps = np.arange(8.0)[:, None]
    chunk = torch.from_numpy(chunks(index, steps, 10 * steps, anchor=None))
    windows = select_windows(index, torch.from_numpy(steps), chunk, episodes=[1])
    batch = windows.batch(torch.tensor([1]))
    assert len(windows) == 2
    assert batch.observed.vector_BTO.tolist() == [[[5.0], [6.0]]]
    assert batch.chunk_BHA.tolist() == [[[50.0], [60.0], [70.0], [70.0]]]
    assert batch.padded_BH.tolist() == [[False, False, False, True]]


def test_anchored_actions_are_relative_to_the_newest_observation_of_their_window():
    index = window_index(np.array([5]), n_obs_steps=2, horizon=4, n_action_steps=2)
    observation = np.stack([np.zeros(5), np.arange(5.0)], axis=1)
    relative = chunks(index, observation, 10 * np.arange(5.0)[:, None], anchor=1)
    assert relative[2].tolist() == [[8.0], [18.0], [28.0], [38.0]]


def test_an_epoch_shows_every_window_once():
    seen = np.concatenate([shuffled_batch(4, 12, step, seed=3) for step in range(3)])
    assert sorted(seen) == list(range(12))


def test_epochs_have_their_own_order():
    assert not np.array_equal(shuffled_batch(12, 12, 0, seed=3), shuffled_batch(12, 12, 1, seed=3))


def test_the_order_depends_on_nothing_but_step_and_seed():
    later = shuffled_batch(4, 12, 7, seed=3)
    for step in range(7):
        shuffled_batch(4, 12, step, seed=3)
    assert np.array_equal(later, shuffled_batch(4, 12, 7, seed=3))
    assert not np.array_equal(later, shuffled_batch(4, 12, 7, seed=4))
