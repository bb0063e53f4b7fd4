"""Gaussians through tanh: density, gradients, bounds."""

import math

import pytest
import torch

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import SacConfig
from policies.rl.off_policy.tanh_gaussian import TanhGaussian, _TanhNormal, tanh_normal_log_prob

SMALL = MlpSizes(hidden=(8,))


def actor(config: SacConfig, features: int = 3, actions: int = 2) -> TanhGaussian:
    torch.manual_seed(0)
    return TanhGaussian(features, actions, config)


def test_the_log_density_is_that_of_a_numeric_change_of_variables() -> None:
    mean, std, step = 0.4, 0.7, 1e-4
    action = torch.linspace(-0.95, 0.95, 39, dtype=torch.float64)

    def below(value: torch.Tensor) -> torch.Tensor:
        return 0.5 * (1.0 + torch.erf((torch.atanh(value) - mean) / (std * math.sqrt(2.0))))

    density = (below(action + step) - below(action - step)) / (2.0 * step)
    raw = torch.atanh(action)[:, None]
    own = tanh_normal_log_prob((raw - mean) / std, torch.full_like(raw, math.log(std)), raw)
    torch.testing.assert_close(own, density.log(), rtol=0.0, atol=1e-5)


def test_entries_of_an_action_add_up() -> None:
    noise, log_std, raw = torch.randn(3, 5, 2).unbind()
    parts = [
        tanh_normal_log_prob(noise[:, i : i + 1], log_std[:, i : i + 1], raw[:, i : i + 1])
        for i in range(2)
    ]
    torch.testing.assert_close(tanh_normal_log_prob(noise, log_std, raw), parts[0] + parts[1])


def test_the_log_density_is_finite_where_tanh_has_no_digits_left() -> None:
    raw = torch.tensor([[40.0], [-40.0]])
    value = tanh_normal_log_prob(torch.zeros(2, 1), torch.zeros(2, 1), raw)
    # log(1 - tanh(u)^2) is 2 log 2 - 2 |u| there.
    expected = -0.5 * math.log(2.0 * math.pi) - (2.0 * math.log(2.0) - 80.0)
    torch.testing.assert_close(value, torch.full((2,), expected))


def test_the_log_density_of_a_sampled_action_is_the_one_returned_with_it() -> None:
    policy, vector = actor(SacConfig(actor=SMALL)), torch.randn(6, 3)
    sample = policy.sample(vector, 0.5 * torch.randn(6, 2))
    torch.testing.assert_close(
        policy.log_prob(vector, sample.action_BA), sample.log_prob_B, rtol=1e-3, atol=1e-3
    )


def test_without_noise_the_action_is_the_mode() -> None:
    policy, vector = actor(SacConfig(actor=SMALL)), torch.randn(6, 3)
    torch.testing.assert_close(
        policy.sample(vector, torch.zeros(6, 2)).action_BA, policy.mode(vector)
    )


def test_explicit_gradients_equal_autograd_also_beyond_the_bounds() -> None:
    torch.manual_seed(0)
    bounds = (-2.0, 1.0)
    out = (3.0 * torch.randn(8, 6, dtype=torch.float64)).requires_grad_()
    noise = torch.randn(8, 3, dtype=torch.float64)
    mean, free = out.chunk(2, dim=1)
    assert ((free < -2.0) | (free > 1.0)).any()
    log_std = free.clamp(*bounds)
    raw = mean + log_std.exp() * noise
    plain = (torch.tanh(raw), tanh_normal_log_prob(noise, log_std, raw))
    own = _TanhNormal.apply(out, noise, bounds)
    upstream = (torch.randn(8, 3, dtype=torch.float64), torch.randn(8, dtype=torch.float64))
    for mine, expected in zip(own, plain, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)
    (gradient,), (reference,) = (
        torch.autograd.grad(answer, [out], upstream) for answer in (own, plain)
    )
    torch.testing.assert_close(gradient, reference, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("bias", "deviation"), [(-100.0, 1e-5), (100.0, math.exp(1.6))])
def test_deviations_keep_within_their_bounds(bias: float, deviation: float) -> None:
    policy = actor(SacConfig(actor=SMALL))
    with torch.no_grad():
        policy.network.biases[-1][..., 2:] = bias
    log_std = policy.moments(torch.randn(4, 3))[1]
    torch.testing.assert_close(log_std.exp(), torch.full((4, 2), deviation), rtol=0.02, atol=0.0)


def test_a_fixed_deviation_is_not_an_output() -> None:
    policy = actor(SacConfig(actor=SMALL, fixed_std=0.5))
    mean, log_std = policy.moments(torch.zeros(1, 3))
    assert policy.network.weights[-1].shape[2] == 2
    assert log_std.exp().tolist() == [[0.5, 0.5]]
    sample = policy.sample(torch.zeros(1, 3), torch.ones(1, 2))
    torch.testing.assert_close(sample.action_BA, torch.tanh(mean + 0.5))
