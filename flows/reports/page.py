"""Writes the HTML report of a run: one page with metrics, which links plots and videos of the
artifacts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.reports.speed import SPEED, policy_speeds, speed_section
from flows.runner.artifact import read_manifest
from robots.html_page import (
    FOOT,
    banner,
    contents,
    head,
    heading,
    picture,
    scrolled,
    table,
    tiles,
    videos,
)
from robots.storage.durable import write_atomically

if TYPE_CHECKING:
    from flows.reports.results import StageResult, Summary

PICTURES = (".png", ".jpg", ".svg")
RESULTS, COMPARISONS = "Results", "Evaluations"
"""Sections before those of the stages."""
INGEST = "ingest"
"""Kind of the stage that imports a data set."""
GATE = "gate"
"""Kind of the stage that decides on a release."""


def write_report(path: Path, summary: Summary) -> None:
    """Writes the report; links are relative, so the runs folder can be moved as a whole."""
    write_atomically(path, "\n".join(_page(path, summary)).encode())


def stage_files(folder: Path, stage: str) -> Iterator[str]:
    """Yields a heading, and the plots, videos and pages in the stage's folder.

    Args:
        folder: folder of the page.
        stage: name of the stage, and of the link to its artifact in `folder`.
    """
    yield heading(stage)
    shown: list[tuple[str, str]] = []
    for file in sorted((folder / stage).glob("*")):
        source = f"{stage}/{file.name}"
        caption = file.stem.replace("_", " ")
        if file.suffix in PICTURES:
            yield picture(source, caption)
        elif file.suffix == ".mp4":
            shown.append((source, caption))
        elif file.suffix == ".html":
            yield f"<p><a href='{html.escape(source)}'>{html.escape(caption)}</a></p>"
    yield videos(shown)


def _page(path: Path, summary: Summary) -> Iterator[str]:
    folder = path.parent
    manifests = {result.name: read_manifest(folder / result.name) for result in summary.stages}
    compared = list(_comparisons(summary, manifests))
    yield head(f"Handoff: {folder.name}")
    yield f"<h1>{html.escape(folder.name)}</h1>"
    yield f"<p class='soft'>{html.escape(_made(manifests))}</p>"
    yield f"<p class='soft'>{html.escape(summary.source)}</p>"
    yield from _verdicts(summary)
    yield tiles(list(_tiles(summary)))
    speeds = policy_speeds(folder, summary, manifests)
    sections = [RESULTS, *([COMPARISONS] if compared else []), *([SPEED] if speeds else [])]
    yield contents([*sections, *(result.name for result in summary.stages)])
    yield heading(RESULTS)
    headings = "<tr><th>stage<th>result<th class='short'>time<th>cached</tr>"
    yield scrolled(headings + "".join(_row(result) for result in summary.stages))
    yield from compared
    if speeds:
        yield from speed_section(speeds)
    for result in summary.stages:
        yield from _stage(folder, result, manifests[result.name])
    yield FOOT


def _made(manifests: Mapping[str, Mapping[str, Any]]) -> str:
    """Date, machine, person and commit of the newest artifact of the run."""
    made = sorted(manifests.values(), key=lambda manifest: manifest.get("finished", ""))
    if not made:
        return ""
    environment = made[-1].get("environment", {})
    people = sorted({str(manifest["person"]) for manifest in made if manifest.get("person")})
    parts = [
        f"finished {made[-1].get('finished', '')}",
        f"on {environment['host']}" if environment.get("host") else "",
        f"by {', '.join(people)}" if people else "",
        f"commit {environment['commit']}" if environment.get("commit") else "",
    ]
    return ", ".join(part for part in parts if part)


def _verdicts(summary: Summary) -> Iterator[str]:
    """Yields the verdict of every gate, with a link to its release page."""
    for result in summary.stages:
        if result.uses != GATE:
            continue
        page = f"<a href='{html.escape(result.name)}/release.html'>release page</a>"
        loose = result.metrics.get("looser", ())
        if loose:
            limits = html.escape("; ".join(loose))
            text = f"{html.escape(result.name)}: released for simulated arms only, {page}."
            yield banner("warn", f"{text}<ul><li>limits looser than the defaults: {limits}</ul>")
        else:
            yield banner("good", f"{html.escape(result.name)}: released, {page}.")


def _tiles(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yields the figures that say most about the run, success first."""
    counts = {"success": "success", "recent_success": "success in training"}
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
    errors = {"false_success_share": "false successes", "missed_success_share": "missed successes"}
    kinds = {result.name: result.uses for result in summary.stages}
    successes, others = [], []
    for name, value in summary.metrics.items():
        stage, _, key = name.rpartition(".")
        if key in counts and isinstance(value, Mapping):
            tile = (f"{value['k']} of {value['n']}", f"{stage}: {counts[key]}")
            # What the released file does comes before what torch computed.
            successes.insert(0, tile) if kinds.get(stage) == GATE else successes.append(tile)
        elif key in errors:
            others.append((f"{value['k']} of {value['n']}", f"{stage}: {errors[key]}"))
        elif key in forms and value is not None:
            label, form = forms[key]
            others.append((form.format(value), f"{stage}: {label}"))
    yield from (*successes, *others)


