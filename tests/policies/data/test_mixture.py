from collections import Counter

import numpy as np
import pytest

from policies.data.mixture import MixedWindows, new_mixture, windows_taken
from policies.data.windows import shuffled_batch
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
