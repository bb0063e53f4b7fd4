"""Faults of a simulated arm: their file, and what an unmodified program meets."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flows.session.standalone_twin import StandaloneTwin
from flows.session.twin_faults import (
    DelayFault,
    DropFault,
    PayloadFault,
    PushFault,
    UserStopFault,
    VersionFault,
    check_hosts,
    read_faults,
)
from robots.errors import HandoffError
from tests.flows.session.running_twin import connected, running

franky = pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")


def test_a_user_stop_of_the_file_ends_a_motion_and_is_said():
    options = StandaloneTwin(task="reach", host="127.0.88.2", clock="paced")
    with running(options, (UserStopFault(at=3.0, seconds=0.5),)) as heard:
        robot = connected(options.host)
        motion = franky.CartesianVelocityWaypointMotion(
            [
                franky.CartesianVelocityWaypoint(
                    franky.Twist([0.0, 0.0, 0.01], [0.0, 0.0, 0.0]),
                    hold_target_duration=franky.Duration(10_000),
                )
            ]
        )
        with pytest.raises(franky.ControlException, match=r"aborted"):
            robot.move(motion)
        assert any("user_stop for 0.5 s" in text for text in heard["said"])


def test_a_push_is_a_reflex_above_the_clients_threshold():
    options = StandaloneTwin(task="reach", host="127.0.88.3", clock="lockstep")
    fault = PushFault(at=0.5, seconds=3000.0, force=(0.0, 0.0, -60.0))
    with running(options, (fault,)):
        time.sleep(0.5)
        robot = connected(options.host)
        robot.set_collision_behavior(20.0, 30.0)
        with pytest.raises(franky.ControlException, match="reflex"):
            robot.move(franky.JointMotion(robot.state.q + 0.02))


def test_dropped_commands_are_counted():
    options = StandaloneTwin(task="reach", host="127.0.88.4", clock="lockstep")
    with running(options, (DropFault(at=0.0, seconds=1e6, share=0.05),)) as heard:
        robot = connected(options.host)
        robot.move(franky.JointMotion(robot.state.q + 0.02))
        end = time.monotonic() + 20.0
        while " 0 lost" in heard["shown"][-1] or "no motion" in heard["shown"][-1]:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_lost_states_cost_commands_and_a_motion_goes_on():
    options = StandaloneTwin(task="reach", host="127.0.88.6", clock="lockstep")
    with running(options, (DropFault(at=0.0, seconds=1e6, packets="states"),)) as heard:
        robot = connected(options.host)
        target = robot.state.q + 0.02
        robot.move(franky.JointMotion(target))
        assert abs(robot.state.q - target).max() < 1e-3
        end = time.monotonic() + 20.0
        while " 0 lost" in heard["shown"][-1] or "no motion" in heard["shown"][-1]:
            assert time.monotonic() < end
            time.sleep(0.1)


@pytest.mark.parametrize(("packets", "host"), [("commands", 7), ("states", 8)])
def test_packets_that_are_late_for_long_violate_the_constraints(packets: str, host: int):
    options = StandaloneTwin(task="reach", host=f"127.0.88.{host}", clock="lockstep")
    fault = DelayFault(at=0.0, seconds=None, late=0.002, packets=packets)  # pyright: ignore[reportArgumentType]
    with running(options, (fault,)):
        robot = connected(options.host)
        with pytest.raises(franky.ControlException, match="communication_constraints_violation"):
            robot.move(franky.JointMotion(robot.state.q + 0.02))


def test_a_delay_within_the_cycle_costs_nothing():
    options = StandaloneTwin(task="reach", host="127.0.88.9", clock="lockstep")
    with running(options, (DelayFault(at=0.0, seconds=None, late=0.0009),)) as heard:
        robot = connected(options.host)
        robot.move(franky.JointMotion(robot.state.q + 0.02))
        end = time.monotonic() + 20.0
        while "no motion" in heard["shown"][-1]:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert ", 0 lost commands" in heard["shown"][-1]


def test_an_unknown_payload_is_an_external_force_until_it_is_taken_away():
    options = StandaloneTwin(task="reach", host="127.0.88.10", clock="lockstep")
    with running(options, (PayloadFault(at=0.0, seconds=50.0, mass=2.0),)) as heard:
        robot = connected(options.host)
        assert any("payload for 50 s" in text for text in heard["said"])
        for force in (-2.0 * 9.81, 0.0):
            end = time.monotonic() + 60.0
            while abs(robot.state.O_F_ext_hat_K[2] - force) > 0.1:
                assert time.monotonic() < end
                time.sleep(0.01)


def test_a_robot_of_another_version_is_refused_by_the_program_itself():
    options = StandaloneTwin(task="reach", host="127.0.88.11")
    with running(options, (VersionFault(at=0.0, version=9),)) as heard:
        with pytest.raises(franky.IncompatibleVersionException, match="server version: 9"):
            connected(options.host)
        assert any("version until the end" in text for text in heard["said"])


def test_a_fault_of_one_arm_leaves_the_other_alone():
    options = StandaloneTwin(task="reach", host="127.0.88.12", robots=2)
    with running(options, (VersionFault(at=0.0, host="127.0.88.13"),)):
        assert connected("127.0.88.12").state.robot_mode == franky.RobotMode.Idle
        with pytest.raises(franky.IncompatibleVersionException):
            connected("127.0.88.13")


def test_a_fault_of_an_arm_that_there_is_not_is_refused():
    faults = [UserStopFault(at=1.0, host="127.0.0.9")]
    with pytest.raises(HandoffError, match=r"'127\.0\.0\.9', expected one of 127\.0\.0\.2, 127"):
        check_hosts(faults, ["127.0.0.2", "127.0.0.3"])


def test_faults_come_from_a_file_in_the_order_of_their_times(tmp_path: Path):
    path = tmp_path / "faults.yaml"
    path.write_text(
        "- {kind: push, at: 7.5, force: [0, 0, -40]}\n- {kind: freeze, at: 2, seconds: 0.06}\n"
    )
    faults = read_faults(path)
    assert [fault.kind for fault in faults] == ["freeze", "push"]
    assert faults[1].at == 7.5


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kind: push", "expected a list of faults"),
        ("- {kind: shove, at: 1}", "shove"),
        ("- {kind: push}", "at"),
        ("- {kind: drop, at: 1, share: 2}", "share"),
        ("- push", "expected keys and values with a kind"),
        ("- {kind: dorp, at: 1}", "did you mean 'drop'"),
        ("- {kind: delay, at: 1, lat: 3}", "fault 1.lat', did you mean 'late'"),
        ("- {kind: drop, at: 1, packets: all}", "packets"),
        ("- {kind: delay, at: 1, late: -0.1}", "late"),
        ("- {kind: payload, at: 1, mass: 0}", "mass"),
        ("- {kind: payload, at: 1, position: [0, 0]}", "position"),
        ("- {kind: version, at: 1, version: 10}", "version of the simulated arm"),
        ("- {kind: user_stop, at: 1, seconds: 0}", "seconds"),
        ("- {kind: push, at: 1}\n- {kind: push, at: 1.1}", "to 0.1 at most"),
        ("- {kind: payload, at: 1}\n- {kind: payload, at: 9}", "begins before that at 1 s"),
        (
            "- {kind: drop, at: 1}\n- {kind: drop, at: 1.5, packets: both, host: 127.0.0.2}",
            "begins before",
        ),
        ("- [", r"not YAML \(line 1, column 4: "),
    ],
)
def test_a_file_that_states_no_faults_is_refused(text: str, error: str, tmp_path: Path):
    path = tmp_path / "faults.yaml"
    path.write_text(text)
    with pytest.raises(HandoffError, match=error) as refused:
        read_faults(path)
    assert "faults.yaml" in str(refused.value)


def test_faults_of_two_kinds_directions_or_arms_may_overlap(tmp_path: Path):
    path = tmp_path / "faults.yaml"
    path.write_text(
        "- {kind: drop, at: 1}\n- {kind: drop, at: 1, packets: states}\n- {kind: delay, at: 1}\n"
        "- {kind: push, at: 1, host: 127.0.0.2}\n- {kind: push, at: 1, host: 127.0.0.3}\n"
    )
    assert len(read_faults(path)) == 5
