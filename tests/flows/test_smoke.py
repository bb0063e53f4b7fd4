"""The whole pipeline, small: every stage, as a deployment on a Prefect server, by the commands of
the documents, with the FCI twin; then by `handoff run`, from the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flows.reports.reproduce import reproduce
from robots.episodes.store import EpisodeStore
from tests.flows.served import PrefectServer, prefect_server_at_work
from tests.real.console.pages import until
from tests.real.console.tabs import open_browser

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).resolve().parents[2]
STAGES = [
    "demos",
    "pretrained",
    "teacher",
    "student",
    "scores@pretrained",
    "scores@teacher",
    "scores@student",
    "control",
    "reference",
    "bundle",
    "twin",
    "gate",
]
METRICS = [
    "scores@pretrained.score",
    "scores@pretrained.success",
    "scores@teacher.score",
    "scores@teacher.success",
    "scores@student.score",
    "scores@student.success",
    "control.success",
    "gate.success",
    "gate.speedup",
    "gate.parity",
    "gate.latency_p50_ms",
    "gate.latency_p99_ms",
    "twin.realtime_factor",
    "twin.lost_packets",
    "twin.coverage",
    "prefect_share",
    "peak_memory_gb",
    "total_seconds",
]
HOST = "twin.table.twin.host=127.0.77.1"


def handoff(*arguments: str, home: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PREFECT_HOME": str(home / "prefect"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "flows", *arguments]
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    if check:
        assert result.returncode == 0, result.stderr[-3000:]
    return result


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A server as `handoff server` starts it, in a folder of its own, with the demonstrations that
    commands in the checkout find."""
    shared = ROOT.parent / "shared" / "data"
    found = {"HANDOFF_DATA": str(shared)} if shared.is_dir() else {}
    variables = {**found, **{k: v for k, v in os.environ.items() if k == "HANDOFF_DATA"}}
    with prefect_server_at_work(tmp_path_factory.mktemp("lab"), variables=variables) as server:
        yield server


@pytest.fixture(scope="module")
def runs(served: PrefectServer) -> Path:
    """The runs folder after the documented command for a deployment of `smoke`."""
    overrides = json.dumps([HOST])
    served.prefect(
        "deployment", "run", "handoff/smoke", "--watch", "--param", f"overrides={overrides}"
    )
    return served.folder / "runs"


@pytest.fixture(scope="module")
def summary(runs: Path) -> dict:
    return json.loads((runs / "smoke" / "summary.json").read_text())


def test_every_stage_ran_and_every_metric_is_there(summary: dict) -> None:
    assert list(summary["stages"]) == STAGES
    assert {row["status"] for row in summary["stages"].values()} == {"done"}
    assert [name for name in METRICS if summary["metrics"].get(name) is None] == []


def test_source_of_the_demonstrations_is_named(summary: dict) -> None:
    assert "human demonstrations" in summary["source"]


def test_onnx_agrees_with_torch_and_no_packet_is_lost(summary: dict) -> None:
    assert summary["metrics"]["gate.parity"] <= 1e-5
    assert summary["metrics"]["twin.lost_packets"] == 0
    assert summary["metrics"]["twin.command_success_rate"] == 1.0


def test_deployment_is_recorded_as_episodes(runs: Path) -> None:
    store = EpisodeStore.open(runs / "smoke" / "twin" / "store.zarr")
    assert store.num_episodes == 2
    robot, policy = store.read(0, "robot"), store.read(0, "policy")
    assert len(policy["action"]) == 20
    assert len(robot["q"]) == 1999, (
        "20 policy steps of 100 ms; the client's newest state is one tick behind the environment"
    )
    assert np.abs(np.diff(robot["time"]) - 1e-3).max() < 1e-9
    assert np.isfinite(robot["tau_J_d"]).all()
    assert np.abs(robot["tau_J_d"]).max() > 0.01


def test_report_links_only_files_that_exist(runs: Path) -> None:
    import re

    folder = runs / "smoke"
    sources = re.findall(r"src='([^'#]+)", (folder / "report.html").read_text())
    assert len(sources) >= 6
    page = (folder / "report.html").read_text()
    first_tile = re.search(r"<div class='tile'><b>(.*?)</b>(.*?)</div>", page)
    assert first_tile is not None
    assert first_tile.groups() == ("0 of 4", "gate: success")
    # A run as short as this one is released for simulated arms only.
    assert "released for simulated arms only" in page
    assert "href='gate/release.html'" in page
    assert [source for source in sources if not (folder / source).is_file()] == []


