import numpy as np
import pytest

from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.trajectory_weighting import (
    TrajectoryWeightingConfig,
    expected_return,
    min_max_scaled,
    trajectories,
    trajectory_probability,
)
from robots.errors import HandoffError
from robots.wire.steps import Steps, plain_steps, select_steps


def episode(number: int, first: float, rewards: list[float]) -> Steps:
    """One whole episode; its observation is `first` plus the step's number."""
    n = len(rewards)
    observation = (first + np.arange(n, dtype=np.float32))[:, None]
    last = np.arange(n) == n - 1
    return plain_steps(
        np.full(n, number),
        np.arange(n),
        observation,
        np.zeros((n, 1)),
        np.array(rewards),
        observation + 1,
        last,
        np.zeros(n, bool),
    )


def filled(*episodes: Steps) -> Replay:
    replay = Replay(ReplayConfig(capacity=1000), 1, 1)
    for steps in episodes:
        replay.append(steps)
    return replay


def three() -> Replay:
    """Returns 0, 1 and 2 by 1, 2 and 4 steps."""
    return filled(
        episode(0, 0.0, [0.0]), episode(1, 0.0, [0.0, 1.0]), episode(2, 0.0, [0.5, 0.5, 0.5, 0.5])
    )


def test_returns_weigh_as_their_softmax_and_are_shared_by_the_steps():
    probability = trajectory_probability(
        three(), TrajectoryWeightingConfig(kind="rw", temperature=0.5)
    )
    weights = (
        np.exp([0.0, 1.0, 2.0]) / np.exp([0.0, 1.0, 2.0]).sum()
    )  # normalised returns 0, 0.5, 1 over 0.5
    np.testing.assert_allclose(probability, np.repeat(weights / [1, 2, 4], [1, 2, 4]), rtol=1e-12)


def test_spread_step_gives_every_step_the_full_weight():
    config = TrajectoryWeightingConfig(kind="rw", temperature=0.5, spread="step")
    each = np.exp([0.0, 1.0, 2.0])
    expected = np.repeat(each, [1, 2, 4]) / (each * [1, 2, 4]).sum()
    np.testing.assert_allclose(trajectory_probability(three(), config), expected, rtol=1e-12)


def test_top_share_draws_the_steps_of_the_best_alike_and_no_others():
    config = TrajectoryWeightingConfig(kind="top", top_share=0.1)
    np.testing.assert_allclose(
        trajectory_probability(three(), config), [0, 0, 0, 0.25, 0.25, 0.25, 0.25]
    )


def test_advantage_subtracts_the_return_expected_from_the_first_observation():
    # Returns are 3 s0 but for the last trajectory, which is better than its start promised.
    episodes = [episode(i, float(i), [3.0 * i]) for i in range(10)]
    replay = filled(*episodes, episode(10, 4.5, [13.5 + 5.0]))
    by_advantage = trajectory_probability(replay, TrajectoryWeightingConfig(kind="aw"))
    by_return = trajectory_probability(replay, TrajectoryWeightingConfig(kind="rw"))
    assert by_advantage.argmax() == 10
    assert by_advantage[10] > 0.99
    assert by_return.argmax() == 9


def test_expected_return_of_a_linear_law_is_exact():
    replay = filled(*[episode(i, float(i % 7), [1.0, 3.0 * (i % 7)]) for i in range(20)])
    data = trajectories(replay)
    np.testing.assert_allclose(expected_return(data), data.return_M, atol=1e-9)


def test_equal_returns_are_weighted_alike():
    replay = filled(*[episode(i, 0.1 * i, [0.0, 1.0]) for i in range(8)])
    for kind in ("aw", "rw"):
        probability = trajectory_probability(replay, TrajectoryWeightingConfig(kind=kind))
        np.testing.assert_allclose(probability, np.full(16, 1 / 16))


def test_interleaved_episodes_and_a_wrapped_ring_find_their_trajectories():
    replay = Replay(ReplayConfig(capacity=5), 1, 1)
    a, b = episode(7, 0.0, [1.0, 2.0, 4.0]), episode(3, 10.0, [8.0, 16.0, 32.0])
    for row in range(3):
        for steps in (a, b):
            replay.append(select_steps(steps, np.array([row])))
    data = trajectories(replay)  # the first step of episode 7 is overwritten
    assert data.return_M.tolist() == [56.0, 6.0]
    assert data.first_obs_MO.tolist() == [[10.0], [1.0]]
    # Slot 0 holds the newest step, of episode 3; then come those of 3, 7, 3, 7 in their order.
    assert data.trajectory_S.tolist() == [0, 0, 1, 0, 1]


def test_drawn_shares_follow_the_weights():
    replay = three()
    probability = trajectory_probability(
        replay, TrajectoryWeightingConfig(kind="rw", temperature=0.5)
    )
    drawn = replay.sample(40_000, np.random.default_rng(0), probability).reward_B.numpy()
    assert np.mean(drawn == 0.5) == pytest.approx(probability[3:].sum(), abs=0.01)


def test_normalised_maps_smallest_to_0_and_largest_to_1():
    np.testing.assert_allclose(min_max_scaled(np.array([-3.0, 1.0, 5.0])), [0.0, 0.5, 1.0])


def test_as_few_trajectories_as_coefficients_are_refused():
    with pytest.raises(HandoffError, match="2 trajectories for a regression with 2 coefficients"):
        trajectory_probability(
            filled(episode(0, 0.0, [1.0]), episode(1, 1.0, [0.0])), TrajectoryWeightingConfig()
        )


def test_wrong_share_and_empty_replay_are_refused():
    with pytest.raises(HandoffError, match="top_share 10"):
        trajectory_probability(three(), TrajectoryWeightingConfig(kind="top", top_share=10.0))
    with pytest.raises(HandoffError, match="empty"):
        trajectory_probability(Replay(ReplayConfig(capacity=3), 1, 1), TrajectoryWeightingConfig())
