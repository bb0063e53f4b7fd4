"""Rounds of a blinded comparison: what is next, what counts, and the error of the test."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from flows.deployment.blinded.rounds import Counting, _attempt, standing
from robots.proportions import clopper_pearson
from tests.flows.deployment.blinded.played import attempt, outcomes, played_out, sealed, stands

SEEDS = 400
"""Comparisons that are simulated per case."""


def test_episodes_follow_in_the_sealed_order() -> None:
    order = sealed("x")
    first, second = order.order(0)
    assert stands(order, []).next == (0, 0, first)
    begun = [attempt(0, 0, 0)]
    assert stands(order, begun).next == (0, 1, second)
    complete = [*begun, attempt(1, 0, 1, False)]
    assert stands(order, complete).next == (1, 0, order.order(1)[0])
    assert stands(order, complete).played[0].success == {first: True, second: False}


def test_an_episode_that_was_cut_off_is_played_again_by_the_same_policy() -> None:
    order = sealed("x")
    second = order.order(0)[1]
    cut = [attempt(0, 0, 0), attempt(1, 0, 1, counting=Counting.REPEATED)]
    assert stands(order, cut).next == (0, 1, second)
    again = stands(order, [*cut, attempt(2, 0, 1, False)])
    assert [one.episode for _, one in again.played[0].attempts] == [0, 2]


def test_a_discarded_episode_takes_its_pair_with_it() -> None:
    order = sealed("x")
    dropped = [attempt(0, 0, 0), attempt(1, 0, 1, counting=Counting.VOID)]
    known = stands(order, dropped)
    assert (known.next, known.void, known.played) == ((1, 0, order.order(1)[0]), 1, ())


@pytest.mark.parametrize(
    ("about", "counting", "success"),
    [
        ({"success": True, "takeovers": 0, "label": "success"}, Counting.COUNTS, True),
        ({"success": True, "takeovers": 0, "fault": None}, Counting.COUNTS, True),
        ({"success": True, "takeovers": 1, "label": "success"}, Counting.COUNTS, False),
        ({"success": True, "takeovers": 0, "fault": "governor: .."}, Counting.COUNTS, False),
        ({"success": False, "takeovers": 0, "label": "failure"}, Counting.COUNTS, False),
        ({"success": True, "takeovers": 0, "discard_reason": "redo"}, Counting.REPEATED, True),
        ({"success": False, "discard_reason": "interrupted"}, Counting.REPEATED, False),
        (
            {"success": False, "fault": "ended by SIGTERM", "cut_off": True},
            Counting.REPEATED,
            False,
        ),
        ({"success": True, "takeovers": 0, "discard_reason": "discard"}, Counting.VOID, True),
    ],
)
def test_takeovers_and_faults_are_failures_and_a_kill_is_none(
    about: dict[str, object], counting: Counting, success: bool
) -> None:
    read = _attempt(3, {**about, "blinded": {"pair": 2, "place": 1}})
    assert (read.episode, read.pair, read.place) == (3, 2, 1)
    assert (read.counting, read.success) == (counting, success)


def test_every_policy_is_as_often_first_and_pairs_are_independent() -> None:
    order = sealed("orders")
    first = np.array([order.order(pair)[0] for pair in range(4000)])
    # Three standard deviations of a fair coin.
    assert abs(first.mean() - 0.5) < 3 * 0.5 / np.sqrt(len(first))
    same = first[1:] == first[:-1]
    assert abs(same.mean() - 0.5) < 3 * 0.5 / np.sqrt(len(same))
    three = sealed("orders", 3)
    orders = Counter(three.order(pair) for pair in range(6000))
    assert len(orders) == 6
    assert all(abs(number - 1000) < 5 * np.sqrt(1000) for number in orders.values())


def decided(rates: tuple[float, ...], place_effect: float = 0.0) -> tuple[float, float, float]:
    """Share of the comparisons with a decision, share with one for policy 0, and mean number of
    pairs."""
    share, better, pairs = [], [], []
    for seed in range(SEEDS):
        order = sealed(f"secret {seed}", len(rates), permutations=2000)
        known = stands(order, outcomes(order, rates, seed, place_effect))
        share.append(bool(known.decisions))
        better.append(any(each.better == "0" for each in known.decisions))
        pairs.append(len(known.played))
    return float(np.mean(share)), float(np.mean(better)), float(np.mean(pairs))


@pytest.mark.parametrize(
    ("rates", "place_effect"),
    [((0.5, 0.5), 0.0), ((0.5, 0.5), 0.4), ((0.5, 0.5, 0.5), 0.0)],
    ids=["two", "second is harder", "three"],
)
def test_equal_policies_are_told_apart_at_most_as_often_as_stated(
    rates: tuple[float, ...], place_effect: float
) -> None:
    share, better, _ = decided(rates, place_effect)
    low, _ = clopper_pearson(round(share * SEEDS), SEEDS, 0.999)
    assert low <= 0.05, f"{share} of {SEEDS} comparisons of equal policies were decided"
    assert share > 0.0, "a test that never decides has no error"
    assert better < share, "a decision between equal policies goes either way"


def test_a_clear_difference_is_decided_early_and_the_right_way() -> None:
    share, better, pairs = decided((0.9, 0.4))
    assert better > 0.95
    assert share - better < 0.01
    assert pairs < 20.0


def test_a_fixed_order_with_an_effect_of_the_place_would_be_taken_for_a_difference() -> None:
    """The control of the drawn order: without it, the same test calls equal policies different."""
    errors = 0
    for seed in range(100):
        order = sealed(f"secret {seed}", permutations=2000)
        rng = np.random.default_rng(seed)
        played = [
            attempt(2 * pair + place, pair, place, bool(rng.random() < 0.9 - 0.5 * place))
            for pair in range(30)
            for place in range(2)
        ]
        known = standing(played, lambda pair: (0, 1), order.config, 2)
        errors += bool(known.decisions)
    assert errors > 90


def test_the_comparison_is_over_after_its_last_pair() -> None:
    order = sealed("x", pairs=4)
    played = outcomes(order, (1.0, 1.0), 0)
    assert len(played) == 8
    assert stands(order, played[:-1]).next is not None
    known = stands(order, played)
    assert (known.next, known.decisions, len(known.played)) == (None, (), 4)


def test_a_policy_that_was_told_apart_from_all_others_acts_no_more() -> None:
    order = sealed("x", 3, pairs=30, permutations=2000)
    known = stands(order, played_out(order, (0.9, 0.9, 0.0), 1))
    worst = [each for each in known.decisions if each.worse == "2"]
    assert len(worst) == 2
    last = max(each.stage for each in worst)
    assert all(len(one.attempts) == 3 for one in known.played[: last + 1])
    assert all({0, 1} == set(one.success) for one in known.played[last + 1 :])
    assert len(known.played) > last + 1
