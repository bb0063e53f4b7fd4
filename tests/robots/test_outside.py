"""Modules outside Handoff, found without running anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flows.runner.outside_code import outside_code
from robots.episodes.config import FieldMapConfig
from robots.outside import outside_module, split_target


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a script and a package, which fail if they are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "towel_script.py").write_text("raise SystemExit('it was run')\n")
    package = tmp_path / "towel_lab"
    (package / "tasks").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('it was run')\n")
    (package / "tasks" / "__init__.py").write_text("")
    (package / "tasks" / "wipe.py").write_text("def task(): ...\n")
    return tmp_path


def test_nothing_is_run_to_find_out_whether_a_name_is_code(here: Path) -> None:
    assert split_target("towel_script.zarr") == ("towel_script", "zarr")
    assert split_target("towel_lab.tasks.wipe") == ("towel_lab.tasks.wipe", "")
    assert split_target("towel_lab.tasks.wipe.task") == ("towel_lab.tasks.wipe", "task")
    assert outside_module("towel_lab.tasks.dry") == "towel_lab.tasks"
    assert outside_module("towel_lab.plans.dry") is None
    assert {"towel_script", "towel_lab"}.isdisjoint(sys.modules)


def test_a_data_set_with_the_name_of_a_script_is_no_code(here: Path) -> None:
    (here / "towel_script.zarr").mkdir()
    assert outside_code(FieldMapConfig(task="towel_script.zarr")) == {}
