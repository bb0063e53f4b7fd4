"""Summarises a run as a terminal table and as `summary.json`."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.reports.resolved_recipe import RECIPE, write_resolved_recipe
from flows.reports.results import StageResult, Summary, describe, headline_metrics
from flows.runner.artifact import write_json
from flows.runner.stage import StageOutcome
from robots.errors import HandoffError
from robots.storage.durable import temporary_beside

if TYPE_CHECKING:
    from rich.table import Table

READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a folder that this person may not write."""


class ReadOnlyError(HandoffError):
    """A folder of runs that cannot be written."""


def summarise(
    outcomes: Mapping[str, StageOutcome], started: float, peak_bytes: int, *, prefect: bool = True
) -> Summary:
    """Collects the outcomes of a run that began at `started` [s since the epoch]; `prefect` says
    whether Prefect ran it."""
    import time

    results = [_stage_result(name, outcome) for name, outcome in outcomes.items()]
    metrics = headline_metrics(results)
    metrics["peak_memory_gb"] = round(peak_bytes / 1e9, 3)
    metrics["stages_busy_seconds"] = round(_busy_seconds(list(outcomes.values())), 2)
    lines = {
        result.name: str(result.metrics["source_line"])
        for result in results
        if result.metrics.get("source_line")
    }
    named = len(lines) > 1
    source = "; ".join(f"{name}: {line}" if named else line for name, line in lines.items())
    return Summary(source, results, metrics).with_times(started, time.time(), prefect=prefect)


def write_results(
    runs: Path, name: str, summary: Summary, request: Mapping[str, Any] | None = None
) -> Path:
    """Writes `summary.json`, the resolved recipe, links to the artifacts and the HTML report of a
    recipe's run.

    Args:
        runs: folder of artifacts and results.
        name: subfolder of the run.
        summary: results of the run.
        request: recipe and overrides as they were given.

    Returns:
        The path of `summary.json`.

    Raises:
        ReadOnlyError: the folder cannot be written.
    """
    folder = runs / name
    try:
        return _write(folder, runs, name, summary, request or {})
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        raise ReadOnlyError(
            f"{folder}: the results of the run cannot be written: {error.strerror}. Is it a "
            "read-only share? The artifacts themselves are finished."
        ) from error


def _write(
    folder: Path, runs: Path, name: str, summary: Summary, request: Mapping[str, Any]
) -> Path:
    from flows.reports.page import write_report

    folder.mkdir(parents=True, exist_ok=True)
    for result in summary.stages:
        place_link(folder / result.name, runs / result.artifact)
    artifacts = {result.name: runs / result.artifact for result in summary.stages}
    write_resolved_recipe(folder / RECIPE, name, artifacts)
    write_report(folder / "report.html", summary)
    path = folder / "summary.json"
    rows = {result.name: asdict(result) for result in summary.stages}
    entries = {"source": summary.source, "stages": rows, "metrics": dict(summary.metrics)}
    write_json(path, {**entries, "request": dict(request)})
    return path


def write_cached_results(
    runs: Path, name: str, summary: Summary, request: Mapping[str, Any] | None = None
) -> Path:
    """Writes the results of a run that computed nothing; on a read-only share, the results of the
    same artifacts that are there already serve.

    Args and result are those of `write_results`.

    Raises:
        HandoffError: the folder cannot be written and has not these results.
    """
    try:
        return write_results(runs, name, summary, request)
    except ReadOnlyError:
        path = runs / name / "summary.json"
        if _artifacts_in(path) != {each.name: each.artifact for each in summary.stages}:
            raise
        return path


def _artifacts_in(path: Path) -> dict[str, str]:
    """Artifacts of the stages of a `summary.json`; empty if it cannot be read."""
    import json

    try:
        rows = json.loads(path.read_bytes())["stages"]
        return {name: row["artifact"] for name, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _stage_result(name: str, outcome: StageOutcome) -> StageResult:
    manifest = outcome.artifact.manifest
    return StageResult(
        name=name,
        uses=manifest.get("uses", ""),
        status="cached" if outcome.cached else "done",
        seconds=round(outcome.seconds, 3),
        cached=outcome.cached,
        computed_seconds=manifest["seconds"],
        artifact=f"artifacts/{outcome.artifact.path.name}",
        digest=outcome.artifact.digest,
        metrics=manifest["metrics"],
    )


def _busy_seconds(outcomes: Sequence[StageOutcome]) -> float:
    """Time in which at least one stage ran [s]."""
    total, covered_until = 0.0, 0.0
    for outcome in sorted(outcomes, key=lambda item: item.started):
        end = outcome.started + outcome.seconds
        total += max(0.0, end - max(outcome.started, covered_until))
        covered_until = max(covered_until, end)
    return total


def place_link(link: Path, target: Path) -> None:
    """Makes `link` a relative link to `target`, replacing an existing link atomically."""
    import os

    # Two runs of the same name may place it at once.
    temporary = temporary_beside(link)
    temporary.symlink_to(os.path.relpath(target, link.parent))
    os.replace(temporary, link)


def table(stages: Mapping[str, Mapping[str, Any]]) -> Table:
    """Formats the stages of a `summary.json` as a terminal table: stage, result, time, cached or
    not."""
    from rich.table import Table

    grid = Table(box=None, header_style="bold", pad_edge=False)
    for heading, justify in (
        ("stage", "left"),
        ("result", "left"),
        ("time", "right"),
        ("cached", "left"),
    ):
        grid.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for name, row in stages.items():
        spent = (
            f"{row['seconds']:.1f} s"
            if not row["cached"]
            else f"[dim]{row['computed_seconds']:.1f} s"
        )
        grid.add_row(
            name,
            describe(row["uses"], row["metrics"]),
            spent,
            "[dim]yes" if row["cached"] else "no",
        )
    return grid
