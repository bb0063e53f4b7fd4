"""The stages `examine` and `filter`: faults that are found, and episodes that are left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from robots.episodes.store import EpisodeStore
from robots.episodes.write_episodes import write_episodes
from robots.errors import HandoffError
from tests.flows.recipe_stages import run_all

RECIPE = """
name: curated
stages:
  demos: {uses: ingest, with: {data: DATA}}
  faults: {uses: examine, inputs: {demos: demos}, with: {max_errors: null}}
  good:
    uses: filter
    inputs: {demos: demos, examination: faults}
    with: {faulty: errors, min_steps: 35}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Eight episodes, of which the last one is a copy of the first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    episodes = []
    for length in (50, 40, 30, 45, 55, 40, 42):
        q = np.sin(np.linspace(0, 5, length)[:, None] + rng.uniform(0, 6, 3)).astype(np.float32)
        episodes.append({"q": q, "action": np.roll(q, -1, axis=0)})
    episodes.append(episodes[0])
    write_episodes(tmp_path / "towel.zarr", episodes, task="fold", rate_hz=10.0)
    file = tmp_path / "curated.yaml"
    file.write_text(RECIPE.replace("DATA", str(tmp_path / "towel.zarr")))
    return str(file)


def test_faulty_and_short_episodes_are_left_out(recipe: str, tmp_path: Path) -> None:
    artifacts = run_all(recipe, (), tmp_path / "runs")
    faults = artifacts["faults"]
    assert faults.manifest["metrics"]["errors"] == 1
    (finding,) = json.loads((faults.path / "examination.json").read_text())["findings"]
    assert finding["check"] == "duplicates"
    assert "Examination of" in (faults.path / "report.html").read_text()
    good = EpisodeStore.open(artifacts["good"].path / "store.zarr")
    kept = [good.metadata(number)["source_episode"] for number in range(good.num_episodes)]
    assert kept == [number for number in range(8) if number not in (2, *finding["episodes"])]
    assert artifacts["good"].manifest["metrics"]["left_out"] == {
        "exclude": len(finding["episodes"]),
        "min_steps": 1,
    }


def test_more_errors_than_accepted_fail_the_run_and_leave_the_page(
    recipe: str, tmp_path: Path
) -> None:
    with pytest.raises(HandoffError, match=r"demos: 1 error in the episodes, at most 0 accepted"):
        run_all(recipe, ("faults.max_errors=0",), tmp_path / "runs")
    assert len(list((tmp_path / "runs").rglob("report.html"))) == 1


def test_a_choice_by_faults_needs_an_examination_and_the_reverse(recipe: str) -> None:
    for overrides, message in (
        (["good.faulty=keep"], "the input examination is given, but faulty is 'keep'"),
        (["good.inputs.examination=null"], "the input examination is missing, but faulty is 'err"),
    ):
        with pytest.raises(HandoffError, match=message):
            list(stages(read_recipe(recipe, overrides), fetch=False))
