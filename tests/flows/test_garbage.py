"""What no run refers to is deleted, after a line that names it; everything else stays."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from flows import garbage
from flows.commands.app import main
from flows.garbage import collect
from flows.reports.summary import place_link
from flows.runner.artifact import Artifact, load_artifact
from flows.runner.lock import free_locks
from flows.runner.stage import Stage, run_stage
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.storage.durable import remove_tree, temporary_beside
from tests.flows import recording_stage
from tests.flows.counting_stage import CountingConfig
from tests.flows.recording_stage import OperatorConfig, RecordingConfig

MODULE = "tests.flows.counting_stage"


def made(root: Path, name: str, value: int, days: float = 30.0, **inputs: Artifact) -> Artifact:
    """An artifact that was finished some days ago."""
    above = {key: Stage(key, "number", MODULE, CountingConfig()) for key in inputs}
    stage = Stage(name, "number", MODULE, CountingConfig(value=value), above)
    artifact = run_stage(stage, inputs, root, no_progress, isolate=False).artifact
    aged(artifact.path, days)
    return artifact


def aged(folder: Path, days: float) -> None:
    """Sets the times of a folder and its files to some days ago."""
    then = time.time() - days * garbage.DAY
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))


def collected(root: Path, **options: float) -> list[str]:
    """Lines that the collection prints."""
    lines: list[str] = []
    collect(root, lines.append, **{"older_than": 7.0, **options})  # type: ignore[arg-type]
    return lines


def names(root: Path) -> set[str]:
    return {path.name for path in (root / "artifacts").iterdir() if path.is_dir()}


def test_an_artifact_that_no_run_links_to_is_deleted_and_named(tmp_path: Path) -> None:
    top = made(tmp_path, "top", 1)
    linked = made(tmp_path, "sum", 2, part=top)
    old = made(tmp_path, "sum", 3, part=top)
    (tmp_path / "demo").mkdir()
    place_link(tmp_path / "demo" / "sum", linked.path)
    [first, last] = collected(tmp_path)
    assert first == (
        f"delete  {old.path.name}  {megabytes(linked.path)} MB, 30 days old: no run refers to it"
    )
    assert last == f"1 folder deleted, {megabytes(linked.path)} MB"
    # The input of the linked artifact is not linked itself, and is part of its lineage.
    assert names(tmp_path) == {top.path.name, linked.path.name}
    load_artifact(linked.path)


def megabytes(folder: Path) -> str:
    return f"{sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f}"


def test_a_dry_run_names_and_deletes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = made(tmp_path, "sum", 3)
    assert main(["gc", "--runs", str(tmp_path), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert f"unused  {old.path.name}" in out
    assert "1 folder would be deleted" in out
    load_artifact(old.path)
    assert main(["gc", "--runs", str(tmp_path)]) == 0
    assert not old.path.exists()


def test_an_artifact_that_a_summary_names_is_kept_without_its_link(tmp_path: Path) -> None:
    named = made(tmp_path, "sum", 1)
    folder = tmp_path / "hil" / "reach"
    folder.mkdir(parents=True)
    rows = {"sum": {"artifact": f"artifacts/{named.path.name}"}}
    (folder / "summary.json").write_text(json.dumps({"stages": rows}))
    assert collected(tmp_path) == ["0 folders deleted, 0.0 MB"]
    load_artifact(named.path)


def test_the_link_of_a_repetition_keeps_an_artifact(tmp_path: Path) -> None:
    kept = made(tmp_path, "sum", 1)
    folder = tmp_path / "demo" / "reproduced" / "20261125-120000" / "artifacts"
    folder.mkdir(parents=True)
    (folder / kept.path.name).symlink_to(kept.path)
    assert collected(tmp_path) == ["0 folders deleted, 0.0 MB"]


def test_age_and_number_bound_what_is_deleted(tmp_path: Path) -> None:
    ages = {1: 3.0, 2: 10.0, 3: 20.0, 4: 40.0}
    paths = {value: made(tmp_path, "sum", value, days).path for value, days in ages.items()}
    collected(tmp_path, older_than=30.0)
    assert names(tmp_path) == {paths[value].name for value in (1, 2, 3)}
    collected(tmp_path, older_than=0.0, keep_last=2)
    assert names(tmp_path) == {paths[value].name for value in (1, 2)}
    collected(tmp_path)
    assert names(tmp_path) == {paths[1].name}


def test_an_abandoned_partial_folder_is_deleted_unless_it_is_young(tmp_path: Path) -> None:
    for value, days in ((1, 30.0), (2, 1.0)):
        partial = tmp_path / "artifacts" / f"top-00000000000{value}.partial"
        partial.mkdir(parents=True)
        (partial / "half.txt").write_text("half")
        aged(partial, days)
    lines = collected(tmp_path)
    assert lines[0].endswith("30 days old: a stage was interrupted")
    assert names(tmp_path) == {"top-000000000002.partial"}


def test_what_a_run_is_writing_and_may_use_is_kept(tmp_path: Path) -> None:
    finished = made(tmp_path, "sum", 1)
    busy = tmp_path / "artifacts" / "top-000000000001"
    partial = busy.with_name(busy.name + ".partial")
    left = tmp_path / "artifacts" / "top-000000000002.partial"
    for folder in (partial, left):
        folder.mkdir()
        aged(folder, 30.0)
    with free_locks(busy) as free:
        assert free
        lines = collected(tmp_path)
    assert lines[0] == (
        f"kept    all finished artifacts: a run computes {busy.name} and may use them"
    )
    assert f"kept    {partial.name}: a run is writing it" in lines
    assert names(tmp_path) == {finished.path.name, partial.name}
    collected(tmp_path)
    assert names(tmp_path) == set()


def test_read_only_artifacts_are_deleted_and_an_interrupted_deletion_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = made(tmp_path, "sum", 1)
    (old.path / "result.txt").chmod(0o400)
    old.path.chmod(0o500)

    def killed(root: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(garbage, "remove_tree", killed)
        with pytest.raises(KeyboardInterrupt):
            collected(tmp_path)
    # Nothing looks like an artifact that has lost files.
    assert names(tmp_path) == {f".{old.path.name}.deleting"}
    assert garbage.remove_tree is remove_tree
    assert "a deletion was interrupted" in collected(tmp_path)[0]
    assert names(tmp_path) == set()


def test_a_folder_without_artifacts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="is not a folder of runs: it has no folder 'artifacts'"):
        collected(tmp_path)


def test_an_unreadable_summary_keeps_no_artifact_and_stops_nothing(tmp_path: Path) -> None:
    made(tmp_path, "sum", 1)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "summary.json").write_text("{")
    assert len(collected(tmp_path)) == 2


def temporary(path: Path, days: float) -> Path:
    """What a killed writer left of a file."""
    left = temporary_beside(path)
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"\0" * 200_000)
    aged(left, days)
    return left


def test_temporary_files_of_killed_writers_are_deleted_unless_young_or_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    (runs / "artifacts").mkdir(parents=True)
    page = temporary(runs / "demo" / "report.html", 30.0)
    download = temporary(tmp_path / "cache" / "handoff" / "pusht.zip", 30.0)
    young = temporary(runs / "demo" / "summary.json", 0.5)
    held = temporary(runs / "demo" / "resolved.yaml", 30.0)
    of_a_stage = temporary(runs / "artifacts" / "top-000000000001.partial" / "model", 3.0)
    with held.open():
        lines = collected(runs, dry_run=True, older_than=0.0)
        assert lines[1:] == [
            f"unused  {download.name}  0.2 MB, 30 days old: a writer was killed",
            f"unused  {page.name}  0.2 MB, 30 days old: a writer was killed",
            "1 folder and 2 temporary files would be deleted, 0.6 MB",
        ]
        assert page.exists()
        collected(runs)
    assert [left.exists() for left in (page, download, young, held, of_a_stage)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_the_imports_of_an_abandoned_stage_go_with_its_folder(tmp_path: Path) -> None:
    partial = tmp_path / "artifacts" / "top-000000000001.partial"
    partial.mkdir(parents=True)
    imports = tmp_path / "artifacts" / ".top-000000000001.imports"
    imports.write_text("")
    aged(partial, 30.0)
    collected(tmp_path)
    assert not partial.exists()
    assert not imports.exists()


def recording(root: Path, episodes: int = 2, kind: str = "keyboard") -> Path:
    """An old recording that no run refers to."""
    config = RecordingConfig(episodes=episodes, operator=OperatorConfig(kind=kind))
    stage = Stage("demos", "episodes", "tests.flows.recording_stage", config, grows="episodes")
    path = run_stage(stage, {}, root, no_progress, isolate=False).artifact.path
    aged(path, 30.0)
    return path


def test_what_a_person_recorded_is_kept_and_named(tmp_path: Path) -> None:
    path = recording(tmp_path)
    lines = collected(tmp_path)
    assert lines[0] == (
        f"kept    {path.name}: recorded by a person; gc --recording {path.name} deletes it"
    )
    assert names(tmp_path) == {path.name}


def test_what_a_simulated_operator_recorded_is_deleted(tmp_path: Path) -> None:
    recording(tmp_path, kind="simulated")
    collected(tmp_path)
    assert names(tmp_path) == set()


def test_an_interrupted_recording_of_a_person_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_stage, "STOP_AT", [1])
    with pytest.raises(HandoffError, match="stopped by the person"):
        recording(tmp_path)
    (partial,) = (tmp_path / "artifacts").glob("*.partial")
    aged(partial, 30.0)
    collected(tmp_path)
    assert (partial / "lines.txt").read_text() == "episode 0"
    collect(tmp_path, lambda line: None, older_than=7.0, recordings=[partial.name])
    assert names(tmp_path) == set()
    assert list((tmp_path / "artifacts").glob(".*.person")) == []


def test_a_recording_is_deleted_by_its_name(tmp_path: Path) -> None:
    path = recording(tmp_path)
    other = recording(tmp_path, kind="console")
    arguments = ["gc", "--runs", str(tmp_path), "--recording"]
    assert main([*arguments, "demos-000000000000"]) == 1
    assert names(tmp_path) == {path.name, other.name}
    assert main([*arguments, path.name]) == 0
    assert names(tmp_path) == {other.name}
