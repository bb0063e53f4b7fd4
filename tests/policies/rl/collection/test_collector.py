"""Rollouts in environments whose every number is known."""

import copy
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn

from policies.card import Shapes
from policies.families.diffusion import DiffusionPolicy
from policies.networks.config import MlpConfig
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.collection.collector import Collector
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.on_policy.config import DppoConfig, OnPolicyConfig
from policies.rl.on_policy.diffusion_actor import DenoisingActor
from policies.rl.on_policy.ppo import OnPolicyLearner
from robots.errors import HandoffError
from tests.policies.rl.counting import LIMIT, Counting


def policy(n_obs_steps: int = 2, horizon: int = 4) -> DiffusionPolicy:
    torch.manual_seed(0)
    config = DiffusionPolicyConfig(
        n_obs_steps=n_obs_steps,
        horizon=horizon,
        n_action_steps=2,
        train_timesteps=10,
        inference_steps=5,
        network=MlpConfig(width=16, blocks=1),
    )
    # The step stands before the seed, whatever their names.
    made = DiffusionPolicy(config, Shapes({"step": (0, 1), "seed": (1, 2)}, 1, None, {}))
    made.normalize_action.centre.fill_(0.5)
    made.normalize_action.scale.fill_(2.0)
    return made


def envs(
    num_envs: int = 2,
    n_action_steps: int = 2,
    reward_shaping: RewardShaping | None = None,
    **options,
) -> ChunkEnv:
    return ChunkEnv(
        Counting(num_envs), policy(**options), n_action_steps, count(100), 0.9, reward_shaping
    )


def observed_steps(found: ChunkEnv) -> list[list[float]]:
    return found.observation()[..., 0].tolist()


def test_histories_hold_the_two_newest_observations_and_begin_with_one_twice():
    found = envs()
    assert observed_steps(found) == [[0.0, 0.0], [0.0, 0.0]]
    found.step(torch.zeros(2, 4, 1))
    assert observed_steps(found) == [[1.0, 2.0], [1.0, 2.0]]
    assert found.observation()[..., 1].tolist() == [[100.0, 100.0], [101.0, 101.0]]


def test_a_chunk_is_executed_from_the_newest_observed_step_in_physical_units():
    found = envs()
    found.step(torch.arange(8.0).reshape(2, 4, 1))
    done = found.env.done  # type: ignore[attr-defined]
    assert [action for _, action in done] == [[2.5, 10.5], [4.5, 12.5]]


def test_an_environment_that_ends_within_a_chunk_counts_what_was_executed():
    found = envs()
    found.step(torch.zeros(2, 4, 1))
    result = found.step(torch.zeros(2, 4, 1))
    np.testing.assert_allclose(result.reward_N, [3.0, 3.0 + 0.9 * 4.0], rtol=1e-6)
    np.testing.assert_allclose(result.discount_N, [0.9, 0.81], rtol=1e-6)
    assert result.terminated_N.tolist() == [True, False]
    assert result.success_N.tolist() == [True, False]
    assert result.final_obs[:, -1, 0].tolist() == [3.0, 4.0], (
        "the true one, not that of the new start"
    )
    assert observed_steps(found) == [[0.0, 0.0], [3.0, 4.0]]
    assert found.observation()[0, -1, 1] == 102.0, "the next seed"


def test_a_time_limit_is_no_end_of_the_task():
    found = envs(n_action_steps=1, n_obs_steps=1)
    for _ in range(LIMIT - 1):
        found.step(torch.zeros(2, 4, 1))
    result = found.step(torch.zeros(2, 4, 1))
    assert result.truncated_N.tolist() == [False, True]
    assert not result.terminated_N[1]


def critic() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 1))


def test_a_rollout_values_the_true_observation_behind_every_decision():
    found, value = envs(3), critic()
    actor = DenoisingActor(found._policy, DppoConfig(steps=5))  # type: ignore[arg-type]
    collector = Collector(found, actor, value, 0.9)
    rollout = collector.rollout(6)
    ended_TN = rollout.terminated_TN | rollout.truncated_TN
    assert ended_TN[:, 0].tolist() == [False, True] * 3
    assert rollout.truncated_TN[3, 1:].all()
    with torch.no_grad():
        going = ~ended_TN[:-1]
        torch.testing.assert_close(rollout.next_value_TN[:-1][going], rollout.value_TN[1:][going])
        # Environment 1 ran into its limit at step 7, seen as (7, 7): it had ended before the last
        # action of its chunk.
        true = value(torch.tensor([[[7.0, 101.0], [7.0, 101.0]]]))[0, 0]
    torch.testing.assert_close(rollout.next_value_TN[3, 1], true)
    collector.statistics.flush()
    ended = collector.statistics.ended
    assert sum(one.success for one in ended) == 3
    assert ended[0].total_reward == pytest.approx(1.0 + 0.9 * 2.0 + 3.0)


