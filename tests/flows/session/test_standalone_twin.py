"""`handoff twin`: a simulated arm for programs of others, and its faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.session.standalone_twin import (
    DropFault,
    Fault,
    PushFault,
    StandaloneTwin,
    UserStopFault,
    line,
    read_faults,
    run_twin,
)
from robots.errors import HandoffError

franky = pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")


@contextmanager
def running(options: StandaloneTwin, faults: tuple[Fault, ...] = ()) -> Iterator[dict[str, Any]]:
    """The twin in a thread; what it said and showed."""
    heard: dict[str, Any] = {"said": [], "shown": []}
    ready, ended = threading.Event(), threading.Event()

    def say(text: str) -> None:
        heard["said"].append(text)
        if "Ctrl-C" in text:
            ready.set()

    thread = threading.Thread(
        target=run_twin,
        args=(options, faults),
        kwargs={"say": say, "show": heard["shown"].append, "ended": ended.is_set},
    )
    thread.start()
    assert ready.wait(60.0)
    try:
        yield heard
    finally:
        ended.set()
        thread.join(30.0)


def connected(host: str) -> Any:
    robot = franky.Robot(host, realtime_config=franky.RealtimeConfig.Ignore)
    robot.relative_dynamics_factor = 0.05
    return robot


def test_an_unmodified_program_moves_arm_and_hand_while_time_passes_by_itself():
    """Joints, the end effector and the hand, and time that passes at rest, so that the hand
    moves."""
    options = StandaloneTwin(task="pick_cube", host="127.0.88.1", clock="lockstep")
    with running(options) as heard:
        robot = connected(options.host)
        robot.move(franky.JointMotion(robot.state.q + 0.02))
        start = robot.state.O_T_EE
        robot.move(
            franky.CartesianMotion(
                franky.Affine(start.translation + np.array([0.0, 0.02, 0.01]), start.quaternion)
            )
        )
        np.testing.assert_allclose(
            robot.state.O_T_EE.translation - start.translation, [0.0, 0.02, 0.01], atol=1e-3
        )
        gripper = franky.Gripper(options.host)
        assert gripper.move(0.02, 0.1)
        assert gripper.width == pytest.approx(0.02, abs=2e-3)
        end = time.monotonic() + 20.0
        while "of real time" not in heard["shown"][-1] and time.monotonic() < end:
            time.sleep(0.1)
        assert "of real time, 0 lost commands" in heard["shown"][-1]


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
        ("- [", "no YAML"),
    ],
)
def test_a_file_that_states_no_faults_is_refused(text: str, error: str, tmp_path: Path):
    path = tmp_path / "faults.yaml"
    path.write_text(text)
    with pytest.raises(HandoffError, match=error) as refused:
        read_faults(path)
    assert "faults.yaml" in str(refused.value)


def test_the_line_states_the_share_of_real_time():
    stats = {"motion_ticks": 2500.0, "realtime_factor": 0.98, "lost_packets": 3.0}
    assert line(12.0, stats) == "12 s, motions 2.5 s at 0.98 of real time, 3 lost commands"
    assert line(1.0, {"motion_ticks": 0.0}) == "1 s, no motion yet"


def test_ctrl_c_ends_the_command_without_a_word_too_many():
    command = [sys.executable, "-m", "flows", "twin", "reach", "--host", "127.0.88.5"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=Path.cwd()
    ) as process:
        assert process.stdout is not None
        said = ""
        while "Ctrl-C ends" not in said:
            said += process.stdout.readline()
            assert process.poll() is None, said
        os.kill(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=30.0)
    assert process.returncode == 130
    assert "Traceback" not in said + rest
