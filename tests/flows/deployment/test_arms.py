"""Drives to an episode's start at the twin, which know the fence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from flows.deployment.arms import move_supervised
from flows.session.simulated_arm import twin_arm
from real.deploy.supervision import Supervision
from real.driver.driven_arm import DrivenArm
from real.driver.driver import Driver
from real.motion import fenced_path
from real.motion.fence import ENTERED, FenceConfig, KeepOutBox
from robots.errors import SafetyError
from sim.twin.task_world import TaskWorld
from sim.twin.twin import Twin, TwinConfig, start_twin
from tests.sim.twin.loopback import address

pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")

NOBODY = cast(Supervision, SimpleNamespace(poll=lambda: None, paused=False, stopped=False))
TURN = np.array([0.7, 0, 0, 0, 0, 0, 0])


@pytest.fixture(scope="module")
def twin() -> Iterator[Twin]:
    with start_twin(TwinConfig(host=address(141)), partial(TaskWorld, "reach")) as running:
        yield running


@pytest.fixture
def arm(twin: Twin) -> Iterator[DrivenArm]:
    twin.reset(0)
    settings = replace(twin_arm(), host=twin.host, move_dynamics=0.5)
    with Driver() as driver, DrivenArm(driver, settings, twin, twin.wait_for_motion) as connected:
        yield connected


def stand_before(arm: DrivenArm, turn: np.ndarray) -> FenceConfig:
    """A box where the tool comes by when the arm has turned that far [rad]."""
    middle = arm.robot.chain.forward_kinematics(arm.state().q + turn) @ arm.flange_T_ee
    low, high = middle[:3, 3] - 0.04, middle[:3, 3] + 0.04
    box = KeepOutBox(name="stand", low=tuple(low.tolist()), high=tuple(high.tolist()))
    return FenceConfig(boxes=(box,), elbow=0.0, wrist=0.0, flange=0.0)


def test_a_way_into_the_fence_is_refused_before_anything_moves(twin: Twin, arm: DrivenArm) -> None:
    begin, ticks = arm.state().q, twin.stats()["motion_ticks"]
    fence = stand_before(arm, TURN / 2.0)
    # The first leg alone would be free.
    way = (begin - 0.2 * TURN, begin + TURN)
    with pytest.raises(SafetyError, match=r"the tool would come 0\.0\d+ m too near to 'stand'"):
        move_supervised(arm, way, NOBODY, fence)
    assert twin.stats()["motion_ticks"] == ticks
    np.testing.assert_array_equal(arm.state().q, begin)


def test_without_a_fence_and_beside_it_the_arm_goes(arm: DrivenArm) -> None:
    begin = arm.state().q
    beside = stand_before(arm, -0.5 * TURN)
    assert move_supervised(arm, (begin + 0.3 * TURN, begin + 0.6 * TURN), NOBODY, beside)
    assert np.abs(arm.state().q - begin - 0.6 * TURN).max() < 0.01
    assert move_supervised(arm, (begin,), NOBODY, FenceConfig())


def test_an_arm_that_enters_the_fence_on_its_way_comes_to_rest(
    arm: DrivenArm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the check of the line has overlooked."""
    fence, begin = stand_before(arm, TURN / 2.0), arm.state().q

    def nothing(*arguments: Any) -> None:
        """Lets every way pass."""

    monkeypatch.setattr(fenced_path, "check_path", nothing)
    with pytest.raises(SafetyError, match=r"the tool has come 0\.0\d+ m inside 'stand'"):
        move_supervised(arm, (begin + TURN,), NOBODY, fence)
    gone = arm.state().q[0] - begin[0]
    assert 0.1 < gone < 0.5 * TURN[0] + 0.1
    assert np.abs(arm.state().dq).max() < 0.01
    depth = -min(fenced_path.rooms(fence, arm.robot, arm.flange_T_ee, arm.state().q).values())
    assert depth > ENTERED
