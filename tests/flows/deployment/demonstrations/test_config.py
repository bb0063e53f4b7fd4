"""Options of a session in which a person demonstrates at an arm, and the arguments of its
command."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from flows.__main__ import main
from flows.config.options import build_session
from flows.deployment.demonstrations import session as recording
from flows.deployment.demonstrations.config import (
    DemonstrationSession,
    check_demonstrations,
    demonstration_contract,
    host_options,
)
from flows.deployment.session_tables.hosts import RealHost
from real.franka.config import flange_T_tool
from robots.control.actions import CartesianDelta
from robots.episodes.metadata.episode_metadata import EpisodeOrigin, action_steps_of
from robots.errors import HandoffError
from robots.franka import find_robot

FR3 = find_robot("fr3")
TOOL = flange_T_tool(DemonstrationSession().arm, FR3)


def test_the_defaults_are_for_every_robot() -> None:
    check_demonstrations(DemonstrationSession())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "loop.governor.max_speed=0.6",
            "loop.governor.max_speed is 0.6, at most 0.4 at a real arm",
        ),
        ("arm.realtime=ignore", "arm.realtime=ignore is for a simulated arm"),
        ("loop.wait_for_policy=true", "loop.wait_for_policy=true is for a simulated arm"),
        ("arm.latch=connection", "arm.latch=connection is for a simulated arm"),
        ("loop.joints.position_margin=0.01", "position_margin is 0.01, at least"),
        ("steps.axes=[x,x]", "distinct axes"),
        ("steps.low=[0.7,0,0]", "expected low < high"),
        ("start=[0.0,0.0]", "start has 2 entries, expected 7"),
        (
            "start=[0,-0.785,0,-2.356,0,1.571,0.785]",
            "start: the fingertips are at [0.307, 0.0, 0.487] m there, outside the workspace",
        ),
        ("loop.max_steps=100000", "takes up to 5060 s, limit 3600 s"),
    ],
)
def test_what_a_real_arm_does_not_take_is_named(override: str, message: str) -> None:
    session = build_session(DemonstrationSession, "record", ["host='172.16.0.2'", override])
    with pytest.raises(HandoffError, match=re.escape(message)):
        check_demonstrations(session)


def test_a_person_finds_a_real_arm_inside_the_workspace_of_the_steps() -> None:
    session = replace(DemonstrationSession(), host="172.16.0.2")
    arm: Any = SimpleNamespace(
        robot=FR3,
        flange_T_ee=TOOL,
        state=lambda: SimpleNamespace(
            base_T_ee=FR3.chain.forward_kinematics(FR3.q_home) @ TOOL, q=FR3.q_home
        ),
    )
    *_, start = RealHost(host_options(session), Mock()).way_home(arm)
    height = (FR3.chain.forward_kinematics(start) @ TOOL)[2, 3]
    assert height == pytest.approx(session.steps.high[2], abs=1e-5)
    there = replace(session, start=tuple(start.tolist()))
    check_demonstrations(there)


def test_without_a_gripper_an_action_has_the_axes_alone() -> None:
    session = replace(DemonstrationSession(), use_gripper=False)
    contract = demonstration_contract(session, "wipe", find_robot("fr3"))
    assert contract.action.names == (("x", "y", "z", "yaw"),)
    assert "width" not in contract.observation


def test_a_robot_with_other_joints_observes_its_own() -> None:
    contract = demonstration_contract(DemonstrationSession(), "wipe", find_robot("panda"))
    assert contract.robot == "panda"
    assert contract.observation["q"].shape == (7,)


def test_episodes_state_the_steps_of_their_actions() -> None:
    steps = CartesianDelta(translation=0.005)
    origin = EpisodeOrigin(robot="fr3", host="real", source="demonstration", action_steps=steps)
    about = origin.entries()
    assert action_steps_of([about, about]) == steps
    assert action_steps_of([{}, {}]) is None
    assert action_steps_of([]) is None
    with pytest.raises(HandoffError, match="2 different action_steps"):
        action_steps_of([about, {}])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[DemonstrationSession]:
    """Sessions that the command would have run."""
    sessions: list[DemonstrationSession] = []

    def record(
        session: DemonstrationSession, task: str, out: Path, *_: object, **__: object
    ) -> Path:
        sessions.append(session)
        return out / task

    monkeypatch.setattr(recording, "record_at_arm", record)
    monkeypatch.chdir(tmp_path)
    return sessions


def test_the_command_names_arm_cameras_and_words(
    asked: list[DemonstrationSession], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["record", "fold_towel", "--arm", "172.16.0.2", "--camera", "front=0"]
    words += ["--camera", "wrist=rtsp://10.0.0.4/1", "--instruction", "fold it", "--video"]
    assert main([*words, "steps.translation=0.005", "cameras.wrist.height=480"]) == 0
    (session,) = asked
    assert session.host == "172.16.0.2"
    assert {name: camera.source for name, camera in session.cameras.items()} == {
        "front": "0",
        "wrist": "rtsp://10.0.0.4/1",
    }
    assert session.cameras["wrist"].height == 480
    assert session.instruction == "fold it"
    assert session.video is not None
    assert session.steps.translation == 0.005
    assert "demos    runs/record/fold_towel/fold_towel" in capsys.readouterr().out


def test_the_twin_has_no_address(asked: list[DemonstrationSession]) -> None:
    assert main(["record", "pick_cube", "--arm", "twin"]) == 0
    assert asked[0].host == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arm", "twin", "--cameras"], "--cameras are the simulated ones"),
        (["--camera", "front=0"], "--camera is at an arm"),
        (
            ["--arm", "twin", "--camera", "front"],
            "--camera front: expected a new name and a source",
        ),
        (["--arm", "twin", "--operator", "keyboard"], "--operator keyboard: a person at an arm"),
        (["--arm", "twin", "steps.translaton=1"], "did you mean 'translation'"),
    ],
)
def test_arguments_that_do_not_fit_are_one_line(
    asked: list[DemonstrationSession],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    assert main(["record", "pick_cube", *words]) != 0
    assert message in capsys.readouterr().err
    assert not asked
