"""Reads the lineage of artifacts, back to the demonstrations, and writes it as an offline page: the
graph, the provenance of every artifact, and what differs between their computations."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.reports.explain import find_artifact, find_subject, last_artifacts
from flows.reports.provenance_text import NOT_RECORDED, provenance_rows
from flows.reports.run_records.reading import RecordedRun
from flows.reports.run_records.run_text import run_rows, stage_rows
from flows.runner.artifact import read_manifest
from robots.errors import HandoffError
from robots.html_page import FOOT, head, table
from robots.storage.durable import write_atomically

BOX_WIDTH, BOX_HEIGHT = 176, 58
"""Size of a box of the graph [px]."""
GAP_X, GAP_Y = 56, 22
"""Distances between columns and between boxes [px]."""
COMPARED = ("commit", "dirty", "python", "machine", "system", "host")
"""Entries of the environment that are compared, besides the installed packages."""
MOST_PACKAGES = 12
"""Number of differing packages that are named."""


@dataclass(frozen=True)
class LineageNode:
    """One artifact of a lineage."""

    path: Path
    manifest: Mapping[str, Any]
    inputs: Mapping[str, Path]
    """Folders of the artifacts that it was computed from, by the name of the input."""
    depth: int
    """Longest distance to an artifact in question, in stages."""

    @property
    def name(self) -> str:
        """Name of the stage."""
        return str(self.manifest["stage"])


def read_lineage(path: Path) -> list[LineageNode]:
    """Returns an artifact and all that it was computed from, the demonstrations first.

    Args:
        path: an artifact directory, or any file inside one.

    Raises:
        HandoffError: no such artifact, or an artifact of the lineage is missing.
    """
    return lineage_of([find_artifact(path)])


def lineage_of(paths: Sequence[Path]) -> list[LineageNode]:
    """Returns artifacts and all that they were computed from, the demonstrations first.

    Args:
        paths: artifact directories, without links.

    Raises:
        HandoffError: an artifact of the lineage is missing.
    """
    nodes: dict[Path, LineageNode] = {}
    for path in paths:
        _visit(path, 0, nodes)
    return sorted(nodes.values(), key=lambda node: (-node.depth, node.name))


def _visit(path: Path, depth: int, nodes: dict[Path, LineageNode]) -> None:
    known = nodes.get(path)
    if known is not None and known.depth >= depth:
        return
    manifest = read_manifest(path) if known is None else known.manifest
    links = manifest.get("input_paths", {})
    inputs = {label: (path / link).resolve() for label, link in links.items()}
    nodes[path] = LineageNode(path, manifest, inputs, depth)
    for source in inputs.values():
        _visit(source, depth + 1, nodes)


def computation_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Lists what differs between the computations of two artifacts, one phrase for each difference.

    Args:
        first: a manifest, or the entries `environment` and `lock` of the present installation.
        second: another one. Entries that one of them lacks are not compared.
    """
    phrases = []
    old, new = first.get("environment", {}), second.get("environment", {})
    for key in COMPARED:
        if key in old and key in new and old[key] != new[key]:
            phrases.append(f"{key} {old[key]} → {new[key]}")
    packages = _package_differences(first, second)
    phrases += packages[:MOST_PACKAGES]
    if len(packages) > MOST_PACKAGES:
        phrases.append(f"{len(packages) - MOST_PACKAGES} further packages")
    return phrases


def _package_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    old, new = _packages(first), _packages(second)
    if not old or not new:
        return []
    return [
        f"{name} {old.get(name, 'absent')} → {new.get(name, 'absent')}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _packages(manifest: Mapping[str, Any]) -> dict[str, str]:
    pairs = (
        entry.partition("==") for entry in manifest.get("lock", {}).get("packages", "").split()
    )
    return {name: number for name, _, number in pairs}


def write_page(subject: Path, out: Path, *, runs: Path = Path("runs")) -> Path:
    """Writes the lineage of an artifact, or of all artifacts of a run, as one HTML file that loads
    nothing.

    Args:
        subject: see `flows.reports.explain.find_subject`.
        out: path of the page.
        runs: folder in which a run is looked for by name.

    Returns:
        `out`.

    Raises:
        HandoffError: see `read_lineage`, or a run has no artifacts.
    """
    found = find_subject(subject, runs)
    if isinstance(found, RecordedRun):
        last = last_artifacts(found)
        if not last:
            raise HandoffError(f"run {found.folder}: it has no artifacts. Did no stage finish?")
        lines = list(_run_page(found, lineage_of(last)))
    else:
        lines = list(_page(lineage_of([found])))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, "\n".join(lines).encode())
    return out


def _page(nodes: Sequence[LineageNode]) -> Iterator[str]:
    last = nodes[-1]
    yield head(f"Lineage of {last.name}")
    yield f"<h1>Lineage of {html.escape(last.name)}</h1>"
    yield f"<p class='soft'>{html.escape(str(last.path))}, {len(nodes)} artifacts</p>"
    yield from _content(nodes, last)


