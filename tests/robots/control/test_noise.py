"""Chunk noise depends on seed and chunk number, on nothing else."""

from __future__ import annotations

import numpy as np

from robots.control.noise import chunk_noise


def test_noise_repeats_and_differs_by_seed_and_by_chunk() -> None:
    first = chunk_noise(7, 3, 16, 2)
    np.testing.assert_array_equal(first, chunk_noise(7, 3, 16, 2))
    assert not np.array_equal(first, chunk_noise(7, 4, 16, 2))
    assert not np.array_equal(first, chunk_noise(8, 3, 16, 2))


def test_noise_is_that_of_numpys_philox_stream() -> None:
    expected = np.random.Generator(np.random.Philox(key=[100_000, 3])).standard_normal(
        (16, 2), dtype=np.float32
    )
    np.testing.assert_array_equal(chunk_noise(100_000, 3, 16, 2), expected)
