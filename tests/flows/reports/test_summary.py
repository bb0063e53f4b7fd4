"""Times and phrases of the summary."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.reports.results import Summary, describe
from flows.reports.summary import _busy_seconds
from flows.runner.artifact import Artifact
from flows.runner.stage import StageOutcome


def outcome(started: float, seconds: float) -> StageOutcome:
    return StageOutcome(Artifact("number", Path("nowhere"), "d"), False, seconds, started)


def test_time_of_parallel_stages_counts_once() -> None:
    # 0..10, 4..12 beside it, a gap, 20..25: 12 + 5 seconds.
    assert _busy_seconds([outcome(20, 5), outcome(0, 10), outcome(4, 8)]) == pytest.approx(17)


def test_stage_inside_another_adds_nothing() -> None:
    assert _busy_seconds([outcome(0, 10), outcome(2, 3)]) == pytest.approx(10)


def test_prefect_share_is_the_time_without_any_stage() -> None:
    summary = Summary("", [], {"stages_busy_seconds": 95.0}).with_times(started=1000.0, now=1100.0)
    assert summary.metrics["total_seconds"] == 100.0
    assert summary.metrics["prefect_share"] == 0.05


def test_a_run_without_prefect_has_no_share_of_it() -> None:
    summary = Summary("", [], {"stages_busy_seconds": 95.0})
    metrics = summary.with_times(started=1000.0, now=1100.0, prefect=False).metrics
    assert metrics == {"stages_busy_seconds": 95.0, "total_seconds": 100.0}


def test_a_comparison_of_deployments_is_described_by_their_success() -> None:
    metrics: dict[str, Any] = {
        "confidence": 0.95,
        "deployments": [
            {"name": "before", "success": {"k": 3, "n": 16}},
            {"name": "after", "success": {"k": 12, "n": 16}},
        ],
    }
    assert describe("compare_deployments", metrics) == "solved: before 3 of 16, after 12 of 16"
    metrics["parameters"] = [{"inside": True}, {"inside": False}]
    described = describe("compare_deployments", metrics)
    assert described.endswith("; 1 of 2 true parameters in their tuned intervals")


def test_evaluation_is_described_with_its_interval() -> None:
    success = {"k": 114, "n": 200, "low": 0.5, "high": 0.64}
    text = describe("evaluate", {"score": 0.9812, "success": success})
    assert text == "score 0.981, success 0.57 [0.50, 0.64] (n = 200)"


def test_a_comparison_of_too_few_seeds_says_that_it_cannot_decide() -> None:
    metrics = {
        "config": {"alpha": 0.05},
        "groups": [{"evaluations": ["a@seed=0", "a@seed=1"]}],
        "adastop": {"decisions": [], "smallest_p_value": 1 / 3},
    }
    assert describe("compare", metrics).startswith("2 evaluations per group are too few")
    metrics["adastop"] = {"decisions": [], "smallest_p_value": 0.01}
    assert describe("compare", metrics) == "no significant difference"


ALLOCATIONS = """
import subprocess, sys, time

import numpy as np

from flows.runner.memory import MemoryMeter

ALLOCATE = "import numpy, time; block = numpy.ones({}, numpy.uint8); time.sleep(2)"


def peak(own: int, child: int) -> int:
    with MemoryMeter() as meter:
        block = np.ones(own, np.uint8)
        subprocess.run([sys.executable, "-c", ALLOCATE.format(child)], check=True)
        del block
    return meter.peak_bytes


nothing = peak(1, 1)
print(peak(200_000_000, 1) - nothing, peak(1, 200_000_000) - nothing)
"""


def test_memory_meter_measures_allocations_of_a_process_and_of_its_child() -> None:
    # A process of its own: other tests' servers end while this test measures.
    ran = subprocess.run(
        [sys.executable, "-c", ALLOCATIONS], capture_output=True, text=True, check=True
    )
    own, child = (int(figure) for figure in ran.stdout.split())
    assert 160_000_000 < own < 240_000_000
    assert 160_000_000 < child < 240_000_000


def test_one_of_a_kind_is_told_in_the_singular() -> None:
    found = {"errors": 1, "warnings": 2, "episodes": 1}
    assert describe("examine", found) == "1 error, 2 warnings in 1 episode"


def test_a_policy_without_a_sampler_is_not_called_one_step() -> None:
    found = {"sampler": "one-step", "bytes": 2e6}
    assert describe("export", found) == "one pass of the network, 2.0 MB"
    assert describe("export", {**found, "sampler": "ddim-10"}) == "sampler ddim-10, 2.0 MB"
