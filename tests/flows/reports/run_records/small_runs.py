"""Runs of small stages in this process, for tests of their records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.attended import run_in_order
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe

SUMS = """
stages:
  numbers: {uses: "tests.flows.reports.drawing_stages:draw"}
  left: {uses: "tests.flows.reports.drawing_stages:add", inputs: {demos: numbers}}
  right: {uses: "tests.flows.reports.drawing_stages:add", inputs: {demos: numbers}}
"""
"""Numbers, and two sums of them, neither of which needs the other."""


def run_sums(tmp_path: Path, overrides: Sequence[str] = ()) -> Path:
    """Runs the stages, below `tmp_path`; returns the folder of the run."""
    file = tmp_path / "sums.yaml"
    file.write_text(SUMS)
    recipe = read_recipe(str(file), [f"runs={tmp_path / 'runs'}", *overrides])
    return run_in_order(recipe, stages(recipe), isolate=False).parent


def record_of(folder: Path) -> dict[str, Any]:
    """The record in the folder of a run."""
    return json.loads((folder / "run.json").read_text())
