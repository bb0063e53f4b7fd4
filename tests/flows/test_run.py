"""A pipeline as a Prefect flow: order, cache, failure and results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows import run as runner
from flows.compose import compose
from flows.pipeline import PipelineConfig
from flows.stage import Stage
from robots.errors import HandoffError
from tests.flows.counting_stage import CountingConfig

MODULE = "tests.flows.counting_stage"


def number(name: str, value: int, *, fail: str = "", exclusive: bool = False, **inputs: Stage) -> Stage:
    return Stage(name, "number", MODULE, CountingConfig(value=value, fail=fail), inputs, exclusive=exclusive)


def diamond(fail: str = "") -> list[Stage]:
    top = number("top", 1)
    left, right = number("left", 10, part=top), number("right", 100, fail=fail, part=top)
    return [top, left, right, number("bottom", 0, exclusive=True, left=left, right=right)]


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_server: None):
    """Replaces the demo by a diamond of four small stages."""

    def use(**options: str) -> Path:
        monkeypatch.setattr(runner, "compose", lambda name, overrides: PipelineConfig(name=name, runs=str(tmp_path)))
        monkeypatch.setattr(runner, "stages", lambda config: diamond(**options))
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


def test_run_with_everything_cached_starts_no_flow(pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline()
    runner.run("diamond")

    def forbidden() -> None:
        raise AssertionError("a flow was started")

    monkeypatch.setattr(runner, "make_flow", forbidden)
    summary = json.loads(runner.run("diamond").read_text())
    assert all(row["cached"] for row in summary["stages"].values())


def test_failing_stage_stops_the_flow_with_its_own_words_and_keeps_the_finished(pipeline) -> None:
    root = pipeline(fail="error")
    with pytest.raises(HandoffError, match="value 3, limit 2"):
        runner.run("diamond")
    finished = {path.name.split("-")[0] for path in (root / "artifacts").iterdir() if path.is_dir() and not path.suffix}
    assert finished == {"top", "left"}
    assert not (root / "diamond" / "summary.json").exists()


def test_deployment_entrypoint_is_the_flow(prefect_server: None) -> None:
    import yaml
    from prefect.flows import load_flow_from_entrypoint

    root = Path(__file__).resolve().parents[2]
    deployments = yaml.safe_load((root / "prefect.yaml").read_text())["deployments"]
    assert {deployment["name"] for deployment in deployments} == {"demo", "pusht_best_of_n", "pusht_fr3"}
    for deployment in deployments:
        flow = load_flow_from_entrypoint(str(root / deployment["entrypoint"]))
        assert flow.name == "handoff"
        assert set(deployment["parameters"]) == set(flow.parameters.properties)
        composed = compose(deployment["parameters"]["config_name"], deployment["parameters"]["overrides"])
        assert composed.name == deployment["name"]
