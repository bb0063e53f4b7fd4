"""G3: PPO-Lagrangian keeps a cost at its limit, and pays for it in reward.

HazardReach, 50 environments, 300,000 steps of practice from an untrained Gaussian. Asked for, seeds
0 to 4: with a limit of 2 steps in the disc per episode the cost of the last 1,000 episodes is
within 20 % of it, and their return significantly (AdaStop) less than without a limit, where the way
leads through the disc. That a limit of infinity is PPO itself, bit for bit, is a unit test
(`test_on_policy.py`).

At five seeds on one computer: cost 1.83, 2.34, 1.74, 2.16, 1.82; without a limit 5.05, 5.03, 5.04,
5.04, 5.05: met. On another, an AMD EPYC, the same code gives 2.06, 2.34, 2.06, 2.03, 2.71: missed
by the last seed. Seeds 10 to 17 give 1.92 to 2.44 there. Another gain is no cure: with 0.3, seed 0
ends at 2.47.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from policies.rl.on_policy.config import CostConstraint, OnPolicyConfig, PpoConfig
from policies.rl.on_policy.gaussian_actor import GaussianActor
from policies.rl.on_policy.ppo import OnPolicyLearner
from tests.toy_envs.comparison import better, runs
from tests.toy_envs.hazard_reach import HazardReach
from tests.toy_envs.rollout_env import toy_collector

pytestmark = pytest.mark.slow

NUM_ENVS, STEPS, ROLLOUTS, LAST = 50, 60, 100, 1000
LIMIT = 2.0
GAIN = 0.1
"""Without it the cost swung about its limit: 1.64, 1.96, 2.23, 1.36, 2.12 at the end, one
outside."""


class Finetuned(NamedTuple):
    """Of the last episodes."""

    paid: float
    cost: float
    success: float


def see(observation: np.ndarray) -> torch.Tensor:
    """(N, 2) about in [-1, 1]."""
    return torch.from_numpy(
        observation * np.array([2.0, 1.0], np.float32) - np.array([1.0, 0.0], np.float32)
    )


def network(outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


def finetuned(seed: int, limit: float) -> Finetuned:
    torch.manual_seed(seed)
    mean, critic = network(2), network(2)
    with torch.no_grad():
        # As stable-baselines3 begins: without a direction of its own.
        mean[-1].get_parameter("weight").mul_(0.01)
    actor = GaussianActor(mean, 2, std=0.5)
    toy_env = HazardReach(NUM_ENVS, 1000 + seed)
    config = OnPolicyConfig(
        ppo=PpoConfig(clip=0.2),
        clip_min=None,
        batch_size=500,
        epochs=10,
        actor_learning_rate=3e-4,
        critic_warmup_rollouts=0,
        target_kl=0.05,
    )
    collector = toy_collector(toy_env, actor, critic, see, config.discount, seed, cost=toy_env.cost)
    constraint = None if limit == math.inf else CostConstraint(limit=limit, gain=GAIN)
    learner = OnPolicyLearner(config, actor, critic, seed, constraint=constraint)
    statistics = collector.statistics
    for _ in range(ROLLOUTS):
        before = len(statistics.ended)
        rollout = collector.rollout(STEPS)
        statistics.flush()
        costs = [one.cost for one in statistics.ended[before:]]
        learner.update(rollout, episode_cost=float(np.mean(costs)))
    last = [(one.total_reward, one.cost, one.success) for one in statistics.ended[-LAST:]]
    return Finetuned(*np.mean(last, axis=0).tolist())


@pytest.fixture(scope="module")
def found() -> dict[str, list[Finetuned]]:
    return runs(
        {"limited": partial(finetuned, limit=LIMIT), "free": partial(finetuned, limit=math.inf)}
    )


def test_the_cost_comes_to_its_limit(found: dict[str, list[Finetuned]]) -> None:
    for one in found["limited"]:
        assert one.cost == pytest.approx(LIMIT, rel=0.2)
    assert min(one.cost for one in found["free"]) > 1.5 * LIMIT


def test_the_limit_costs_reward(found: dict[str, list[Finetuned]]) -> None:
    assert all(one.success > 0.95 for arm in found.values() for one in arm)
    assert better(
        {name: [one.paid for one in arm] for name, arm in found.items()}, "free", "limited"
    )
