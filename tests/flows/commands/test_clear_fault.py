"""`handoff clear-fault`."""

from __future__ import annotations

import io
import json
import sys

import pytest

from flows.__main__ import main
from real.franka.kept_faults import faults_file, keep_fault, kept_fault
from real.franka.slot import robot_slot
from tests.real.fakes import others_can_take

HOST = "192.0.2.7"


class Terminal(io.StringIO):
    """A terminal at which a person has typed."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def fault() -> None:
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")


def test_name_and_cause_are_recorded(fault: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clear-fault", HOST, "--person", "ada", "--cause", "cable [2]"]) == 0
    shown = capsys.readouterr().out
    assert f"fr3 at {HOST}: stopped (joint_reflex in mode Reflex)" in shown
    assert f"cleared  {HOST}, recorded in {faults_file(HOST)}" in shown
    record = json.loads(faults_file(HOST).read_text().splitlines()[-1])
    assert (record["what"], record["who"], record["cause"]) == ("cleared", "ada", "cable [2]")
    assert kept_fault(HOST) is None


def test_what_is_missing_is_asked_for(fault: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("ada\nthe cable caught\n"))
    assert main(["clear-fault", HOST]) == 0
    record = json.loads(faults_file(HOST).read_text().splitlines()[-1])
    assert (record["who"], record["cause"]) == ("ada", "the cable caught")


def test_without_a_terminal_nothing_is_asked(
    fault: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("ada\ncable\n"))
    assert main(["clear-fault", HOST, "--person", "ada"]) == 1
    assert capsys.readouterr().err.startswith("handoff: clear-fault: --cause is missing")
    assert kept_fault(HOST) is not None


def test_an_arm_without_a_fault_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clear-fault", HOST]) == 1
    assert f"arm at {HOST}: no fault is kept" in capsys.readouterr().err


def test_nothing_is_cleared_while_the_arm_is_in_use(
    fault: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    codes: list[int] = []
    command = ["clear-fault", HOST, "--person", "ada", "--cause", "cable"]
    with robot_slot(HOST, "fr3"):
        thread = threading.Thread(target=lambda: codes.append(main(command)))
        thread.start()
        thread.join()
    assert codes == [1]
    assert f"arm at {HOST}: in use by process" in capsys.readouterr().err
    assert kept_fault(HOST) is not None
    assert others_can_take(HOST)
