from collections import Counter
from fractions import Fraction
from math import floor
from unittest import mock

import numpy as np
import pytest

from policies.data.mixture import MixedWindows, new_mixture, window_groups, windows_taken
from policies.data.windows import shuffled_batch, shuffled_span
from robots.errors import HandoffError


def test_shares_are_rounded_over_all_updates_and_not_in_each():
    # A quarter of 2, 4, 6, 8 windows: 0.5, 1, 1.5, 2, halves rounded up.
    assert [windows_taken(2 * step, (1.0, 3.0)) for step in range(5)] == [
        [0, 0],
        [1, 1],
        [1, 3],
        [2, 4],
        [2, 6],
    ]


@pytest.mark.parametrize(
    "weights", [(1.0, 1.0, 1.0), (0.7, 0.1, 0.1, 0.1), (5.0, 1e-6, 2.0), (0.3, 0.3, 0.3, 0.3, 9.0)]
)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_counts_add_up_never_fall_and_follow_the_weights(weights: tuple[float, ...], size: int):
    before = [0] * len(weights)
    for step in range(1, 500):
        now = windows_taken(size * step, weights)
        assert sum(now) == size * step
        assert min(after - earlier for after, earlier in zip(now, before, strict=True)) >= 0
        shares = np.array(weights) / sum(weights) * size * step
        assert np.abs(np.array(now) - shares).max() <= len(weights)
        before = now


def test_shares_are_exact_where_whole_numbers_can_be():
    assert windows_taken(4_000_000_000_000, (1.0, 2.0, 1.0)) == [
        1_000_000_000_000,
        2_000_000_000_000,
        1_000_000_000_000,
    ]


def test_every_batch_is_full_and_its_stores_stand_in_order():
    mixture = MixedWindows((3, 10), (1.0, 1.0))
    for step in range(20):
        chosen = mixture.batch(8, step, seed=0)
        assert len(chosen) == 8
        assert np.all(np.diff((chosen >= 3).astype(int)) >= 0)
        assert (chosen < 3).sum() == 4
        assert chosen.max() < 13


def test_every_window_comes_once_per_epoch_of_its_store():
    mixture = MixedWindows((3, 10), (1.0, 1.0))
    drawn = np.concatenate([mixture.batch(8, step, seed=0) for step in range(15)])
    # 60 windows of each store: 20 epochs of three, 6 epochs of ten.
    assert Counter(drawn.tolist()) == {
        **dict.fromkeys(range(3), 20),
        **dict.fromkeys(range(3, 13), 6),
    }
    small = drawn[drawn < 3]
    assert all(sorted(small[first : first + 3].tolist()) == [0, 1, 2] for first in range(0, 60, 3))


def test_the_order_depends_on_nothing_but_update_and_seed():
    mixture = MixedWindows((30, 50), (1.0, 2.0))
    later = mixture.batch(8, 9, seed=1)
    for step in range(9):
        mixture.batch(8, step, seed=1)
    assert np.array_equal(later, mixture.batch(8, 9, seed=1))
    assert not np.array_equal(later, mixture.batch(8, 9, seed=2))


def test_stores_of_one_size_have_orders_of_their_own():
    first, second = np.split(MixedWindows((40, 40), (1.0, 1.0)).batch(80, 0, seed=0), 2)
    assert not np.array_equal(first, second - 40)


def test_a_single_store_keeps_the_order_it_had_without_a_mixture():
    mixture = MixedWindows((50,), (0.1,))
    for step in (0, 3, 8, 100):
        assert np.array_equal(mixture.batch(16, step, seed=4), shuffled_batch(16, 50, step, seed=4))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_share_is_refused(weight: float):
    with pytest.raises(
        HandoffError, match=f"other: weight is {weight}, expected a finite number above 0"
    ):
        new_mixture(("demos", "other"), (3, 3), (1.0, weight))


def test_a_store_without_a_window_is_named():
    with pytest.raises(HandoffError, match="other: no training windows"):
        new_mixture(("demos", "other"), (3, 0), (1.0, 1.0))


def test_a_store_that_is_named_twice_is_refused():
    with pytest.raises(HandoffError, match="expected each once"):
        new_mixture(("demos", "other", "other"), (3, 3, 3), (1.0, 1.0, 1.0))


def unweighted_batch(
    counts: tuple[int, ...], weights: tuple[float, ...], size: int, step: int, seed: int
) -> np.ndarray:
    """The batch by the definition, with fractions: store after store, each with its own order."""

    def taken(windows: int) -> list[int]:
        found, left, rest = [], windows, sum(map(Fraction, weights))
        for weight in map(Fraction, weights):
            share = weight / rest
            found.append(floor(left * share + Fraction(1, 2)))
            left, rest = left - found[-1], rest - weight
        return found

    starts, ends = taken(size * step), taken(size * (step + 1))
    firsts = np.cumsum([0, *counts])
    return np.concatenate(
        [
            firsts[store] + shuffled_span(starts[store], end - starts[store], count, seed, store)
            for store, (count, end) in enumerate(zip(counts, ends, strict=True))
        ]
    )


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.3, 0.1, 7.0), (1e-3, 2.5, 1 / 3)])
def test_stores_without_weights_of_episodes_have_the_batches_of_the_definition(
    weights: tuple[float, ...],
):
    counts = (30, 7, 51)
    mixture = new_mixture(("a", "b", "c"), counts, weights, [np.ones(count) for count in counts])
    assert mixture == MixedWindows(counts, weights)
    for step in (0, 1, 5, 40, 10**9):
        expected = unweighted_batch(counts, weights, 16, step, seed=3)
        assert np.array_equal(mixture.batch(16, step, seed=3), expected)


