import numpy as np
import pytest

from robots.episodes.curation.running import DistinctRows, QuantileSample, RunningMoments


def test_moments_of_two_parts_are_those_of_the_whole():
    moments = RunningMoments(2)
    moments.add(np.array([[1.0, 10.0], [3.0, 10.0]]))
    moments.add(np.zeros((0, 2)))
    moments.add(np.array([[5.0, 40.0]]))
    assert moments.count == 3
    assert moments.mean.tolist() == [3.0, 20.0]
    # Deviations -2, 0, 2 and -10, -10, 20: mean squares 8/3 and 200.
    assert moments.std == pytest.approx([np.sqrt(8.0 / 3.0), np.sqrt(200.0)])
    assert (moments.low.tolist(), moments.high.tolist()) == ([1.0, 10.0], [5.0, 40.0])


def test_moments_are_exact_far_from_zero():
    rng = np.random.default_rng(0)
    values = 1e6 + rng.normal(0.0, 1e-3, (1000, 1))
    moments = RunningMoments(1)
    for part in np.array_split(values, 7):
        moments.add(part)
    assert moments.std[0] == pytest.approx(values.std(), rel=1e-6)


def test_quantiles_of_few_rows_are_exact():
    sample = QuantileSample(10, seed=0)
    sample.add(np.array([[4.0], [1.0]]))
    sample.add(np.array([[3.0], [2.0], [5.0]]))
    assert sample.exact
    assert sample.quantiles((0.0, 0.5, 0.625, 1.0)).ravel().tolist() == [1.0, 3.0, 3.5, 5.0]


def test_quantiles_of_many_rows_come_from_a_bounded_uniform_sample():
    sample = QuantileSample(2000, seed=0)
    for start in range(0, 100_000, 1000):
        sample.add(np.arange(start, start + 1000, dtype=np.float32)[:, None])
        assert sum(map(len, sample._parts)) <= 4000
    # Four standard errors of the rank: 4 sqrt(0.25 / 2000) = 0.045.
    low, middle, high = sample.quantiles((0.1, 0.5, 0.9)).ravel() / 100_000
    assert not sample.exact
    assert sum(map(len, sample._parts)) == 2000
    assert low == pytest.approx(0.1, abs=0.027)
    assert middle == pytest.approx(0.5, abs=0.045)
    assert high == pytest.approx(0.9, abs=0.027)


def test_a_sample_depends_only_on_its_seed():
    rows = np.random.default_rng(1).normal(size=(5000, 1))
    results = []
    for seed in (3, 3, 4):
        sample = QuantileSample(100, seed)
        sample.add(rows)
        results.append(float(sample.quantiles((0.5,))[0, 0]))
    assert results[0] == results[1] != results[2]


def test_few_distinct_rows_are_counted_exactly():
    distinct = DistinctRows(exact_rows=10)
    distinct.add(np.array([[1, 2], [2, 1], [1, 2]]))
    distinct.add(np.array([[2, 1], [0, 0]]))
    assert distinct.exact
    assert distinct.count == 3


@pytest.mark.parametrize("number", [100, 30_000, 300_000])
def test_the_estimate_of_distinct_rows_is_within_two_per_cent(number):
    distinct = DistinctRows(exact_rows=10)
    rows = np.stack([np.arange(number), np.arange(number) % 7], axis=1)
    for part in np.array_split(np.concatenate([rows, rows]), 5):
        distinct.add(part)
    assert not distinct.exact
    assert distinct.count == pytest.approx(number, rel=0.02)
