"""A finished run is repeated from its resolved recipe, and every difference is found."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from flows.approve import approve_command
from flows.attended import run_in_order
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.reports.reproduce import reproduce, sources_text
from flows.reports.reproduction import metric_differences, relative_difference
from flows.reports.run_records.reading import RecordedRun, find_run, read_run
from flows.reports.run_records.record import RunRecord
from flows.runner.provenance import package_lock
from robots.code_version import module_version
from robots.errors import ApprovalNeededError, HandoffError
from tests.flows.reports.run_records.small_runs import run_sums

RECIPE = """
stages:
  numbers: {{uses: "tests.flows.reports.drawing_stages:draw", matrix: {{seed: [0, 1]}}{person}}}
  total:
    uses: "tests.flows.reports.drawing_stages:add"
    inputs: {{demos: numbers}}
    with: {{unlisted: "{unlisted}"}}
"""


APPROVED = """
stages:
  bundle: {uses: "tests.flows.approval_stages:bundle"}
  gate: {uses: "tests.flows.approval_stages:gate", inputs: {bundle: bundle}}
  approval: {uses: approve, inputs: {bundle: bundle, gate: gate}, with: {checklist: [Near.]}}
"""


def finished(tmp_path: Path, unlisted: str = "", person: str = "") -> Path:
    """Runs the recipe in this process; returns the folder of the run."""
    file = tmp_path / "sums.yaml"
    file.write_text(RECIPE.format(unlisted=unlisted, person=person))
    recipe = read_recipe(str(file), [f"runs={tmp_path / 'runs'}", "seed=5", "numbers.count=4"])
    return run_in_order(recipe, stages(recipe), isolate=False).parent


def test_the_resolved_recipe_needs_no_other_file_and_makes_the_same_stages(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    resolved = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert list(resolved["stages"]) == [
        "numbers@seed=0",
        "numbers@seed=1",
        "total@seed=0",
        "total@seed=1",
    ]
    assert resolved["stages"]["numbers@seed=1"]["with"]["seed"] == 6
    assert resolved["stages"]["total@seed=1"]["inputs"] == {"demos": "numbers@seed=1"}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["request"]["overrides"][1:] == ["seed=5", "numbers.count=4"]
    # As a recipe it makes the same artifacts, so that all of them are cached.
    again = read_recipe(str(folder / "recipe.yaml"), [f"runs={tmp_path / 'runs'}"])
    path = run_in_order(again, stages(again), isolate=False)
    rows = json.loads(path.read_text())["stages"]
    assert [row["cached"] for row in rows.values()] == [True] * 4


def test_a_deterministic_run_has_the_same_digests_again(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    result = reproduce("sums", runs=tmp_path / "runs", isolate=False)
    assert result.same
    assert result.ok
    assert result.differences == []
    assert [stage.status for stage in result.stages] == ["same"] * 4
    # The stages ran again: their artifacts lie in another folder.
    assert Path(result.folder).parent.parent == folder
    assert len(list(Path(result.folder, "artifacts").glob("[nt]*@seed=?-*"))) == 4
    assert "every repeated stage has the same digest" in result.text


@pytest.mark.parametrize(
    ("after", "status", "ok"), [("101", "close", True), ("200", "differs", False)]
)
def test_a_difference_is_bounded_by_the_tolerance(
    tmp_path: Path, after: str, status: str, ok: bool
) -> None:
    unlisted = tmp_path / "unlisted.txt"
    unlisted.write_text("100")
    folder = finished(tmp_path, str(unlisted))
    unlisted.write_text(after)
    result = reproduce(folder, tmp_path / "again", isolate=False)
    assert (result.ok, result.same) == (ok, False)
    assert [stage.status for stage in result.stages] == ["same", "same", status, status]
    assert result.stages[2].files == ["total.txt differs"]
    [metric] = result.stages[2].metrics
    assert metric.name == "total"
    assert metric.after - metric.before == pytest.approx(float(after) - 100.0)
    written = json.loads((tmp_path / "again" / "reproduction.json").read_text())
    assert written["ok"] is ok
    page = (tmp_path / "again" / "reproduction.html").read_text()
    assert "total.txt differs" in page


def test_another_environment_is_refused_and_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = finished(tmp_path)
    words = package_lock()["packages"].split()
    other = ["numpy==0.1" if word.startswith("numpy==") else word for word in words]
    lock = {"digest": "x", "packages": " ".join(other)}
    monkeypatch.setattr("flows.reports.reproduce.package_lock", lambda: lock)
    with pytest.raises(HandoffError, match=r"not the one that made it: numpy \S+ → 0.1\."):
        reproduce(folder, isolate=False)
    assert not (folder / "reproduced").exists()
    result = reproduce(folder, isolate=False, anyway=True)
    assert result.same
    assert result.text.startswith("differs  numpy ")


def test_another_code_is_refused_with_the_stages_that_it_concerns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = finished(tmp_path)
    monkeypatch.setattr(
        "flows.runner.stage_code.module_version",
        lambda module: "c" * 64 if module == "robots.errors" else module_version(module),
    )
    with pytest.raises(HandoffError, match=r"code of robots\.errors changed\."):
        reproduce(folder, isolate=False)


def test_what_a_person_did_is_used_as_it_is(tmp_path: Path) -> None:
    folder = finished(tmp_path, person=", with: {operator: {kind: console, person: ada}}")
    result = reproduce(folder, tmp_path / "again", isolate=False)
    assert [stage.status for stage in result.stages] == ["kept", "kept", "same", "same"]
    # A second repetition continues in the same folder.
    assert reproduce(folder, tmp_path / "again", isolate=False).same


def test_a_run_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    finished(tmp_path)
    with pytest.raises(HandoffError, match=r"run 'sum' does not exist; .*: sums\."):
        find_run("sum", tmp_path / "runs")


READING = """
stages:
  number: {uses: "tests.flows.reports.reading_stage", with: {file: data/number.txt}}
