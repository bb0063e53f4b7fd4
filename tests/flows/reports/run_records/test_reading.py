"""Runs are found by name, folder, file and history, and paths in a record hold elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.reports.run_records.places import read_path, written_folder, written_path
from flows.reports.run_records.reading import find_run, is_run, read_run
from robots.code_version import ROOT
from robots.errors import HandoffError
from tests.flows.reports.run_records.small_runs import run_sums


def test_a_run_is_found_by_its_name_its_folder_and_its_files(tmp_path: Path) -> None:
    folder = run_sums(tmp_path)
    for given in ("sums", folder, folder / "run.json", folder / "summary.json"):
        found = read_run(given, tmp_path / "runs")
        assert found.folder == folder
        assert list(found.artifacts) == ["numbers", "left", "right"]
        assert found.present == found.artifacts


def test_an_earlier_run_is_read_from_the_history(tmp_path: Path) -> None:
    folder = run_sums(tmp_path, ["numbers.count=4"])
    run_sums(tmp_path, ["numbers.count=5"])
    (file,) = read_run(folder).earlier
    earlier = read_run(file)
    assert earlier.folder == folder
    assert earlier.request["overrides"][1:] == ["numbers.count=4"]
    assert earlier.artifacts["left"] != read_run(folder).artifacts["left"]


def test_a_run_of_an_older_version_is_read_from_its_summary(tmp_path: Path) -> None:
    folder = run_sums(tmp_path)
    artifacts = read_run(folder).artifacts
    (folder / "run.json").unlink()
    found = read_run(folder)
    assert found.record == {}
    assert found.working_directory is None
    assert found.artifacts == artifacts
    assert found.request["recipe"] == str(tmp_path / "sums.yaml")


def test_an_artifact_is_no_run(tmp_path: Path) -> None:
    folder = run_sums(tmp_path)
    assert is_run(folder)
    assert is_run(folder / "run.json")
    assert not is_run(folder / "left")
    assert not is_run(folder / "report.html")
    assert not is_run(tmp_path / "runs" / "artifacts")


def test_a_moved_folder_of_runs_keeps_its_artifacts(tmp_path: Path) -> None:
    run_sums(tmp_path)
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    found = read_run("sums", tmp_path / "elsewhere")
    assert len(found.present) == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"stages": 3}'])
def test_an_edited_record_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(HandoffError, match=r"run\.json.*(edited|expected a map)"):
        read_run(tmp_path)


def test_a_run_that_has_not_finished_any_stage_has_no_summary_to_find(tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text("{}")
    assert find_run("begun", tmp_path) == tmp_path / "begun"
    with pytest.raises(HandoffError, match="run 'begun' does not exist"):
        find_run("begun", tmp_path, files=("summary.json",))


def test_paths_are_relative_where_they_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    here = tmp_path / "home" / "lab"
    assert written_folder(here, here / "runs" / "demo") == "../.."
    assert written_folder(here, tmp_path / "scratch") == "~/lab"
    assert written_path(here / "a.yaml", here) == "a.yaml"
    assert written_path(ROOT / "configs" / "demo.yaml", here) == "configs/demo.yaml"
    assert written_path(tmp_path / "home" / "data", here) == "~/data"
    assert written_path(tmp_path / "data", here) == str(tmp_path / "data")


def test_a_written_path_is_read_back(tmp_path: Path) -> None:
    assert read_path("../..", tmp_path / "runs" / "demo") == tmp_path
    assert read_path("/data", tmp_path) == Path("/data")
    assert read_path("~/data", tmp_path) == Path.home() / "data"
    assert read_path("configs/demo.yaml", tmp_path) == ROOT / "configs" / "demo.yaml"