def _row(result: StageResult) -> str:
    from flows.reports.results import describe

    spent = f"{result.computed_seconds:.1f} s"
    cells = (
        html.escape(result.name),
        html.escape(describe(result.uses, result.metrics)),
        spent,
        "yes" if result.cached else "no",
    )
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells) + "</tr>"


def _comparisons(summary: Summary, manifests: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields, for every protocol, a table of the policies that were evaluated under it."""
    by_protocol: dict[str, list[StageResult]] = {}
    for result in summary.stages:
        if result.uses == "evaluate":
            protocol = manifests[result.name]["config"]["protocol"]["name"]
            by_protocol.setdefault(str(protocol), []).append(result)
    if by_protocol:
        yield heading(COMPARISONS)
    for protocol, results in by_protocol.items():
        yield f"<p>Under the protocol {html.escape(protocol)}, with the same seeds:</p>"
        rows = []
        for result in results:
            success = result.metrics["success"]
            solved = f"{success['k']} of {success['n']}"
            interval = f"{success['low']:.2f} to {success['high']:.2f}"
            rows.append((result.name, f"{result.metrics['score']:.3f}", solved, interval))
        yield table(("stage", "score", "success", "95 % interval"), rows)


def _stage(folder: Path, result: StageResult, manifest: Mapping[str, Any]) -> Iterator[str]:
    yield from stage_files(folder, result.name)
    yield from _schema(result)
    chain = ", ".join(f"{name} {digest[:12]}" for name, digest in manifest["inputs"].items())
    yield f"<p class='soft'>digest <code>{result.digest[:12]}</code>, inputs: {chain}, code "
    commit = html.escape(str(manifest["environment"]["commit"]))
    yield f"<code>{manifest['code'][:12]}</code>, commit <code>{commit}</code></p>"
    yield f"<details><summary>configuration and metrics</summary><pre>{_pretty(manifest)}</pre></details>"


def _schema(result: StageResult) -> Iterator[str]:
    """Yields task, rate, robot and fields of imported episodes; nothing for an artifact of an older
    version."""
    metrics = result.metrics
    if result.uses == INGEST and "rate_hz" in metrics:
        about = [metrics["task"], f"{metrics['rate_hz']:g} Hz", metrics["robot"]]
        yield f"<p>{html.escape(', '.join(part for part in about if part))}</p>"
        yield table(("field", "content"), list(metrics["fields"].items()))


def _pretty(manifest: Mapping[str, Any]) -> str:
    import json

    shown = {
        "config": manifest["config"],
        "metrics": manifest["metrics"],
        "environment": manifest["environment"],
    }
    return html.escape(json.dumps(shown, indent=2))
