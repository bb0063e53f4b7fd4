"""Deviations that differ from environment to environment."""

import numpy as np
import pytest

from policies.rl.off_policy.exploration_noise import PerEnvNoise, env_deviations
from policies.rl.off_policy.fast_td3_config import PerEnvNoiseConfig
from robots.errors import HandoffError

EVERYWHERE = np.ones(4, bool)


def test_a_linear_spread_has_even_steps():
    deviations = env_deviations(PerEnvNoiseConfig(spread="linear", low=0.05, high=0.8), 4)
    np.testing.assert_allclose(deviations, [0.05, 0.3, 0.55, 0.8])


def test_a_geometric_spread_has_even_ratios():
    deviations = env_deviations(PerEnvNoiseConfig(spread="geometric", low=0.1, high=0.8), 4)
    np.testing.assert_allclose(deviations, [0.1, 0.2, 0.4, 0.8])


@pytest.mark.parametrize("spread", ["linear", "geometric"])
def test_a_single_environment_has_the_largest(spread):
    assert env_deviations(PerEnvNoiseConfig(spread=spread, low=0.1, high=0.8), 1).tolist() == [0.8]


@pytest.mark.parametrize("spread", ["linear", "geometric"])
def test_a_fixed_spread_does_not_change_when_episodes_begin(spread):
    noise = PerEnvNoise(PerEnvNoiseConfig(spread=spread, low=0.1, high=0.8), 4)
    before = noise.deviation_N.copy()
    noise.begin_episodes(EVERYWHERE, np.random.default_rng(0))
    assert noise.deviation_N.tolist() == before.tolist()


def test_a_uniform_spread_is_resampled_only_where_an_episode_begins():
    noise = PerEnvNoise(PerEnvNoiseConfig(low=0.2, high=0.6), 4)
    noise.begin_episodes(EVERYWHERE, np.random.default_rng(0))
    before = noise.deviation_N.copy()
    noise.begin_episodes(np.array([False, True, False, False]), np.random.default_rng(1))
    assert (noise.deviation_N != before).tolist() == [False, True, False, False]


def test_uniform_deviations_fill_their_bounds_evenly():
    noise = PerEnvNoise(PerEnvNoiseConfig(low=0.2, high=0.6), 20_000)
    noise.begin_episodes(np.ones(20_000, bool), np.random.default_rng(0))
    share, _ = np.histogram(noise.deviation_N, bins=4, range=(0.2, 0.6))
    # Each quarter has 5,000 of 20,000, with a deviation of 61.
    assert share.sum() == 20_000
    assert abs(share - 5000).max() < 5 * 61


def test_the_noise_of_an_environment_does_not_depend_on_episode_ends_in_others():
    config = PerEnvNoiseConfig(low=0.2, high=0.6)
    alone, together = PerEnvNoise(config, 4), PerEnvNoise(config, 4)
    alone.begin_episodes(np.array([False, False, True, False]), np.random.default_rng(5))
    together.begin_episodes(EVERYWHERE, np.random.default_rng(5))
    assert alone.deviation_N[2] == together.deviation_N[2]


def test_every_environment_has_noise_of_its_own_deviation():
    noise = PerEnvNoise(PerEnvNoiseConfig(spread="linear", low=0.0, high=0.2), 3)
    rng = np.random.default_rng(0)
    noisy = np.stack([noise.add_noise(np.zeros((3, 2)), rng) for _ in range(4000)])
    deviations = noisy.std(axis=(0, 2))
    # Of 8,000 numbers: the relative deviation of a standard deviation is 1 / sqrt(16,000).
    np.testing.assert_allclose(deviations, [0.0, 0.1, 0.2], rtol=5 / 126)
    assert noisy.dtype == np.float32


def test_actions_with_noise_stay_within_their_bounds():
    noise = PerEnvNoise(PerEnvNoiseConfig(spread="linear", low=3.0, high=3.0), 50)
    noisy = noise.add_noise(np.full((50, 2), 0.9), np.random.default_rng(0))
    assert (noisy.min(), noisy.max()) == (-1.0, 1.0)


def test_actions_of_another_number_of_environments_are_refused():
    with pytest.raises(HandoffError, match="actions of 3 environments, expected 4"):
        PerEnvNoise(PerEnvNoiseConfig(), 4).add_noise(np.zeros((3, 2)), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("spread", "low", "high"), [("uniform", 0.5, 0.2), ("linear", -0.1, 0.2), ("geometric", 0, 1)]
)
def test_impossible_bounds_are_refused(spread, low, high):
    with pytest.raises(HandoffError, match="expected 0 <= low <= high"):
        PerEnvNoiseConfig(spread=spread, low=low, high=high)
