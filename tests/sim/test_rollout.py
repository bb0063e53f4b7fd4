import numpy as np
import pytest

from robots.errors import HandoffError
from robots.noise import chunk_noise
from robots.types import Step
from sim.gym import PushTVecEnv
from sim.rollout import Chunking, rollout

LINE = Chunking(fields=("place",), action_size=1, n_obs_steps=2, horizon=4, n_action_steps=2)


class Line:
    """Worlds whose place is the number of steps plus 100 times the seed; world i is solved at step `lengths[i]`."""

    def __init__(self, lengths, coverage=lambda step: step / 10.0):
        self.num_envs = len(lengths)
        self.lengths, self.coverage = np.array(lengths), coverage
        self.actions = []

    def reset(self, seeds):
        self.start, self.count = 100.0 * np.array(seeds), 0
        return self._observation()

    def step(self, action):
        self.actions.append(action[:, 0].copy())
        self.count += 1
        done = self.count >= self.lengths
        coverage = np.full(self.num_envs, self.coverage(self.count))
        observation = self._observation()
        return Step(
            observation=observation,
            reward=2.0 * coverage,
            terminated=done,
            truncated=np.zeros_like(done),
            final_observation=observation,
            info={"coverage": coverage, "success": done},
        )

    def close(self):
        pass

    def _observation(self):
        return {"place": (self.start + self.count)[:, None]}


class Recorder:
    """Answers chunk n with 10 n + (0, 1, 2, 3) and keeps what it was asked."""

    def __init__(self):
        self.observations, self.noises = [], []

    def __call__(self, observation, noise):
        self.observations.append(observation[..., 0].tolist())
        self.noises.append(noise)
        chunk = 10.0 * (len(self.observations) - 1) + np.arange(4.0)
        return np.broadcast_to(chunk[:, None], (len(observation), 4, 1)).astype(np.float32)


def test_execution_starts_at_the_action_of_the_newest_observation():
    env = Line([99])
    rollout(Recorder(), env, [0], LINE, max_steps=5)
    assert np.concatenate(env.actions).tolist() == [1, 2, 11, 12, 21]


def test_first_observation_is_repeated_and_newest_is_last():
    policy = Recorder()
    rollout(policy, Line([99]), [3], LINE, max_steps=4)
    assert policy.observations == [[[300, 300]], [[301, 302]]]


def test_policy_is_asked_for_running_worlds_only():
    policy = Recorder()
    rollout(policy, Line([1, 99, 3]), [0, 1, 2], LINE, max_steps=6)
    assert [len(rows) for rows in policy.observations] == [3, 2, 1]
    assert policy.observations[2] == [[103, 104]]


def test_rollout_stops_when_all_worlds_are_solved():
    env = Line([2, 3])
    episodes = rollout(Recorder(), env, [0, 1], LINE, max_steps=50)
    assert len(env.actions) == 3
    assert [(e.success, e.steps) for e in episodes] == [(True, 2), (True, 3)]


def test_result_is_the_maximum_over_steps_not_the_last():
    episodes = rollout(Recorder(), Line([99], lambda step: (0.2, 0.4, 0.1)[step - 1]), [0], LINE, max_steps=3)
    assert (episodes[0].coverage, episodes[0].reward) == (0.4, 0.8)
    assert not episodes[0].success
    assert episodes[0].trajectory is None


def test_recorded_action_stands_beside_the_observation_it_answers():
    episodes = rollout(Recorder(), Line([3, 99]), [0, 1], LINE, max_steps=4, record=True)
    solved, other = (episode.trajectory for episode in episodes)
    assert solved is not None
    assert other is not None
    assert solved["place"][:, 0].tolist() == [0, 1, 2]
    assert solved["action"][:, 0].tolist() == [1, 2, 11]
    assert other["place"][:, 0].tolist() == [100, 101, 102, 103]


def test_noise_depends_on_seed_and_chunk_only():
    alone, together = Recorder(), Recorder()
    rollout(alone, Line([99]), [8], LINE, max_steps=4)
    rollout(together, Line([1, 99]), [7, 8], LINE, max_steps=4)
    np.testing.assert_array_equal(alone.noises[0][0], together.noises[0][1])
    np.testing.assert_array_equal(alone.noises[1][0], together.noises[1][0])
    np.testing.assert_array_equal(alone.noises[1][0], chunk_noise(8, 1, 4, 1))
    assert not np.array_equal(chunk_noise(8, 0, 4, 1), chunk_noise(8, 1, 4, 1))


def test_nan_names_policy_output_index_and_value():
    def policy(observation, noise):
        chunk = np.zeros_like(noise)
        chunk[1, 2, 0] = np.nan
        return chunk

    with pytest.raises(HandoffError, match=r"policy output: value at index \(1, 2, 0\) is nan.*seed 6"):
        rollout(policy, Line([9, 9]), [5, 6], LINE, max_steps=2)


def test_wrong_shape_names_both_shapes():
    with pytest.raises(HandoffError, match=r"policy output: shape \(1, 3, 1\), expected \(1, 4, 1\)"):
        rollout(lambda observation, noise: noise[:, :3], Line([9]), [5], LINE, max_steps=2)


def test_more_actions_than_the_chunk_holds_are_refused():
    chunking = Chunking(horizon=4, n_obs_steps=2, n_action_steps=4)
    with pytest.raises(HandoffError, match=r"n_action_steps is 4, expected 1\.\.3"):
        rollout(Recorder(), Line([9]), [5], chunking, max_steps=2)


def test_unknown_field_lists_what_the_world_has():
    with pytest.raises(HandoffError, match=r"no field \['keypoints', 'agent'\].*\['place'\]"):
        rollout(Recorder(), Line([9]), [5], Chunking(), max_steps=2)


def test_push_t_observation_is_18_keypoint_numbers_then_the_agent():
    env = PushTVecEnv(1)
    start = env.reset([4])
    asked = []

    def policy(observation, noise):
        asked.append(observation)
        return np.broadcast_to(observation[:, -1:, 18:], noise.shape)

    rollout(policy, env, [4], Chunking(), max_steps=1)
    assert asked[0].shape == (1, 2, 20)
    assert asked[0].dtype == np.float32
    np.testing.assert_array_equal(asked[0][0, 1, :18], start["keypoints"][0].ravel())
    np.testing.assert_array_equal(asked[0][0, 1, 18:], start["agent"][0])