def test_a_collector_resumes_its_random_generator_and_reward_scale():
    found, value = envs(4), critic()
    actor = DenoisingActor(found._policy, DppoConfig(steps=5))  # type: ignore[arg-type]
    collector = Collector(found, actor, value, 0.9)
    learned = OnPolicyLearner(
        OnPolicyConfig(critic_warmup_rollouts=0, batch_size=40), actor, value
    ).update(collector.rollout(4))
    assert np.isfinite([learned.policy_loss, learned.value_loss, learned.kl]).all()
    state, env = copy.deepcopy(collector.state_dict()), copy.deepcopy(found)
    once = collector.rollout(3)
    again = Collector(env, actor, value, 0.9)
    again.load_state_dict(state)
    twice = again.rollout(3)
    for name in ("obs", "reward_TN", "log_prob_TNK"):
        assert torch.equal(getattr(once, name), getattr(twice, name)), name


def test_what_the_environments_do_not_tell_is_refused():
    env = Counting(2)
    env.observation_spec = {"step": env.observation_spec["step"]}
    with pytest.raises(HandoffError, match=r"lack the fields \['seed'\]"):
        ChunkEnv(env, policy(), 2, count(0), 0.9)


@pytest.mark.parametrize(("history", "actions"), [(2, 4), (1, 5), (3, 1), (1, 0)])
def test_more_actions_than_a_chunk_holds_are_refused(history, actions):
    with pytest.raises(HandoffError, match="finetune: "):
        envs(n_action_steps=actions, n_obs_steps=history)


def test_step_success_and_failure_rewards_belong_to_their_actions():
    reward_shaping = RewardShaping(task=2.0, step=-1.0, success=10.0, failure=-5.0)
    task_reward_NH = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.0], [0.6, 0.0, 0.0]])
    solved_N, failed_N = np.array([False, True, False]), np.array([False, False, True])
    shaped_NH = reward_shaping.shaped_reward(
        task_reward_NH, np.array([3, 2, 1]), solved_N, failed_N, np.full(3, np.nan)
    )
    np.testing.assert_allclose(shaped_NH[0], [-0.8, -0.6, -0.4], rtol=1e-6)
    np.testing.assert_allclose(shaped_NH[1, :2], [-0.2, 10.0], rtol=1e-6)
    np.testing.assert_allclose(shaped_NH[2, 0], -4.8 + 1.0 - 1.0 + 0.0, rtol=1e-6)


def test_progress_is_what_the_tasks_reward_rose_by_from_action_to_action_and_from_chunk_to_chunk():
    reward_shaping = RewardShaping(task=0.0, progress=10.0)
    never_N, before_N = np.zeros(2, bool), np.array([np.nan, 0.5])
    shaped_NH = reward_shaping.shaped_reward(
        np.array([[0.1, 0.4], [0.3, 0.0]]), np.array([2, 1]), never_N, never_N, before_N
    )
    np.testing.assert_allclose(shaped_NH[0], [0.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(shaped_NH[1, 0], -2.0, rtol=1e-6)


def test_the_progress_of_an_episode_adds_up_to_its_last_reward_less_its_first():
    # Environment 0 is told 1, 2 and 3 and has solved it; then it begins anew. Environment 1 is told
    # as many as its limit has steps.
    found = envs(reward_shaping=RewardShaping(task=0.0, progress=1.0))
    paid = [found.step(torch.zeros(2, 4, 1)).reward_NH for _ in range(4)]
    assert all(part is not None for part in paid)
    made = torch.stack([part.sum(dim=1) for part in paid if part is not None], dim=1)
    assert made[0].tolist() == [1.0, 1.0, 1.0, 1.0]
    assert made[1].sum() == LIMIT - 1.0
