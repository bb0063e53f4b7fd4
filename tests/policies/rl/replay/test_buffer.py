import numpy as np
import pytest

from policies.rl.hil.rlif import RlifReplay
from policies.rl.off_policy.config import OnlineConfig
from policies.rl.off_policy.online import MinibatchSampler, store
from policies.rl.replay.buffer import Replay, sizes_of
from policies.rl.replay.config import ReplayConfig
from robots.errors import HandoffError
from robots.wire.steps import plain_steps, select_steps
from tests.policies.rl.replays import assert_same, episode, random_config, replay_of
from tests.policies.rl.slow_replay import SlowReplay, random_batches


@pytest.mark.parametrize("seed", range(25))
def test_agrees_with_a_slow_replay_on_random_interleaved_episodes(seed):
    rng = np.random.default_rng(seed)
    config = random_config(rng)
    replay, slow = Replay(config, 2, 1), SlowReplay(config)
    for steps in random_batches(rng, 8, int(rng.choice([1, 4, 30]))):
        replay.append(steps)
        slow.append(steps)
        assert_same(replay, slow)


def test_n_step_sums_shrink_to_the_steps_left_before_a_terminal():
    batch = replay_of(episode([1, 2, 4, 8]), n_step=3).transitions(np.arange(4))
    assert batch.reward_B.tolist() == [1 + 1 + 1, 2 + 2 + 2, 4 + 4, 8]
    assert batch.discount_B.tolist() == [0.125, 0.0, 0.0, 0.0]
    assert batch.next_obs.vector_BO[:, 0].tolist() == [3, 4, 4, 4]


def test_n_step_sums_bootstrap_behind_a_time_limit_with_the_effective_number_of_steps():
    batch = replay_of(episode([1, 2, 4, 8], end="truncated"), n_step=3).transitions(np.arange(4))
    assert batch.reward_B.tolist() == [3, 6, 8, 8]
    assert batch.discount_B.tolist() == [0.125, 0.125, 0.25, 0.5]


def test_a_time_limit_counts_as_termination_with_timeouts_end():
    batch = replay_of(episode([1, 2], end="truncated"), timeouts_end=True).transitions(np.arange(2))
    assert batch.discount_B.tolist() == [0.5, 0.0]


def test_n_step_sums_of_a_running_episode_bootstrap_from_its_newest_observation():
    batch = replay_of(episode([1, 2], end="running"), n_step=3).transitions(np.arange(2))
    assert batch.reward_B.tolist() == [2, 2]
    assert batch.discount_B.tolist() == [0.25, 0.5]
    assert batch.next_obs.vector_BO[:, 0].tolist() == [2, 2]


def test_a_chunk_past_the_end_is_complete_with_zeros_for_unexecuted_actions():
    replay = replay_of(episode([1, 2, 4, 8], end="truncated"), horizon=3)
    assert replay.drawable().tolist() == [0, 1, 2, 3]
    batch = replay.transitions(np.arange(4))
    expected = np.array([[0, 0.1, 0.2], [0.1, 0.2, 0.3], [0.2, 0.3, 0], [0.3, 0, 0]], np.float32)
    np.testing.assert_allclose(batch.action_BA.numpy(), expected)
    assert batch.extra["valid_BH"].tolist() == [
        [True] * 3,
        [True] * 3,
        [True, True, False],
        [True, False, False],
    ]
    assert batch.reward_B.tolist() == [3, 6, 8, 8]
    assert batch.discount_B.tolist() == [0.125, 0.125, 0.25, 0.5]


def test_chunks_that_the_running_end_cuts_off_are_not_drawn_until_they_are_whole():
    replay = replay_of(episode([1, 2, 4, 8], end="running"), horizon=3)
    assert replay.drawable().tolist() == [0, 1]
    drawn = replay.sample(200, np.random.default_rng(0))
    assert set(drawn.obs.vector_BO[:, 0].tolist()) == {0.0, 1.0}
    replay.append(episode([16], first=4, end="running"))
    assert replay.drawable().tolist() == [0, 1, 2]
    replay.append(episode([32], first=5))
    assert replay.drawable().tolist() == [0, 1, 2, 3, 4, 5]


