"""The HTML report of a run: one self-contained page of figures, with pictures and videos beside the artifacts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.artifact import read_manifest

if TYPE_CHECKING:
    from flows.summary import StageResult, Summary

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #646b73; --line: #d9dde2; --paper: #fff; --card: #f6f7f9;
        --accent: #1769aa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ec; --soft: #99a1aa; --line: #33383e; --paper: #15171a;
        --card: #1d2024; --accent: #6cb4ee; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
       max-width: 1080px; padding: 2.5rem 1.5rem 5rem; }
h1 { font-size: 1.9rem; margin: 0 0 .2rem; } h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; }
p.soft, td.soft, figcaption { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: .8rem; margin: 1.6rem 0; }
.tile { background: var(--card); border-radius: .6rem; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.55rem; font-variant-numeric: tabular-nums; color: var(--accent); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
figure { margin: 1rem 0; } img, video { max-width: 100%; border-radius: .5rem; background: #fff; }
code { font-size: .88em; } details { margin: .6rem 0; } pre { overflow-x: auto; background: var(--card); padding: 1rem;
       border-radius: .5rem; font-size: .82rem; }
"""
PICTURES = (".png", ".jpg", ".svg")


def write_report(path: Path, summary: Summary) -> None:
    """Writes the report; pictures and videos are linked relative to it, so the runs folder can be moved as a whole."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("\n".join(_page(path, summary)))
    temporary.replace(path)


def _page(path: Path, summary: Summary) -> Iterator[str]:
    yield f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Handoff: {path.parent.name}</title>"
    yield f"<meta name='viewport' content='width=device-width, initial-scale=1'><style>{STYLE}</style>"
    yield f"<h1>From a hand to a robot's hand</h1><p class='soft'>{html.escape(summary.source)}</p>"
    yield "<div class='tiles'>"
    yield from _tiles(summary.metrics)
    yield "</div><table><tr><th>stage<th>result<th>time<th>cached</tr>"
    for result in summary.stages:
        yield _row(result)
    yield "</table>"
    yield from _comparison(summary.metrics)
    for result in summary.stages:
        yield from _stage(path.parent, result)
    yield "</html>"


def _tiles(metrics: Mapping[str, Any]) -> Iterator[str]:
    tiles = (
        ("pusht_score", "teacher score", "{:.3f}"),
        ("student_score", "one-step student", "{:.3f}"),
        ("student_speedup", "faster per chunk", "{:.1f}x"),
        ("latency_p99_ms", "p99 latency", "{:.2f} ms"),
        ("twin_coverage", "coverage on the FR3 twin", "{:.2f}"),
        ("twin_realtime_factor", "twin speed", "{:.1f}x real time"),
    )
    for key, label, form in tiles:
        if metrics.get(key) is not None:
            yield f"<div class='tile'><b>{form.format(metrics[key])}</b>{label}</div>"


def _row(result: StageResult) -> str:
    from flows.summary import describe

    spent = f"{result.computed_seconds:.1f} s"
    cells = (result.name, html.escape(describe(result.name, result.metrics)), spent, "yes" if result.cached else "no")
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells) + "</tr>"


def _comparison(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Teacher, student and the negative control under one protocol and the same seeds."""
    rows = (
        ("teacher, ten steps", "pusht"),
        ("student, one step", "student"),
        ("control: teacher in one step", "one_step_control"),
    )
    present = [(label, key) for label, key in rows if metrics.get(f"{key}_score") is not None]
    if not present:
        return
    yield "<h2>Push-T, published protocol, the same seeds for all</h2>"
    yield "<table><tr><th>policy<th>score<th>success<th>95 % interval</tr>"
    for label, key in present:
        success = metrics[f"{key}_success"]
        yield (
            f"<tr><td>{label}<td>{metrics[f'{key}_score']:.3f}<td>{success['k']} of {success['n']}"
            f"<td>{success['low']:.2f} to {success['high']:.2f}</tr>"
        )
    yield "</table>"


def _stage(folder: Path, result: StageResult) -> Iterator[str]:
    yield f"<h2 id='{result.name}'>{result.name}</h2>"
    artifact = folder / result.name
    for file in sorted(artifact.glob("*")):
        source = f"{result.name}/{file.name}"
        caption = f"<figcaption>{html.escape(file.stem.replace('_', ' '))}</figcaption>"
        if file.suffix in PICTURES:
            yield f"<figure><img src='{source}' alt='{file.stem}' loading='lazy'>{caption}</figure>"
        elif file.suffix == ".mp4":
            yield f"<figure><video src='{source}' controls loop muted playsinline></video>{caption}</figure>"
    manifest = read_manifest(artifact)
    chain = ", ".join(f"{name} {digest[:12]}" for name, digest in manifest["inputs"].items())
    yield f"<p class='soft'>digest <code>{result.digest[:12]}</code>, made from {chain}, code "
    yield f"<code>{manifest['code'][:12]}</code>, commit <code>{manifest['environment']['commit']}</code></p>"
    yield f"<details><summary>configuration and metrics</summary><pre>{_pretty(manifest)}</pre></details>"


def _pretty(manifest: Mapping[str, Any]) -> str:
    import json

    shown = {"config": manifest["config"], "metrics": manifest["metrics"], "environment": manifest["environment"]}
    return html.escape(json.dumps(shown, indent=2))
