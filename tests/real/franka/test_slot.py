"""One process of a computer per arm, by a kernel lock."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from real.franka import slot
from real.franka.slot import robot_address, robot_slot
from robots.errors import HandoffError
from tests.real.fakes import others_can_take

ROOT = Path(__file__).resolve().parents[3]
HOST = "192.0.2.7"
"""An address for documentation: no robot is there, and none is asked."""
PROCESSES = 4
ATTEMPTS = 250
"""Attempts of each process."""

RACING = """
import os, sys, time
from contextlib import nullcontext
from pathlib import Path
from real.franka import slot
from robots.errors import HandoffError

folder, kind, attempts = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
slot.FOLDER = folder
inside, counter = folder / "inside", folder / "counter"

def hold():
    try:
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        (folder / "overlap").touch()
    before = int(counter.read_text() or 0)
    time.sleep(0.0005)
    counter.write_text(str(before + 1))
    inside.unlink(missing_ok=True)

print("ready", flush=True)
sys.stdin.readline()
held = 0
for _ in range(attempts):
    try:
        with slot.robot_slot("192.0.2.7", "fr3") if kind == "locked" else nullcontext():
            hold()
            held += 1
    except HandoffError:
        time.sleep(0.0003)
print(held, flush=True)
"""

HOLDING = """
import os, sys, time
from pathlib import Path
from real.franka import slot

slot.FOLDER = Path(sys.argv[1])
sys.argv[1:] = ["deploy", "runs/demo/gate"]
with slot.robot_slot("192.0.2.7", "fr3"):
    child = os.fork() if sys.stdin.readline() == "fork\\n" else -1
    if child == 0:
        time.sleep(60.0)
        os._exit(0)
    print(child, flush=True)
    time.sleep(60.0)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(slot, "FOLDER", tmp_path)
    return tmp_path


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