"""


def read_in(lab: Path, *overrides: str) -> Path:
    """Runs a stage that reads `data/number.txt`, in the present folder; returns the run's folder."""
    (lab / "data").mkdir(parents=True)
    (lab / "data" / "number.txt").write_text("7")
    file = lab / "reading.yaml"
    file.write_text(READING)
    recipe = read_recipe(str(file), ["runs=runs", *overrides])
    return (lab / run_in_order(recipe, stages(recipe), isolate=False)).parent


def test_data_is_found_from_the_folder_in_which_the_run_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = tmp_path / "lab"
    lab.mkdir()
    monkeypatch.chdir(lab)
    folder = read_in(lab)
    monkeypatch.chdir(tmp_path)
    assert reproduce(folder, Path("again"), isolate=False).same
    assert (tmp_path / "again" / "reproduction.json").exists()
    assert Path.cwd() == tmp_path


def test_data_is_found_by_the_variable_of_the_run_unless_it_is_set_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HANDOFF_DATA", "data/number.txt")
    folder = read_in(tmp_path, "number.file=''")
    monkeypatch.delenv("HANDOFF_DATA")
    assert reproduce(folder, tmp_path / "again", isolate=False).same
    assert "HANDOFF_DATA" not in os.environ
    (tmp_path / "other.txt").write_text("8")
    monkeypatch.setenv("HANDOFF_DATA", "other.txt")
    with pytest.raises(HandoffError, match=r"data 'number' .* with HANDOFF_DATA=data/number\.txt"):
        reproduce(folder, tmp_path / "third", isolate=False)
    assert not (tmp_path / "third").exists()


def test_missing_data_is_said_with_where_the_run_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = read_in(tmp_path)
    (tmp_path / "data" / "number.txt").unlink()
    place = re.escape(f"from the folder {tmp_path}")
    named = r"options of number name it: file = data/number\.txt\.$"
    with pytest.raises(HandoffError, match=f"does not exist.*{place}.*{named}"):
        reproduce(folder, isolate=False)


def test_the_place_of_demonstrations_is_named_with_its_setting(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "runs" / "demo", {"working_directory": "../.."}, {}, {})
    metrics = {"source_line": "pusht from ../shared/data"}
    manifest = {"data": {"source": "d"}, "uses": "ingest", "config": {"data": None}}
    assert sources_text(run, "demos", {**manifest, "metrics": metrics}) == (
        f"The run found it by 'pusht from ../shared/data' from the folder {tmp_path}; "
        "demos.data = None, else $HANDOFF_DATA, names it."
    )
    assert sources_text(run, "demos", {"metrics": {}}) == ""


