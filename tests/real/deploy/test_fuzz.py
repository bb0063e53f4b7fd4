"""Random inputs break no limit and crash no reader; `tests.benchmarks.fuzz` has a million."""

from __future__ import annotations

import numpy as np
import pytest

from real.motion import governor
from real.motion.governor import GovernorConfig, ReferenceGovernor
from robots.control.actions import Motion
from robots.errors import SafetyError
from robots.franka import find_robot
from tests.benchmarks import fuzz

INPUTS = 10_000


def test_the_governor_keeps_its_limits_or_refuses() -> None:
    outcomes = fuzz.fuzz_governor(INPUTS, seed=20)
    assert sum(outcomes.values()) == INPUTS
    assert outcomes["moved"] > INPUTS / 2
    assert any(name.startswith("refused") for name in outcomes)


def test_every_reader_returns_or_refuses() -> None:
    outcomes = fuzz.fuzz_messages(INPUTS, seed=20)
    assert sum(outcomes.values()) == INPUTS
    assert sum(count for name, count in outcomes.items() if name.endswith("read")) > 100


def test_a_governor_that_forgets_its_speed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(governor, "_into_ball", lambda safe, requested, limit: requested)
    with pytest.raises(fuzz.ViolationError, match="speed"):
        fuzz.fuzz_governor(INPUTS, seed=20)


def test_a_reader_that_fails_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robots.wire.policy.HandoffError", ValueError)
    with pytest.raises(fuzz.ViolationError, match="ValueError"):
        fuzz.fuzz_messages(INPUTS, seed=20)


@pytest.mark.parametrize("number", [1e308, -1e308, 1e9, float("nan"), float("inf")])
def test_a_number_beyond_all_motion_is_refused_and_the_reference_stays(number: float) -> None:
    """1e308 is finite, and its square is not: the reference became NaN."""
    still, begin = np.zeros(2), np.array([0.2, 0.2])
    reference = ReferenceGovernor(GovernorConfig(), 0.004, begin, find_robot("fr3"))
    for request in (
        Motion(np.array([number, 0.2]), still, still),
        Motion(begin, np.array([0.0, number]), still),
    ):
        with pytest.raises(SafetyError, match="expected 2 finite numbers up to 1e"):
            reference.step(request, begin)
    np.testing.assert_array_equal(
        reference.step(Motion(begin, still, still), begin).position, begin
    )
