"""Running scales worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from policies.rl.streaming.running_scales import ObservationNormaliser, ReturnScale
from robots.errors import HandoffError


def test_observations_are_normalised_by_all_so_far_and_themselves() -> None:
    normaliser = ObservationNormaliser(2)
    assert normaliser(np.array([3.0, 5.0])).tolist() == [0.0, 0.0]
    # Means 4 and 5; the sample variance of 3 and 5 is 2, of 5 and 5 nothing.
    assert normaliser(np.array([5.0, 5.0])).tolist() == pytest.approx([0.5**0.5, 0.0])
    # Mean 5, deviation 2.
    assert normaliser(np.array([7.0, 5.0])).tolist() == pytest.approx([1.0, 0.0])
    # Normalising without adding changes nothing.
    looked = normaliser.normalised(np.array([[9.0, 5.0], [1.0, 5.0]]))
    assert looked.tolist() == [pytest.approx([2.0, 0.0]), pytest.approx([-2.0, 0.0])]
    assert normaliser.statistics.count == 3


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return() -> None:
    scale = ReturnScale(0.5)
    # Sums 2, then .5 * 2 + 3 = 4, then .5 * 4 + 1 = 3: deviations 1 at first, sqrt(2), 1.
    assert scale(2.0, False) == pytest.approx(2.0)
    assert scale(3.0, False) == pytest.approx(3.0 / 2**0.5)
    assert scale(1.0, False) == pytest.approx(1.0)
    # An end sets the sum to its reward, 7; the next one is .5 * 7 - 1.5 = 2.
    sums = [2.0, 4.0, 3.0, 7.0]
    assert scale(7.0, True) == pytest.approx(7.0 / np.std(sums, ddof=1))
    assert scale(-1.5, False) == pytest.approx(-1.5 / np.std([*sums, 2.0], ddof=1))


def test_scaled_rewards_do_not_depend_on_the_unit_of_the_reward() -> None:
    rewards = np.random.default_rng(0).normal(size=200)
    small, large = ReturnScale(0.9), ReturnScale(0.9)
    scaled = np.array([(small(one, False), large(1000.0 * one, False)) for one in rewards])
    np.testing.assert_allclose(scaled[1:, 0], scaled[1:, 1], rtol=1e-5)


def test_restored_scales_continue_bit_for_bit() -> None:
    one, other = ReturnScale(0.9), ReturnScale(0.9)
    first, second = ObservationNormaliser(1), ObservationNormaliser(1)
    for reward in (0.3, -1.7, 2.2):
        one(reward, False)
        first(np.array([reward]))
    other.load_state_dict(one.state_dict())
    second.load_state_dict(first.state_dict())
    assert one(0.1, False) == other(0.1, False)
    assert first(np.array([0.1])) == second(np.array([0.1]))


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(HandoffError, match="expected all of them finite"):
        ObservationNormaliser(2)(np.array([0.0, np.nan]))
    with pytest.raises(HandoffError, match="the reward is inf, expected a finite number"):
        ReturnScale(0.9)(np.inf, False)
