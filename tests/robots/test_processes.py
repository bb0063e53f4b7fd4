"""A child ends with its parent and in time, its finally blocks run, and its errors are relayed."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from robots.errors import GateError, HandoffError
from robots.processes import (
    CHECK_SECONDS,
    Child,
    ChildEndedError,
    KeptProcess,
    cause_of_death,
    end,
    end_with_parent,
    spawn,
)

LONG = 20.0
"""Limit of a wait [s] that only a defect reaches."""


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def having_a_child(cleaned: Path, pipe: Connection) -> None:
    child = Child("grandchild", waiting, (cleaned,), daemon=False)
    assert child.receive() == "ready"
    pipe.send(child.process.pid)
    child.process.join()


def waiting(cleaned: Path, pipe: Connection) -> None:
    try:
        pipe.send("ready")
        time.sleep(600.0)
    finally:
        cleaned.touch()


class Marker:
    """An object whose memory is freed when Python takes the process apart; says so in a file."""

    def __init__(self, freed: Path) -> None:
        self.freed = str(freed)

    def __del__(self, note: Callable[..., int] = os.open, flags: int = os.O_CREAT) -> None:
        # The names of the module may be gone by then.
        note(self.freed, flags)


def with_much_to_free(folder: Path, pipe: Connection) -> None:
    """Ends by itself after `go`; until then it waits for a signal."""
    # `sys` is taken apart in any case, other modules only if nothing refers to them.
    sys.marker = Marker(folder / "freed")  # pyright: ignore[reportAttributeAccessIssue]
    atexit.register((folder / "handled").touch)
    threading.Thread(target=finishing, args=(folder / "finished",)).start()
    pipe.send("ready")
    assert pipe.recv() == "go"


def finishing(finished: Path) -> None:
    time.sleep(0.5)
    finished.touch()


def deaf(pipe: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send("ready")
    time.sleep(600.0)


def failing(error: Exception, pipe: Connection) -> None:
    pipe.send("before")
    raise error


def exiting(code: int, pipe: Connection) -> None:
    os._exit(code)


def unspoken() -> None:
    raise ValueError("nobody listens")


def test_a_child_ends_in_order_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = Child("parent", having_a_child, (tmp_path / "cleaned",), daemon=False)
    grandchild = parent.receive()
    parent.process.kill()
    parent.process.join()
    wait_until(lambda: not alive(grandchild))
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_runs_the_finally_blocks_of_a_child_and_is_told(
    number: signal.Signals, tmp_path: Path
) -> None:
    child = Child("child", waiting, (tmp_path / "cleaned",), daemon=True)
    assert child.receive() == "ready"
    assert child.process.pid is not None
    os.kill(child.process.pid, number)
    with pytest.raises(ChildEndedError, match=f"was killed by {number.name} .* {128 + number}"):
        child.receive()
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, None])
def test_a_signal_ends_a_child_before_its_memory_is_freed(
    number: signal.Signals | None, tmp_path: Path
) -> None:
    """Threads and exit handlers are waited for; with PyTorch the rest takes seconds."""
    child = Child("much", with_much_to_free, (tmp_path,), daemon=True)
    assert child.receive() == "ready"
    if number is None:
        child.pipe.send("go")
    else:
        assert child.process.pid is not None
        os.kill(child.process.pid, number)
    child.process.join(LONG)
    assert child.process.exitcode == (0 if number is None else 128 + number)
    assert (tmp_path / "finished").exists()
    assert (tmp_path / "handled").exists()
    assert (tmp_path / "freed").exists() == (number is None)


def test_a_child_that_ignores_sigterm_is_killed_after_the_limit(tmp_path: Path) -> None:
    child = Child("deaf", deaf, daemon=True)
    other = Child("waiting", waiting, (tmp_path / "cleaned",), daemon=True)
    assert child.receive() == other.receive() == "ready"
    began = time.monotonic()
    end([child.process, other.process], 0.5)
    assert 0.4 < time.monotonic() - began < LONG
    assert child.process.exitcode == -signal.SIGKILL
    assert other.process.exitcode == 128 + signal.SIGTERM, "its end was not cut short"
    end([child.process])


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (GateError("too slow"), GateError, "too slow"),
        (ValueError("odd"), HandoffError, "ValueError: odd (unexpected; "),
        (OSError(28, "No space", "a.bin"), HandoffError, "disk full while writing a.bin"),
    ],
)
def test_an_error_of_a_child_arrives_after_its_messages_with_its_traceback(
    error: Exception, kind: type[Exception], text: str
) -> None:
    child = Child("failing", failing, (error,), daemon=True)
    assert child.receive() == "before"
    with pytest.raises(kind) as raised:
        child.receive()
    assert type(raised.value) is kind
    assert str(raised.value).startswith(text)
    assert "in failing" in raised.value.__notes__[0]
    with pytest.raises(ChildEndedError, match="died with exit code 1 and no result"):
        child.receive()


def test_a_child_that_exits_is_told_with_its_code() -> None:
    child = Child("exiting", exiting, (7,), daemon=True)
    with pytest.raises(ChildEndedError, match="died with exit code 7 and no result"):
        child.receive()


@pytest.mark.parametrize(
    ("code", "description"),
    [
        (0, "died with exit code 0 and no result."),
        (-9, "was killed by SIGKILL and died with exit code -9. Was the machine out of memory?"),
        (-11, "was killed by SIGSEGV and died with exit code -11."),
        (143, "was killed by SIGTERM and died with exit code 143."),
        (130, "died with exit code 130 and no result."),
    ],
)
def test_causes_of_death_in_words(code: int, description: str) -> None:
    assert cause_of_death(code) == description


def test_an_error_that_nobody_is_told_of_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    process = spawn("unspoken", unspoken, (), daemon=True)
    process.join(LONG)
    assert process.exitcode == 1
    assert "ValueError: nobody listens" in capfd.readouterr().err


def test_a_process_that_nobody_started_goes_on() -> None:
    assert multiprocessing.parent_process() is None
    end_with_parent()
    time.sleep(0.1)


def wait_for_end(seconds: float) -> None:
    time.sleep(seconds)


def test_a_kept_process_is_started_again_when_it_is_killed():
    kept = KeptProcess("kept", wait_for_end, (60.0,), seconds=2.0)
    first = kept.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: kept.pid not in (first, None) and kept.alive())
    kept.end()
    assert not kept.alive()


def test_a_kept_process_that_ended_by_itself_stays_ended():
    kept = KeptProcess("kept", wait_for_end, (0.0,), seconds=2.0)
    first = kept.pid
    wait_until(lambda: not kept.alive())
    time.sleep(3 * CHECK_SECONDS)
    assert (kept.pid, kept.alive()) == (first, False)
    kept.end()
