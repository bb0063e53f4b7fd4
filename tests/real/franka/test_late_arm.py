"""Targets that arrive late, in their order and at their time."""

from __future__ import annotations

import numpy as np
import pytest

from real.arm import JointPositionTarget
from real.franka.arm import FrankaArm
from real.franka.config import FrankaConfig
from real.franka.late_arm import LateArm


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def advance(self, seconds: float) -> float:
        self.time += seconds
        return self.time


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """First joint of every target that reaches the driver."""
    targets: list[float] = []
    monkeypatch.setattr(FrankaArm, "set_target", lambda self, at: targets.append(float(at.q[0])))
    monkeypatch.setattr(FrankaArm, "start", lambda self, states: None)
    return targets


def at(number: float) -> JointPositionTarget:
    return JointPositionTarget(np.full(7, number), np.zeros(7))


def send(arm: LateArm, clock: Clock, numbers: range) -> None:
    for number in numbers:
        arm.set_target(at(float(number)))
        clock.advance(0.005)


def test_a_target_takes_effect_after_the_delay(sent: list[float]) -> None:
    clock = Clock()
    arm = LateArm(FrankaConfig(realtime="ignore"), clock, lambda: None, 0.02)
    send(arm, clock, range(4))
    assert sent == []
    # That of 0 s at 0.02 s, and so on.
    send(arm, clock, range(4, 7))
    assert sent == [0.0, 1.0, 2.0]


def test_of_several_due_targets_the_newest_is_sent(sent: list[float]) -> None:
    clock = Clock()
    arm = LateArm(FrankaConfig(realtime="ignore"), clock, lambda: None, 0.01)
    send(arm, clock, range(3))
    clock.advance(0.1)
    arm.set_target(at(3.0))
    assert sent == [0.0, 2.0]


def test_a_new_motion_forgets_the_targets_of_the_last(sent: list[float]) -> None:
    clock = Clock()
    arm = LateArm(FrankaConfig(realtime="ignore"), clock, lambda: None, 0.01)
    send(arm, clock, range(2))
    arm.start()
    clock.advance(0.1)
    arm.set_target(at(9.0))
    assert sent == []
