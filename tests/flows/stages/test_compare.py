"""Evaluations of a recipe are grouped by the names of their stages."""

from __future__ import annotations

import pytest

from flows.reports.results import describe
from flows.runner.artifact import Artifact
from flows.stages.release import compare
from robots.errors import HandoffError
from sim.evaluation.groups import CompareConfig
from tests.flows.recipe_stages import declared, run_all

SHORT = (
    "demos.episodes=4",
    "imitator.training.steps=3",
    "imitator.policy.hidden=[8]",
    "shared.protocol.episodes=3",
    "shared.protocol.max_steps=4",
    "comparison.permutations=200",
)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return run_all("smoke_compare", SHORT, tmp_path_factory.mktemp("runs"))["comparison"]


def test_copies_that_differ_in_their_seed_are_one_group(comparison: Artifact) -> None:
    metrics = comparison.manifest["metrics"]
    assert [group["name"] for group in metrics["groups"]] == [
        "scores@policy.hidden=narrow",
        "scores@policy.hidden=wide",
    ]
    assert [len(group["means"]) for group in metrics["groups"]] == [3, 3]
    assert metrics["groups"][0]["evaluations"][1] == "scores@policy.hidden=narrow,seed=1"


def test_no_policy_solves_anything_so_nothing_is_significant(comparison: Artifact) -> None:
    metrics = comparison.manifest["metrics"]
    assert metrics["adastop"]["decisions"] == []
    assert describe("compare", metrics) == "no significant difference"
    assert (comparison.path / "groups.svg").stat().st_size > 1000
    page = (comparison.path / "report.html").read_text()
    assert "scores@policy.hidden=wide,seed=2" in page


def test_the_page_links_to_the_reports_of_the_evaluations(comparison: Artifact) -> None:
    page = (comparison.path / "report.html").read_text()
    links = [part.split("'")[0] for part in page.split("<a href='")[1:]]
    assert len(links) == 6
    assert all((comparison.path / link).is_file() for link in links)


def test_one_evaluation_is_refused_by_plan() -> None:
    with pytest.raises(HandoffError, match="1 evaluation, expected two or more"):
        compare.check(CompareConfig(), {"evaluations": (None,)})
    one = "comparison.inputs.evaluations=['scores@policy.hidden=wide,seed=0']"
    with pytest.raises(HandoffError, match="1 evaluation, expected two or more"):
        declared("smoke_compare", [one])


def test_decisions_and_differences_are_told_in_a_phrase() -> None:
    decided = {"better": "b", "worse": "a", "difference": 0.25, "evaluations": 5}
    assert describe("compare", {"adastop": {"decisions": [decided]}}) == "b > a (+0.250)"
    paired = {"differences": [{"group": "b", "mean": 0.2, "low": 0.1, "high": 0.3}]}
    assert describe("compare", paired) == "b +0.200 [+0.100, +0.300]"


def test_names_are_those_of_the_stages_without_the_digests_of_their_folders(
    comparison: Artifact,
) -> None:
    names = [
        name for group in comparison.manifest["metrics"]["groups"] for name in group["evaluations"]
    ]
    assert len(names) == 6
    assert not any("-" in name for name in names)
