"""The processes of a training: messages, restarts after a kill, and their end."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from flows.correction.processes import RESTARTS, RestartedProcess, end_together
from flows.runner.lock import run_lock, write_lock
from robots.errors import GateError, HandoffError
from robots.interfaces import no_progress


def counting(folder: Path, deaths: int, there: Connection) -> None:
    """Counts its starts in a folder, and is killed in the first few."""
    starts = len(list(folder.iterdir()))
    (folder / str(starts)).touch()
    there.send(("started", starts))
    if starts < deaths:
        os.kill(os.getpid(), signal.SIGKILL)


def failing(there: Connection) -> None:
    raise GateError("too slow by 3 ms, limit 1 ms")


def lingering(there: Connection) -> None:
    """Ignores SIGTERM, as a learner does while it saves."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    there.send(("ready",))
    time.sleep(60.0)


def asked(folder: Path, name: str, other: str, there: Connection) -> None:
    """Ends only when the other process has been asked to end as well."""
    try:
        there.send(("ready",))
        time.sleep(60.0)
    finally:
        (folder / f"{name} is asked").touch()
        while not (folder / f"{other} is asked").exists():
            time.sleep(0.01)
        (folder / f"{name} has ended").touch()


def messages_of(process: RestartedProcess) -> list[Any]:
    messages: list[Any] = []
    deadline = time.monotonic() + 60.0
    while not process.done and time.monotonic() < deadline:
        messages += process.receive()
        time.sleep(0.01)
    return messages


def test_a_killed_process_is_restarted(tmp_path: Path) -> None:
    process = RestartedProcess("learner", counting, (tmp_path, 2))
    process.start()
    assert messages_of(process)[-2:] == [("started", 2), ("done",)]
    end_together([process])


def test_a_process_that_is_killed_too_often_is_an_error(tmp_path: Path) -> None:
    process = RestartedProcess("learner", counting, (tmp_path, 99))
    process.start()
    with pytest.raises(HandoffError, match=f"ended {RESTARTS + 1} times"):
        messages_of(process)
    end_together([process])


def test_an_error_keeps_its_type() -> None:
    process = RestartedProcess("actor", failing, ())
    process.start()
    with pytest.raises(GateError, match="too slow by 3 ms"):
        messages_of(process)
    end_together([process])


def test_a_process_that_was_never_started_sends_nothing_and_ends_at_once() -> None:
    process = RestartedProcess("actor", failing, ())
    process.send("stop")
    assert process.receive() == []
    end_together([process])


def test_processes_that_end_together_do_not_wait_for_one_another(tmp_path: Path) -> None:
    names = ("actor", "learner")
    processes = [
        RestartedProcess(name, asked, (tmp_path, name, other))
        for name, other in zip(names, reversed(names), strict=True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        while not process.receive():
            time.sleep(0.01)
    end_together(processes, 30.0)
    # Whoever asks them one after the other has to kill the first.
    assert all((tmp_path / f"{name} has ended").exists() for name in names)


def test_a_process_holds_the_lock_of_the_artifact_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.runner.lock.PATIENCE_SECONDS", 0.2)
    artifact = tmp_path / "train-1"
    process = RestartedProcess("learner", lingering, ())
    with (
        run_lock(artifact, "write", no_progress),
        write_lock(artifact, no_progress) as lock,
        lock.held(),
    ):
        process.start()
        while not process.receive():
            time.sleep(0.01)
    current = process.process
    assert current is not None
    with (
        run_lock(artifact, "write", no_progress),
        pytest.raises(
            HandoffError, match=rf"process \d+ or {current.pid} of an earlier, aborted run"
        ),
        write_lock(artifact, no_progress),
    ):
        pass
    current.kill()
    current.join()
    with run_lock(artifact, "write", no_progress), write_lock(artifact, no_progress):
        pass
