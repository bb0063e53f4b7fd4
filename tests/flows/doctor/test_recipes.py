"""Recipes in a folder: which files are recipes, and the first that does not resolve."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.config.files import CONFIGS
from flows.doctor import recipes
from flows.doctor.recipes import check_recipes, recipe_files, resolved

GOOD = "stages:\n  demos: {uses: scripted, with: {task: push_t, episodes: 2}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(GOOD.replace("episodes", "episods"))
    return tmp_path


@pytest.fixture
def one_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "shipped_recipes", lambda: ["demo"])


@pytest.mark.usefixtures("one_shipped")
def test_a_recipe_that_does_not_resolve_is_a_failure_with_its_error(folder: Path) -> None:
    here, shipped = check_recipes(folder, seconds=60.0)
    assert here.status == "failed"
    assert here.found.startswith(f"1 of 2 do not resolve; {folder / 'bad.yaml'}: ")
    assert "episods" in here.found
    assert here.advice == f"`handoff plan {folder / 'bad.yaml'}` checks it again."
    assert (shipped.name, shipped.status) == ("shipped recipes", "ok")
    assert shipped.found == "1 of 1 resolve"


@pytest.mark.usefixtures("one_shipped")
def test_a_folder_without_recipes_is_not_mentioned(tmp_path: Path) -> None:
    (check,) = check_recipes(tmp_path, seconds=60.0)
    assert check.name == "shipped recipes"


def test_code_beside_a_recipe_that_raises_is_an_error_of_the_recipe(folder: Path) -> None:
    (folder / "my_stage.py").write_text("raise ValueError('broken code')\n")
    recipe = folder / "own.yaml"
    recipe.write_text("stages:\n  mine: {uses: 'my_stage:run'}\n")
    assert "broken code" in (resolved([str(recipe)], 60.0)[str(recipe)] or "")


def test_recipes_behind_the_first_are_left_out_when_time_is_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "MOST_PROCESSES", 1)
    many = [str(folder / "good.yaml"), *(f"{folder}/good{index}.yaml" for index in range(200))]
    reached = resolved(many, seconds=0.0)
    assert reached[many[0]] is None
    assert len(reached) < len(many)


@pytest.mark.usefixtures("one_shipped")
def test_recipes_that_were_not_reached_are_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "resolved", lambda names, seconds: {})
    (check,) = check_recipes(tmp_path)
    assert check.status == "not checked"
    assert check.found == "0 of 1 resolve; there was no time for the others"


def test_files_that_are_no_recipes_are_left_alone(tmp_path: Path) -> None:
    for name, text in {
        "mkdocs.yaml": "site_name: x\n",
        "pipeline.yaml": "stages:\n  - build\n  - test\n",
        "_base.yaml": GOOD,
        "recipe.yml": GOOD,
        "list.yaml": "- 1\n",
        "not_yaml.yaml": "a: [1\n",
        "recipe.yaml": GOOD,
        "broken.yaml": f"{GOOD}a: [1\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert [file.name for file in recipe_files(tmp_path)] == ["broken.yaml", "recipe.yaml"]


def test_the_folder_of_the_shipped_recipes_has_none_of_ones_own() -> None:
    assert recipe_files(CONFIGS) == []
