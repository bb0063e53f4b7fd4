"""Stage `compare_deployments`: compares deployments from the same starts in pairs, and tuned
parameters with those of the twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.artifacts import Comparison, Dynamics, Episodes, Output
from flows.identification.config import CompareDeploymentsConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

FIXED_SEEDS = True
# Fonts decide some pixels of the pictures.
TELEMETRY = ("report.html", "*.png")


def check(config: CompareDeploymentsConfig, sources: Mapping[str, Any]) -> None:
    """Refuses a single deployment."""
    count = len(sources["deployments"])
    if count < 2:
        raise HandoffError(
            f"compare_deployments: {count} deployment, expected two or more. Name several stages that use `deploy`."
        )


def run(
    config: CompareDeploymentsConfig,
    out: Path,
    progress: Progress,
    *,
    deployments: Sequence[Episodes],
    dynamics: Dynamics | None = None,
) -> Output[Comparison]:
    """Pairs `deployments` by start and writes `deployments.json`, a chart and `report.html` to
    `out`; with `dynamics`, also the tuned parameters beside the true ones.

    Raises:
        HandoffError: deployments from other starts.
    """
    from flows.identification.transfer import compare_deployments
    from flows.identification.transfer_report import write_transfer

    progress(0, 1, f"{len(deployments)} deployments")
    figures = compare_deployments(deployments, dynamics, config)
    write_transfer(figures, out)
    return Output(figures)
