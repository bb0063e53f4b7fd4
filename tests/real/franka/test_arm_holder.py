"""An arm has one holder, and its faults outlive the connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn

import pytest

from real.arm import ArmFaultError, ConnectionLostError
from real.franka.arm import FrankaArm
from real.franka.config import FrankaConfig
from real.franka.kept_faults import clear_fault, faults_file, kept_fault
from real.franka.slot import robot_slot
from robots.errors import HandoffError, SafetyError, error_text
from robots.franka import find_robot
from sim.twin.push_t_world import PushTWorld
from sim.twin.twin import TwinConfig, start_twin
from tests.real.fakes import FakeClock, others_can_take
from tests.sim.twin.loopback import address

franky = pytest.importorskip("franky")

from tests.real.franka.test_arm import FakeRobot, hold  # noqa: E402  imports franky

FR3 = find_robot("fr3")
HOST = "192.0.2.7"
KEPT = FrankaConfig(host=HOST)
TWIN = FrankaConfig(host=HOST, latch="connection")


@contextmanager
def connected(
    monkeypatch: pytest.MonkeyPatch, config: FrankaConfig
) -> Iterator[tuple[FrankaArm, FakeRobot]]:
    """A new connection, as of a new process."""
    clock = FakeClock()
    robot = FakeRobot(clock)
    monkeypatch.setattr("real.franka.arm.connect", lambda host, realtime: robot)
    with FrankaArm(config, clock) as arm:
        yield arm, robot


def collide(monkeypatch: pytest.MonkeyPatch, config: FrankaConfig) -> None:
    """A session that a reflex ends."""
    with (  # noqa: PT012
        pytest.raises(ArmFaultError),
        connected(monkeypatch, config) as (arm, robot),
    ):
        arm.start()
        robot.reflex("joint_reflex")
        arm.state()


def commands(arm: FrankaArm, robot: FakeRobot) -> list[Callable[[], object]]:
    return [
        arm.preflight,
        arm.state,
        arm.start,
        lambda: arm.move_to_joints(FR3.q_home),
        lambda: arm.set_target(hold(robot)),
    ]


def test_a_fault_refuses_every_motion_of_the_next_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collide(monkeypatch, KEPT)
    with connected(monkeypatch, KEPT) as (arm, robot):
        for command in commands(arm, robot):
            with pytest.raises(
                SafetyError,
                match=rf"fr3 at {HOST}: stopped \(joint_reflex in mode Reflex\) at .*clear-fault {HOST}",
            ):
                command()
    assert robot.moves == []


def test_a_fault_that_a_person_cleared_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    collide(monkeypatch, KEPT)
    clear_fault(HOST, "ada", "the cable caught on the table")
    with connected(monkeypatch, KEPT) as (arm, _):
        arm.preflight()
        arm.start()
        assert arm.state().mode == "Move"


def test_a_twin_forgets_its_fault_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    collide(monkeypatch, TWIN)
    assert not faults_file(HOST).exists()
    with connected(monkeypatch, TWIN) as (arm, _):
        arm.preflight()
        arm.start()


def test_recovery_by_the_program_clears_the_fault_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collide(monkeypatch, KEPT)
    with connected(monkeypatch, KEPT) as (arm, _):
        arm.recover()
        arm.start()
    assert kept_fault(HOST) is None
    assert '"cause": "recovered by the program"' in faults_file(HOST).read_text()


def test_a_recovery_that_fails_clears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    collide(monkeypatch, KEPT)
    with connected(monkeypatch, KEPT) as (arm, robot):
        monkeypatch.setattr(robot, "recover_from_errors", lambda: False)
        with pytest.raises(SafetyError, match="recovery failed"):
            arm.recover()
        with pytest.raises(SafetyError, match=r"stopped \(joint_reflex"):
            arm.start()


def test_a_recovery_that_nobody_answers_is_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost() -> NoReturn:
        raise franky.NetworkException("libfranka: TCP send bytes: I/O error")

    with connected(monkeypatch, TWIN) as (arm, robot):
        monkeypatch.setattr(robot, "recover_from_errors", lost)
        with pytest.raises(ConnectionLostError, match="lost while it was recovered"):
            arm.recover()


def lose(robot: FakeRobot) -> None:
    def lost(timeout: float) -> bool:
        raise franky.NetworkException("libfranka: UDP receive: Timeout")

    robot.join_motion = lost
    robot.is_in_control = False


def test_a_connection_that_is_lost_in_a_motion_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with (  # noqa: PT012
        pytest.raises(HandoffError, match="connection lost"),
        connected(monkeypatch, KEPT) as (arm, robot),
    ):
        arm.start()
        lose(robot)
        arm.state()
    assert "stopped (a lost connection (libfranka: UDP receive" in str(kept_fault(HOST))


@pytest.mark.parametrize(
    "error", [RuntimeError("Net Exception"), franky.NetworkException("libfranka: UDP receive")]
)
def test_a_state_that_cannot_be_read_is_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """libfranka lets some errors of its sockets through as they are."""

    def lost(robot: FakeRobot) -> NoReturn:
        raise error

    with (  # noqa: PT012
        pytest.raises(ConnectionLostError, match=f"connection lost .{error}"),
        connected(monkeypatch, KEPT) as (arm, _),
    ):
        arm.start()
        monkeypatch.setattr(FakeRobot, "state", property(lost), raising=False)
        arm.state()
    assert "stopped (a lost connection" in str(kept_fault(HOST))


def test_a_connection_that_is_lost_at_rest_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(monkeypatch, KEPT) as (arm, robot):
        arm.move_to_joints(FR3.q_home)

        def lost(*thresholds: object) -> None:
            raise franky.NetworkException("libfranka: connection reset")

        robot.set_collision_behavior = lost
        with pytest.raises(HandoffError, match="connection lost"):
            arm._configure()
    assert kept_fault(HOST) is None


def test_a_pressed_user_stop_is_kept_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with (  # noqa: PT012
        pytest.raises(ArmFaultError),
        connected(monkeypatch, KEPT) as (arm, robot),
    ):
        arm.start()
        robot.mode, robot.is_in_control = franky.RobotMode.UserStopped, False
        arm.state()
    assert "stopped (the user stop was pressed in mode UserStopped)" in str(kept_fault(HOST))


def test_a_fault_that_cannot_be_kept_stays_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with (  # noqa: PT012
        pytest.raises(ArmFaultError) as raised,
        connected(monkeypatch, KEPT) as (arm, robot),
    ):
        faults_file(HOST).mkdir(parents=True)
        arm.start()
        robot.reflex("joint_reflex")
        arm.state()
    assert "The fault is not kept for later connections: " in error_text(raised.value)


@pytest.mark.parametrize("config", [KEPT, TWIN], ids=["arm", "twin"])
def test_a_connected_arm_keeps_others_out_until_it_is_left(
    config: FrankaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(monkeypatch, config):
        assert not others_can_take(HOST)
    assert others_can_take(HOST)


def test_an_arm_that_is_in_use_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("real.franka.arm.connect", lambda host, realtime: asked.append(host))
    failed: list[HandoffError] = []

    def attempt() -> None:
        try:
            FrankaArm(KEPT, FakeClock()).__enter__()
        except HandoffError as error:
            failed.append(error)

    with robot_slot(HOST, "fr3"):
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    assert str(failed[0]).startswith(f"fr3 at {HOST}: in use by process ")
    assert asked == []


def test_a_failed_connection_frees_the_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    def another_robot(*arguments: object) -> None:
        raise SafetyError("fr3: the connected arm is 'fr3v2'")

    monkeypatch.setattr("real.franka.arm.check_robot", another_robot)
    with pytest.raises(SafetyError, match="fr3v2"), connected(monkeypatch, KEPT):
        pass
    assert others_can_take(HOST)


def test_an_arm_whose_stop_fails_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    with (  # noqa: PT012
        pytest.raises(SafetyError, match="did not end within"),
        connected(monkeypatch, KEPT) as (arm, robot),
    ):
        arm.start()
        robot.join_motion = lambda timeout: False
    assert others_can_take(HOST)


@pytest.mark.parametrize("latch", ["kept", "connection"])
def test_a_twins_fault_ends_with_the_connection_unless_it_is_to_be_kept(
    latch: Literal["kept", "connection"],
) -> None:
    """Through the unmodified client: the second connection is that of the next episode."""
    with start_twin(TwinConfig(host=address(42)), PushTWorld) as twin:
        config = FrankaConfig(host=twin.host, realtime="ignore", latch=latch)
        with (  # noqa: PT012
            pytest.raises(ArmFaultError),
            FrankaArm(config, twin, twin.wait_for_motion) as arm,
        ):
            arm.preflight()
            arm.start()
            twin.advance(0.05)
            twin.press_user_stop()
            twin.advance(0.05)
            arm.state()
        twin.press_user_stop(False)
        with FrankaArm(config, twin, twin.wait_for_motion) as arm:
            if latch == "kept":
                with pytest.raises(SafetyError, match="handoff clear-fault"):
                    arm.preflight()
                assert kept_fault(twin.host) is not None
                arm.recover()
            arm.preflight()
            arm.start()
            twin.advance(0.05)
            assert arm.state().mode == "Move"
        assert kept_fault(twin.host) is None