def test_episodes_of_equal_weight_are_one_group_whatever_the_weight():
    assert window_groups(np.full(9, 0.3)) is None
    assert new_mixture(("demos",), (9,), (1.0,), [np.full(9, 7.0)]) == MixedWindows((9,), (1.0,))


WEIGHT_N = np.array([1.0] * 6 + [3.0] * 4 + [1.0] * 2 + [0.5] * 8)
"""Windows of three weights: shares of 8, 12 and 4 of 24."""


def weighted() -> MixedWindows:
    return new_mixture(("demos",), (20,), (1.0,), [WEIGHT_N])


def test_windows_are_drawn_in_proportion_to_the_weight_of_their_episode():
    # 240 windows: ten epochs of the weight 1, thirty of 3, five of 0.5.
    drawn = np.concatenate([weighted().batch(8, step, seed=0) for step in range(30)])
    counts = np.bincount(drawn, minlength=20)
    assert np.array_equal(counts, 10 * WEIGHT_N)


def test_every_window_comes_once_per_epoch_of_its_weight():
    drawn = np.concatenate([weighted().batch(8, step, seed=0) for step in range(30)])
    for weight in (0.5, 1.0, 3.0):
        members = np.flatnonzero(weight == WEIGHT_N)
        order = drawn[np.isin(drawn, members)].reshape(-1, len(members))
        assert all(np.array_equal(np.sort(epoch), members) for epoch in order)


def test_every_batch_is_full_and_follows_the_weights_within_a_window_per_weight():
    shares = np.array([4.0, 8.0, 12.0]) / 24
    groups = [np.flatnonzero(weight == WEIGHT_N) for weight in (0.5, 1.0, 3.0)]
    drawn = np.zeros(0, np.int64)
    for step in range(50):
        batch = weighted().batch(7, step, seed=1)
        assert len(batch) == 7
        drawn = np.concatenate([drawn, batch])
        counts = np.array([np.isin(drawn, members).sum() for members in groups])
        assert np.abs(counts - shares * len(drawn)).max() <= len(groups)


def test_a_weighted_batch_depends_on_nothing_but_update_and_seed():
    mixture = weighted()
    later = mixture.batch(8, 9, seed=1)
    for step in range(9):
        mixture.batch(8, step, seed=1)
    assert np.array_equal(later, mixture.batch(8, 9, seed=1))
    assert np.array_equal(later, weighted().batch(8, 9, seed=1))
    assert not np.array_equal(later, mixture.batch(8, 9, seed=2))


def test_weights_of_episodes_change_nothing_in_the_other_stores_of_a_mixture():
    names, counts, weights = ("demos", "other"), (20, 30), (1.0, 2.0)
    plain = new_mixture(names, counts, weights, [np.ones(20), np.ones(30)])
    mixture = new_mixture(names, counts, weights, [WEIGHT_N, np.ones(30)])
    for step in range(20):
        before, after = plain.batch(9, step, seed=5), mixture.batch(9, step, seed=5)
        assert (after < 20).sum() == 3
        assert np.array_equal(before[before >= 20], after[after >= 20])


def test_groups_of_one_size_have_orders_of_their_own():
    mixture = new_mixture(("demos",), (80,), (1.0,), [np.repeat([1.0, 2.0], 40)])
    drawn = np.concatenate([mixture.batch(60, step, seed=0) for step in range(2)])
    light, heavy = drawn[drawn < 40], drawn[drawn >= 40][:40] - 40
    assert not np.array_equal(light, heavy)


def test_a_thousand_weights_cost_a_batch_little():
    weight_N = np.repeat(np.arange(1, 1001) / 1000, 100)
    mixture = new_mixture(("demos",), (len(weight_N),), (1.0,), [weight_N])
    mixture.batch(256, 0, seed=0)
    calls = permutations_of(mixture, updates=20)
    # Five thousand windows of a thousand orders, of which each lasts for a hundred windows.
    assert calls < 5000 / 100 + 1000


def permutations_of(mixture: MixedWindows, updates: int) -> int:
    """Number of permutations that are computed for some updates."""
    with mock.patch.object(np.random, "Philox", wraps=np.random.Philox) as philox:
        for step in range(1, updates + 1):
            mixture.batch(256, step, seed=0)
    return philox.call_count
