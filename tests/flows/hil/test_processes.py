"""The two processes of a training: heard, started again when killed, and ended with whoever started
them."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from flows.hil.processes import RESTARTS, Side
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
    """Is not ended by SIGTERM, as a learner that saves is not at once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    there.send(("ready",))
    time.sleep(60.0)


def heard(side: Side) -> list[Any]:
    messages: list[Any] = []
    deadline = time.monotonic() + 60.0
    while not side.done and time.monotonic() < deadline:
        messages += side.hear()
        time.sleep(0.01)
    return messages


def test_a_side_that_is_killed_is_started_again(tmp_path: Path) -> None:
    side = Side("learner", counting, (tmp_path, 2))
    side.start()
    assert heard(side)[-2:] == [("started", 2), ("done",)]
    side.end()


def test_a_side_that_is_killed_again_and_again_is_given_up(tmp_path: Path) -> None:
    side = Side("learner", counting, (tmp_path, 99))
    side.start()
    with pytest.raises(HandoffError, match=f"ended {RESTARTS + 1} times"):
        heard(side)
    side.end()


def test_an_error_arrives_as_what_it_was() -> None:
    side = Side("actor", failing, ())
    side.start()
    with pytest.raises(GateError, match="too slow by 3 ms"):
        heard(side)
    side.end()


def test_a_side_that_was_never_started_says_nothing_and_ends_at_once() -> None:
    side = Side("actor", failing, ())
    side.say("stop")
    assert side.hear() == []
    side.end()


def test_a_side_holds_the_lock_of_the_artifact_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.runner.lock.PATIENCE_SECONDS", 0.2)
    artifact = tmp_path / "train-1"
    side = Side("learner", lingering, ())
    with run_lock(artifact), write_lock(artifact, no_progress) as lock, lock.held():
        side.start()
        while not side.hear():
            time.sleep(0.01)
    process = side.process
    assert process is not None
    with (
        run_lock(artifact),
        pytest.raises(HandoffError, match=rf"process \d+ or {process.pid} is still ending"),
        write_lock(artifact, no_progress),
    ):
        pass
    process.kill()
    process.join()
    with run_lock(artifact), write_lock(artifact, no_progress):
        pass
