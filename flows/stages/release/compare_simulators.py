"""Stage `compare_simulators`: compares policies in several simulators and at the twin, which shows
how far success in one carries over to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.artifacts import Comparison, Episodes, Evaluation, Output
from flows.evaluation.config import CompareSimulatorsConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

FIXED_SEEDS = True
TELEMETRY = ("report.html",)


def check(config: CompareSimulatorsConfig, sources: Mapping[str, Any]) -> None:
    """Refuses a single evaluation."""
    count = len(sources["evaluations"])
    if count < 2:
        raise HandoffError(
            f"compare_simulators: {count} evaluation, expected two or more. Name several stages that use `evaluate`."
        )


def run(
    config: CompareSimulatorsConfig,
    out: Path,
    progress: Progress,
    *,
    evaluations: Sequence[Evaluation],
    deployments: Sequence[Episodes] | None = None,
) -> Output[Comparison]:
    """Writes a table of success, `evaluations` and `deployments` to the twin as columns and their
    policies as rows, to `simulators.json` and `report.html` in `out`.

    Raises:
        HandoffError: a missing cell, or a column with several protocols.
    """
    from flows.evaluation.simulators import simulator_figures, write_simulators

    twins = deployments or ()
    progress(0, 1, f"{len(evaluations)} evaluations, {len(twins)} deployments")
    figures = simulator_figures(evaluations, twins, config)
    write_simulators(figures, out)
    return Output(figures)
