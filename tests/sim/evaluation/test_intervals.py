from math import comb

import numpy as np
import pytest

from robots.errors import HandoffError
from sim.evaluation.intervals import (
    bootstrap_mean,
    clopper_pearson,
    mcnemar,
    paired_difference,
    success_rate,
    wilson,
)


def test_wilson_of_45_in_50_is_786_to_957():
    # z = 1.95996: centre (45 + 1.92073) / 53.84146 = .87146, half 1.95996 sqrt(4.5 + .96036) /
    # 53.84146 = .08506
    low, high = wilson(45, 50)
    assert low == pytest.approx(0.78640, abs=1e-5)
    assert high == pytest.approx(0.95652, abs=1e-5)


def test_wilson_of_all_or_nothing_stays_within_0_and_1():
    # For k = 0 the upper end is z^2 / (n + z^2) = 3.84146 / 13.84146.
    assert wilson(0, 10) == (0.0, pytest.approx(0.27753, abs=1e-5))
    assert wilson(10, 10) == (pytest.approx(0.72247, abs=1e-5), pytest.approx(1.0))


def test_wilson_refuses_more_successes_than_trials():
    with pytest.raises(HandoffError, match="11 successes of 10"):
        wilson(11, 10)


def test_wilson_refuses_no_trials():
    with pytest.raises(HandoffError, match="0 successes of 0"):
        wilson(0, 0)


def test_success_rate_counts_true():
    rate = success_rate([True] * 45 + [False] * 5)
    assert (rate["k"], rate["n"]) == (45, 50)
    assert (rate["low"], rate["high"]) == wilson(45, 50)
    assert (rate["exact_low"], rate["exact_high"]) == clopper_pearson(45, 50)


def test_clopper_pearson_of_all_or_nothing_has_a_closed_form():
    # (1 - p)^10 = .025 at p = 1 - .025^(1/10) = .30850.
    assert clopper_pearson(0, 10) == (0.0, pytest.approx(1.0 - 0.025**0.1, abs=1e-12))
    assert clopper_pearson(10, 10) == (pytest.approx(0.025**0.1, abs=1e-12), 1.0)


def test_clopper_pearson_of_one_in_two_has_a_closed_form():
    # P(X >= 1 of 2) = 1 - (1 - p)^2 = .025 at p = 1 - sqrt(.975); the upper end mirrors it.
    low, high = clopper_pearson(1, 2)
    assert low == pytest.approx(1.0 - 0.975**0.5, abs=1e-12)
    assert high == pytest.approx(0.975**0.5, abs=1e-12)


def test_clopper_pearson_covers_at_least_what_it_says_where_wilson_does_not():
    def coverage(interval, rate, n):
        covered = [k for k in range(n + 1) if interval(k, n)[0] <= rate <= interval(k, n)[1]]
        return sum(comb(n, k) * rate**k * (1.0 - rate) ** (n - k) for k in covered)

    rates = (0.02, 0.1, 0.37, 0.9, 0.99)
    assert min(coverage(clopper_pearson, rate, 20) for rate in rates) >= 0.95
    assert min(coverage(wilson, rate, 20) for rate in rates) < 0.95


def test_clopper_pearson_stands_many_trials():
    # The normal approximation of 50,000 in 100,000: .5 +- 1.96 sqrt(.25 / 100,000) = .5 +- .0031.
    low, high = clopper_pearson(50_000, 100_000)
    assert (low, high) == (pytest.approx(0.4969, abs=2e-5), pytest.approx(0.5031, abs=2e-5))


def test_clopper_pearson_refuses_more_successes_than_trials():
    with pytest.raises(HandoffError, match="clopper-pearson: 11 successes of 10"):
        clopper_pearson(11, 10)


def test_bootstrap_interval_has_the_width_of_the_normal_approximation():
    # 1000 coin flips: standard error of the mean .5 / sqrt(1000) = .01581, 95 % half width .0310.
    low, high = bootstrap_mean([0.0, 1.0] * 500, seed=0)
    assert low == pytest.approx(0.469, abs=0.003)
    assert high == pytest.approx(0.531, abs=0.003)


def test_bootstrap_is_a_function_of_its_seed():
    values = np.linspace(0.0, 1.0, 17) ** 3
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
    assert bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)


def test_bootstrap_refuses_no_values():
    with pytest.raises(HandoffError, match="0 values"):
        bootstrap_mean([], seed=0)


def test_mcnemar_of_1_against_9_discordant_pairs_is_22_in_1024():
    # Two-sided binomial: 2 (C(10,0) + C(10,1)) / 2^10; the three pairs that agree do not count.
    first = [True] + [False] * 9 + [True, False, True]
    second = [False] + [True] * 9 + [True, False, True]
    assert mcnemar(first, second) == {
        "only_first": 1,
        "only_second": 9,
        "p_value": pytest.approx(22 / 1024),
    }


def test_mcnemar_of_equal_agents_is_1():
    assert mcnemar([True, False], [True, False])["p_value"] == 1.0


def test_paired_interval_is_narrower_than_the_agents_own():
    first = np.linspace(0.0, 1.0, 50)
    difference = paired_difference(first, first + 0.1, seed=0)
    assert difference == pytest.approx({"mean": 0.1, "low": 0.1, "high": 0.1})


def test_paired_comparison_refuses_unequal_numbers_of_episodes():
    with pytest.raises(HandoffError, match="paired comparison"):
        paired_difference([0.1, 0.2], [0.1], seed=0)
