"""A pipeline as a Prefect flow: order, cache, failure and results."""

from __future__ import annotations

import ast
import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import run as runner
from flows.orchestration import recipe_run
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.display import Display
from flows.runner.stage import Stage, partial_path, run_stage
from flows.storage.shared_runs import Runs
from robots import code_version
from robots.errors import HandoffError
from robots.storage import parsed_sources
from tests.flows.conftest import use_stages
from tests.flows.counting_stage import CountingConfig

MODULE = "tests.flows.counting_stage"


def number(
    name: str, value: int, *, fail: str = "", exclusive: bool = False, **inputs: Stage
) -> Stage:
    return Stage(
        name, "number", MODULE, CountingConfig(value=value, fail=fail), inputs, exclusive=exclusive
    )


def diamond(fail: str = "") -> list[Stage]:
    top = number("top", 1)
    left, right = number("left", 10, part=top), number("right", 100, fail=fail, part=top)
    return [top, left, right, number("bottom", 0, exclusive=True, left=left, right=right)]


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_server: str):
    """Replaces the demo by a diamond of four small stages."""

    def use(**options: str) -> Path:
        use_stages(monkeypatch, tmp_path, diamond(**options))
        return tmp_path

    return use


def test_flow_runs_every_stage_and_writes_the_results(pipeline) -> None:
    root = pipeline()
    path = runner.run("diamond")
    summary = json.loads(path.read_text())
    assert path == root / "diamond" / "summary.json"
    assert summary["stages"]["bottom"]["metrics"]["total"] == 112
    assert {name: row["cached"] for name, row in summary["stages"].items()} == dict.fromkeys(
        ("top", "left", "right", "bottom"), False
    )
    assert 0 < summary["metrics"]["prefect_share"] < 1
    assert summary["metrics"]["peak_memory_gb"] > 0.05
    assert (root / "diamond" / "bottom" / "result.txt").read_text() == "112"
    assert "bottom" in (root / "diamond" / "report.html").read_text()
    record = json.loads((root / "diamond" / "run.json").read_text())
    assert record["state"] == "finished"
    assert record["prefect"]["parameters"]["recipe"] == "diamond"
    digests = {name: entry["digest"] for name, entry in record["stages"].items()}
    assert digests == {name: row["digest"] for name, row in summary["stages"].items()}


def test_stages_that_are_not_cached_are_announced_before_they_run(pipeline) -> None:
    root, announced = pipeline(), []

    def announce(pending) -> None:
        assert not (root / "diamond").exists() or announced
        announced.append([stage.name for stage in pending])

    runner.run("diamond", announce=announce)
    runner.run("diamond", announce=announce)
    runner.run("diamond", redo=["right"], announce=announce)
    assert announced == [["top", "left", "right", "bottom"], ["right"]]