def _run_page(run: RecordedRun, nodes: Sequence[LineageNode]) -> Iterator[str]:
    yield head(f"Lineage of the run {run.name}")
    yield f"<h1>Lineage of the run {html.escape(run.name)}</h1>"
    yield table(("entry", "value"), list(run_rows(run)))
    yield "<h2>Stages</h2>"
    yield table(("stage", "kind", "time", "digest", "result"), list(stage_rows(run)))
    # The artifact that was made last shows the present state of code and packages.
    newest = max(nodes, key=lambda node: str(node.manifest.get("finished", "")))
    yield "<h2>Artifacts</h2>"
    yield from _content(nodes, newest)


def _content(nodes: Sequence[LineageNode], reference: LineageNode) -> Iterator[str]:
    """Yields the graph, the differences from one artifact, and a section for each artifact."""
    yield _graph(nodes)
    yield "<h2>Differences between the computations</h2>"
    yield from _differences(nodes, reference)
    for node in reversed(nodes):
        yield from _section(node)
    yield FOOT


def _graph(nodes: Sequence[LineageNode]) -> str:
    """The graph as SVG: columns by depth, the demonstrations on the left."""
    places = _places(nodes)
    width = max(x for x, _ in places.values()) + BOX_WIDTH + 2
    height = max(y for _, y in places.values()) + BOX_HEIGHT + 2
    parts = [
        f"<figure style='overflow-x:auto'><svg viewBox='0 0 {width} {height}' width='{width}' "
        f"height='{height}' role='group' aria-label='lineage' font-size='13' "
        "font-family='system-ui, sans-serif'>"
    ]
    for node in nodes:
        parts += [_edge(places[source], places[node.path]) for source in set(node.inputs.values())]
    parts += [_box(node, *places[node.path]) for node in nodes]
    return "".join([*parts, "</svg></figure>"])


def _places(nodes: Sequence[LineageNode]) -> dict[Path, tuple[int, int]]:
    """Upper left corners of the boxes [px]."""
    deepest = max(node.depth for node in nodes)
    rows: dict[int, int] = {}
    places: dict[Path, tuple[int, int]] = {}
    for node in nodes:
        row = rows.get(node.depth, 0)
        rows[node.depth] = row + 1
        column = deepest - node.depth
        places[node.path] = (1 + column * (BOX_WIDTH + GAP_X), 1 + row * (BOX_HEIGHT + GAP_Y))
    return places


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x, y = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT // 2
    to_x, to_y = end[0], end[1] + BOX_HEIGHT // 2
    middle = (x + to_x) // 2
    curve = f"M{x} {y} C{middle} {y} {middle} {to_y} {to_x} {to_y}"
    return f"<path d='{curve}' fill='none' stroke='var(--soft)' stroke-width='1.5'/>"


def _box(node: LineageNode, x: int, y: int) -> str:
    name = node.name if len(node.name) <= 22 else node.name[:21] + "…"
    # A kind of stage outside Handoff is a dotted path.
    kind = re.split(r"[.:]", node.manifest.get("uses") or node.manifest["kind"])[-1]
    about = f"{kind} {node.manifest['digest'][:8]}"
    return (
        f"<a href='#{_anchor(node)}'><rect x='{x}' y='{y}' width='{BOX_WIDTH}' "
        f"height='{BOX_HEIGHT}' rx='8' fill='var(--card)' stroke='var(--accent)'/>"
        f"<text x='{x + 12}' y='{y + 24}' fill='var(--ink)' font-weight='600'>"
        f"{html.escape(name)}</text><text x='{x + 12}' y='{y + 44}' fill='var(--soft)'>"
        f"{html.escape(about)}</text></a>"
    )


def _anchor(node: LineageNode) -> str:
    return html.escape(f"artifact-{node.path.name}")


def _differences(nodes: Sequence[LineageNode], reference: LineageNode) -> Iterator[str]:
    """Yields what differs between each artifact and one of them."""
    rows = [
        (node.name, ", ".join(phrases))
        for node in nodes
        if (phrases := computation_differences(node.manifest, reference.manifest))
    ]
    if rows:
        yield table(("artifact", f"differs from {reference.name}"), rows)
    else:
        yield "<p>All recorded commits, computers and packages agree.</p>"


def _section(node: LineageNode) -> Iterator[str]:
    manifest = node.manifest
    yield f"<h2 id='{_anchor(node)}'>{html.escape(node.name)}</h2>"
    yield table(("entry", "value"), list(provenance_rows(manifest)))
    options = html.escape(json.dumps(manifest.get("config", {}), indent=2))
    yield f"<details><summary>options</summary><pre>{options}</pre></details>"
    packages = html.escape(manifest.get("lock", {}).get("packages", NOT_RECORDED))
    yield f"<details><summary>installed packages</summary><p>{packages}</p></details>"
