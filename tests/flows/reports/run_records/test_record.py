"""The record of a run is written when it starts and when it ends, and earlier ones are kept."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.reports.run_records import record as module
from flows.reports.run_records.reading import run_state
from flows.reports.run_records.record import RunRecord, archive_record
from flows.runner.stage import Stage, run_stage
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.flows.counting_stage import CountingConfig
from tests.flows.reports.run_records.small_runs import SUMS, record_of, run_sums

COUNTING = "tests.flows.counting_stage"
REQUEST = {"recipe": "sums.yaml", "overrides": ["seed=5"], "files": {"sums.yaml": "a" * 64}}


@pytest.fixture
def declared() -> list[Stage]:
    """Two stages, the second after the first."""
    first = Stage("first", "number", COUNTING, CountingConfig(value=3), uses="count")
    return [
        first,
        Stage("second", "number", COUNTING, CountingConfig(value=4), {"part": first}, uses="count"),
    ]


def test_a_run_is_recorded_as_running_before_its_first_stage(
    tmp_path: Path, declared: list[Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/somewhere/flows/__main__.py", "run", "sums.yaml", "seed=5"])
    with RunRecord(tmp_path / "runs", "sums", REQUEST, declared):
        found = record_of(tmp_path / "runs" / "sums")
    assert found["state"] == "running"
    assert found["ended"] is None
    assert run_state(found) == "running"
    assert found["command"] == ["handoff", "run", "sums.yaml", "seed=5"]
    # The run's folder is `runs/sums`, two folders below the working directory.
    assert found["working_directory"] == "../.."
    assert found["recipe"]["overrides"] == ["seed=5"]
    assert found["recipe"]["files"] == {"sums.yaml": "a" * 64}
    assert found["computer"]["cores"] == os.cpu_count()
    assert found["stages"]["second"]["inputs"] == {"part": "first"}
    assert found["stages"]["second"]["options"]["value"] == 4


@pytest.mark.parametrize(
    ("argv", "original", "command"),
    [
        (["/bin/handoff", "run", "demo"], ["python", "/bin/handoff"], ["handoff", "run", "demo"]),
        (
            ["/lib/prefect/engine.py"],
            ["/bin/python", "-m", "prefect.engine"],
            ["python", "-m", "prefect.engine"],
        ),
        (["lab/run.py", "3"], ["python", "lab/run.py", "3"], ["run.py", "3"]),
    ],
    ids=["program", "module", "script"],
)
def test_the_command_has_no_folder_of_the_program(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    original: list[str],
    command: list[str],
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", original)
    with RunRecord(tmp_path, "sums", REQUEST):
        assert record_of(tmp_path / "sums")["command"] == command


def test_a_finished_run_has_the_artifact_of_every_stage(
    tmp_path: Path, declared: list[Stage]
) -> None:
    outcome = run_stage(declared[0], {}, tmp_path, no_progress, isolate=False)
    with RunRecord(tmp_path, "sums", REQUEST, declared[:1]) as record:
        record.add({"first": outcome})
    found = record_of(tmp_path / "sums")
    assert (found["state"], found["reason"]) == ("finished", "")
    assert found["started"] < found["ended"]
    entry = found["stages"]["first"]
    assert (tmp_path / "sums" / entry["artifact"]).resolve() == outcome.artifact.path
    assert (entry["digest"], entry["cached"]) == (outcome.artifact.digest, False)
    # The manifest has the options.
    assert "options" not in entry


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (HandoffError("first: value 3, limit 2."), "failed"),
        (ZeroDivisionError("a bug"), "failed"),
        (KeyboardInterrupt(), "stopped"),
        (SystemExit(1), "stopped"),
    ],
)
def test_an_error_ends_the_record_with_its_reason(
    tmp_path: Path, declared: list[Stage], error: BaseException, state: str
) -> None:
    with pytest.raises(type(error)), RunRecord(tmp_path, "sums", REQUEST, declared):
        raise error
    found = record_of(tmp_path / "sums")
    assert found["state"] == state
    assert (str(error) or "interrupted") in found["reason"]
    assert found["stages"]["first"] == {
        "uses": "count",
        "inputs": {},
        "artifact": None,
        "options": {"value": 3, "tally": "", "fail": ""},
    }


def test_the_error_that_ends_a_run_outlives_a_record_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    record = RunRecord(tmp_path, "sums", REQUEST)
    record.__enter__()
    monkeypatch.setattr(module, "write_json", full)
    error = HandoffError("value 3, limit 2.")
    # Nothing is raised, so that the error goes on.
    record.__exit__(HandoffError, error, None)
    assert "No space left" in error.__notes__[0]


def test_a_second_run_moves_the_record_of_the_first_to_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diffs = iter(["first change", "second change"])

    def changed(folder: Path) -> dict[str, object]:
        (folder / "diff.patch").write_text(next(diffs))
        return {"commit": "c" * 40, "dirty": True, "diff": {"file": "diff.patch"}}

    monkeypatch.setattr(module, "record_checkout", changed)
    for overrides in (["seed=1"], ["seed=2"]):
        with RunRecord(tmp_path, "sums", {"overrides": overrides}):
            pass
    folder = tmp_path / "sums"
    (older,) = (folder / "history").glob("*.json")
    archived = json.loads(older.read_text())
    assert archived["recipe"]["overrides"] == ["seed=1"]
    assert archived["state"] == "finished"
    assert (folder / archived["checkout"]["diff"]["file"]).read_text() == "first change"
    assert record_of(folder)["recipe"]["overrides"] == ["seed=2"]
    assert (folder / "diff.patch").read_text() == "second change"


def test_a_run_that_another_one_of_its_name_overtakes_ends_in_the_history(tmp_path: Path) -> None:
    with RunRecord(tmp_path, "sums", {"overrides": ["seed=1"]}):
        with RunRecord(tmp_path, "sums", {"overrides": ["seed=2"]}):
            pass
        second = record_of(tmp_path / "sums")
    assert record_of(tmp_path / "sums") == second
    assert second["recipe"]["overrides"] == ["seed=2"]
    (first,) = (tmp_path / "sums" / "history").glob("*.json")
    assert json.loads(first.read_text())["state"] == "finished"
    assert json.loads(first.read_text())["recipe"]["overrides"] == ["seed=1"]


def test_a_record_that_cannot_be_read_is_kept_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    archive_record(tmp_path)
    (kept,) = (tmp_path / "history").iterdir()
    assert (kept.suffix, kept.read_text()) == (".unreadable", "{")
    assert not (tmp_path / "run.json").exists()


def test_a_run_whose_process_is_gone_was_killed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from flows.reports.run_records.record import RunRecord\n"
        "with RunRecord(pathlib.Path(sys.argv[1]), 'sums', {}): os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    found = record_of(tmp_path / "sums")
    assert found["state"] == "running"
    assert run_state(found) == "killed"
    # Of a process on another computer nothing is known.
    assert run_state({**found, "computer": {"host": "elsewhere"}}) == "running"


def test_an_attended_run_is_recorded_with_its_recipes_text_and_people(tmp_path: Path) -> None:
    folder = run_sums(tmp_path, ["seed=5", "numbers.operator.person=ada"])
    found = record_of(folder)
    assert found["state"] == "finished"
    (digest,) = found["recipe"]["files"].values()
    assert digest == hashlib.sha256(SUMS.encode()).hexdigest()
    assert found["recipe"]["overrides"][1:] == ["seed=5", "numbers.operator.person=ada"]
    assert found["people"][0] == "ada"
    assert [entry["cached"] for entry in found["stages"].values()] == [False] * 3
    again = record_of(run_sums(tmp_path, ["seed=5", "numbers.operator.person=ada"]))
    assert [entry["cached"] for entry in again["stages"].values()] == [True] * 3
    assert again["people"] == found["people"]
