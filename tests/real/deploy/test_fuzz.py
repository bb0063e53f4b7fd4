"""Random inputs break no limit of the governor and crash no decoder; `python -m tests.benchmarks.fuzz`
throws a million."""

import numpy as np
import pytest

from real.deploy.governor import GovernorConfig, ReferenceGovernor
from robots.control.actions import Motion
from robots.errors import SafetyError
from robots.franka import find_robot
from tests.benchmarks.fuzz import fuzz_frames, fuzz_governor

HERE = np.array([0.2, 0.2])
STILL = np.zeros(2)


@pytest.mark.filterwarnings("error")
def test_random_inputs_keep_the_limits_of_the_governor():
    outcome = fuzz_governor(4000, seed=1)
    assert outcome.accepted > 3000
    assert outcome.refused > 20
    assert not outcome.violations
    assert not outcome.crashes


def test_random_frames_are_values_or_are_refused():
    outcome = fuzz_frames(6000, seed=1)
    assert outcome.accepted > 200
    assert outcome.refused > 3000
    assert not outcome.crashes


@pytest.mark.parametrize("size", [1e300, 1e7, np.nan, np.inf])
def test_the_governor_refuses_sizes_that_overflow_and_stays_where_it_is(size):
    governor = ReferenceGovernor(GovernorConfig(), 0.004, HERE, find_robot("fr3"))
    huge = np.array([size, 0.0])
    with pytest.raises(SafetyError, match="velocity is"):
        governor.step(Motion(HERE, huge, STILL), HERE)
    with pytest.raises(SafetyError, match="bounds on the velocity are not finite"):
        governor.step(Motion(HERE, STILL, STILL), HERE, huge[None])
    assert np.array_equal(governor.step(Motion(HERE, STILL, STILL), HERE).position, HERE)