def test_an_earlier_run_is_repeated_from_its_record(tmp_path: Path) -> None:
    folder = run_sums(tmp_path, ["numbers.count=4"])
    run_sums(tmp_path, ["numbers.count=5"])
    (file,) = read_run(folder).earlier
    result = reproduce(file, tmp_path / "again", isolate=False)
    assert result.same
    (repeated,) = (tmp_path / "again" / "artifacts").glob("numbers-*")
    assert json.loads((repeated / "artifact.json").read_text())["metrics"] == {"count": 4}


def test_stages_that_the_run_did_not_finish_are_named(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    record = json.loads((folder / "run.json").read_text())
    for name in ("total@seed=0", "total@seed=1"):
        record["stages"][name]["artifact"] = None
    (folder / "run.json").write_text(json.dumps(record))
    result = reproduce(folder, tmp_path / "again", isolate=False)
    assert [stage.name for stage in result.stages] == ["numbers@seed=0", "numbers@seed=1"]
    assert result.text.endswith("so not repeated: total@seed=0, total@seed=1.")


def test_a_run_without_a_finished_stage_is_not_repeated(tmp_path: Path) -> None:
    with RunRecord(tmp_path, "none", {}):
        pass
    with pytest.raises(HandoffError, match="no stage has finished"):
        reproduce("none", runs=tmp_path, isolate=False)


def test_an_artifact_made_from_another_one_with_the_same_content_is_repeated(
    tmp_path: Path,
) -> None:
    run_sums(tmp_path)
    # Other options of the first stage, the same numbers: the sums are cached, and were made from
    # the first run's numbers.
    folder = run_sums(tmp_path, ["numbers.operator.person=ada"])
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert recipe["stages"]["left"]["inputs"] == {"demos": "numbers"}
    assert recipe["stages"]["numbers"]["with"]["operator"]["person"] == "ada"
    assert reproduce(folder, tmp_path / "again", isolate=False).same


def test_relative_differences_refer_to_the_larger_magnitude() -> None:
    assert relative_difference(2.0, 1.0) == 0.5
    assert relative_difference(-1.0, 1.0) == 2.0
    assert relative_difference(0, 0) == 0.0
    assert relative_difference(True, 1.0) is None
    assert relative_difference(1.0, float("inf")) is None


def test_texts_are_compared_by_their_numbers() -> None:
    stopped = "stopped at robot time {} s in mode {}".format
    assert relative_difference(stopped("2.0", "Reflex"), stopped("1.0", "Reflex")) == 0.5
    assert relative_difference(stopped("1.0", "Reflex"), stopped("1.0", "Idle")) is None
    assert relative_difference("a", "b") is None
    assert relative_difference("3 of 4", "3 of 4 more") is None


@pytest.mark.parametrize(
    "name", ["steps_per_s", "steps_per_second", "cpu_seconds", "latency_p99_ms", "wall_seconds"]
)
def test_what_measures_the_computer_is_not_bounded(name: str) -> None:
    (entry,) = metric_differences({name: 1.0}, {name: 9.0})
    assert entry.measured


def test_metrics_are_compared_by_dotted_path_and_measured_ones_are_marked() -> None:
    before = {"success": {"k": 5, "n": 10}, "cpu_seconds": 1.0, "line": "a", "nan": float("nan")}
    after = {"success": {"k": 4, "n": 10}, "cpu_seconds": 4.0, "line": "b", "nan": float("nan")}
    found = [(e.name, e.relative, e.measured) for e in metric_differences(before, after)]
    assert found == [("cpu_seconds", 0.75, True), ("line", None, False), ("success.k", 0.2, False)]


def test_an_approval_is_kept_because_a_person_gave_it(tmp_path: Path) -> None:
    file = tmp_path / "approved.yaml"
    file.write_text(APPROVED)
    recipe = read_recipe(str(file), [f"runs={tmp_path / 'runs'}"])
    with pytest.raises(ApprovalNeededError):
        run_in_order(recipe, stages(recipe), isolate=False)
    approve_command(
        tmp_path / "runs" / "approved",
        by="Ada",
        reject=None,
        confirm=True,
        say=lambda line: None,
    )
    folder = run_in_order(recipe, stages(recipe), isolate=False).parent
    result = reproduce(folder, isolate=False)
    assert result.ok
    statuses = {stage.name: stage.status for stage in result.stages}
    assert statuses["bundle"] == statuses["gate"] == "same"
    assert statuses["approval"] == "kept"
