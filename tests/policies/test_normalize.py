import numpy as np
import pytest
import torch

from policies.normalize import (
    MinMaxNormalizer,
    MinMaxStatistics,
    MomentStatistics,
    StandardNormalizer,
)
from robots.errors import HandoffError


def fitted(*parts: np.ndarray) -> MinMaxNormalizer:
    statistics = MinMaxStatistics(parts[0].shape[1])
    for part in parts:
        statistics.update(part)
    normalizer = MinMaxNormalizer(parts[0].shape[1])
    normalizer.fit(statistics)
    return normalizer


def test_the_extremes_become_minus_one_and_one():
    normalizer = fitted(np.array([[0.0, -3.0], [0.5, 1.0]]))
    assert normalizer(torch.tensor([[0.0, -1.0], [0.5, 1.0]])).tolist() == [[-1.0, 0.0], [1.0, 1.0]]


def test_the_inverse_undoes_the_map():
    rows = np.random.default_rng(0).uniform(-0.2, 0.6, (100, 5)).astype(np.float32)
    normalizer = fitted(rows)
    assert torch.allclose(
        normalizer.inverse(normalizer(torch.from_numpy(rows))), torch.from_numpy(rows), atol=1e-7
    )


def test_parts_give_the_same_ranges_as_the_whole():
    rows = np.random.default_rng(0).normal(size=(30, 3))
    whole, parts = fitted(rows), fitted(rows[:4], rows[4:5], rows[5:])
    assert torch.equal(whole.centre, parts.centre)
    assert torch.equal(whole.half_range, parts.half_range)


def test_a_constant_entry_is_only_centred():
    normalizer = fitted(np.array([[2.0], [2.0]]))
    assert normalizer(torch.tensor([2.0, 2.5])).tolist() == [0.0, 0.5]


def test_an_entry_that_hardly_moves_is_not_blown_up():
    """The opening of a gripper that stayed open while it was recorded, and is then moved."""
    still = fitted(np.array([[0.07999764], [0.0800002]]))
    assert still(torch.tensor([0.0790])).abs().item() < 1e-2
    moving = fitted(np.array([[0.0795], [0.0800]]))
    assert moving(torch.tensor([0.0800])).item() == pytest.approx(1.0, abs=1e-3)


def test_the_ranges_are_part_of_the_saved_state():
    restored = MinMaxNormalizer(1)
    restored.load_state_dict(fitted(np.array([[1.0], [5.0]])).state_dict())
    assert restored(torch.tensor([3.0])).item() == 0.0


def test_a_value_that_is_not_finite_is_named():
    with pytest.raises(HandoffError, match="entry 1 of row 0 is nan"):
        MinMaxStatistics(2).update(np.array([[0.0, np.nan]]))


def test_rows_of_another_size_are_refused():
    with pytest.raises(HandoffError, match=r"\(4, 3\), expected \(N, 2\)"):
        MinMaxStatistics(2).update(np.zeros((4, 3)))


def test_no_data_is_refused():
    with pytest.raises(HandoffError, match="no data,"):
        MinMaxNormalizer(2).fit(MinMaxStatistics(2))


def test_standard_normaliser_gives_mean_zero_and_deviation_one_half():
    values = np.random.default_rng(0).normal(3.0, 0.2, (5000, 4, 2))
    normalizer = StandardNormalizer((4, 2))
    normalizer.fit(values)
    normalized = normalizer(torch.from_numpy(values)).numpy()
    np.testing.assert_allclose(normalized.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(normalized.std(axis=0), 0.5, atol=1e-5)
    np.testing.assert_allclose(
        normalizer.inverse(torch.from_numpy(normalized)).numpy(), values, atol=1e-5
    )


def test_standard_normaliser_only_centres_a_constant():
    normalizer = StandardNormalizer((1,))
    normalizer.fit(np.full((7, 1), 2.0))
    assert normalizer(torch.tensor([2.5])).item() == 0.5


def test_standard_normaliser_refuses_what_is_not_finite():
    with pytest.raises(HandoffError, match="all of them finite"):
        StandardNormalizer((1,)).fit(np.array([[np.nan]]))


def test_mean_and_deviation_of_parts_equal_worked_numbers():
    statistics = MomentStatistics((1,))
    for part in ([1.0, 3.0], [], [5.0]):
        statistics.update(np.array(part)[:, None])
    assert statistics.count == 3
    # The distances from 3 are -2, 0 and 2.
    assert statistics.mean.tolist() == pytest.approx([3.0], abs=1e-15)
    assert statistics.deviation.tolist() == pytest.approx([np.sqrt(8 / 3)], abs=1e-15)


def test_parts_give_the_moments_of_the_whole_far_from_zero():
    values = (1000.0 + 1e-3 * np.random.default_rng(0).normal(size=(3000, 4, 2))).astype(np.float32)
    parts, whole = StandardNormalizer((4, 2)), StandardNormalizer((4, 2))
    statistics = MomentStatistics((4, 2))
    for part in np.array_split(values, 17):
        statistics.update(part)
    parts.fit_moments(statistics)
    whole.fit(values)
    assert torch.equal(parts.centre, whole.centre)
    assert torch.equal(parts.scale, whole.scale)


def test_moments_without_data_are_refused():
    with pytest.raises(HandoffError, match="no data,"):
        StandardNormalizer((1,)).fit_moments(MomentStatistics((1,)))


def test_moments_of_another_shape_are_refused():
    with pytest.raises(HandoffError, match=r"\(5, 2\), expected \(N, \*\(3,\)\)"):
        MomentStatistics((3,)).update(np.zeros((5, 2)))
