"""Learning checks are reported as a table and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.learning_report import plain, short

CHECK = """
import numpy as np
from tests.toy_envs.comparison import compare, runs

def test_one():
    compare({"good": lambda seed: 0.9 + 0.01 * seed, "bad": lambda seed: 0.1}, range(2), processes=1)
    compare({"good": lambda seed: 0.5}, range(2), processes=1)

def test_two():
    runs({"both": lambda seed: {"a": np.float32(seed), "b": [1, "x"]}}, range(2), processes=1)
    assert False
"""


def reported(tmp_path: Path, *names: str) -> str:
    """Runs checks with the plugin in a process of its own; returns what it printed."""
    files = []
    for name in names:
        files.append(tmp_path / f"test_{name}.py")
        files[-1].write_text(CHECK)
    command = [sys.executable, "-m", "pytest", "-p", "tests.learning_report", "--rootdir", tmp_path]
    command += ["-c", os.devnull, "-p", "no:cacheprovider", "--outcomes", tmp_path / "o.json"]
    root = {"PYTHONPATH": str(Path(__file__).parents[1])}
    found = subprocess.run(
        [str(word) for word in [*command, *files]],
        capture_output=True,
        text=True,
        env={**os.environ, **root},
        check=False,
    )
    assert found.returncode == 1, found.stdout + found.stderr
    return found.stdout


def test_the_table_has_outcome_time_and_arms_and_the_file_every_seed(tmp_path: Path) -> None:
    printed = reported(tmp_path, "first")
    assert "learning checks: 1, of which 0 are recorded with 0 CPU-minutes" in printed
    (row,) = (line for line in printed.splitlines() if line.startswith("first "))
    assert "1 passed, 1 FAILED" in row
    assert "good 0.905 [0.9, 0.91]; bad 0.1 [0.1, 0.1]; good (2) 0.5 [0.5, 0.5]" in row
    entry = json.loads((tmp_path / "o.json").read_text())["first"]
    assert (entry["passed"], entry["failed"]) == (1, 1)
    assert entry["arms"]["good"] == [0.9, 0.91]
    assert entry["arms"]["both"] == [{"a": 0.0, "b": [1.0, "x"]}, {"a": 1.0, "b": [1.0, "x"]}]
    assert entry["date"]
    assert entry["processor"]


def test_checks_that_did_not_run_stay_and_say_how_long_they_take(tmp_path: Path) -> None:
    reported(tmp_path, "first")
    table = json.loads((tmp_path / "o.json").read_text())
    table["first"]["cpu_minutes"] = 12.0
    (tmp_path / "o.json").write_text(json.dumps(table))
    printed = reported(tmp_path, "second")
    assert "learning checks: 1, of which 0 are recorded" in printed
    assert json.loads((tmp_path / "o.json").read_text())["first"]["cpu_minutes"] == 12.0
    again = reported(tmp_path, "first", "second")
    assert "learning checks: 2, of which 2 are recorded with 12 CPU-minutes" in again


def test_results_are_kept_as_plain_values_with_four_digits() -> None:
    assert plain((0.123456, True, None, "x")) == [0.1235, True, None, "x"]
    assert short([0.5, 1.0]) == "0.75 [0.5, 1]"
    assert short([{"a": 1.0}]) == ""
