"""A pipeline as a Prefect flow: order, cache, failure and results."""

from __future__ import annotations

import ast
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import run as runner
from flows.recipes.recipe import Recipe
from flows.runner.stage import Stage
from robots import code_version
from robots.errors import HandoffError
from robots.storage import parsed_sources
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
        monkeypatch.setattr(
            runner, "read_recipe", lambda name, overrides: Recipe(name, {}, runs=str(tmp_path))
        )
        monkeypatch.setattr(runner, "stages", lambda recipe: diamond(**options))
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


def test_run_with_everything_cached_starts_no_flow(
    pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline()
    runner.run("diamond")

    def forbidden() -> None:
        raise AssertionError("a flow was started")

    monkeypatch.setattr(runner, "make_flow", forbidden)
    summary = json.loads(runner.run("diamond").read_text())
    assert all(row["cached"] for row in summary["stages"].values())


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
