"""Random inputs break no limit and crash no reader; `tests.benchmarks.fuzz` has a million."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from real.franka.joint_limits import VelocityBounds
from real.motion import governor
from real.motion.governor import GovernorConfig, ReferenceGovernor
from real.motion.reference_bounds import ReferenceBounds
from robots.control.actions import Motion
from robots.errors import SafetyError
from robots.franka import find_robot
from tests.benchmarks import fuzz, fuzz_joints

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


def test_actions_of_the_joints_break_no_limit_of_the_robot() -> None:
    found = fuzz_joints.fuzz_joints(6_000, seed=20)
    assert found["outcomes"]["ticks"] >= 5_000
    assert any(name.startswith("refused: governor: action") for name in found["outcomes"])
    largest = found["largest"]
    assert largest.keys() == {
        "position",
        "velocity",
        "speed",
        "acceleration",
        "jerk",
        "torque",
        "torque rate",
        "arm's position",
        "arm's velocity",
    }
    assert largest["position"] > 0.9, "they go to the ends of the joints"
    assert largest["torque rate"] < 0.8


def test_a_reference_of_the_joints_whose_torque_rates_nothing_bounds_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = VelocityBounds(np.zeros((1, 7)), np.zeros(1))
    monkeypatch.setattr(ReferenceBounds, "next", _unbounded(none))
    with pytest.raises(fuzz.ViolationError, match=r"joints: (velocity|torque rate)"):
        fuzz_joints.fuzz_joints(6_000, seed=20)


def _unbounded(none: VelocityBounds) -> Callable[..., VelocityBounds]:
    """`ReferenceBounds.next`, which evaluates everything and bounds nothing."""
    evaluate = ReferenceBounds.next

    def bounds(self: ReferenceBounds, *arguments: Any) -> VelocityBounds:
        evaluate(self, *arguments)
        return none

    return bounds


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
