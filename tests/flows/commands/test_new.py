"""`handoff new` writes files that run as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from flows.__main__ import main
from flows.attended import run_in_order
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.outside_code import outside_code
from robots import code_version as versions
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from sim.make import find_task
from tests.sim.tasks.episodes import expert_episodes, random_episodes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, outside the checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_new_recipe_runs_as_it_is(folder: Path) -> None:
    assert main(["new", "recipe", "my_recipe"]) == 0
    short = [
        "teacher.training.steps=20",
        "shared.protocol.episodes=2",
        "shared.protocol.max_steps=4",
    ]
    recipe = read_recipe("my_recipe.yaml", short)
    path = run_in_order(recipe, stages(recipe), isolate=False)
    ran = json.loads(path.read_text())["stages"]
    assert list(ran) == ["demos", "teacher", "scores"]
    assert ran["demos"]["metrics"]["episodes"] == 12
    assert ran["scores"]["metrics"]["success"]["n"] == 2


def test_new_recipe_can_be_planned_with_its_matrix(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["new", "recipe", "my_recipe"])
    file = folder / "my_recipe.yaml"
    file.write_text(file.read_text().replace("    # matrix:", "    matrix:"))
    assert main(["plan", "my_recipe.yaml"]) == 0
    shown = capsys.readouterr().out
    for copy in ("teacher@seed=0", "teacher@seed=1", "scores@seed=1"):
        assert copy in shown


def test_new_stage_filters_the_episodes_of_a_recipe(folder: Path) -> None:
    assert main(["new", "stage", "written_stage"]) == 0
    (folder / "filtered.yaml").write_text(
        "stages:\n"
        "  demos: {uses: scripted, with: {task: reach, episodes: 6}}\n"
        "  short: {uses: 'written_stage:run', inputs: {demos: demos}}\n"
    )
    run_in_order(recipe := read_recipe("filtered.yaml"), stages(recipe), isolate=False)
    source = EpisodeStore.open(Path("runs/filtered/demos/store.zarr"))
    seconds = np.diff(source.ends("policy"), prepend=0) / source.schema.stream("policy").rate_hz
    kept = int((seconds <= np.median(seconds)).sum())
    assert 0 < kept < 6
    recipe = read_recipe("filtered.yaml", [f"short.max_seconds={np.median(seconds)}"])
    path = run_in_order(recipe, stages(recipe), isolate=False)
    metrics = json.loads(path.read_text())["stages"]["short"]["metrics"]
    assert metrics == {"episodes": kept, "dropped": 6 - kept}
    assert EpisodeStore.open(Path("runs/filtered/short/store.zarr")).num_episodes == kept


def test_new_stage_refuses_nonsense_before_anything_runs(folder: Path) -> None:
    main(["new", "stage", "refusing_stage"])
    text = (
        "stages:\n"
        "  demos: {uses: scripted}\n"
        "  short: {uses: 'refusing_stage:run', inputs: {demos: demos}, with: {max_seconds: -1.0}}\n"
    )
    (folder / "refused.yaml").write_text(text)
    with pytest.raises(HandoffError, match=r"short\.max_seconds"):
        stages(read_recipe("refused.yaml"))


def test_new_task_is_solved_by_its_expert_and_not_by_chance(folder: Path) -> None:
    assert main(["new", "task", "written_task"]) == 0
    task = find_task("written_task:task")
    solved, _ = expert_episodes(task, 4)
    assert solved.all()
    at_random, _ = random_episodes(task, 4)
    assert not at_random.any()


def test_new_task_is_used_by_a_recipe_and_its_code_is_part_of_the_cache_key(folder: Path) -> None:
    main(["new", "task", "keyed_task"])
    (folder / "keyed.yaml").write_text(
        "stages:\n  demos: {uses: scripted, with: {task: 'keyed_task:task', episodes: 2}}\n"
    )
    [demos] = stages(read_recipe("keyed.yaml"))
    before = outside_code(demos.config)
    assert list(before) == ["keyed_task"]
    file = folder / "keyed_task.py"
    file.write_text(file.read_text().replace("TOLERANCE = 0.015", "TOLERANCE = 0.016"))
    for function in (versions.code_version, versions._file_version):
        function.cache_clear()
    assert outside_code(demos.config) != before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recipe", "Bad-Name"], "expected a name of small letters"),
        (["stage", "class"], "expected a name of small letters"),
        (["stage", "json"], "there is a Python module json already"),
        (["task", "numpy"], "there is a Python module numpy already"),
    ],
)
def test_names_that_cannot_be_used_are_refused(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", *words]) == 1
    assert message in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_a_file_that_exists_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.yaml").write_text("mine")
    assert main(["new", "recipe", "mine.yaml"]) == 1
    assert "mine.yaml exists already" in capsys.readouterr().err
    assert (folder / "mine.yaml").read_text() == "mine"
