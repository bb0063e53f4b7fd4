"""The driver of a Franka Hand: against the twin's, through the unmodified client, and against hands
that fail."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from real.franka.gripper import FrankaGripper, GripperDriverConfig, GripperTarget
from robots.control.actions import gripper_target
from robots.errors import HandoffError, SafetyError
from robots.franka import find_robot
from sim.twin.twin import Twin, TwinConfig, start_twin
from tests.real.fakes import others_can_take
from tests.sim.twin.loopback import address
from tests.sim.twin.still_world import GripperWorld

FR3 = find_robot("fr3")

SECONDS = 10.0
"""Longest that a test waits for what happens in another thread."""


@pytest.fixture(scope="module")
def twin() -> Iterator[Twin]:
    pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")
    with start_twin(TwinConfig(host=address(31)), GripperWorld) as running:
        yield running


@pytest.fixture
def fingers(twin: Twin) -> Iterator[FrankaGripper]:
    twin.call("place", 0.06)
    with driver(twin) as connected:
        yield connected


def driver(twin: Twin, config: GripperDriverConfig | None = None) -> FrankaGripper:
    before = twin.gripper_actions()
    return FrankaGripper(
        twin.host,
        config or GripperDriverConfig(),
        FR3.gripper,
        lambda actions: twin.wait_for_gripper(before + actions),
    )


def test_the_opening_goes_where_it_is_told(twin: Twin, fingers: FrankaGripper) -> None:
    assert fingers.width() == pytest.approx(0.06)
    fingers.set_width(0.03)
    twin.advance(1.0)
    assert fingers.width() == pytest.approx(0.03, abs=1e-3)


def test_an_opening_of_nothing_is_a_grasp_that_goes_on_pressing(twin: Twin) -> None:
    twin.call("place", 0.06, 0.04)
    with driver(twin) as fingers:
        fingers.set_width(0.004)
        twin.advance(1.0)
        assert fingers.width() == pytest.approx(0.04)
    target, force = twin.call("servo")
    assert target < 0.04, "on leaving, the gripper keeps its grasp"
    assert force == GripperDriverConfig().force


def test_only_news_is_told(twin: Twin, fingers: FrankaGripper) -> None:
    heard = twin.gripper_actions()
    for opening in (0.06, 0.058, 0.062):
        fingers.set_width(opening)
    assert twin.gripper_actions() == heard
    for opening in (0.0, 0.009, 0.0, 0.004):
        fingers.set_width(opening)
    assert twin.gripper_actions() == heard + 1, "all of them are one grasp"
    fingers.set_width(0.05)
    assert twin.gripper_actions() == heard + 2


def test_what_is_under_way_gives_room_to_what_is_told_next(
    twin: Twin, fingers: FrankaGripper
) -> None:
    fingers.set_width(0.0)
    twin.advance(0.2)
    closing = fingers.width()
    assert 0.03 < closing < 0.05
    fingers.set_width(FR3.gripper.width_max)
    twin.advance(0.2)
    assert fingers.width() > closing + 0.01


def test_two_runs_read_the_same_openings(twin: Twin) -> None:
    ways = []
    for _ in range(2):
        twin.call("place", 0.08)
        with driver(twin) as fingers:
            way = []
            for opening in (0.0, 0.0, 0.07, 0.07, 0.02, 0.02):
                fingers.set_width(opening)
                twin.advance(0.05)
                way.append(fingers.width())
        ways.append(way)
    assert ways[0] == ways[1]


def test_leaving_while_it_moves_waits_for_nobody(twin: Twin) -> None:
    twin.call("place", 0.08)
    with driver(twin) as fingers:
        fingers.set_width(0.0)
        twin.advance(0.1)
    between = twin.call("servo")[0]
    twin.advance(0.5)
    assert twin.call("servo")[0] == between, "the fingers stay where they were stopped"


@pytest.mark.parametrize("opening", [-0.01, 0.081, float("nan")])
def test_an_opening_that_there_is_not_is_refused(fingers: FrankaGripper, opening: float) -> None:
    with pytest.raises(SafetyError, match=r"target opening is .* m, expected 0 to 0.08"):
        fingers.set_width(opening)


def wait_on(fingers: FrankaGripper) -> None:
    """Sets a target once, and reads the opening as long as a test waits."""
    deadline = time.monotonic() + SECONDS
    fingers.set_width(0.0)
    while time.monotonic() < deadline:
        fingers.width()


def test_a_refused_command_is_heard_of(twin: Twin) -> None:
    twin.call("place", 0.06)
    with (
        driver(twin, GripperDriverConfig(speed=-0.1)) as fingers,
        pytest.raises(SafetyError, match="refused a command"),
    ):
        wait_on(fingers)


def test_in_its_own_time_states_come_by_themselves() -> None:
    with (
        start_twin(TwinConfig(host=address(32), clock="real"), GripperWorld) as twin,
        FrankaGripper(twin.host, GripperDriverConfig(max_age=5.0), FR3.gripper) as fingers,
    ):
        fingers.set_width(0.02)
        deadline = time.monotonic() + SECONDS
        while abs(fingers.width() - 0.02) > 1e-3:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_silent_gripper_is_an_error(fingers: FrankaGripper) -> None:
    fingers._await_actions = None
    fingers._newest = (0.05, time.monotonic() - 1.5)
    with pytest.raises(SafetyError, match=r"newest state is 1\.5. s old, limit 1.0 s"):
        fingers.width()


def test_a_connected_gripper_keeps_others_from_the_robot_until_it_is_left(twin: Twin) -> None:
    with driver(twin):
        assert not others_can_take(twin.host)
    assert others_can_take(twin.host)


def test_nobody_there_is_one_clear_error() -> None:
    pytest.importorskip("franky")
    with (
        pytest.raises(HandoffError, match=r"none answers at .*:1338"),
        FrankaGripper(address(39), GripperDriverConfig(), FR3.gripper),
    ):
        pass


def test_a_gripper_that_is_not_connected_is_an_error() -> None:
    with pytest.raises(HandoffError, match="use it as a context manager"):
        FrankaGripper(address(39), GripperDriverConfig(), FR3.gripper).width()


class Device:
    """Opens and shuts at once."""

    opening = 0.08

    def width(self) -> float:
        return self.opening

    def set_width(self, opening: float) -> None:
        self.target = opening


def test_entries_come_to_targets_as_in_the_simulated_environments() -> None:
    device = Device()
    target = GripperTarget(device, 0.05, FR3.gripper)
    expected = 0.08
    for entry, width in ((-1.0, 0.08), (-0.5, 0.078), (2.0, 0.074)):
        device.opening = width
        shown = target.observation()
        assert shown["width"] == pytest.approx(width)
        assert shown["width_target"] == pytest.approx(expected)
        target.apply(entry)
        expected = float(
            gripper_target(np.array(expected), np.array(width), np.array(entry), 0.05, FR3.gripper)
        )
    assert device.target == FR3.gripper.width_max
    device.target = 1.0
    target.apply(-0.5)
    assert device.target == pytest.approx(0.02)
