"""Writes the results of a session: `summary.json` and an HTML page with metrics, plots and
videos."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.hil.config import HilConfig
from flows.reports.page import stage_files
from flows.reports.summary import place_link
from flows.runner.artifact import read_manifest, write_json
from flows.runner.stage import StageOutcome
from robots.html_page import head, table
from robots.storage.durable import write_atomically


def write_session(
    name: str, config: HilConfig, outcomes: Mapping[str, StageOutcome], out: Path, seconds: float
) -> None:
    """Writes `summary.json`, links to the artifacts and `report.html` of the finished stages."""
    rows = {stage: _row(stage, outcome, out) for stage, outcome in outcomes.items()}
    summary = {
        "task": name,
        "operator": config.operator.kind,
        "reward": config.train.reward,
        "seconds": round(seconds, 2),
        "stages": rows,
        "metrics": _headline_metrics({stage: row["metrics"] for stage, row in rows.items()}),
    }
    write_json(out / "summary.json", summary)
    write_atomically(out / "report.html", "\n".join(_page(summary, out)).encode())


def _row(stage: str, outcome: StageOutcome, out: Path) -> dict[str, Any]:
    manifest = outcome.artifact.manifest
    place_link(out / stage, outcome.artifact.path)
    return {
        "cached": outcome.cached,
        "seconds": round(outcome.seconds, 3),
        "computed_seconds": manifest["seconds"],
        "artifact": f"artifacts/{outcome.artifact.path.name}",
        "digest": outcome.artifact.digest,
        "metrics": manifest["metrics"],
    }


def _headline_metrics(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the headline metrics of the finished stages."""
    sources = {
        "demonstrations": ("demonstrations", "episodes"),
        "classifier_precision": ("classifier", "precision"),
        "classifier_recall": ("classifier", "recall"),
        "steps": ("train", "steps"),
        "updates": ("train", "updates"),
        "recent_success": ("train", "recent_success"),
        "recent_corrected": ("train", "recent_corrected"),
        "cycle_seconds": ("train", "cycle_seconds"),
        "demonstrated_seconds": ("train", "demonstrated_seconds"),
        "success": ("evaluate", "success"),
        "student_success": ("evaluate_student", "success"),
        "parity": ("gate", "parity"),
        "student_speedup": ("gate", "speedup"),
    }
    return {
        name: stages[stage][key]
        for name, (stage, key) in sources.items()
        if key in stages.get(stage, {})
    }


def _page(summary: Mapping[str, Any], out: Path) -> Iterator[str]:
    title = f"HIL session: {summary['task']}"
    yield head(title)
    yield f"<h1>{html.escape(title)}</h1><p class='soft'>operator {summary['operator']}, success signal: "
    yield f"{'task' if summary['reward'] == 'task' else 'classifier'}</p><div class='tiles'>"
    for name, value in summary["metrics"].items():
        yield f"<div class='tile'><b>{_short(value)}</b>{html.escape(name.replace('_', ' '))}</div>"
    yield "</div>"
    rows = [
        (stage, f"{row['computed_seconds']:.1f} s", "yes" if row["cached"] else "no")
        for stage, row in summary["stages"].items()
    ]
    yield table(("stage", "time", "cached"), rows)
    for stage in summary["stages"]:
        yield from _stage(out, stage)
    yield "</html>"


def _stage(out: Path, stage: str) -> Iterator[str]:
    yield from stage_files(out, stage)
    rows = [(name, _short(value)) for name, value in read_manifest(out / stage)["metrics"].items()]
    yield f"<details><summary>metrics</summary>{table(('metric', 'value'), rows)}</details>"


def _short(value: Any) -> str:
    match value:
        case {"k": k, "n": n, "low": low, "high": high}:
            return f"{k} of {n} [{low:.2f}, {high:.2f}]"
        case float():
            return f"{value:.3g}"
        case _:
            return html.escape(str(value))