def test_corrections_with_a_gap_between_them_are_not_linked():
    replay = replay_of(episode([1, 2, 4], end="running"), episode([8, 16], first=5), n_step=10)
    batch = replay.transitions(np.arange(5))
    assert batch.reward_B.tolist() == [3, 4, 4, 16, 16]
    assert batch.next_obs.vector_BO[:, 0].tolist() == [3, 3, 3, 7, 7]


def test_nothing_follows_an_end_whatever_its_number_and_its_batch():
    steps = episode([1, 2, 4, 8], end="running")._replace(
        truncated=np.array([False, True, False, False])
    )
    together = replay_of(steps, n_step=4)
    apart = replay_of(*[select_steps(steps, np.array([row])) for row in range(4)], n_step=4)
    for replay in (together, apart):
        assert replay.transitions(np.arange(4)).reward_B.tolist() == [2, 2, 8, 8]


def test_a_chunk_cut_off_by_the_end_of_a_takeover_is_not_drawn():
    replay = replay_of(episode([1, 2, 4], end="running"), episode([8, 16], first=5), horizon=2)
    assert replay.drawable().tolist() == [0, 1, 3, 4]


def test_no_whole_chunk_is_an_error_that_names_the_horizon():
    replay = replay_of(episode([1, 2], end="running"), horizon=3)
    with pytest.raises(HandoffError, match=r"2 steps are stored.*3 actions"):
        replay.sample(1, np.random.default_rng(0))


def test_interleaved_episodes_follow_their_own_steps():
    a, b = episode([1, 2, 4], number=5), episode([10, 20, 40], number=9)
    replay = replay_of(
        *[select_steps(one, np.array([row])) for row in range(3) for one in (a, b)], n_step=3
    )
    assert replay.transitions(np.arange(2)).reward_B.tolist() == [3, 30]


def test_the_oldest_steps_are_overwritten():
    replay = replay_of(*[episode([float(i)], number=i) for i in range(7)], capacity=4)
    assert len(replay) == 4
    assert sorted(replay.columns["reward"].tolist()) == [3, 4, 5, 6]


def test_monte_carlo_returns_are_known_when_the_episode_ends():
    replay = replay_of(episode([1, 2], end="running"), mc_return=True)
    assert replay.transitions(np.arange(2)).extra["mc_return"].tolist() == [-np.inf, -np.inf]
    replay.append(episode([4], first=2))
    assert replay.transitions(np.arange(3)).extra["mc_return"].tolist() == [1 + 1 + 1, 2 + 2, 4]


def test_with_a_tail_a_truncated_episode_has_the_infinite_discounted_return():
    # r / (1 - g) = -1 / 0.5 from every step of a truncated episode.
    replay = replay_of(episode([-1, -1, -1], end="truncated"), mc_return=True, mc_tail=-1.0)
    assert replay.transitions(np.arange(3)).extra["mc_return"].tolist() == [-2, -2, -2]


def test_executed_action_proposal_and_policy_version_are_stored():
    steps = plain_steps(
        *(
            np.zeros(1),
            np.zeros(1),
            np.zeros((1, 1)),
            np.full((1, 1), 0.5),
            np.zeros(1),
            np.zeros((1, 1)),
        ),
        *(np.zeros(1, bool), np.zeros(1, bool)),
        intervention=np.ones(1, bool),
        proposed=np.full((1, 1), -0.5),
        policy_version=12,
    )
    replay = replay_of(steps)
    assert replay.transitions(np.array([0])).action_BA.tolist() == [[0.5]]
    assert replay.columns["proposed"][0].tolist() == [-0.5]
    assert replay.columns["policy_version"][0] == 12


# Invariant (g) 22: what a person did is stored as the action, and goes into both buffers.
def test_corrections_go_into_both_buffers_as_executed():
    steps = episode([0, 0, 0], end="running")
    executed = np.array([[0.7], [0.8], [0.9]], np.float32)
    steps = steps._replace(action=executed, intervention=np.array([False, True, True]))
    replay, demos = replay_of(), replay_of()
    store(steps, replay, demos)
    assert replay.columns["action"][:3].tolist() == executed.tolist()
    assert len(demos) == 2
    assert demos.columns["action"][:2].tolist() == executed[1:].tolist()
    np.testing.assert_allclose(demos.columns["proposed"][:2], [[0.1], [0.2]], rtol=1e-6)


