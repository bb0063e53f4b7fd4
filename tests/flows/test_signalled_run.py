"""A signal that ends a run also ends its stages cleanly, and determines the exit code."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from flows.__main__ import main
from flows.runner import isolate, run_end
from flows.runner.stage import Stage, run_stage
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.processes import end
from tests.flows.conftest import use_stages
from tests.flows.processes import title
from tests.flows.waiting_stage import BEGUN, CLEANED, WaitingConfig

STOPPING = "stopping: what is running saves its state, for up to 10 s"
LONG = 60.0
"""Time limit of a wait [s], reached only by a defect."""


def waiting(folder: Path, name: str = "wait") -> Stage:
    folder.mkdir(exist_ok=True)
    return Stage(name, "nothing", "tests.flows.waiting_stage", WaitingConfig(folder=str(folder)))


def await_file(file: Path) -> None:
    deadline = time.monotonic() + LONG
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} never came"
        time.sleep(0.02)


def once_begun(folder: Path, number: signal.Signals, child: bool) -> threading.Thread:
    """Sends the signal to this process, or to the stage's, once the stage runs."""

    def send() -> None:
        await_file(folder / BEGUN)
        mine = psutil.Process()
        [stage] = [child for child in mine.children() if "handoff: wait" in title(child)]
        os.kill(stage.pid if child else mine.pid, number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stage_that_a_signal_ends_runs_its_finally_blocks(
    number: signal.Signals, tmp_path: Path
) -> None:
    stage = waiting(tmp_path / "files")
    sender = once_begun(tmp_path / "files", number, child=True)
    with pytest.raises(HandoffError, match=f"its process was killed by {number.name}"):
        run_stage(stage, {}, tmp_path, no_progress)
    sender.join()
    assert (tmp_path / "files" / CLEANED).exists()


def test_an_attended_stage_says_that_it_is_stopping_before_it_has_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the thread that the signal reaches."""
    folder = tmp_path / "files"
    said_before: list[str] = []

    def note(processes: Sequence[BaseProcess]) -> None:
        said_before.append(capsys.readouterr().err)
        end(processes)

    monkeypatch.setattr(isolate, "end", note)
    sender = once_begun(folder, signal.SIGINT, child=False)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_stage(waiting(folder), {}, tmp_path, no_progress)
    finally:
        run_end.RUN_ENDED.clear()
    sender.join()
    assert said_before == [f"{STOPPING}\n"]
    assert (folder / CLEANED).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_that_a_signal_ends_ends_its_stages(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefect_server: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second, third = (waiting(tmp_path / name, name) for name in ("first", "second", "third"))
    use_stages(monkeypatch, tmp_path, [first, second, third])

    def send() -> None:
        await_file(tmp_path / "first" / BEGUN)
        await_file(tmp_path / "second" / BEGUN)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    began = time.monotonic()
    assert main(["run", "waiting"]) == 128 + number
    sender.join()
    assert time.monotonic() - began < LONG
    reason = "interrupted" if number is signal.SIGINT else f"ended by {number.name}"
    said = capsys.readouterr().err
    assert f"handoff: {reason}. Finished stages are kept" in said
    assert said.count(STOPPING) == 1
    assert said.index(STOPPING) < said.index("handoff: ")
    for name in ("first", "second"):
        assert (tmp_path / name / CLEANED).exists(), f"{name} was not ended cleanly"
    begun, cleaned = ((tmp_path / "third" / name).exists() for name in (BEGUN, CLEANED))
    assert begun == cleaned
    assert not run_end.RUN_ENDED.is_set()
    record = json.loads((tmp_path / "waiting" / "run.json").read_text())
    assert record["state"] == "stopped"
    assert reason in record["reason"]
    assert record["stages"]["first"]["artifact"] is None
