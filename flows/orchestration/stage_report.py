"""Reports a stage on Prefect's web page: its log, its progress and its results.

Functions here are called inside a Prefect task.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.orchestration.served_results import served_at
from flows.reports.results import Summary, describe
from flows.runner.stage import StageOutcome

PROGRESS_SECONDS = 5.0
"""Time between two updates of a progress bar [s]; an update takes 10 to 20 ms."""
LOG_SECONDS = 30.0
"""Time between two lines of a stage's progress in the log [s]."""
PICTURES = (".png", ".jpg", ".gif")
"""Endings of the files that are shown as pictures."""
LARGEST_NUMBER = 6
"""Number of pictures of an artifact that are shown."""


class StageReport:
    """Log and progress bar of one stage."""

    def __init__(self, name: str) -> None:
        from prefect.logging import get_run_logger

        self._name = name
        self._log = get_run_logger()
        self._bar: Any = None
        self._shown = self._logged = time.monotonic()

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Reports progress; most calls do nothing."""
        now = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            self._log.info("%d of %d  %s", done, total, note)
        if now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            self._show(100.0 * min(done, total) / max(total, 1), note)

    def finished(self, uses: str, outcome: StageOutcome) -> None:
        """Reports the result of a stage that has finished."""
        manifest = outcome.artifact.manifest
        result = describe(uses, manifest["metrics"])
        spent = "cached" if outcome.cached else f"{outcome.seconds:.1f} s"
        self._log.info("%s: %s  %s", outcome.artifact.path.name, spent, result)
        if self._bar is not None:
            self._show(100.0, spent)
        write_markdown(self._name, stage_page(uses, outcome.artifact.path, manifest), result)

    def failed(self, message: str) -> None:
        """Reports the reason of a failure."""
        self._log.error("%s", message)

    def _show(self, percent: float, note: str) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        if self._bar is None:
            self._bar = create_progress_artifact(
                percent, key=artifact_key(f"{self._name}-progress"), description=note
            )
        else:
            update_progress_artifact(self._bar, progress=percent, description=note)


def artifact_key(name: str) -> str:
    """Returns the key of a Prefect artifact for a name: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def write_markdown(name: str, page: str, description: str) -> None:
    """Writes a page to the artifacts of the present task or flow run."""
    from prefect.artifacts import create_markdown_artifact

    create_markdown_artifact(page, key=artifact_key(name), description=description)


def stage_page(uses: str, artifact: Path, manifest: Mapping[str, Any]) -> str:
    """Formats the result of a stage: a phrase, its metrics, its pictures and its files.

    Args:
        uses: kind of the stage.
        artifact: folder of its artifact.
        manifest: manifest of the artifact.
    """
    rows = [f"| {name} | {_cell(value)} |" for name, value in _numbers("", manifest["metrics"])]
    lines = [describe(uses, manifest["metrics"]), ""]
    lines += ["| metric | value |", "|---|---|", *rows, ""] if rows else []
    names = [name for name in manifest["files"] if name.endswith(PICTURES)][:LARGEST_NUMBER]
    for name in names:
        address = served_at(artifact / name)
        lines += [f"![{name}]({address})" if address else f"`{artifact / name}`", ""]
    lines += _conditions(manifest["metrics"]) if uses == "gate" else []
    for name in [name for name in manifest["files"] if name.endswith(".html")]:
        address = served_at(artifact / name)
        lines += [f"[{name}]({address})" if address else f"`{artifact / name}`", ""]
    folder = served_at(artifact)
    lines.append(f"[{artifact.name}]({folder}/)" if folder else f"`{artifact}`")
    return "\n".join(lines)


def _conditions(metrics: Mapping[str, Any]) -> list[str]:
    """The conditions of a gate as a table."""
    rows = [
        f"| {_cell(each['name'])} | {_cell('' if each['value'] is None else each['value'])} | "
        f"{_cell('' if each['limit'] is None else each['limit'])} | {each['state']} |"
        for each in metrics["conditions"]
    ]
    return ["| condition | value | limit | verdict |", "|---|---|---|---|", *rows, ""]


def write_summary(summary: Summary, folder: Path) -> None:
    """Writes the results of a run to the artifacts of the present flow run: a table of the stages
    and a link to the report.

    Args:
        summary: results of the run.
        folder: folder of the results.
    """
    from prefect.artifacts import create_link_artifact, create_table_artifact

    rows = [
        {
            "stage": result.name,
            "result": describe(result.uses, result.metrics),
            "time [s]": round(result.computed_seconds, 1),
            "cached": "yes" if result.cached else "no",
            "digest": result.digest[:12],
        }
        for result in summary.stages
    ]
    if rows:
        create_table_artifact(rows, key="stages", description=summary.source)
    report = folder / "report.html"
    address = served_at(report)
    if address:
        create_link_artifact(address, "report", key="report")
    else:
        write_markdown("report", f"`{report}`", "path of the report")


def _numbers(prefix: str, metrics: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the numbers and short texts among metrics, nested ones by dotted names."""
    found: list[tuple[str, Any]] = []
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found += _numbers(f"{name}.", value)
        elif isinstance(value, int | float | str):
            found.append((name, value))
    return found


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
