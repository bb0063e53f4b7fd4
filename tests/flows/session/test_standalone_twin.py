"""`handoff twin`: simulated arms for programs of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.session.standalone_twin import StandaloneTwin, line, run_twins, twin_command
from robots.errors import HandoffError
from sim.scene.deviations import Deviations
from sim.scene.dynamics import DynamicsValue
from tests.flows.session.running_twin import connected, running

franky = pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")


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


def test_an_arm_moves_by_its_deviations_and_a_delay_of_targets_is_refused():
    deviations = Deviations(arm=(DynamicsValue(what="payload", value=0.5),))
    options = StandaloneTwin(task="reach", host="127.0.88.5", clock="lockstep")
    options = replace(options, deviations=deviations)
    with running(options):
        robot = connected(options.host)
        force = robot.state.O_F_ext_hat_K
        assert force[2] == pytest.approx(-0.5 * 9.81, abs=0.5)
    late = Deviations(arm=(DynamicsValue(what="delay", value=0.02),))
    with pytest.raises(HandoffError, match="driver, which is the program of others here"):
        twin_command(replace(options, deviations=late), None)


def test_three_programs_move_three_arms_of_one_command_at_once_in_lockstep():
    options = StandaloneTwin(task="reach", host="127.0.88.21", clock="lockstep", robots=3)
    with running(options) as heard:
        assert sum("table of reach" in text for text in heard["said"]) == 3
        robots = [connected(host) for host in options.hosts()]
        targets = [robot.state.q + 0.02 * (number + 1) for number, robot in enumerate(robots)]
        for robot, target in zip(robots, targets, strict=True):
            robot.move(franky.JointMotion(target), asynchronous=True)
        for robot, target in zip(robots, targets, strict=True):
            robot.join_motion()
            np.testing.assert_allclose(robot.state.q, target, atol=1e-3)
            assert robot.state.control_command_success_rate == 1.0
        end = time.monotonic() + 20.0
        while heard["shown"][-1].count("0 lost commands") < 3 and time.monotonic() < end:
            time.sleep(0.1)
        lines = heard["shown"][-1].splitlines()
        assert [text.split()[0] for text in lines] == options.hosts()
        assert all("of real time, 0 lost commands" in text for text in lines)


def test_an_address_that_is_taken_ends_the_other_arms_too():
    with running(StandaloneTwin(task="reach", host="127.0.88.26")):
        taken = StandaloneTwin(task="reach", host="127.0.88.25", robots=2)
        with pytest.raises(HandoffError, match=r"127\.0\.88\.26:1337: the port is in use"):
            run_twins(taken, (), say=lambda text: None, show=lambda text: None)


@pytest.mark.parametrize(
    ("host", "robots", "error"),
    [("arm", 1, "'arm' is no address"), ("127.0.0.250", 6, r"end beyond \.254")],
)
def test_addresses_that_do_not_exist_are_refused(host: str, robots: int, error: str):
    with pytest.raises(HandoffError, match=error):
        StandaloneTwin(task="reach", host=host, robots=robots).hosts()


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
