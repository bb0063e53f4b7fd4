"""A run that is killed while a stage runs: the stage's process ends, and no other writes before
that."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.runner.artifact import json_digest
from flows.runner.lock import inheritable_lock, run_lock, write_lock
from flows.runner.stage import artifact_path, identity
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.flows.writing_stage import lives, stage, write, writers

ROOT = Path(__file__).resolve().parents[2]
LONG = 60.0
"""Time limit of a wait [s], reached only by a defect."""


@contextmanager
def orphan(root: Path, kill: signal.Signals, deaf_seconds: float = 0.0) -> Iterator[int]:
    """Provides the stage's process of a killed run; it is killed after the context in any case."""
    flow = begun(root, deaf_seconds)
    wait_until(lambda: bool(written(root)))
    [writer] = written(root)
    assert writer != flow.pid
    flow.send_signal(kill)
    flow.wait()
    try:
        yield writer
    finally:
        subprocess.run(["kill", "-9", str(writer)], stderr=subprocess.DEVNULL, check=False)


def begun(root: Path, deaf_seconds: float = 0.0, before: str = "") -> subprocess.Popen[bytes]:
    """Starts a run in a child process; `before` is code that it executes first."""
    call = f"write(Path({str(root)!r}), {deaf_seconds})"
    code = (
        f"{before}\nfrom pathlib import Path\nfrom tests.flows.writing_stage import write\n{call}"
    )
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)


def written(root: Path) -> list[int]:
    return [number for out in root.glob("artifacts/write-*") for number in writers(out)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_a_stage_ends_with_its_run_and_the_next_run_follows_it(
    tmp_path: Path, kill: signal.Signals
) -> None:
    with orphan(tmp_path, kill) as first:
        outcome = write(tmp_path)
        assert outcome.artifact.manifest["metrics"] == {"beside": False}
        assert not lives(first)
    wrote = written(tmp_path)
    assert wrote[0] == first
    assert len(wrote) == 2, "each wrote in one go"


def test_the_next_run_waits_for_a_process_that_is_slow_to_end(tmp_path: Path) -> None:
    with orphan(tmp_path, signal.SIGKILL, deaf_seconds=1.5) as first:
        killed = time.monotonic()
        outcome = write(tmp_path, 1.5)
        assert time.monotonic() - killed >= 1.0
        assert outcome.artifact.manifest["metrics"] == {"beside": False}
        assert not lives(first)
    assert len(written(tmp_path)) == 2


def test_no_run_comes_between_the_end_of_a_run_and_the_beginning_of_its_stage(
    tmp_path: Path,
) -> None:
    """The run is killed as soon as it has made the stage's process, which takes a while to load
    Python."""
    key = json_digest(identity(stage(0.0), {}))
    partial = artifact_path(tmp_path, stage(0.0), key).with_suffix(".partial")
    partial.mkdir(parents=True)
    # Output of an earlier attempt, so that each attempt ends without help.
    (partial / "lines.txt").write_text("0\n")
    kill = (
        "import os\nfrom flows.runner import isolate\n"
        "isolate._listen = lambda *_: os.kill(os.getpid(), 9)"
    )
    begun(tmp_path, before=kill).wait()
    notes: list[str] = []
    outcome = write(tmp_path, progress=lambda done, total, note="": notes.append(note))
    assert outcome.artifact.manifest["metrics"] == {"beside": False}
    assert any("of an earlier, aborted run to end" in note for note in notes)
    wrote = written(tmp_path)
    assert len(wrote) == len(set(wrote)), "each wrote in one go"


def test_the_next_run_refuses_where_the_process_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.runner.lock.PATIENCE_SECONDS", 0.3)
    with orphan(tmp_path, signal.SIGKILL, deaf_seconds=LONG) as first:
        with pytest.raises(
            HandoffError,
            match=rf"the stage's process {first} of an earlier, aborted run is still running",
        ):
            write(tmp_path, LONG)
        assert lives(first)
        assert written(tmp_path) == [first]


def test_the_write_lock_is_inherited_only_while_it_is_held(tmp_path: Path) -> None:
    artifact = tmp_path / "artifacts" / "write-1"
    with run_lock(artifact, "write", no_progress), write_lock(artifact, no_progress) as lock:
        assert inheritable_lock() is None
        with lock.held():
            assert inheritable_lock() is lock
        assert inheritable_lock() is None
        with pytest.raises(KeyboardInterrupt), run_lock(artifact, "write", interrupt):
            pass


def interrupt(done: int, total: int, note: str = "") -> None:
    """Ends a wait for another run."""
    assert note == "waiting for another run, which computes the same artifact"
    raise KeyboardInterrupt