def ask(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def holder(folder: Path, *, forks: bool = False) -> Iterator[tuple[int, int]]:
    """A process that holds the arm: its number, and that of its fork or -1."""
    with python(HOLDING, str(folder)) as process:
        ask(process, "fork" if forks else "hold")
        child = int(answer(process))
        try:
            yield process.pid, child
        finally:
            process.kill()
            if child > 0:
                os.kill(child, signal.SIGKILL)


def take(patience: float = 0.0) -> None:
    """Takes the arm, and frees it at once."""
    with robot_slot(HOST, "fr3", patience=patience):
        pass


def race(folder: Path, kind: str) -> tuple[int, int, bool]:
    """Lets processes race for the arm; returns how often they say that they held it, how often the
    counter was raised, and whether two were found inside at once."""
    (folder / "counter").write_text("0")
    racers = [python(RACING, str(folder), kind, str(ATTEMPTS)) for _ in range(PROCESSES)]
    assert [answer(racer) for racer in racers] == ["ready"] * PROCESSES
    for racer in racers:
        ask(racer, "go")
    held = sum(int(answer(racer)) for racer in racers)
    assert [racer.wait(60.0) for racer in racers] == [0] * PROCESSES
    for racer in racers:
        assert racer.stdin is not None
        assert racer.stdout is not None
        racer.stdin.close()
        racer.stdout.close()
    return held, int((folder / "counter").read_text()), (folder / "overlap").exists()


def test_a_thousand_racing_attempts_never_make_two_holders(folder: Path) -> None:
    held, counted, overlap = race(folder, "locked")
    assert not overlap
    assert counted == held
    assert 0 < held < PROCESSES * ATTEMPTS


def test_the_race_finds_two_holders_if_there_is_no_lock(folder: Path) -> None:
    """The control of the test above."""
    held, _, overlap = race(folder, "unlocked")
    assert held == PROCESSES * ATTEMPTS
    assert overlap


def test_a_refusal_names_the_holder(folder: Path) -> None:
    from robots.processes import login

    with (
        holder(folder) as (number, _),
        pytest.raises(HandoffError) as raised,
        robot_slot(HOST, "fr3"),
    ):
        pass
    said = str(raised.value)
    assert said.startswith(f"fr3 at {HOST}: in use by process {number} (-c deploy runs/demo/gate")
    assert f", user {login()}) since " in said
    assert said.endswith(". Wait for it, or stop it.")


def test_a_holder_that_is_killed_frees_the_arm(folder: Path) -> None:
    with holder(folder) as (number, _):
        os.kill(number, signal.SIGKILL)
        take(20.0)


def test_a_fork_of_a_killed_holder_does_not_keep_the_arm(folder: Path) -> None:
    with holder(folder, forks=True) as (number, child):
        os.kill(number, signal.SIGKILL)
        with robot_slot(HOST, "fr3", patience=20.0):
            os.kill(child, 0)


def test_waiting_reports_the_holder_and_ends_with_its_hold(folder: Path) -> None:
    notes: list[str] = []

    with holder(folder) as (number, _):

        def progress(done: int, total: int, note: str = "") -> None:
            notes.append(note)
            os.kill(number, signal.SIGKILL)

        with robot_slot(HOST, "fr3", patience=20.0, progress=progress):
            pass
    assert notes[0].startswith(f"waiting for fr3 at {HOST}: in use by process {number}")


def test_a_wait_ends_after_the_patience(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with holder(folder), pytest.raises(HandoffError, match="in use by process"):
        take(3.0)
    assert now[0] == pytest.approx(103.0, abs=slot.POLL_SECONDS)


def test_every_user_may_lock_the_file_and_name_themselves_whatever_the_umask(
    folder: Path,
) -> None:
    before = os.umask(0o077)
    try:
        take()
    finally:
        os.umask(before)
    mode = (folder / f"handoff-robot-{HOST}.lock").stat().st_mode
    assert stat.S_IMODE(mode) == 0o666


def test_an_existing_file_is_opened_without_creating_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux refuses to create a file of another user in a folder like /tmp, even if it exists."""
    take()
    opened, flags = os.open, []

    def watched(path: Path, given: int, mode: int = 0o777) -> int:
        flags.append(given)
        return opened(path, given, mode)

    monkeypatch.setattr(os, "open", watched)
    take()
    assert [given & os.O_CREAT for given in flags] == [0]


def test_a_link_in_place_of_the_lock_file_is_refused(folder: Path) -> None:
    target = folder / "precious"
    target.write_text("kept")
    (folder / f"handoff-robot-{HOST}.lock").symlink_to(target)
    with pytest.raises(HandoffError, match=r"cannot be opened .*May all users read and write it"):
        take()
    assert target.read_text() == "kept"


def test_a_removed_lock_file_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of a file that was removed before it was locked would keep nobody out."""
    opened, files = slot.open_shared, []

    def removed_once(path: Path, mode: int) -> int:
        descriptor = opened(path, mode)
        if not files:
            path.unlink()
        files.append(path)
        return descriptor

    monkeypatch.setattr(slot, "open_shared", removed_once)
    with robot_slot(HOST, "fr3"):
        assert len(files) == 2
        assert files[0].exists()


def test_a_slot_within_a_slot_of_the_same_arm_is_held_until_the_outer_one_ends(
    folder: Path,
) -> None:
    with robot_slot(HOST, "fr3"):
        with robot_slot(HOST, "gripper"):
            pass
        assert not others_can_take(HOST)
    assert others_can_take(HOST)


def test_arms_do_not_keep_one_another_out() -> None:
    with robot_slot(HOST, "fr3"):
        assert others_can_take("192.0.2.8")


def test_two_names_of_an_arm_are_one_arm() -> None:
    assert robot_address("localhost") == robot_address("127.0.0.1") == "127.0.0.1"


def test_a_name_that_nobody_knows_is_a_file_name() -> None:
    assert robot_address("../no such/host") == ".._no_such_host"


@pytest.mark.parametrize("record", ["", "{", "[]", '{"process": "x"}', "\xff"])
def test_a_record_that_names_nobody_is_said_so(folder: Path, record: str) -> None:
    with holder(folder):
        (folder / f"handoff-robot-{HOST}.lock").write_text(record)
        with (
            pytest.raises(HandoffError, match="in use by another process"),
            robot_slot(HOST, "fr3"),
        ):
            pass


def test_a_record_of_several_lines_is_said_on_one(folder: Path) -> None:
    record = {"process": 1, "command": "a\nb", "user": "x\ny", "since": 0}
    with holder(folder):
        (folder / f"handoff-robot-{HOST}.lock").write_text(json.dumps(record))
        with pytest.raises(HandoffError, match=r"^[^\n]*process 1 \(a b, user x y\)[^\n]*$"):
            take()


def test_a_time_of_another_day_has_its_date() -> None:
    assert slot.clock_time(time.time()) == time.strftime("%H:%M")
    assert slot.clock_time(0.0).startswith(("1970-01-01 ", "1969-12-31 "))
