"""Describes the record of a run, for text and pages."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from flows.reports.provenance_text import NOT_RECORDED
from flows.reports.results import describe
from flows.reports.run_records.reading import RecordedRun, run_state
from flows.runner.artifact import read_manifest


def run_rows(run: RecordedRun) -> Iterator[tuple[str, str]]:
    """Yields the entries of a record that a reader looks for, as name and text."""
    record = run.record
    yield "run", f"{run.name}, {_outcome(record)}"
    yield "folder", str(run.folder)
    if record:
        yield "command", shlex.join(record["command"])
        yield "started", f"{record['started']} in {run.working_directory}"
        yield "recipe", _recipe(run)
        yield "commit", _commit(record["checkout"])
        yield "people", ", ".join(record["people"]) or NOT_RECORDED
        yield "on", _computer(record)
        if record["prefect"]:
            yield "Prefect", f"flow run {record['prefect']['name']} {record['prefect']['id']}"
    if run.earlier:
        number = len(run.earlier)
        yield "earlier", f"{number} run{'s' * (number > 1)} in {run.earlier[0].parent}"


def stage_rows(run: RecordedRun) -> Iterator[tuple[str, str, str, str, str]]:
    """Yields name, kind, time, digest and result of every stage of the run."""
    present = run.present
    if not run.record:
        for name, path in present.items():
            manifest = read_manifest(path)
            result = describe(manifest.get("uses", ""), manifest["metrics"])
            yield name, manifest.get("uses", ""), "", manifest["digest"][:12], result
        return
    for name, entry in run.record["stages"].items():
        if entry["artifact"] is None:
            yield name, entry["uses"], "", "", "not finished"
            continue
        time = "cached" if entry["cached"] else f"{entry['seconds']:.1f} s"
        result = "its artifact was deleted"
        if name in present:
            result = describe(entry["uses"], read_manifest(present[name])["metrics"])
        yield name, entry["uses"], time, entry["digest"][:12], result


def unfinished(run: RecordedRun) -> Iterator[str]:
    """Yields what a reader must know of a run that did not finish: its state with the reason, and
    the stages without a result."""
    if not run.record or run_state(run.record) == "finished":
        return
    yield f"state    {_outcome(run.record)}"
    missing = [name for name, entry in run.record["stages"].items() if entry["artifact"] is None]
    if missing:
        yield f"missing  {', '.join(missing)}"


def _outcome(record: Mapping[str, Any]) -> str:
    if not record:
        return "recorded by an older version"
    state = run_state(record)
    ended = f" {record['ended']}" if record["ended"] else ""
    return f"{state}{ended}" + (f": {record['reason']}" if record["reason"] else "")


def _recipe(run: RecordedRun) -> str:
    recipe = run.record["recipe"]
    files = ", ".join(f"{name} sha256 {digest[:12]}" for name, digest in recipe["files"].items())
    named = f"{recipe['name'] or NOT_RECORDED}" + (f" ({files})" if files else "")
    return " ".join([named, *recipe["overrides"]])


def _commit(checkout: Mapping[str, Any]) -> str:
    diff = checkout["diff"]
    if diff is None:
        return str(checkout["commit"])
    text = f"{checkout['commit']} with the changes in {diff['file']}"
    if not diff["complete"]:
        text += f", cut from {diff['bytes']} bytes"
    if diff["left_out"]:
        text += f", without {', '.join(diff['left_out'])}"
    return text


def _computer(record: Mapping[str, Any]) -> str:
    computer, threads = record["computer"], record["threads"]
    parts = [computer["host"], f"{computer['processor']} with {computer['cores']} cores"]
    parts += computer["gpus"] or ["no GPU"]
    parts += [f"{name} {value}" for name, value in threads.items() if value is not None]
    return ", ".join([*parts, computer["system"], f"Python {computer['python']}"])
