"""Writes the HTML report of a run: one page with metrics, which links plots and videos of the
artifacts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.runner.artifact import read_manifest
from robots.html_page import head, picture, video
from robots.storage.durable import write_atomically

if TYPE_CHECKING:
    from flows.reports.results import StageResult, Summary

PICTURES = (".png", ".jpg", ".svg")


def write_report(path: Path, summary: Summary) -> None:
    """Writes the report; links are relative, so the runs folder can be moved as a whole."""
    write_atomically(path, "\n".join(_page(path, summary)).encode(), shared=True)


def stage_files(folder: Path, stage: str) -> Iterator[str]:
    """Yields a heading, and the plots, videos and pages in the stage's folder.

    Args:
        folder: folder of the page.
        stage: name of the stage, and of the link to its artifact in `folder`.
    """
    yield f"<h2 id='{stage}'>{stage}</h2>"
    for file in sorted((folder / stage).glob("*")):
        source = f"{stage}/{file.name}"
        caption = file.stem.replace("_", " ")
        if file.suffix in PICTURES:
            yield picture(source, caption)
        elif file.suffix == ".mp4":
            yield video(source, caption)
        elif file.suffix == ".html":
            yield f"<p><a href='{source}'>{html.escape(caption)}</a></p>"


def _page(path: Path, summary: Summary) -> Iterator[str]:
    yield head(f"Handoff: {path.parent.name}")
    yield f"<h1>{html.escape(path.parent.name)}</h1><p class='soft'>{html.escape(summary.source)}</p>"
    yield "<div class='tiles'>"
    yield from _tiles(summary.metrics)
    yield "</div><table><tr><th>stage<th>result<th>time<th>cached</tr>"
    for result in summary.stages:
        yield _row(result)
    yield "</table>"
    yield from _comparisons(path.parent, summary)
    for result in summary.stages:
        yield from _stage(path.parent, result)
    yield "</html>"


def _tiles(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yields a tile for the figure that says most about each stage."""
    forms: Mapping[str, tuple[str, str]] = {
        "score": ("score", "{:.3f}"),
        "speedup": ("speedup", "{:.1f}x"),
        "latency_p99_ms": ("p99 latency", "{:.2f} ms"),
        "coverage": ("coverage", "{:.2f}"),
        "realtime_factor": ("speed", "{:.1f}x real time"),
        "precision": ("precision", "{:.3f}"),
        "recall": ("recall", "{:.3f}"),
        "recent_corrected": ("corrected steps", "{:.2f}"),
    }
    counts = {"success": "success", "recent_success": "success in training"}
    for name, value in metrics.items():
        stage, _, key = name.partition(".")
        if key in counts and isinstance(value, Mapping):
            text = f"{value['k']} of {value['n']}"
            yield f"<div class='tile'><b>{text}</b>{html.escape(stage)}: {counts[key]}</div>"
        elif key in forms and value is not None:
            label, form = forms[key]
            yield f"<div class='tile'><b>{form.format(value)}</b>{html.escape(stage)}: {label}</div>"


def _row(result: StageResult) -> str:
    from flows.reports.results import describe

    spent = f"{result.computed_seconds:.1f} s"
    cells = (
        result.name,
        html.escape(describe(result.uses, result.metrics)),
        spent,
        "yes" if result.cached else "no",
    )
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells) + "</tr>"


def _comparisons(folder: Path, summary: Summary) -> Iterator[str]:
    """Yields, for every protocol, a table of the policies that were evaluated under it."""
    by_protocol: dict[str, list[StageResult]] = {}
    for result in summary.stages:
        if result.uses == "evaluate":
            protocol = read_manifest(folder / result.name)["config"]["protocol"]["name"]
            by_protocol.setdefault(str(protocol), []).append(result)
    for protocol, results in by_protocol.items():
        yield f"<h2>Evaluations under the protocol {html.escape(protocol)}, with the same seeds</h2>"
        yield "<table><tr><th>stage<th>score<th>success<th>95 % interval</tr>"
        for result in results:
            success = result.metrics["success"]
            yield (
                f"<tr><td>{html.escape(result.name)}<td>{result.metrics['score']:.3f}"
                f"<td>{success['k']} of {success['n']}"
                f"<td>{success['low']:.2f} to {success['high']:.2f}</tr>"
            )
        yield "</table>"


def _stage(folder: Path, result: StageResult) -> Iterator[str]:
    yield from stage_files(folder, result.name)
    manifest = read_manifest(folder / result.name)
    chain = ", ".join(f"{name} {digest[:12]}" for name, digest in manifest["inputs"].items())
    yield f"<p class='soft'>digest <code>{result.digest[:12]}</code>, inputs: {chain}, code "
    yield f"<code>{manifest['code'][:12]}</code>, commit <code>{manifest['environment']['commit']}</code></p>"
    yield f"<details><summary>configuration and metrics</summary><pre>{_pretty(manifest)}</pre></details>"


def _pretty(manifest: Mapping[str, Any]) -> str:
    import json

    shown = {
        "config": manifest["config"],
        "metrics": manifest["metrics"],
        "environment": manifest["environment"],
    }
    return html.escape(json.dumps(shown, indent=2))
