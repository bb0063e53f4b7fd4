"""Prints the lineage of an artifact or of a whole run, back to the demonstrations."""

from __future__ import annotations

from collections.abc import Iterator
from glob import escape
from pathlib import Path
from typing import Any

from flows.reports.provenance_text import (
    NOT_RECORDED,
    computer_text,
    protocol_text,
    resources_text,
    seeds_text,
)
from flows.reports.results import describe
from flows.reports.run_records.reading import RecordedRun, is_run, read_run
from flows.reports.run_records.run_text import run_rows, stage_rows
from flows.runner.artifact import MANIFEST, MANIFEST_DIGEST, read_manifest, verify_files
from robots.errors import HandoffError


def find_artifact(path: Path) -> Path:
    """Returns the artifact directory that is `path` or contains it.

    Raises:
        HandoffError: the path does not exist, or is not part of an artifact.
    """
    if not path.exists():
        copies = sorted(str(one) for one in path.parent.glob(f"{escape(path.name)}@*"))
        if copies:
            raise HandoffError(f"{path} has several copies: {', '.join(copies)}.")
        raise HandoffError(
            f"{path} does not exist. Artifacts are in runs/artifacts, links to them in e.g. runs/demo; a run is a "
            "folder such as runs/demo."
        )
    resolved = path.resolve()
    for candidate in (resolved, *resolved.parents):
        if (candidate / MANIFEST).exists():
            return candidate
    made = sorted(path.glob(f"*/{MANIFEST}")) if is_run(path) else []
    named = ", ".join(str(manifest.parent) for manifest in made)
    hint = f" It is a run; name one of its artifacts: {named}." if made else ""
    raise HandoffError(f"{path} is not part of an artifact: no {MANIFEST} in it or above it.{hint}")


def find_subject(path: Path, runs: Path = Path("runs")) -> RecordedRun | Path:
    """Returns the run or the artifact directory that a path means.

    Args:
        path: name of a run, its folder, its `run.json` or `summary.json`, a record in its history;
            or an artifact directory, or any file inside one.
        runs: folder in which a run is looked for by name.

    Raises:
        HandoffError: neither a run nor part of an artifact.
    """
    if is_run(path):
        return read_run(path)
    if is_run(runs / path):
        return read_run(runs / path)
    return find_artifact(path)


def explain(path: Path, *, verify: bool = False, runs: Path = Path("runs")) -> str:
    """Returns the lineage of an artifact as indented text, newest first, the demonstrations last;
    of a run, its record, its stages and the lineage of all of its artifacts.

    Args:
        path: see `find_subject`.
        verify: also re-hashes every file in the lineage and compares all digests. An artifact of an
            older version has no digest of its manifest; its line states that.
        runs: folder in which a run is looked for by name.

    Raises:
        HandoffError: no such artifact or run, or with `verify`, an artifact in the lineage was
            changed after it was sealed.
    """
    subject = find_subject(path, runs)
    if isinstance(subject, RecordedRun):
        return "\n".join(_run_lines(subject, verify))
    return "\n".join(_lines(subject, "", verify, set()))


def last_artifacts(run: RecordedRun) -> list[Path]:
    """Returns the artifacts of a run from which no other one of it was made, such as evaluations
    and the twin's episodes, in the order of the stages."""
    paths = [path.resolve() for path in run.present.values()]
    used = {
        (path / link).resolve()
        for path in paths
        for link in read_manifest(path)["input_paths"].values()
    }
    return [path for path in dict.fromkeys(paths) if path not in used]


def _run_lines(run: RecordedRun, verify: bool) -> Iterator[str]:
    for name, text in run_rows(run):
        yield f"{name:<8} {text}"
    yield "stages"
    for name, uses, time, digest, result in stage_rows(run):
        yield f"    {name} ({uses}) {digest:<12} {time:<8} {result}".rstrip()
    visited: set[Path] = set()
    for path in reversed(last_artifacts(run)):
        yield ""
        yield from _lines(path, "", verify, visited)


def _lines(path: Path, indent: str, verify: bool, visited: set[Path]) -> Iterator[str]:
    manifest = read_manifest(path)
    name = f"{manifest['stage']} ({manifest['kind']}) {manifest['digest'][:12]}"
    if path in visited:
        yield f"{indent}{name}  (as above)"
        return
    visited.add(path)
    yield f"{indent}{name}{_verified(path) if verify else ''}"
    for fact in _facts(path, manifest):
        yield f"{indent}    {fact}"
    for label, link in manifest["input_paths"].items():
        source = (path / link).resolve()
        if verify:
            _check_input(path, label, manifest["inputs"][label], source)
        yield f"{indent}  └ {label}:"
        yield from _lines(source, indent + "    ", verify, visited)


def _verified(path: Path) -> str:
    manifest = verify_files(path)
    return (
        "  verified"
        if MANIFEST_DIGEST in manifest
        else "  files verified; an older manifest, which has no digest"
    )


def _check_input(path: Path, label: str, digest: str, source: Path) -> None:
    current = read_manifest(source)["digest"]
    if current != digest:
        raise HandoffError(
            f"artifact {path}: its input '{label}' had the digest {digest[:12]}, {source} now has {current[:12]}. "
            "Was it rebuilt? Run the recipe again."
        )


def _facts(path: Path, manifest: dict[str, Any]) -> Iterator[str]:
    yield f"path    {path}"
    yield f"result  {describe(manifest.get('uses', ''), manifest['metrics'])}"
    if protocol := protocol_text(manifest):
        yield f"under   protocol {protocol}"
    environment = manifest["environment"]
    yield f"made    {manifest['finished']} in {manifest['seconds']:.1f} s, commit {environment['commit']}"
    yield f"code    {manifest['code'][:12]}, seeds {seeds_text(manifest)}"
    yield f"person  {manifest.get('person', NOT_RECORDED)}"
    yield f"on      {computer_text(manifest)}"
    yield f"used    {resources_text(manifest)}"
    for label, digest in manifest["inputs"].items():
        if label not in manifest["input_paths"]:
            line = manifest["metrics"].get("source_line", "")
            yield f"{label:<7} sha256 {digest[:12]}  {line}".rstrip()
