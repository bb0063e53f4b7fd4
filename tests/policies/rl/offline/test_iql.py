"""Implicit Q-learning: order, weights, and what V, Q and the actor become on problems worked by
hand."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from policies.rl.networks.config import MlpSizes
from policies.rl.offline.config import FDvlConfig, IqlConfig, XqlConfig
from policies.rl.offline.iql import Iql, TanhMeanGaussian, awr_weight, cosine_factor, critic_loss
from policies.rl.replay.transitions import Observations, Sizes, Transitions

TINY = MlpSizes(hidden=(32, 32), activation="relu", layer_norm=False)
SIZES = Sizes(observation=1, action=1)


def small(**options: Any) -> IqlConfig:
    fast: dict[str, Any] = {"learning_rate": 1e-2, "actor_learning_rate": 1e-2, "tau": 0.1}
    return IqlConfig(critic=TINY, value_network=TINY, actor=TINY, **(fast | options))


def bandit(rows: int = 8) -> Transitions:
    """One state; action -1 is paid 0 and action 1 is paid 1, in turn; then it is over."""
    good = torch.arange(rows) % 2.0
    return batch(torch.zeros(rows, 1), (2.0 * good - 1.0)[:, None], good, torch.zeros(rows))


def batch(
    obs: torch.Tensor,
    action: torch.Tensor,
    reward: torch.Tensor,
    discount: torch.Tensor,
    after: Any = None,
) -> Transitions:
    none = torch.zeros(len(reward), dtype=torch.bool)
    after = obs if after is None else after
    return Transitions(
        Observations(obs),
        action,
        reward,
        discount,
        Observations(after),
        none,
        none,
        torch.zeros(len(reward)),
    )


def state_value(learner: Iql, state: float = 0.0) -> float:
    with torch.no_grad():
        return learner.networks.state_value(
            learner.networks.features(torch.tensor([[state]]))
        ).item()


@pytest.mark.parametrize(("level", "expected"), [(0.5, 0.5), (0.9, 0.9), (0.7, 0.7)])
def test_v_of_a_bandit_becomes_the_expectile_of_its_rewards(level: float, expected: float):
    # Rewards 0 and 1, each half of the time: level * (1 - v) = (1 - level) * v.
    learner = Iql(small(expectile=level), SIZES)
    for _ in range(300):
        learner.update([bandit()])
    assert state_value(learner) == pytest.approx(expected, abs=0.02)


def test_q_learns_the_reward_and_the_discounted_value_of_the_next_state():
    # State 1 ends with reward 2; from state 0 it is reached with reward -1 at a discount of .5: -1
    # + .5 * 2 = 0.
    learner = Iql(small(expectile=0.5), SIZES)
    obs = torch.tensor([[0.0], [1.0]]).repeat(4, 1)
    reward, discount = torch.tensor([-1.0, 2.0]).repeat(4), torch.tensor([0.5, 0.0]).repeat(4)
    data = batch(obs, torch.zeros(8, 1), reward, discount, torch.ones(8, 1))
    for _ in range(400):
        learner.update([data])
    assert state_value(learner, 0.0) == pytest.approx(0.0, abs=0.05)
    assert state_value(learner, 1.0) == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize(
    ("inverse_temperature", "low", "high"), [(0.0, -0.2, 0.2), (10.0, 0.6, 1.0)]
)
def test_the_weight_turns_a_clone_of_all_into_a_clone_of_the_good(
    inverse_temperature: float, low: float, high: float
):
    learner = Iql(small(inverse_temperature=inverse_temperature), SIZES)
    for _ in range(300):
        learner.update([bandit()])
    assert low <= learner.act(np.zeros((1, 1), np.float32))[0, 0] <= high


def test_the_weight_is_the_exponential_up_to_its_clip():
    weight = awr_weight(torch.tensor([-1.0, 0.0, 0.2, 5.0]), 3.0, 100.0)
    assert weight.tolist() == pytest.approx([math.exp(-3.0), 1.0, math.exp(0.6), 100.0], rel=1e-5)


def test_a_weight_of_any_size_stays_finite():
    assert awr_weight(torch.tensor([1e30]), 10.0, 100.0).item() == pytest.approx(100.0)


def test_the_actors_rate_falls_along_half_a_cosine():
    assert [cosine_factor(update, 4) for update in (0, 1, 2, 4, 9)] == pytest.approx(
        [1.0, 0.853553, 0.5, 0.0, 0.0]
    )
    learner = Iql(small(actor_decay_updates=4), SIZES)
    rates = []
    for _ in range(5):
        learner.update([bandit()])
        rates.append(learner.optimizers["actor"].param_groups[0]["lr"])
    assert rates == pytest.approx([0.01, 0.00853553, 0.005, 0.00146447, 0.0], abs=1e-8)


def test_hubers_loss_is_the_square_near_and_grows_linearly_beyond():
    value, target = torch.tensor([[0.0, 0.0]]), torch.tensor([1.0, 30.0])
    assert critic_loss(value[:, :1], target[:1], 20.0).item() == pytest.approx(1.0)
    # 2 * 20 * (30 - 10)
    assert critic_loss(value[:, 1:], target[1:], 20.0).item() == pytest.approx(800.0)
    assert critic_loss(value, target, None).item() == pytest.approx((1.0 + 900.0) / 2.0)


def test_targets_are_updated_last():
    learner = Iql(small(tau=0.25), SIZES)
    before = [weight.clone() for weight in learner.networks.critic_target.parameters()]
    learner.update([bandit(32)])
    moved = zip(
        before,
        learner.networks.critic_target.parameters(),
        learner.networks.critic.parameters(),
        strict=True,
    )
    for old, target, new in moved:
        assert torch.allclose(target, old + 0.25 * (new - old), atol=1e-7)


def test_v_is_updated_before_the_actor_uses_it():
    learner = Iql(small(learning_rate=0.1), SIZES)
    data = bandit(64)
    net = learner.networks
    features = net.features(data.obs.vector_BO)
    with torch.no_grad():
        q = net.action_value(features, data.action_BA)
        stale = awr_weight(q - net.state_value(features), 10.0, 100.0).mean()
    weight = learner.update([data])["weight"]
    with torch.no_grad():
        fresh = awr_weight(q - net.state_value(features), 10.0, 100.0).mean()
    assert weight.item() == pytest.approx(fresh.item(), rel=1e-5)
    assert abs(fresh.item() - stale.item()) > 0.01


def test_the_actors_log_density_is_that_of_a_normal_law_around_a_tanh_mean():
    torch.manual_seed(0)
    actor = TanhMeanGaussian(3, 2, TINY, (-5.0, 2.0))
    with torch.no_grad():
        actor.log_std_A.copy_(torch.tensor([-9.0, 0.5]))
    features, action = torch.randn(7, 3), torch.rand(7, 2)
    mean = actor.mean(features)
    law = torch.distributions.Normal(mean, torch.tensor([-5.0, 0.5]).exp())
    assert mean.abs().max() < 1.0
    assert torch.allclose(
        actor.log_prob(features, action), law.log_prob(action).sum(dim=1), rtol=1e-5
    )


def test_dropout_leaves_the_mean_of_hidden_units_and_acts_in_updates_only():
    learner = Iql(small(dropout=0.5), SIZES)
    obs = np.ones((1, 1), np.float32)
    assert np.array_equal(learner.act(obs), learner.act(obs))
    generator = torch.Generator().manual_seed(0)
    features = torch.ones(4000, 1)
    with torch.no_grad():
        weights = [
            weight for weight in learner.networks.actor.layers.parameters() if weight.ndim == 2
        ]
        weights[2].fill_(0.01)
        weights[1].abs_()
        dropped = torch.atanh(learner.networks.actor.mean(features, generator))
        whole = torch.atanh(learner.networks.actor.mean(features))
    assert dropped.std() > 0.01
    assert dropped.mean().item() == pytest.approx(whole[0].item(), rel=0.05)


def test_sampled_actions_have_the_actors_deviation_and_stay_within_bounds():
    learner = Iql(small(), SIZES)
    with torch.no_grad():
        learner.networks.actor.log_std_A.fill_(math.log(0.1))
    obs = np.zeros((4000, 1), np.float32)
    drawn = learner.act(obs, np.random.default_rng(0))
    assert drawn.std() == pytest.approx(0.1, rel=0.05)
    with torch.no_grad():
        learner.networks.actor.log_std_A.fill_(2.0)
    assert np.abs(learner.act(obs, np.random.default_rng(0))).max() == 1.0


@pytest.mark.parametrize(
    "kind",
    [
        IqlConfig,
        XqlConfig,
        partial(FDvlConfig, divergence="chi2"),
        partial(FDvlConfig, divergence="tv"),
    ],
)
def test_a_restored_learner_continues_bit_for_bit(kind):
    config = kind(critic=TINY, value_network=TINY, actor=TINY, dropout=0.1, actor_decay_updates=10)
    whole, first = Iql(config, SIZES, 3), Iql(config, SIZES, 3)
    for _ in range(6):
        whole.update([bandit()])
    for _ in range(3):
        first.update([bandit()])
    second = Iql(config, SIZES, 99)
    second.seed = 3
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        second.update([bandit()])
    for one, other in zip(whole.networks.parameters(), second.networks.parameters(), strict=True):
        assert torch.equal(one, other)