# Invariant (g) 22, last part: of a takeover that begins at step 2, step 1 is punished.
def test_rlif_punishes_the_step_before_a_takeover():
    steps = episode([0, 0, 0, 0])._replace(intervention=np.array([False, False, True, True]))
    replay = RlifReplay(ReplayConfig(capacity=10), 1, 1)
    replay.append(steps)
    assert replay.columns["reward"][:4].tolist() == [0, -1, 0, 0]


# Invariant (g) 23.
@pytest.mark.parametrize("size", [2, 64, 256])
def test_exactly_half_of_every_batch_is_of_the_demonstrations(size):
    replay, demos = replay_of(episode([0.0] * 9)), replay_of(episode([1.0] * 3))
    batches = MinibatchSampler(OnlineConfig(batch_size=size), replay, demos)
    for seed in range(20):
        batch = batches(np.random.default_rng(seed))
        assert batch.rows == size
        assert int(batch.demo_B.sum()) == size // 2
        assert batch.demo_B.tolist() == (batch.reward_B == 1.0).tolist()


def test_draws_are_uniform():
    drawn = replay_of(episode([float(i) for i in range(10)])).sample(
        20_000, np.random.default_rng(0)
    )
    counts = np.bincount(drawn.obs.vector_BO[:, 0].numpy().astype(int), minlength=10)
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000)


def test_probability_zero_is_never_drawn():
    replay = replay_of(episode([float(i) for i in range(10)]))
    probability = np.zeros(10)
    probability[[2, 7]] = 1.0, 3.0
    drawn = replay.sample(8000, np.random.default_rng(0), probability).obs.vector_BO[:, 0].numpy()
    assert set(drawn.tolist()) == {2.0, 7.0}
    assert (drawn == 7.0).mean() == pytest.approx(0.75, abs=0.02)


def test_chunks_that_are_not_whole_have_no_probability():
    replay = replay_of(episode([1, 2, 4], end="running"), horizon=2)
    drawn = replay.sample(500, np.random.default_rng(0), np.array([0.0, 0.5, 0.5]))
    assert set(drawn.obs.vector_BO[:, 0].tolist()) == {1.0}


@pytest.mark.parametrize(
    ("probability", "message"),
    [
        (np.ones(3), "3 probabilities for 2 steps"),
        (np.zeros(2), "sum to 0.0"),
        (np.full(2, np.nan), "sum to nan"),
    ],
)
def test_wrong_probabilities_are_refused(probability, message):
    with pytest.raises(HandoffError, match=message):
        replay_of(episode([1, 2])).sample(1, np.random.default_rng(0), probability)


def test_other_sizes_and_options_are_refused():
    with pytest.raises(HandoffError, match="expected 2 and 1 entries"):
        Replay(ReplayConfig(capacity=3), 2, 1).append(episode([1]))
    with pytest.raises(HandoffError, match="horizon 0"):
        Replay(ReplayConfig(horizon=0), 1, 1)
    with pytest.raises(HandoffError, match="mc_tail"):
        Replay(ReplayConfig(discount=1.0, mc_tail=-1.0), 1, 1)
    with pytest.raises(HandoffError, match="none can be sampled"):
        replay_of().sample(1, np.random.default_rng(0))


def test_running_episodes_that_were_overwritten_are_forgotten():
    replay = replay_of(capacity=10)
    for number in range(3000):
        replay.append(episode([1.0], number=number, end="running"))
    assert len(replay._open) < 2000


def test_state_of_another_task_is_refused():
    state = replay_of(episode([1])).state_dict()
    with pytest.raises(HandoffError, match="observation"):
        Replay(ReplayConfig(capacity=9), 4, 1).load_state_dict(state)


def test_sizes_come_from_the_columns():
    assert sizes_of(Replay(ReplayConfig(capacity=2), 5, 3)).observation == 5
    assert sizes_of(Replay(ReplayConfig(capacity=2), 5, 3)).action == 3
