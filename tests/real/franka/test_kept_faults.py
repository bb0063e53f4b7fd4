"""Faults of an arm on disk, until a person clears them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from real.franka import kept_faults
from real.franka.kept_faults import clear_fault, faults_file, keep_fault, kept_fault, try_to_keep
from robots.errors import HandoffError, SafetyError, error_text
from robots.processes import login

ROOT = Path(__file__).resolve().parents[3]
HOST = "192.0.2.7"


def lines() -> list[dict[str, object]]:
    return [json.loads(line) for line in faults_file(HOST).read_text().splitlines()]


def test_an_arm_without_a_fault_has_none() -> None:
    assert kept_fault(HOST) is None


def test_a_fault_is_known_to_a_new_process() -> None:
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    code = f"from real.franka.kept_faults import kept_fault; print(kept_fault('{HOST}'))"
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"fr3 at {HOST}: stopped (joint_reflex in mode Reflex) at ")
    assert f"' of {login()}, and nobody has cleared it. " in said
    assert said.endswith(f"then: handoff clear-fault {HOST}\n")
    assert len(said.splitlines()) == 1


def test_a_fault_says_the_command_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/handoff", "deploy", "runs/demo/gate"])
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    assert " in 'handoff deploy runs/demo/gate' of " in str(kept_fault(HOST))


def test_clearing_adds_who_found_which_cause_and_keeps_the_history() -> None:
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    clear_fault(HOST, " ada ", "the cable caught on the table")
    assert kept_fault(HOST) is None
    fault, cleared = lines()
    assert (fault["what"], fault["fault"]) == ("fault", "joint_reflex in mode Reflex")
    assert (cleared["what"], cleared["who"], cleared["cause"], cleared["user"]) == (
        "cleared",
        "ada",
        "the cable caught on the table",
        login(),
    )
    assert float(str(fault["time"])) <= float(str(cleared["time"]))


def test_a_fault_after_a_cleared_one_is_kept() -> None:
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    clear_fault(HOST, "ada", "cable")
    keep_fault(HOST, "fr3", "cartesian_reflex in mode Reflex")
    assert "stopped (cartesian_reflex" in str(kept_fault(HOST))


def test_a_fault_of_one_arm_is_none_of_another() -> None:
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    assert kept_fault("192.0.2.8") is None


@pytest.mark.parametrize(("who", "cause"), [("", "cable"), ("ada", " ")])
def test_a_fault_without_a_name_or_a_cause_stays(who: str, cause: str) -> None:
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    with pytest.raises(HandoffError, match="expected a name and a cause"):
        clear_fault(HOST, who, cause)
    assert kept_fault(HOST) is not None


def test_clearing_an_arm_without_a_fault_names_the_arms_that_have_one() -> None:
    with pytest.raises(HandoffError, match="no fault is kept; no arm has one"):
        clear_fault(HOST, "ada", "cable")
    keep_fault("192.0.2.70", "fr3", "joint_reflex in mode Reflex")
    keep_fault("192.0.2.71", "fr3", "joint_reflex in mode Reflex")
    clear_fault("192.0.2.71", "ada", "cable")
    with pytest.raises(HandoffError, match=r"no fault is kept; did you mean '192\.0\.2\.70'\?$"):
        clear_fault(HOST, "ada", "cable")


@pytest.mark.parametrize("kept", [0, 1, 40, -1])
def test_a_line_that_a_crash_cut_short_refuses_motions(kept: int) -> None:
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    file = faults_file(HOST)
    whole = file.read_bytes().rstrip(b"\n")
    file.write_bytes(whole[:kept])
    assert "cannot be read, which may be a fault" in str(kept_fault(HOST))
    clear_fault(HOST, "ada", "power failed")
    assert kept_fault(HOST) is None


def test_a_clearing_that_a_crash_cut_short_clears_nothing() -> None:
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    clear_fault(HOST, "ada", "cable")
    file = faults_file(HOST)
    file.write_bytes(file.read_bytes()[:-5])
    assert kept_fault(HOST) is not None


def test_a_file_that_cannot_be_read_refuses_motions() -> None:
    faults_file(HOST).mkdir(parents=True)
    with pytest.raises(SafetyError, match=r"cannot be read .*May this user read the file"):
        kept_fault(HOST)


def test_a_fault_that_cannot_be_written_is_said_with_the_fault() -> None:
    faults_file(HOST).mkdir(parents=True)
    fault = SafetyError("arm: stopped.")
    try_to_keep(fault, HOST, "fr3", "joint_reflex in mode Reflex")
    assert "stopped. The fault is not kept for later connections: " in error_text(fault)


def test_a_folder_for_all_users_comes_before_that_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_faults, "SHARED", tmp_path)
    before = os.umask(0o077)
    try:
        keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    finally:
        os.umask(before)
    assert faults_file(HOST).parent == tmp_path
    assert stat.S_IMODE(faults_file(HOST).stat().st_mode) == 0o666


def test_a_file_of_the_user_is_written_by_the_user_only() -> None:
    keep_fault(HOST, "fr3", "joint_reflex in mode Reflex")
    assert stat.S_IMODE(faults_file(HOST).stat().st_mode) == 0o644


def test_the_folder_of_the_user_is_that_of_the_desktop_standard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(kept_faults.faults_folder()) == "/home/ada/.local/state/handoff/faults"
