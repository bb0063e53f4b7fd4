"""A folder of runs that is mounted read-only can be read, and what cannot be written is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows import run as runner
from flows.attended import run_in_order
from flows.commands.app import main
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.reports.reproduce import reproduce
from flows.runner.stage import run_stage
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.flows.read_only import read_only

RECIPE = """
stages:
  numbers: {uses: "tests.flows.reports.drawing_stages:draw"}
  total: {uses: "tests.flows.reports.drawing_stages:add", inputs: {demos: numbers}}
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The folder of a finished run, which lies in a folder of runs."""
    (tmp_path / "sums.yaml").write_text(RECIPE)
    recipe = read_recipe(str(tmp_path / "sums.yaml"), [f"runs={tmp_path / 'runs'}"])
    return run_in_order(recipe, stages(recipe), isolate=False).parent


def words(shared: Path, *overrides: str) -> list[str]:
    return [str(shared.parents[1] / "sums.yaml"), f"runs={shared.parent}", *overrides]


def snapshot(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*")}


def test_a_fake_share_refuses_writes_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    file = tmp_path / "share" / "file"
    file.write_text("x")
    with read_only(tmp_path / "share"):
        for write in (lambda: file.write_text("y"), file.unlink, (file.parent / "new").mkdir):
            with pytest.raises(OSError, match="Read-only file system"):
                write()
        assert file.read_text() == "x"
        (tmp_path / "elsewhere").write_text("z")
    file.write_text("y")


@pytest.mark.parametrize(
    "command",
    [
        lambda shared: ["plan", *words(shared)],
        lambda shared: ["plan", *words(shared, "numbers.count=5")],
        lambda shared: ["run", *words(shared)],
        lambda shared: ["show", str(shared)],
        lambda shared: ["explain", str(shared / "total"), "--verify"],
        lambda shared: ["gc", "--runs", str(shared.parent), "--dry-run", "--older-than", "0"],
    ],
    ids=["plan cached", "plan uncached", "run cached", "show", "explain", "gc dry run"],
)
def test_commands_that_compute_nothing_work(
    shared: Path, command, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(shared.parent)
    with read_only(shared.parent):
        assert main(command(shared)) == 0, capsys.readouterr().err
    assert snapshot(shared.parent) == before


def test_an_all_cached_run_returns_the_results_that_are_there(shared: Path) -> None:
    recipe, *overrides = words(shared)
    with read_only(shared.parent):
        path = runner.run(recipe, overrides)
    assert path == shared / "summary.json"
    assert json.loads(path.read_text())["stages"]["total"]["cached"] is False


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            lambda shared: ["run", *words(shared, "name=other")],
            "/other: the results of the run cannot be written: Read-only file system. Is it a",
        ),
        (
            lambda shared: ["reproduce", str(shared)],
            "the repetition cannot be written; --out FOLDER names another: Read-only file system",
        ),
        (
            lambda shared: ["gc", "--runs", str(shared.parent), "--older-than", "0"],
            "it cannot be deleted: Read-only file system. Is it writable",
        ),
    ],
    ids=["run", "reproduce", "gc"],
)
def test_what_cannot_be_written_is_one_line(
    shared: Path, command, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(shared.parent)
    unused(shared)
    with read_only(shared.parent):
        assert main(command(shared)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "unexpected" not in error
    assert before.keys() <= snapshot(shared.parent).keys()


def unused(shared: Path) -> None:
    """Adds what an interrupted stage has left."""
    (shared.parent / "artifacts" / "total-0123456789ab.partial").mkdir()


def test_a_stage_that_has_to_be_computed_is_refused_in_one_line(shared: Path) -> None:
    recipe = read_recipe(words(shared)[0], ["numbers.count=7"])
    [numbers, _] = stages(recipe)
    with (
        read_only(shared.parent),
        pytest.raises(HandoffError, match="stage numbers cannot be computed: Read-only file"),
    ):
        run_stage(numbers, {}, shared.parent, no_progress, isolate=False)
    again = read_recipe(words(shared)[0], [f"runs={shared.parent}", "name=more"])
    with (
        read_only(shared.parent),
        pytest.raises(HandoffError, match="the results of the run cannot be written: Read-only"),
    ):
        run_in_order(again, stages(again), isolate=False)


def test_a_run_on_a_share_is_repeated_in_another_folder(shared: Path, tmp_path: Path) -> None:
    with read_only(shared.parent):
        result = reproduce(shared, tmp_path / "repeated", isolate=False)
    assert [stage.status for stage in result.stages] == ["same", "same"]
