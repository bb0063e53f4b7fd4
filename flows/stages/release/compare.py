"""Stage `compare`: compares evaluations under one protocol, grouped over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.artifacts import Comparison, Evaluation, Output
from flows.runner.artifact import read_manifest
from robots.errors import HandoffError
from robots.interfaces import Progress
from sim.evaluation.groups import CompareConfig

FIXED_SEEDS = True
TELEMETRY = ("report.html",)


def check(config: CompareConfig, sources: Mapping[str, Any]) -> None:
    """Refuses a single evaluation."""
    count = len(sources["evaluations"])
    if count < 2:
        raise HandoffError(
            f"compare: {count} evaluation, expected two or more. Name several stages, or one with a matrix."
        )


def run(
    config: CompareConfig,
    out: Path,
    progress: Progress,
    *,
    evaluations: Sequence[Evaluation],
) -> Output[Comparison]:
    """Compares `evaluations` and writes `report.html`, `comparison.json` and a chart to `out`.

    Evaluations whose names differ in their seed alone are one group; the first evaluation's group
    is the reference. With several evaluations per group AdaStop decides which groups differ, with
    one the episodes are paired.

    Raises:
        HandoffError: other protocols, one group only, or groups of different sizes.
    """
    from sim.evaluation.comparison import read_result
    from sim.evaluation.groups import compare_groups
    from sim.evaluation.groups_report import to_figures, write_comparison

    progress(0, 1, f"{len(evaluations)} evaluations")
    results = [
        replace(read_result(folder), name=read_manifest(folder)["stage"]) for folder in evaluations
    ]
    comparison = compare_groups(results, config)
    write_comparison(comparison, out)
    progress(1, 1, f"{len(comparison.groups)} groups")
    return Output(to_figures(comparison))
