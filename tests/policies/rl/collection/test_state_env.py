"""StateEnv: observations, rewards, resets and resumption."""

import numpy as np
import pytest

from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.collection.seeds import CountedSeeds
from policies.rl.collection.state_env import StateEnv
from robots.errors import HandoffError
from robots.spec import ActionSpec
from tests.policies.rl.walking import Walking

PAYS = RewardShaping(task=2.0, step=-1.0, success=10.0)


def begun(fields: tuple[str, ...] = (), saves: bool = True) -> tuple[StateEnv, Walking]:
    env = Walking(2, saves)
    vec_env = StateEnv(env, fields, CountedSeeds(10), PAYS)
    vec_env.begin()
    return vec_env, env


def test_steps_tell_what_happened_also_behind_an_end():
    envs, env = begun(("twice",))
    env.place[:] = 0.7, -1.4
    envs.load_state_dict(envs.state_dict())
    first = envs.step(np.array([[-1.0], [1.0]], np.float32))
    np.testing.assert_allclose(first.observation, [[1.4], [-2.8]], rtol=1e-6)
    np.testing.assert_allclose(first.next_observation, [[0.4], [-1.8]], rtol=1e-5)
    assert first.terminated.tolist() == [True, False]
    # Twice the distance, the step, and for being solved.
    np.testing.assert_allclose(first.reward, [-0.4 - 1.0 + 10.0, -1.8 - 1.0], rtol=1e-5)
    assert (first.episode.tolist(), first.number.tolist()) == ([0, 1], [0, 0])
    second = envs.step(np.zeros((2, 1), np.float32))
    assert (second.episode.tolist(), second.number.tolist()) == ([2, 1], [0, 1])
    # A new start, from the next seed, not the end of the one before.
    assert env.seeds[-1] == 12
    assert abs(second.observation[0, 0]) >= 1.0
    assert envs.statistics.episodes == 1
    (ended,) = envs.statistics.ended
    assert (ended.success, ended.length) == (True, 1)
    assert ended.total_reward == pytest.approx(8.6)


def test_progress_restarts_with_an_episode_and_continues_in_restored_environments():
    env = Walking(2, True)
    vec_env = StateEnv(env, ("twice",), CountedSeeds(10), RewardShaping(task=0.0, progress=1.0))
    vec_env.begin()
    env.place[:] = 0.7, -1.4
    vec_env.load_state_dict(vec_env.state_dict())
    first = vec_env.step(np.array([[-1.0], [1.0]], np.float32))
    assert first.reward.tolist() == [0.0, 0.0]
    vec_env.load_state_dict(vec_env.state_dict())
    second = vec_env.step(np.array([[1.0], [1.0]], np.float32))
    # Environment 0 had solved it and began anew; environment 1 came from -.9 to -.4, which is told
    # as its distance.
    np.testing.assert_allclose(second.reward, [0.0, 0.5], atol=1e-6)


def test_a_time_limit_is_no_end_of_the_task():
    envs, _ = begun()
    made = [envs.step(np.zeros((2, 1), np.float32)) for _ in range(5)]
    assert [bool(steps.truncated.any()) for steps in made] == [False] * 4 + [True]
    assert made[-1].truncated.all()
    assert not made[-1].terminated.any()
    assert all(not one.success for one in envs.statistics.ended)


def test_all_fields_but_images_are_observed_unless_fields_are_named():
    assert begun()[0].fields == ("place", "twice")
    envs, env = begun(("twice", "place"))
    np.testing.assert_allclose(
        envs.observation, np.stack([2 * env.place, env.place], axis=1), rtol=1e-6
    )
    assert envs.entries == 2


def test_restored_environments_continue_identically():
    used = CountedSeeds(10)
    vec_env = StateEnv(Walking(2), (), used, PAYS)
    vec_env.begin()
    draw = np.random.default_rng(0)
    for _ in range(7):
        vec_env.step(draw.uniform(-1, 1, (2, 1)).astype(np.float32))
    state = vec_env.state_dict()
    env = Walking(2)
    seeds = CountedSeeds(10)
    seeds.used = used.used
    other = StateEnv(env, (), seeds, PAYS)
    other.load_state_dict(state)
    for _ in range(7):
        action = draw.uniform(-1, 1, (2, 1)).astype(np.float32)
        for one, again in zip(vec_env.step(action)[:-2], other.step(action)[:-2], strict=True):
            np.testing.assert_array_equal(one, again)
    assert vec_env.statistics.episodes == other.statistics.episodes > 1
    for one, again in zip(vec_env.statistics.ended, other.statistics.ended, strict=True):
        assert (one.success, one.total_reward) == (again.success, again.total_reward)
    assert vec_env.statistics.ended[-1] == other.statistics.ended[-1], "its steps, too"


def test_environments_that_cannot_be_saved_begin_new_episodes():
    envs, env = begun(saves=False)
    envs.step(np.zeros((2, 1), np.float32))
    before = envs.episode.copy()
    envs.load_state_dict(envs.state_dict())
    assert envs.step_index.tolist() == [0, 0]
    assert set(envs.episode.tolist()).isdisjoint(before.tolist())
    assert env.seeds == [10, 11, 12, 13]


def test_fields_that_are_not_there_and_other_bounds_are_refused():
    with pytest.raises(HandoffError, match=r"fields \['plaice'\] are configured"):
        begun(("plaice",))
    env = Walking(2)
    env.action_spec = ActionSpec(low=(-2.0,), high=(1.0,))
    with pytest.raises(HandoffError, match="expected -1 to 1 in every entry"):
        StateEnv(env, (), CountedSeeds(0), PAYS)
