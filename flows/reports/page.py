"""Writes the HTML report of a run: one page with metrics, which links plots and videos of the
artifacts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.runner.artifact import read_manifest
from robots.html_page import head, picture, video

if TYPE_CHECKING:
    from flows.reports.results import StageResult, Summary

PICTURES = (".png", ".jpg", ".svg")


def write_report(path: Path, summary: Summary) -> None:
    """Writes the report; links are relative, so the runs folder can be moved as a whole."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("\n".join(_page(path, summary)))
    temporary.replace(path)


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
    yield f"<h1>From demonstrations to a robot</h1><p class='soft'>{html.escape(summary.source)}</p>"
    yield "<div class='tiles'>"
    yield from _tiles(summary.metrics)
    yield "</div><table><tr><th>stage<th>result<th>time<th>cached</tr>"
    for result in summary.stages:
        yield _row(result)
    yield "</table>"
    yield from _comparison(
        summary.metrics, any(result.name == "pretrain_student" for result in summary.stages)
    )
    for result in summary.stages:
        yield from _stage(path.parent, result)
    yield "</html>"


def _tiles(metrics: Mapping[str, Any]) -> Iterator[str]:
    tiles = (
        ("pusht_score", "teacher score", "{:.3f}"),
        ("student_score", "student", "{:.3f}"),
        ("student_speedup", "student speedup", "{:.1f}x"),
        ("latency_p99_ms", "p99 latency", "{:.2f} ms"),
        ("twin_coverage", "coverage on the twin", "{:.2f}"),
        ("twin_realtime_factor", "twin speed", "{:.1f}x real time"),
    )
    for key, label, form in tiles:
        if metrics.get(key) is not None:
            yield f"<div class='tile'><b>{form.format(metrics[key])}</b>{label}</div>"
    solved = metrics.get("twin_solved")
    if solved is not None and metrics.get("twin_coverage") is None:
        yield f"<div class='tile'><b>{solved['k']} of {solved['n']}</b>solved on the twin</div>"


def _row(result: StageResult) -> str:
    from flows.reports.results import describe

    spent = f"{result.computed_seconds:.1f} s"
    cells = (
        result.name,
        html.escape(describe(result.name, result.metrics)),
        spent,
        "yes" if result.cached else "no",
    )
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells) + "</tr>"


def _comparison(metrics: Mapping[str, Any], on_policy: bool) -> Iterator[str]:
    """Yields a table of teacher, student and negative control under one protocol with the same
    seeds.

    The control is the student before on-policy distillation, or the teacher in one step.
    """
    rows = (
        ("before fine-tuning", "pretrained"),
        ("teacher" if on_policy else "teacher, ten steps", "pusht"),
        ("student" if on_policy else "student, one step", "student"),
        (
            "control: student before distillation" if on_policy else "control: teacher in one step",
            "one_step_control",
        ),
    )
    present = [(label, key) for label, key in rows if metrics.get(f"{key}_score") is not None]
    if not present:
        return
    yield "<h2>Comparison under one protocol with the same seeds</h2>"
    yield "<table><tr><th>policy<th>score<th>success<th>95 % interval</tr>"
    for label, key in present:
        success = metrics[f"{key}_success"]
        yield (
            f"<tr><td>{label}<td>{metrics[f'{key}_score']:.3f}<td>{success['k']} of {success['n']}"
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
