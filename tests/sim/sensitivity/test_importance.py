"""Designs, and the influence of factors: shares worked by hand, tests that hold their level, and
intervals that hold their coverage."""

from __future__ import annotations

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.proportions import wilson
from sim.sensitivity.design import DesignConfig, draw_design, values_at
from sim.sensitivity.factors import DUMMY, ArmFactor, Factor
from sim.sensitivity.importance import (
    explained_share,
    log_odds,
    permutation_test,
    slices,
    success_by_slice,
)

FACTORS: dict[str, Factor] = {
    "delay": ArmFactor(what="delay", low=0.0, high=0.04),
    "payload": ArmFactor(what="payload", low=1.0, high=3.0),
}


def test_a_latin_hypercube_has_one_point_in_every_slice_of_every_factor() -> None:
    unit = draw_design(FACTORS, DesignConfig(points=32))
    assert unit.shape == (32, 3)
    for column in unit.T:
        assert sorted((column * 32).astype(int)) == list(range(32))


def test_a_sobol_design_fills_pairs_of_factors_evenly() -> None:
    unit = draw_design(FACTORS, DesignConfig(kind="sobol", points=64))
    for first, second in ((0, 1), (0, 2), (1, 2)):
        cells = (unit[:, first] * 4).astype(int) * 4 + (unit[:, second] * 4).astype(int)
        assert np.bincount(cells, minlength=16).tolist() == [4] * 16
    with pytest.raises(HandoffError, match="100 points, expected a power of two"):
        DesignConfig(kind="sobol", points=100)


@pytest.mark.parametrize("kind", ["latin_hypercube", "sobol", "random"])
def test_a_design_is_that_of_its_seed(kind: str) -> None:
    config = DesignConfig(kind=kind, points=16)  # type: ignore[arg-type]
    other = DesignConfig(kind=kind, points=16, seed=1)  # type: ignore[arg-type]
    np.testing.assert_array_equal(draw_design(FACTORS, config), draw_design(FACTORS, config))
    assert not np.array_equal(draw_design(FACTORS, config), draw_design(FACTORS, other))


def test_a_point_has_values_between_the_bounds_and_the_factor_without_an_effect() -> None:
    values = values_at(FACTORS, np.array([0.5, 0.25, 0.9]))
    assert values == {"delay": pytest.approx(0.02), "payload": 1.5, DUMMY: 0.9}


def test_the_explained_share_is_worked_by_hand() -> None:
    # Two groups of four, rates 1 and 1/4: between 8 x (3/8)^2 = 9/8, in all 8 x 5/8 x 3/8 = 15/8,
    # a ratio of 0.6; corrected 1 - 0.4 x 7 / 6.
    solved = np.array([1, 1, 1, 1, 1, 0, 0, 0], dtype=bool)
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    assert explained_share(solved, groups) == pytest.approx(1.0 - 0.4 * 7 / 6)
    assert explained_share(groups == 0, groups) == 1.0
    assert explained_share(np.ones(8, dtype=bool), groups) == 0.0


def test_the_permutation_test_counts_as_many_successes_in_one_group_as_chance_gives() -> None:
    # Of the 70 ways to place 4 successes among 8 episodes, 2 separate the groups.
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    found = permutation_test(groups == 0, groups, 0.95, permutations=20_000)
    assert found["share"] == 1.0
    assert found["p_value"] == pytest.approx(2 / 70, abs=0.005)


def test_a_factor_whose_middle_is_best_is_noticed_though_its_log_odds_are_none() -> None:
    rng = np.random.default_rng(0)
    unit = rng.random((400, 2))
    solved = rng.random(400) < np.where(np.abs(unit[:, 0] - 0.5) < 0.25, 0.9, 0.3)
    middle = permutation_test(solved, slices(unit[:, 0], 5), 0.95)
    other = permutation_test(solved, slices(unit[:, 1], 5), 0.95)
    assert middle["p_value"] < 0.001
    assert middle["share"] > 0.2 > middle["chance"]
    assert other["p_value"] > 0.05
    assert other["share"] < other["chance"]
    low, high = log_odds(unit, solved, 0.95)[0, 1:]
    assert low < 0.0 < high


def test_a_factor_without_influence_is_found_in_one_of_twenty_designs() -> None:
    found = 0
    designs = 400
    for seed in range(designs):
        rng = np.random.default_rng(seed)
        unit = draw_design(FACTORS, DesignConfig(points=60, seed=seed))
        # The other factor decides a lot.
        solved = rng.random(60) < np.where(unit[:, 0] < 0.5, 0.2, 0.8)
        test = permutation_test(solved, slices(unit[:, -1], 5), 0.95, permutations=400)
        found += test["p_value"] < 0.05
    # 20 expected; 3.3 standard deviations are 14.
    assert 6 <= found <= 34


def test_intervals_of_the_log_odds_hold_the_true_value() -> None:
    true = np.array([3.0, -1.5, 0.0])
    inside = np.zeros(3)
    repetitions = 300
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        unit = rng.random((300, 3))
        rate = 1.0 / (1.0 + np.exp(-(0.5 + (unit - 0.5) @ true)))
        odds = log_odds(unit, rng.random(300) < rate, 0.95)
        inside += (odds[:, 1] <= true) & (true <= odds[:, 2])
    # 285 expected of 300, 3.8 the standard deviation.
    assert (inside >= 272).all()
    assert inside.mean() < 297


def test_the_log_odds_are_finite_where_a_factor_or_nothing_decides_every_episode() -> None:
    unit = np.random.default_rng(0).random((200, 2))
    decided = log_odds(unit, unit[:, 0] > 0.5, 0.95)
    assert np.isfinite(decided).all()
    assert decided[0, 1] > 3.0
    always = log_odds(unit, np.ones(200, dtype=bool), 0.95)
    assert (always[:, 1] < 0.0).all()
    assert (always[:, 2] > 0.0).all()


def test_success_by_slice_counts_episodes_and_leaves_an_empty_slice_open() -> None:
    groups = slices(np.array([0.0, 0.1, 0.39, 1.0]), 5)
    assert groups.tolist() == [0, 0, 1, 4]
    rows = success_by_slice(np.array([True, False, True, True]), groups, 5, 0.95)
    assert (rows[0]["k"], rows[0]["n"]) == (1, 2)
    assert (rows[0]["low"], rows[0]["high"]) == wilson(1, 2)
    assert rows[2] == {"k": 0, "n": 0, "low": None, "high": None}
