"""SequenceBatch of steps against episodes worked by hand."""

from __future__ import annotations

import numpy as np

from policies.rl.replay.unrolls import read_unrolls
from tests.policies.rl.replays import episode, replay_of


def test_an_unroll_ends_with_the_step_that_terminates():
    replay = replay_of(episode([1, 2, 4]), episode([8, 16, 32, 64], number=1))
    batch = read_unrolls(replay, np.array([0, 1, 2]), 3)
    assert batch.steps == 3
    assert batch.valid_BH.tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert (batch.terminated_BH * batch.valid_BH).tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    # Nothing of the following episode counts.
    assert (batch.reward_BH * batch.valid_BH).tolist() == [[1, 2, 4], [2, 4, 0], [4, 0, 0]]
    assert batch.vector_BO[:, 0].tolist() == [0, 1, 2]
    assert batch.next_BHO[0, :, 0].tolist() == [1, 2, 3]
    np.testing.assert_allclose(batch.action_BHA[0, :, 0].numpy(), [0.0, 0.1, 0.2], atol=1e-7)


def test_an_unroll_ends_at_a_time_limit_without_a_termination():
    batch = read_unrolls(replay_of(episode([1, 2], end="truncated")), np.array([0]), 4)
    assert batch.valid_BH.tolist() == [[1, 1, 0, 0]]
    assert float(batch.terminated_BH.sum()) == 0.0


def test_an_unroll_follows_its_episode_where_episodes_interleave():
    replay = replay_of(
        *(
            part
            for step in range(3)
            for part in (
                episode([float(step)], number=0, end="running", first=step),
                episode([10.0 + step], number=1, end="running", first=step),
            )
        )
    )
    batch = read_unrolls(replay, np.array([0, 1]), 4)
    # Of running episodes the newest step is the last.
    assert batch.valid_BH.tolist() == [[1, 1, 1, 0], [1, 1, 1, 0]]
    assert batch.reward_BH[:, :3].tolist() == [[0, 1, 2], [10, 11, 12]]


def test_an_unroll_continues_behind_the_end_of_the_ring():
    replay = replay_of(episode([1, 2, 4, 8, 16], end="running"), capacity=4)
    # The fifth step lies in the first slot.
    batch = read_unrolls(replay, np.array([2]), 4)
    assert batch.valid_BH.tolist() == [[1, 1, 1, 0]]
    assert batch.reward_BH[0, :3].tolist() == [4, 8, 16]
