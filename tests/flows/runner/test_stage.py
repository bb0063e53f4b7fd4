"""Stages: cached by content, atomic, resumable, and their failures are one clear line."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from flows.reports import explain as lineage
from flows.runner import artifact as artifacts
from flows.runner import run_end
from flows.runner.artifact import file_digest, json_digest, load_artifact, seal, verify_artifact
from flows.runner.content import check_content
from flows.runner.lock import exclusive_lock, run_lock
from flows.runner.plan import explain_miss, plan
from flows.runner.stage import (
    Stage,
    StageOutcome,
    artifact_path,
    call_stage,
    find_cached,
    identity,
    run_stage,
)
from robots.code_version import module_version
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.flows.counting_stage import CountingConfig

MODULE = "tests.flows.counting_stage"


def make(name: str = "count", value: int = 1, **settings: str) -> Stage:
    return Stage(name, "number", MODULE, CountingConfig(value=value, **settings))


def run_here(stage: Stage, root: Path) -> StageOutcome:
    return run_stage(stage, {}, root, no_progress, isolate=False)


def test_second_run_takes_the_artifact_from_the_cache(tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    stage = make(tally=str(tally))
    first, second = run_here(stage, tmp_path), run_here(stage, tmp_path)
    assert (first.cached, second.cached) == (False, True)
    assert first.artifact == second.artifact
    assert tally.read_text() == "ran\n"


def test_changed_configuration_is_another_artifact(tmp_path: Path) -> None:
    one, two = run_here(make(value=1), tmp_path), run_here(make(value=2), tmp_path)
    assert one.artifact.path != two.artifact.path
    assert explain_miss(tmp_path, make(value=5), {}).startswith("value ")


def test_key_depends_on_the_content_of_inputs_not_on_their_place(tmp_path: Path) -> None:
    first = run_here(make("left", 4), tmp_path / "a").artifact
    same = run_here(make("left", 4), tmp_path / "b").artifact
    stage = Stage("sum", "number", MODULE, CountingConfig(value=1), {"part": make("left", 4)})
    assert first.digest == same.digest
    outcome = run_stage(stage, {"part": first}, tmp_path, no_progress, isolate=False)
    assert outcome.artifact.manifest["metrics"]["total"] == 5
    assert find_cached(tmp_path, stage, {"part": same.digest}) == outcome.artifact


def test_telemetry_is_kept_and_is_not_part_of_the_digest(tmp_path: Path) -> None:
    """Losing an artifact early in the chain computes nothing again that is equal."""
    timed = [
        replace(make(tally=str(tmp_path / f"tally{i}")), telemetry=("half.*",)) for i in range(2)
    ]
    first = run_here(timed[0], tmp_path / "a").artifact
    other = tmp_path / "other"
    other.mkdir()
    (other / "result.txt").write_text("1")
    (other / "half.txt").write_text("another time")
    (other / "store.zarr").mkdir()
    (other / "store.zarr" / ".lock").write_text("4711")
    record = {**identity(timed[1], {}), "metrics": {}, "finished": ""}
    second = seal(other, tmp_path / "sealed", "number", record, ("half.*",))
    assert second.digest == first.digest
    assert second.manifest["telemetry"] == ["half.txt", "store.zarr/.lock"]
    load_artifact(second.path)
    (second.path / "half.txt").write_text("another TIME")
    with pytest.raises(HandoffError, match=r"half\.txt has sha256"):
        verify_artifact(second.path)


def test_code_change_changes_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_here(make(), tmp_path)
    monkeypatch.setattr("flows.runner.stage.code_version", lambda module: "another version")
    monkeypatch.setattr(
        "flows.runner.stage_code.module_version",
        lambda module: "other" if module == MODULE else module_version(module),
    )
    assert find_cached(tmp_path, make(), {}) is None
    assert explain_miss(tmp_path, make(), {}) == f"{MODULE} changed"
    assert outcome.artifact.path.exists()


def test_failed_stage_leaves_no_artifact_and_the_next_attempt_resumes(tmp_path: Path) -> None:
    broken = make(fail="error")
    with pytest.raises(HandoffError, match="value 3, limit 2"):
        run_here(broken, tmp_path)
    assert [path.suffix for path in (tmp_path / "artifacts").iterdir() if path.is_dir()] == [
        ".partial"
    ]
    [planned] = plan([broken], tmp_path)
    assert planned.action == "resume"


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("error", r"^counting: value 3, limit 2"),
        ("bug", r"^ZeroDivisionError: a bug"),
        ("exit", r"exit code 7 and no result"),
        ("full", r"^disk full while writing somewhere/result.txt"),
    ],
)
def test_failures_cross_the_process_border_as_one_line(
    tmp_path: Path, fail: str, message: str
) -> None:
    with pytest.raises(HandoffError, match=message) as caught:
        run_stage(make(fail=fail), {}, tmp_path, no_progress)
    assert "\n" not in str(caught.value)


def test_isolated_stage_reports_progress_and_metrics(tmp_path: Path) -> None:
    reports: list[tuple[int, int, str]] = []
    outcome = run_stage(
        make(value=3),
        {},
        tmp_path,
        lambda done, total, note="": reports.append((done, total, note)),
    )
    assert outcome.artifact.manifest["metrics"] == {"total": 3, "resumed": False}
    assert reports[0] == (1, 2, "half way")
    assert reports[-1] == (2, 2, "")


def test_edited_artifact_is_refused(tmp_path: Path) -> None:
    artifact = run_here(make(value=7), tmp_path).artifact
    (artifact.path / "result.txt").write_text("8")
    load_artifact(artifact.path)
    with pytest.raises(HandoffError, match="edited after it was built"):
        verify_artifact(artifact.path)
    (artifact.path / "result.txt").write_text("1234")
    with pytest.raises(HandoffError, match=r"result.txt is 4 bytes, the manifest says 1 bytes"):
        run_here(make(value=7), tmp_path)


def test_damage_is_noticed_in_a_cached_artifact_and_in_an_input(tmp_path: Path) -> None:
    """The same size and the same time of modification, as damage of a disk leaves them."""
    part = run_here(make("part", 7), tmp_path).artifact
    total = Stage("sum", "number", MODULE, CountingConfig(value=1), {"part": make("part", 7)})
    file = part.path / "result.txt"
    status = file.stat()
    file.write_text("8")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    message = (
        r"1 of 2 files are not those of its manifest: result.txt has sha256 \w{12}, the manifest"
    )
    with pytest.raises(HandoffError, match=message):
        run_here(make("part", 7), tmp_path)
    with pytest.raises(HandoffError, match=message):
        run_stage(total, {"part": part}, tmp_path, no_progress, isolate=False)
    file.write_text("7")
    outcome = run_stage(total, {"part": part}, tmp_path, no_progress, isolate=False)
    assert outcome.artifact.manifest["metrics"]["total"] == 8


def test_finished_files_are_hashed_once_per_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = run_here(make(value=7), tmp_path).artifact
    hashed: list[Path] = []
    monkeypatch.setattr(
        artifacts, "file_digest", lambda file: hashed.append(file) or file_digest(file)
    )
    check_content(artifact.path)
    assert hashed == []
    os.utime(artifact.path / "result.txt")
    check_content(artifact.path)
    assert sorted(file.name for file in hashed) == ["half.txt", "result.txt"]
    check_content(artifact.path)
    assert len(hashed) == 2


def test_a_run_waits_for_another_one_and_takes_its_artifact(tmp_path: Path) -> None:
    """The other run is another thread, whose locks are separate because it opens the files
    itself."""
    tally = tmp_path / "tally"
    stage = make(tally=str(tally))
    path = artifact_path(tmp_path, stage, json_digest(identity(stage, {})))
    notes: list[str] = []
    found: list[StageOutcome] = []

    def second() -> None:
        found.append(
            run_stage(
                stage, {}, tmp_path, lambda done, total, note="": notes.append(note), isolate=False
            )
        )

    with run_lock(path, "count", no_progress):
        thread = threading.Thread(target=second)
        thread.start()
        wait_for(lambda: bool(notes))
        # What the first run does under its lock.
        partial = path.with_name(path.name + ".partial")
        partial.mkdir()
        metrics = call_stage(f"{MODULE}:run", stage.config, {}, partial, no_progress)
        seal(partial, path, "number", {**identity(stage, {}), "metrics": metrics, "finished": ""})
    thread.join()
    assert set(notes) == {"waiting for another run, which computes the same artifact"}
    assert found[0].cached
    assert found[0].artifact.path == path
    assert tally.read_text() == "ran\n"


def test_the_end_of_a_run_ends_its_waiting(tmp_path: Path) -> None:
    stage = make()
    path = artifact_path(tmp_path, stage, json_digest(identity(stage, {})))

    def end(done: int, total: int, note: str = "") -> None:
        run_end.RUN_ENDED.set()

    try:
        with (
            run_lock(path, "count", no_progress),
            pytest.raises(HandoffError, match="stage count: stopped because its run ended"),
        ):
            run_stage(stage, {}, tmp_path, end, isolate=False)
    finally:
        run_end.RUN_ENDED.clear()


def test_stages_that_must_be_alone_are_so_on_the_whole_computer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.runner.lock.EXCLUSIVE", tmp_path / "exclusive.lock")
    alone = replace(make(), exclusive=True)
    notes: list[str] = []
    with exclusive_lock("gate", no_progress):
        assert not run_here(make(value=2), tmp_path / "other").cached
        thread = threading.Thread(
            target=run_stage,
            args=(alone, {}, tmp_path, lambda done, total, note="": notes.append(note)),
            kwargs={"isolate": False},
        )
        thread.start()
        wait_for(lambda: bool(notes))
        assert find_cached(tmp_path, alone, {}) is None
    thread.join()
    assert notes[0].startswith(
        f"waiting for a stage that must be alone, of process {os.getpid()} ("
    )
    assert find_cached(tmp_path, alone, {}) is not None


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_the_manifest_lists_packages_that_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package != "torch":
            raise PackageNotFoundError(package)
        return installed(package)

    installed = metadata.version
    monkeypatch.setattr("flows.runner.provenance.version", version)
    environment = run_here(make(), tmp_path).artifact.manifest["environment"]
    assert environment["franky-control"] == environment["gym-pusht"] == "not installed"
    assert environment["torch"] == installed("torch")


def test_plan_names_what_waits_and_what_is_cached(tmp_path: Path) -> None:
    left = make("left", 1)
    total = Stage("sum", "number", MODULE, CountingConfig(value=10), {"part": left})
    assert [(item.stage, item.action) for item in plan([left, total], tmp_path)] == [
        ("left", "run"),
        ("sum", "wait"),
    ]
    artifact = run_here(left, tmp_path).artifact
    assert [item.action for item in plan([left, total], tmp_path)] == ["cached", "run"]
    run_stage(total, {"part": artifact}, tmp_path, no_progress, isolate=False)
    assert [item.action for item in plan([left, total], tmp_path)] == ["cached", "cached"]
    changed = replace(total, config=CountingConfig(value=11))
    assert plan([left, changed], tmp_path)[1].reason == "value 10 → 11"


def test_explain_walks_back_to_the_first_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "describe", lambda stage, metrics: f"total {metrics['total']}")
    left = make("left", 2)
    source = run_here(replace(left, external={"source": "a" * 64}), tmp_path).artifact
    total = Stage("sum", "number", MODULE, CountingConfig(), {"part": left})
    final = run_stage(total, {"part": source}, tmp_path, no_progress, isolate=False).artifact
    text = lineage.explain(final.path / "result.txt", verify=True)
    assert text.splitlines()[0].startswith(f"sum (number) {final.digest[:12]}  verified")
    assert f"left (number) {source.digest[:12]}  verified" in text
    assert "sha256 aaaaaaaaaaaa" in text
    (source.path / "result.txt").write_text("3")
    with pytest.raises(HandoffError, match="edited"):
        lineage.explain(final.path, verify=True)
