"""The HTML pages in a real browser: axe-core finds nothing, on a phone neither, and nothing is wider
than the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from flows.deployment.blinded.result import figures
from flows.deployment.blinded.result_page import page as blinded_page
from flows.orchestration.serving.results_app import results_app
from flows.reports.lineage import write_page
from flows.reports.page import write_report
from robots.episodes.curation.examination import Finding
from sim.evaluation.comparison import compare_all, read_result
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.groups import compare_groups
from sim.evaluation.groups_report import write_comparison
from sim.evaluation.report import write_report as write_evaluation
from tests.accessibility import focus_faults, looks, pressed, violations
from tests.flows.deployment.blinded.played import played_out, sealed, stands
from tests.flows.deployment.test_approval import asked, asked_once
from tests.flows.gating.bundles import Run
from tests.flows.reports.test_episode_view import page as episode_page
from tests.flows.reports.test_speed import run_of
from tests.real.console.tabs import open_browser
from tests.robots.episodes.curation.test_examine_page import examination
from tests.robots.episodes.curation.test_examine_page import page as examination_page
from tests.sim.evaluation.test_evaluate import run_line
from tests.sim.evaluation.test_groups import FAST, runs

__all__ = ["asked", "asked_once"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


def run_report(folder: Path) -> Path:
    """A run with a gate, evaluations under one protocol, and policies of several speeds."""
    write_report(folder / "report.html", run_of(folder))
    return folder / "report.html"


def release_page(folder: Path) -> Path:
    run = Run(folder / "artifacts")
    run.gate()
    return run.out / "release.html"


def comparison(folder: Path) -> Path:
    results = [*runs("bc", (0.2, 0.3)), *runs("flow", (0.8, 0.9))]
    write_comparison(compare_groups(results, FAST), folder)
    return folder / "report.html"


def evaluation(folder: Path) -> Path:
    """Two agents with videos of failures and successes, and a learning curve."""
    agents = [folder / name for name in ("first", "second")]
    for agent in agents:
        agent.mkdir()
        run_line(agent, EvaluateConfig(videos=2))
    results = [read_result(agent) for agent in agents]
    steps = {results[0].name: 1000, results[1].name: 2000}
    write_evaluation(folder / "report.html", results, compare_all(results), steps=steps)
    return folder / "report.html"


def lineage(folder: Path) -> Path:
    run = Run(folder / "artifacts")
    return write_page(run.bundle, folder / "lineage.html")


def episode(folder: Path) -> Path:
    episode_page(folder, note="grasps late")
    return folder / "e.html"


def examined(folder: Path) -> Path:
    finding = Finding(
        check="stuck_camera", severity="error", episodes=(2,), fields=("camera",), sentence="Stuck."
    )
    examination_page(examination(findings=(finding,)), folder)
    return folder / "examination.html"


def blinded_comparison(folder: Path) -> Path:
    order = sealed("x", preference=True)
    attempts = played_out(order, (0.9, 0.4), seed=3)
    result = figures(order, stands(order, attempts), attempts, {0: 1, 1: None})
    (folder / "result.html").write_text("\n".join(blinded_page(result)))
    return folder / "result.html"


def check(browser: Any, address: str) -> None:
    for look in looks():
        context = browser.new_context(**look)
        page = context.new_page()
        page.goto(address)
        wide = "document.documentElement.scrollWidth"
        assert page.evaluate(wide) == look["viewport"]["width"], look
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert violations(page) == [], look
        context.close()


@pytest.mark.parametrize(
    "make",
    [
        run_report,
        release_page,
        comparison,
        evaluation,
        lineage,
        episode,
        examined,
        blinded_comparison,
    ],
)
def test_axe_finds_nothing_on_a_report(
    browser: Any, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    check(browser, make(tmp_path).resolve().as_uri())


@pytest.mark.parametrize("path", ["/", "/lab/", "/approvals"])
def test_axe_finds_nothing_on_the_index_and_on_the_page_of_approvals(
    browser: Any, asked: Path, tmp_path: Path, path: str
) -> None:
    app: Any = results_app(asked)
    page = tmp_path / "page.html"
    page.write_text(TestClient(app, base_url="http://127.0.0.1:4201").get(path).text)
    check(browser, page.resolve().as_uri())


@pytest.mark.parametrize("make", [episode, release_page])
def test_a_report_is_read_without_a_mouse(
    browser: Any, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(make(tmp_path).resolve().as_uri())
    assert focus_faults(page) == []
    assert pressed(page) == []
    context.close()
