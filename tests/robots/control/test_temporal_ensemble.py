import math

import numpy as np
import pytest

from robots.control.temporal_ensemble import temporal_ensemble
from robots.errors import HandoffError


def test_the_oldest_chunk_weighs_most():
    # One step old, the first chunk foresaw 2 for now; halved, the newest one's 10: (2 + 5) / 1.5.
    chunks = np.array([[[1.0, 2.0, 3.0]], [[10.0, 20.0, 30.0]]])[..., None]
    assert temporal_ensemble(chunks, coefficient=math.log(2)) == pytest.approx(7 / 1.5)


def test_a_coefficient_of_zero_is_the_mean():
    chunks = np.array([[[0.0, 0.0, 3.0]], [[0.0, 6.0, 0.0]], [[9.0, 0.0, 0.0]]])[..., None]
    assert temporal_ensemble(chunks, coefficient=0.0) == pytest.approx(6.0)


def test_a_single_chunk_is_followed():
    chunks = np.arange(1 * 2 * 4 * 3, dtype=np.float32).reshape(1, 2, 4, 3)
    assert np.array_equal(temporal_ensemble(chunks, first=1), chunks[0, :, 1])


def test_a_chunk_that_has_run_out_is_refused():
    with pytest.raises(
        HandoffError, match=r"3 chunks of 3 actions from index 1 on, expected 1\.\.2"
    ):
        temporal_ensemble(np.zeros((3, 1, 3, 1)), first=1)