def test_run_with_everything_cached_starts_no_flow(
    pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pipeline()
    runner.run("diamond")

    def forbidden() -> None:
        raise AssertionError("a flow was started")

    monkeypatch.setattr(runner, "make_flow", forbidden)
    summary = json.loads(runner.run("diamond").read_text())
    assert all(row["cached"] for row in summary["stages"].values())
    record = json.loads((root / "diamond" / "run.json").read_text())
    assert (record["state"], record["prefect"]) == ("finished", None)
    assert [entry["cached"] for entry in record["stages"].values()] == [True] * 4
    assert len(list((root / "diamond" / "history").glob("*.json"))) == 1


def test_failing_stage_stops_the_flow_with_its_message_and_keeps_the_finished(pipeline) -> None:
    root = pipeline(fail="error")
    with pytest.raises(HandoffError, match="value 3, limit 2"):
        runner.run("diamond")
    finished = {
        path.name.split("-")[0]
        for path in (root / "artifacts").iterdir()
        if path.is_dir() and not path.suffix
    }
    assert finished == {"top", "left"}
    summary = json.loads((root / "diamond" / "summary.json").read_text())
    assert set(summary["stages"]) == {"top", "left"}
    assert (root / "diamond" / "left" / "result.txt").exists()
    record = json.loads((root / "diamond" / "run.json").read_text())
    assert record["state"] == "failed"
    assert "value 3, limit 2" in record["reason"]
    assert record["stages"]["right"]["artifact"] is None
    assert record["stages"]["right"]["options"]["fail"] == "error"
    assert record["stages"]["left"]["artifact"].startswith("../artifacts/left-")


@pytest.mark.parametrize("prefect", [True, False])
def test_a_stage_of_the_pool_ray_is_sent_there_with_and_without_prefect(
    prefect: bool, tmp_path: Path, prefect_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = number("here", 1)
    there = replace(number("there", 10, part=here), pool="ray")
    use_stages(monkeypatch, tmp_path, [here, there, number("last", 100, part=there)])
    sent: list[str] = []

    def cluster(stage: Stage, inputs, runs, progress, *, redo: bool):
        sent.append(f"{stage.name} again" if redo else stage.name)
        return run_stage(stage, inputs, runs.folder, progress, isolate=False, redo=redo)

    checked: list[list[str]] = []
    monkeypatch.setattr(
        recipe_run, "check_cluster", lambda found: checked.append([each.name for each in found])
    )
    monkeypatch.setattr(recipe_run, "run_on_ray", cluster)
    if not prefect:
        monkeypatch.setattr(runner, "check_prefect", lambda: "it is not asked for")
    rows = json.loads(runner.run("sent").read_text())["stages"]
    assert rows["last"]["metrics"]["total"] == 111
    runner.run("sent", redo=["last"])
    runner.run("sent", redo=["there"])
    # Where its artifact is cached, no cluster is needed, unless it is computed again.
    assert (sent, checked) == (["there", "there again"], [["there"], [], []])


def test_stages_run_without_prefect_where_it_cannot_keep_its_database(
    pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = pipeline()
    monkeypatch.setattr(runner, "check_prefect", lambda: "its folder /nowhere cannot be written")

    def forbidden() -> None:
        raise AssertionError("a flow was started")

    monkeypatch.setattr(runner, "make_flow", forbidden)
    summary = json.loads(runner.run("diamond").read_text())
    assert summary["stages"]["bottom"]["metrics"]["total"] == 112
    assert "prefect_share" not in summary["metrics"]
    assert "without Prefect: its folder /nowhere" in capsys.readouterr().err
    assert (root / "diamond" / "report.html").exists()


def test_a_configured_server_that_does_not_answer_is_named(
    pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    root = pipeline()
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(HandoffError, match=r"server at http://127\.0\.0\.1:9/api does not answer"),
    ):
        runner.run("diamond")
    assert not (root / "artifacts").exists()


def test_an_unknown_stage_to_compute_again_is_refused(pipeline) -> None:
    pipeline()
    with pytest.raises(HandoffError, match="no stage 'botom', did you mean 'bottom'"):
        runner.run("diamond", redo=["botom"])


def test_a_stage_is_computed_again_on_request_and_equal_results_stay_cached(pipeline) -> None:
    root = pipeline()
    runner.run("diamond")
    before = (root / "diamond" / "left").resolve()
    old = (before / "result.txt").stat().st_ino
    summary = json.loads(runner.run("diamond", redo=["left"]).read_text())
    assert {name: row["cached"] for name, row in summary["stages"].items()} == {
        "top": True,
        "left": False,
        "right": True,
        "bottom": True,
    }
    assert (root / "diamond" / "left").resolve() == before
    assert (before / "result.txt").stat().st_ino != old


def test_a_dead_stage_is_started_again_and_resumes(pipeline, tmp_path: Path) -> None:
    """Its process ends at the first attempt only."""
    root = pipeline(fail="exit once")
    summary = json.loads(runner.run("diamond").read_text())
    assert summary["stages"]["right"]["metrics"] == {"total": 101, "resumed": True}
    assert (root / "diamond" / "bottom" / "result.txt").read_text() == "112"


def test_no_two_threads_read_code_at_the_same_time(
    pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 sometimes fails when they do, and stages start in threads."""
    root = pipeline()
    readers: set[int] = set()
    parse = ast.parse

    def watched(source: bytes) -> ast.Module:
        readers.add(threading.get_ident())
        return parse(source)

    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    monkeypatch.setattr(parsed_sources, "ast", SimpleNamespace(**{**vars(ast), "parse": watched}))
    for cached in (
        code_version.code_version,
        code_version._imports,
        code_version._file_version,
        code_version._sources,
    ):
        cached.cache_clear()
    runner.make_flow()("diamond")
    assert readers == {threading.get_ident()}


def test_a_folder_that_cannot_be_written_is_refused_before_prefect_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(debug: bool) -> None:
        raise AssertionError("Prefect was started")

    monkeypatch.setattr(runner, "prepare_prefect", started)
    with pytest.raises(HandoffError, match=r"^runs=/proc/x: cannot be written: "):
        runner.run("smoke", ["runs=/proc/x"])


def test_data_that_stand_in_for_the_published_ones_are_named_when_the_stage_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HANDOFF_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    demos = stages(read_recipe("smoke", ["demos.max_episodes=1"]), fetch=False)[0]
    for _ in range(2):
        with Display() as display:
            recipe_run.run_shown(demos, {}, Runs(tmp_path), display, isolate=False)
        shown = capsys.readouterr().err
        (line,) = [line for line in shown.splitlines() if line.startswith("! demos")]
        assert "Handoff's own small state-only rollouts" in line


def test_a_stage_says_that_it_goes_on_with_an_interrupted_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage("count", "number", "tests.flows.counting_stage", CountingConfig(value=1))
    partial_path(tmp_path, stage, {}).mkdir(parents=True)
    for begun in (True, False):
        with Display() as display:
            recipe_run.run_shown(stage, {}, Runs(tmp_path), display, isolate=False)
        first = capsys.readouterr().err.splitlines()[0]
        assert first == "▸ count" + ("  an interrupted attempt was found" if begun else "")


@pytest.mark.parametrize("columns", ["60", "80", "160"])
def test_a_narrow_terminal_cuts_notes_and_no_numbers(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", columns), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    with Display() as display:
        display.started("scores@pretrained")(1246, 20000, "loss 0.0755, gradient [0.391] " * 3)
    shown = capsys.readouterr().err
    assert "1246/20000" in shown
    assert "0:00:00" in shown
    assert ("[0.391]" in shown) == (columns == "160")
