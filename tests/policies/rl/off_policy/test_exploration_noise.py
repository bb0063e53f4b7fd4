"""Deviations that differ from world to world."""

import numpy as np
import pytest

from policies.rl.off_policy.exploration_noise import MixedNoise, ladder
from policies.rl.off_policy.fast_td3_config import MixedNoiseConfig
from robots.errors import HandoffError

EVERYWHERE = np.ones(4, bool)


def test_a_linear_ladder_rises_by_even_steps():
    found = ladder(MixedNoiseConfig(spread="linear", low=0.05, high=0.8), 4)
    np.testing.assert_allclose(found, [0.05, 0.3, 0.55, 0.8])


def test_a_geometric_ladder_rises_by_even_ratios():
    found = ladder(MixedNoiseConfig(spread="geometric", low=0.1, high=0.8), 4)
    np.testing.assert_allclose(found, [0.1, 0.2, 0.4, 0.8])


@pytest.mark.parametrize("spread", ["linear", "geometric"])
def test_a_single_world_has_the_largest(spread):
    assert ladder(MixedNoiseConfig(spread=spread, low=0.1, high=0.8), 1).tolist() == [0.8]


@pytest.mark.parametrize("spread", ["linear", "geometric"])
def test_a_ladder_stays_when_episodes_begin(spread):
    noise = MixedNoise(MixedNoiseConfig(spread=spread, low=0.1, high=0.8), 4)
    before = noise.deviation_N.copy()
    noise.begin(EVERYWHERE, np.random.default_rng(0))
    assert noise.deviation_N.tolist() == before.tolist()


def test_a_uniform_spread_is_drawn_anew_only_where_an_episode_begins():
    noise = MixedNoise(MixedNoiseConfig(low=0.2, high=0.6), 4)
    noise.begin(EVERYWHERE, np.random.default_rng(0))
    before = noise.deviation_N.copy()
    noise.begin(np.array([False, True, False, False]), np.random.default_rng(1))
    assert (noise.deviation_N != before).tolist() == [False, True, False, False]


def test_uniform_deviations_fill_their_bounds_evenly():
    noise = MixedNoise(MixedNoiseConfig(low=0.2, high=0.6), 20_000)
    noise.begin(np.ones(20_000, bool), np.random.default_rng(0))
    share, _ = np.histogram(noise.deviation_N, bins=4, range=(0.2, 0.6))
    # Each quarter has 5,000 of 20,000, with a deviation of 61.
    assert share.sum() == 20_000
    assert abs(share - 5000).max() < 5 * 61


def test_a_worlds_draw_does_not_hang_on_its_neighbours_ends():
    config = MixedNoiseConfig(low=0.2, high=0.6)
    alone, together = MixedNoise(config, 4), MixedNoise(config, 4)
    alone.begin(np.array([False, False, True, False]), np.random.default_rng(5))
    together.begin(EVERYWHERE, np.random.default_rng(5))
    assert alone.deviation_N[2] == together.deviation_N[2]


def test_every_world_is_disturbed_by_its_own_deviation():
    noise = MixedNoise(MixedNoiseConfig(spread="linear", low=0.0, high=0.2), 3)
    draw = np.random.default_rng(0)
    added = np.stack([noise.added(np.zeros((3, 2)), draw) for _ in range(4000)])
    found = added.std(axis=(0, 2))
    # Of 8,000 numbers: the relative deviation of a standard deviation is 1 / sqrt(16,000).
    np.testing.assert_allclose(found, [0.0, 0.1, 0.2], rtol=5 / 126)
    assert added.dtype == np.float32


def test_actions_with_noise_stay_within_their_bounds():
    noise = MixedNoise(MixedNoiseConfig(spread="linear", low=3.0, high=3.0), 50)
    added = noise.added(np.full((50, 2), 0.9), np.random.default_rng(0))
    assert (added.min(), added.max()) == (-1.0, 1.0)


def test_actions_of_another_number_of_worlds_are_refused():
    with pytest.raises(HandoffError, match="actions of 3 worlds, made for 4"):
        MixedNoise(MixedNoiseConfig(), 4).added(np.zeros((3, 2)), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("spread", "low", "high"), [("uniform", 0.5, 0.2), ("linear", -0.1, 0.2), ("geometric", 0, 1)]
)
def test_impossible_bounds_are_refused(spread, low, high):
    with pytest.raises(HandoffError, match="expected 0 <= low <= high"):
        MixedNoiseConfig(spread=spread, low=low, high=high)
