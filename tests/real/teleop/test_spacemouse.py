"""The SpaceMouse operator on a fake device: HIL-SERL's takeover rule, the dead zone, buttons, and a
lost cable."""

from __future__ import annotations

import numpy as np
import pytest

from real.teleop.spacemouse import (
    SpaceMouseConfig,
    SpaceMouseOperator,
    deflection_of,
    with_dead_zone,
)
from real.teleop.takeover import TakeoverConfig
from robots.errors import HandoffError
from robots.interfaces import Intervention, Label
from tests.real.teleop.hands import SPEC, FakeClock, FakeKeys, FakeSpaceMouse

PROPOSED = np.full((1, 5), 0.25)


class OperatorSetup:
    """A person with the device."""

    def __init__(self, hold_over: float = 0.0) -> None:
        config = SpaceMouseConfig(
            dead_zone=0.1, hold_over=hold_over, takeover=TakeoverConfig(ramp=0.0)
        )
        self.clock, self.mouse, self.keys = FakeClock(), FakeSpaceMouse(), FakeKeys()
        self.operator = SpaceMouseOperator(
            SPEC, "ada", config, self.mouse, self.keys, self.clock, 0.08
        )
        self.operator.reset([0])

    def now(self) -> Intervention:
        return self.operator.intervene(PROPOSED, {"width_target": np.array([[0.04]])})


def test_a_device_at_rest_leaves_the_policy_alone() -> None:
    setup = OperatorSetup()
    setup.mouse.report(x=0.09)
    assert not setup.now().intervening[0]


def test_deflection_beyond_the_dead_zone_takes_over_and_rises_from_nothing() -> None:
    setup = OperatorSetup()
    setup.mouse.report(x=0.55, y=-1.0, yaw=0.1)
    event = setup.now()
    assert event.intervening[0]
    assert event.executed[0] == pytest.approx([0.5, -1.0, 0.0, 0.0, 0.0])


def test_the_newest_of_many_waiting_reports_counts() -> None:
    setup = OperatorSetup()
    for _ in range(10):
        setup.mouse.report(x=1.0)
    setup.mouse.report()
    assert not setup.now().intervening[0]


@pytest.mark.parametrize(("buttons", "entry"), [([1, 0], -1.0), ([0, 1], 1.0)])
def test_left_closes_right_opens_and_either_takes_over(buttons: list[int], entry: float) -> None:
    setup = OperatorSetup()
    setup.mouse.report(buttons=buttons)
    event = setup.now()
    assert event.intervening[0]
    assert event.executed[0, 4] == entry


def test_letting_go_gives_back_at_once_or_after_the_hold_over() -> None:
    for hold_over, kept in ((0.0, False), (0.5, True)):
        setup = OperatorSetup(hold_over)
        setup.mouse.report(x=1.0)
        setup.now()
        setup.mouse.report()
        setup.clock.time += 0.2
        assert bool(setup.now().intervening[0]) == kept


def test_a_deflection_that_is_no_longer_reported_is_let_go() -> None:
    setup = OperatorSetup()
    setup.mouse.report(x=1.0)
    assert setup.now().intervening[0]
    setup.clock.time += 0.4
    assert not setup.now().intervening[0]


def test_a_pulled_cable_is_one_clear_error() -> None:
    setup = OperatorSetup()
    setup.mouse.broken = True
    with pytest.raises(HandoffError, match="cable"):
        setup.now()


def test_labels_come_from_the_keyboard() -> None:
    setup = OperatorSetup()
    setup.keys.press("s")
    assert setup.operator.requests().label == Label.SUCCESS
    setup.operator.close()
    assert setup.keys.closed
    assert setup.mouse.closed


def test_the_dead_zone_stretches_what_is_left_to_the_whole() -> None:
    assert with_dead_zone(np.array([0.1, -0.1, 0.55, -1.0]), 0.1) == pytest.approx(
        [0.0, 0.0, 0.5, -1.0]
    )


def test_counts_of_a_report_are_right_back_and_down_and_become_forward_left_and_up() -> None:
    # Pushed right, away from the person and up; tilted back, rolled right, turned left.
    counts = [350, -175, -35, 70, -350, -700]
    assert deflection_of(counts) == pytest.approx([0.5, -1.0, 0.1, 1.0, -0.2, 1.0])
