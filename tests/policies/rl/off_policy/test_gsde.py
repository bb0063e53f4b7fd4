"""gSDE: the law of its actions, by formula and by drawing."""

import math
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import GsdeConfig, SacConfig
from policies.rl.off_policy.gsde import GsdeActor, GsdeSac
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError

SMALL = MlpSizes(hidden=(16, 16))
SIZES = Sizes(observation=3, action=2)


def config(**options) -> SacConfig:
    return SacConfig(critic=SMALL, actor=SMALL, **options)


def learner_of(seed: int = 0, **options) -> GsdeSac:
    return GsdeSac(config(), GsdeConfig(steps=4, **options), SIZES, seed)


def actor_of(**options) -> GsdeActor:
    torch.manual_seed(0)
    actor = GsdeActor(3, 2, config(), GsdeConfig(**options))
    with torch.no_grad():
        actor.log_std_PA.normal_(-2.0, 0.3)
    return actor


def batch(rows: int = 8) -> Transitions:
    generator = torch.Generator().manual_seed(1)

    def sample(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return Transitions(
        obs=Observations(sample(rows, 3)),
        action_BA=torch.tanh(sample(rows, 2)),
        reward_B=sample(rows),
        discount_B=torch.full((rows,), 0.9),
        next_obs=Observations(sample(rows, 3)),
        demo_B=torch.zeros(rows, dtype=torch.bool),
        intervention_B=torch.zeros(rows, dtype=torch.bool),
        toggles_B=torch.zeros(rows),
    )


@torch.no_grad()
def test_over_theta_the_raw_action_has_the_variance_that_the_log_density_assumes() -> None:
    actor = actor_of()
    features = torch.tensor([[0.3, -1.0, 0.7]])
    draws = 200_000
    generator = torch.Generator().manual_seed(2)
    theta = actor.deviations() * torch.randn(draws, 16, 2, generator=generator)
    raw = torch.atanh(actor.explore(features.expand(draws, -1), theta).double())
    mean, phi = actor.mean_and_features(features)
    expected = (phi.square() @ actor.deviations().square())[0]
    # The standard error of a variance from n draws is sqrt(2 / n) of it: 0.3 %.
    assert raw.var(dim=0).numpy() == pytest.approx(expected.numpy(), rel=0.02)
    assert raw.mean(dim=0).numpy() == pytest.approx(mean[0].numpy(), abs=0.01)
    _, log_std = actor.moments(features)
    assert (2.0 * log_std[0]).exp().numpy() == pytest.approx(expected.numpy(), rel=1e-3)


@torch.no_grad()
def test_samples_and_their_log_density_agree() -> None:
    actor = actor_of()
    features = torch.randn(5, 3, generator=torch.Generator().manual_seed(3))
    noise = torch.randn(5, 2, generator=torch.Generator().manual_seed(4))
    sample = actor.sample(features, noise)
    assert sample.log_prob_B.numpy() == pytest.approx(
        actor.log_prob(features, sample.action_BA).numpy(), abs=1e-4
    )
    mean, log_std = actor.moments(features)
    raw = mean + log_std.exp() * noise
    normal = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw)
    expected = (normal - torch.log1p(-torch.tanh(raw).square())).sum(dim=1)
    assert sample.log_prob_B.numpy() == pytest.approx(expected.numpy(), abs=1e-4)
    assert torch.equal(actor.mode(features), torch.tanh(mean))


@pytest.mark.parametrize("learn", [False, True])
def test_the_deviation_shapes_the_features_only_where_it_may(learn: bool) -> None:
    actor = actor_of(learn_features=learn)
    actor.moments(torch.ones(1, 3))[1].sum().backward()
    assert actor.log_std_PA.grad is not None
    reached = [
        one.grad is not None and bool(one.grad.abs().sum() > 0)
        for one in actor.network.parameters()
    ]
    assert any(reached) == learn


def test_deviations_are_exponentials_or_grow_like_a_logarithm() -> None:
    for expln, expected in (
        (False, [math.exp(-1.0), 1.0, math.e]),
        (True, [math.exp(-1.0), 1.0, 1.0 + math.log(2.0)]),
    ):
        actor = actor_of(expln=expln)
        with torch.no_grad():
            actor.log_std_PA[:3, 0] = torch.tensor([-1.0, 0.0, 1.0])
        assert actor.deviations()[:3, 0].tolist() == pytest.approx(expected)


def test_the_exploration_matrix_is_kept_for_its_steps() -> None:
    learner = learner_of()
    vector = np.array([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]], np.float32)
    acts = [learner.act(vector, np.random.default_rng(step)) for step in range(9)]
    same = [np.array_equal(one, other) for one, other in pairwise(acts)]
    assert same == [True, True, True, False, True, True, True, False]
    assert not np.array_equal(acts[0][0], acts[0][1])


def test_without_an_rng_it_acts_by_its_mean_and_keeps_the_exploration_matrix() -> None:
    learner = learner_of()
    vector = np.ones((1, 3), np.float32)
    explored = learner.act(vector, np.random.default_rng(0))
    mode = learner.act(vector)
    features = learner.networks.features(torch.from_numpy(vector))
    assert mode == pytest.approx(learner.actor.mode(features).detach().numpy())
    assert np.array_equal(learner.act(vector, np.random.default_rng(1)), explored)


def test_a_restored_learner_explores_and_learns_identically() -> None:
    first = learner_of()
    vector = np.ones((1, 3), np.float32)
    first.act(vector, np.random.default_rng(0))
    first.update([batch()])
    second = learner_of(seed=0)
    second.load_state_dict(deepcopy(first.state_dict()))
    for learner in (first, second):
        learner.update([batch()])
    for left, right in zip(first.networks.parameters(), second.networks.parameters(), strict=True):
        assert torch.equal(left, right)
    acts = [learner.act(vector, np.random.default_rng(5)) for learner in (first, second)]
    assert np.array_equal(acts[0], acts[1])


def test_an_update_moves_the_deviations() -> None:
    learner = learner_of(log_std_init=-1.5)
    learner.update([batch()])
    assert not torch.equal(learner.actor.log_std_PA, torch.full((16, 2), -1.5))


@pytest.mark.parametrize("options", [{"fixed_std": 0.1}, {"actor_ema": 0.9}])
def test_incompatible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(HandoffError, match="gsde"):
        GsdeSac(config(**options), GsdeConfig(), SIZES)