def test_the_run_is_to_be_seen_in_a_browser_with_names_results_and_report(
    served: PrefectServer, runs: Path, summary: dict
) -> None:
    demos = summary["stages"]["demos"]["metrics"]
    (run,) = served.flow_runs()
    assert (run.name, run.state_name) == (f"smoke {HOST}", "Completed")
    assert set(run.tags) == {"smoke", "gym_pusht/PushT-v0"}
    with open_browser() as browser:
        page = browser.new_page()
        page.goto(f"{served.address}/runs/flow-run/{run.id}")
        page.get_by_text("Completed").first.wait_for()
        page.get_by_text(f"smoke {HOST}").first.wait_for()
        # What the stages logged.
        logged = f"{demos['episodes']} episodes, {demos['frames']:,} frames"
        page.get_by_text(logged).first.wait_for()
        page.locator("#task-runs").click()
        for name in STAGES:
            page.get_by_text(name, exact=True).first.wait_for()
        page.locator("#artifacts").click()
        page.get_by_text("stages", exact=True).first.wait_for()
        # The served report, with its pictures.
        page.goto(f"{served.results}/smoke/report.html")
        # They are loaded when they come into view.
        page.evaluate("for (const image of document.images) image.loading = 'eager'")
        # Nothing in a served file may evaluate text as a program, so the test asks from outside.
        until(lambda: page.evaluate("[...document.images].every(one => one.naturalWidth > 0)"))
        assert page.evaluate("document.images.length") >= 3


def test_a_stage_reports_its_result_its_progress_and_its_pictures(
    served: PrefectServer, runs: Path
) -> None:
    pages = served.artifacts()
    assert set(pages) >= {"stages", "report", "gate", "scores-student"}
    assert any(name.endswith("-progress") for name in pages), "of the stages that take seconds"
    assert "| parity |" in pages["gate"]
    assert f"]({served.results}/artifacts/gate-" in pages["gate"]
    assert pages["report"] == f"[report]({served.results}/smoke/report.html)"
    assert [row["stage"] for row in json.loads(pages["stages"])] == STAGES


def test_second_run_is_all_cached(runs: Path, summary: dict) -> None:
    handoff("run", "smoke", f"runs={runs}", HOST, home=runs)
    again = json.loads((runs / "smoke" / "summary.json").read_text())
    assert all(row["cached"] for row in again["stages"].values())
    assert {name: row["digest"] for name, row in again["stages"].items()} == {
        name: row["digest"] for name, row in summary["stages"].items()
    }


def test_explain_reaches_the_demonstrations(runs: Path) -> None:
    text = handoff("explain", str(runs / "smoke" / "gate"), "--verify", home=runs).stdout
    assert [
        f"{name} (" in text for name in ("twin", "gate", "bundle", "student", "teacher", "demos")
    ] == [True] * 6
    assert "sha256" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "demo", "teacher.trainning.steps=3"], "unknown key 'teacher.trainning'"),
        (["run", "demo", "demos.data=nowhere.zip"], "nowhere.zip"),
        (["run", "nothing"], "recipe 'nothing' does not exist"),
        (["explain", "nowhere"], "nowhere does not exist"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    result = handoff(*arguments, home=tmp_path, check=False)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.nightly
def test_failing_gate_stops_the_flow(runs: Path) -> None:
    overrides = [
        f"runs={runs}",
        "name=gated",
        HOST,
        "gate.min_speedup=1e6",
    ]
    result = handoff("run", "smoke", *overrides, home=runs, check=False)
    assert result.returncode == 1
    assert "was not released" in result.stderr
    finished = json.loads((runs / "gated" / "summary.json").read_text())["stages"]
    assert set(STAGES) - set(finished) == {"gate"}
    (failed,) = (runs / "artifacts").glob("gate-*.partial")
    assert "Not released" in (failed / "release.html").read_text()


@pytest.mark.nightly
def test_a_repetition_gives_the_same_digests(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another folder, and in this process instead of one per stage."""
    # The demonstrations are looked for from the folder in which the run was started.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    result = reproduce("smoke", tmp_path / "again", runs=runs, isolate=False)
    differing = {stage.name: stage.files for stage in result.stages if stage.status != "same"}
    assert differing == {}
